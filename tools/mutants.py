"""Mutation tests of the central rules.

    .venv/bin/python -m tools.mutants [--only TEXT] [--processes N]

Each mutant changes one expression or statement of a module by one of fixed operators, and the module's tests
run with it. A mutant survives if they pass. Exit code 1 if fewer than 90 % are killed, if a survivor has no
explanation in `tools/mutant_survivors.txt`, or if an explanation has no survivor.
"""

import argparse
import ast
import contextlib
import io
import os
import resource
import signal
import sys
import types
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from pathlib import Path
from typing import Final, NamedTuple

import pytest

REPOSITORY: Final = Path(__file__).parents[1]
SURVIVORS: Final = REPOSITORY / "tools/mutant_survivors.txt"
LEAST_KILLED: Final = 0.9
MAX_CPU_SECONDS: Final = 10
"""A mutant that takes longer, such as a loop without an end, counts as killed. Unchanged: below 2 s."""
MAX_SECONDS: Final = 600
"""The same for a mutant that waits without an end; long, as the machine may be busy."""
PYTEST_OPTIONS: Final = [
    *("-q", "-x", "--tb=no", "--no-header", "-p", "no:cacheprovider", "-p", "no:xdist"),
    # The tests of the rules need no fixture of the registry, whose import takes longer than most tests.
    *("--noconftest", "-p", "tests.support.properties", "--hypothesis-profile=mutants"),
]
TESTED: Final = {
    "domain/tasks/lease": ["domain/tasks/test_lease.py"],
    "domain/tasks/budget": ["domain/tasks/test_budget.py"],
    "domain/lifecycle/verdict": ["domain/lifecycle/test_verdict.py"],
    "domain/lifecycle/status_table": ["domain/lifecycle/test_status_table.py"],
    "domain/lifecycle/heartbeat_timeout": [
        "domain/lifecycle/test_heartbeat_timeout.py",
        "domain/lifecycle/test_verdict.py",
    ],
    "domain/health/rolling_window": ["domain/health/test_rolling_window.py"],
    "domain/health/outcome": ["domain/health/test_outcome.py", "domain/a2a/test_response_outcome.py"],
}
"""Modules of `src/lifesign` with the test files that must notice their mutants."""

_COMPARISONS: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_ARITHMETIC: Final[dict[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
_CALLS: Final = {"min": "max", "max": "min", "any": "all", "all": "any"}


class Mutant(NamedTuple):
    """One change of one module."""

    module: str
    number: int
    line: int
    change: str

    @property
    def name(self) -> str:
        """How it is called in reports: stable as long as the line's text stays."""
        return f"{self.module}: {self.change}"


def changes_of(node: ast.AST) -> Iterator[tuple[str, Callable[[], None]]]:  # noqa: C901 - a table of operators
    """Return what may be changed at a node of the syntax tree, and what changes it."""
    match node:
        case ast.Compare(ops=ops):
            for at, operator in enumerate(ops):
                other = _COMPARISONS[type(operator)]
                change = f"{_word(operator)} to {_word(other())}"
                yield change, partial(ops.__setitem__, at, other())
        case ast.BoolOp(op=operator):
            swapped = ast.Or() if isinstance(operator, ast.And) else ast.And()
            yield f"{_word(operator)} to {_word(swapped)}", lambda: setattr(node, "op", swapped)
        case ast.BinOp(op=operator) | ast.AugAssign(op=operator) if type(operator) in _ARITHMETIC:
            to = _ARITHMETIC[type(operator)]()
            yield f"{_word(operator)} to {_word(to)}", lambda: setattr(node, "op", to)
        case ast.Constant(value=bool(value)):
            yield f"{value} to {not value}", lambda: setattr(node, "value", not value)
        case ast.Constant(value=(int() | float()) as number):
            yield f"{number} to {number + 1}", lambda: setattr(node, "value", number + 1)
        case ast.UnaryOp(op=ast.Not()):
            yield "drop not", lambda: setattr(node, "op", ast.UAdd())
        case ast.IfExp(test=test) | ast.If(test=test) | ast.While(test=test):
            yield "negate condition", lambda: setattr(node, "test", ast.UnaryOp(ast.Not(), test))
        case ast.Call(func=ast.Name(id=name)) if name in _CALLS:
            yield f"{name} to {_CALLS[name]}", lambda: setattr(node.func, "id", _CALLS[name])
        case ast.Return(value=value) if value is not None and not _is_none(value):
            yield "return None", lambda: setattr(node, "value", ast.Constant(None))


def _word(operator: ast.AST) -> str:
    return type(operator).__name__


def _is_none(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is None


def _places(tree: ast.Module) -> Iterator[tuple[ast.AST, str, Callable[[], None]]]:
    """Return all changes of a module in a fixed order; annotations and docstrings have none."""
    annotations = {
        id(inner)
        for node in ast.walk(tree)
        for field in ("annotation", "returns")
        if isinstance(part := getattr(node, field, None), ast.AST)
        for inner in ast.walk(part)
    }
    for node in ast.walk(tree):
        if id(node) not in annotations:
            for change, apply in changes_of(node):
                yield node, change, apply


def mutants_of(module: str) -> list[Mutant]:
    """Return all mutants of a module."""
    source = _source(module)
    lines = source.splitlines()
    found = []
    for number, (node, change, _) in enumerate(_places(ast.parse(source))):
        line = getattr(node, "lineno", 0)
        found.append(Mutant(module, number, line, f"{change} in `{lines[line - 1].strip()}`"))
    return found


def _source(module: str) -> str:
    return (REPOSITORY / "src/lifesign" / f"{module}.py").read_text()


class MutantFinder(MetaPathFinder, InspectLoader):
    """Loads one mutant in place of its module."""

    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant
        self._name = f"lifesign.{mutant.module.replace('/', '.')}"

    def find_spec(
        self, fullname: str, path: object = None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return where the mutant comes from."""
        del path, target
        if fullname != self._name:
            return None
        file = REPOSITORY / "src/lifesign" / f"{self._mutant.module}.py"
        return spec_from_loader(fullname, self, origin=str(file))

    def get_source(self, fullname: str) -> str:
        """Return the original."""
        del fullname
        return _source(self._mutant.module)

    def get_code(self, fullname: str) -> types.CodeType:
        """Return the code with its change."""
        tree = ast.parse(self.get_source(fullname))
        for number, (_, _, apply) in enumerate(list(_places(tree))):
            if number == self._mutant.number:
                apply()
        return compile(ast.fix_missing_locations(tree), f"{self._mutant.module}.py", "exec")


def survivors_among(mutants: Sequence[Mutant], processes: int) -> Iterator[Mutant]:
    """Run each mutant's tests in a process of its own; yield those that pass them in time."""
    running: dict[int, Mutant] = {}
    waiting = deque(mutants)
    while waiting or running:
        while waiting and len(running) < processes:
            mutant = waiting.popleft()
            pid = os.fork()
            if pid == 0:
                os._exit(_test_mutant(mutant))
            running[pid] = mutant
        pid, status = os.wait()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        mutant = running.pop(pid)
        if os.waitstatus_to_exitcode(status) == 0:
            yield mutant


def _test_mutant(mutant: Mutant) -> int:
    # A session of its own: what the tests started ends with it.
    os.setsid()
    signal.alarm(MAX_SECONDS)
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_SECONDS, MAX_CPU_SECONDS))
    sys.meta_path.insert(0, MutantFinder(mutant))
    try:
        return _test([mutant.module])
    except BaseException:  # noqa: BLE001 - a mutant may break anything
        return 1


def _test(modules: Sequence[str]) -> int:
    """Run the tests of modules. Afterwards only modules of others are imported, as these take the longest."""
    tests = dict.fromkeys(str(REPOSITORY / "tests" / file) for module in modules for file in TESTED[module])
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        result = pytest.main([*PYTEST_OPTIONS, *tests])
    for name in [name for name in sys.modules if name.partition(".")[0] in {"lifesign", "tests"}]:
        del sys.modules[name]
    return int(result)


def explained() -> dict[str, str]:
    """Return the explanations of survivors, by the names of the mutants."""
    # A name is a line of source text, which may contain a bar.
    pairs = (line.rsplit(" | ", 1) for line in SURVIVORS.read_text().splitlines() if " | " in line)
    return {name.strip(): reason.strip() for name, reason in pairs}


def main() -> int:
    """Run all mutants and print the survivors."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", metavar="TEXT", help="modules whose path contains TEXT")
    parser.add_argument("--processes", type=int, default=2, metavar="N", help="run N at a time (default: 2)")
    arguments = parser.parse_args()
    os.chdir(REPOSITORY)
    modules = [module for module in TESTED if arguments.only in module]
    if _test(modules):
        parser.error("a test fails without a change")
    mutants = [mutant for module in modules for mutant in mutants_of(module)]
    reasons = explained()
    survivors = []
    for mutant in survivors_among(mutants, arguments.processes):
        survivors.append(mutant)
        reason = reasons.get(mutant.name, "NOT EXPLAINED")
        print(f"survived, line {mutant.line}: {mutant.name} | {reason}", flush=True)
    for module in modules:
        total = sum(mutant.module == module for mutant in mutants)
        alive = sum(mutant.module == module for mutant in survivors)
        print(f"{module}: {total - alive} of {total} killed")
    names = {mutant.name for mutant in survivors}
    stale = [name for name in reasons if name.partition(":")[0] in modules and name not in names]
    for name in stale:
        print(f"explained, but killed or changed: {name}")
    ratio = 1 - len(survivors) / len(mutants) if mutants else 1.0
    print(f"{ratio:.1%} of {len(mutants)} mutants killed")
    return 0 if ratio >= LEAST_KILLED and names <= reasons.keys() and not stale else 1


if __name__ == "__main__":
    sys.exit(main())
