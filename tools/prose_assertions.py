"""Assertions of the tests that compare with prose: `python -m tools.prose_assertions [--list]`.

Prose is a text with at least four words in a row. An assertion counts if an operand of `in`, `not in`, `==`
or `!=`, or the `match=` of `pytest.raises` and `pytest.warns`, contains prose. Names are followed to local
variables, to constants and tables of the module and of the test modules that it imports, to the parameters
of `pytest.mark.parametrize`, and to text files that a test reads.
"""

import argparse
import ast
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tools.syntax_tree import walked

REPOSITORY = Path(__file__).parents[1]
TESTS = REPOSITORY / "tests"

PROSE = re.compile(r"(?:\b[A-Za-z][a-z']*(?:-[a-z]+)*[`)\"]?[,;:.]? [(`\"]?){3}[A-Za-z][a-z']*\b")
COMPARED = (ast.In, ast.NotIn, ast.Eq, ast.NotEq)
MATCHING = {"raises", "warns"}
MAX_DEPTH = 8
"""Names that are followed from one assertion, one through the other."""


class ProseAssertion(NamedTuple):
    """An assertion that compares with prose."""

    path: Path
    line: int
    text: str


Names = Mapping[str, list[ast.expr]]


def prose_assertions(path: Path) -> Iterator[ProseAssertion]:
    """Return the assertions of a test module that compare with prose."""
    tree = ast.parse(path.read_text())
    module = _module_names(path, tree)
    for function in _functions(tree.body):
        nodes = walked(function)
        if operands := list(_operands(nodes)):
            names = {**module, **_assigned(nodes), **_parameters(function)}
            for line, operand in operands:
                for text in _texts(operand, names):
                    if PROSE.search(text):
                        yield ProseAssertion(path, line, text)


def _functions(statements: Iterable[ast.AST]) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Return the functions among statements and below them; no expression contains one."""
    for statement in statements:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            yield statement
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            yield from _functions(getattr(statement, name, ()))


def all_prose_assertions() -> list[ProseAssertion]:
    """Return the assertions of all test modules that compare with prose, each once."""
    found = {
        (assertion.path, assertion.line, assertion.text): assertion
        for path in sorted(TESTS.rglob("*.py"))
        for assertion in prose_assertions(path)
    }
    return list(found.values())


def _module_names(path: Path, tree: ast.Module) -> dict[str, list[ast.expr]]:
    """Return what names of a module stand for: its constants, and those that it imports from tests."""
    names: dict[str, list[ast.expr]] = {}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module is not None and node.module.startswith("tests."):
            source = REPOSITORY / f"{node.module.replace('.', '/')}.py"
            if source.is_file() and source != path:
                constants = _constants(source)
                names |= {
                    alias.asname or alias.name: constants[alias.name]
                    for alias in node.names
                    if alias.name in constants
                }
    return names | _assigned(tree.body)


# Not whole trees: Python's garbage collection would walk through those of all modules again and again.
@cache
def _constants(path: Path) -> dict[str, list[ast.expr]]:
    """Return the constants of a module that others import."""
    return _assigned(ast.parse(path.read_text()).body)


def _assigned(nodes: Sequence[ast.AST]) -> dict[str, list[ast.expr]]:
    names: dict[str, list[ast.expr]] = {}
    for node in nodes:
        if isinstance(node, ast.Assign):
            targets, value = node.targets, node.value
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
            targets, value = [node.target], node.value
        elif isinstance(node, ast.For):
            targets, value = [node.target], node.iter
        else:
            continue
        for target in targets:
            for name in ast.walk(target):
                if isinstance(name, ast.Name):
                    names.setdefault(name.id, []).append(value)
    return names


def _parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> dict[str, list[ast.expr]]:
    """Return the values of the function's parameters, as far as `pytest.mark.parametrize` shows them."""
    found: dict[str, list[ast.expr]] = {}
    for decorator in function.decorator_list:
        if (
            isinstance(decorator, ast.Call)
            and isinstance(decorator.func, ast.Attribute)
            and decorator.func.attr == "parametrize"
            and len(decorator.args) > 1
        ):
            names = ",".join(_texts(decorator.args[0], {})).replace(" ", "").split(",")
            for index, name in enumerate(names):
                found[name] = _column(decorator.args[1], index) if len(names) > 1 else [decorator.args[1]]
    return found


def _column(table: ast.expr, index: int) -> list[ast.expr]:
    """Return one column of a table of tuples or `pytest.param`; the whole table if it has another shape."""
    if not isinstance(table, ast.List | ast.Tuple):
        return [table]
    rows = [
        row.args if isinstance(row, ast.Call) else row.elts
        for row in table.elts
        if isinstance(row, ast.Call | ast.Tuple)
    ]
    return [row[index] for row in rows if index < len(row)]


def _operands(nodes: Sequence[ast.AST]) -> Iterator[tuple[int, ast.expr]]:
    """Return the compared expressions of each assertion among the nodes, with the assertion's line."""
    for node in nodes:
        if isinstance(node, ast.Assert):
            for compared in walked(node.test):
                if isinstance(compared, ast.Compare) and any(isinstance(op, COMPARED) for op in compared.ops):
                    yield from ((node.lineno, operand) for operand in (compared.left, *compared.comparators))
        elif (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MATCHING
        ):
            yield from ((node.lineno, word.value) for word in node.keywords if word.arg == "match")


def _texts(expression: ast.expr, names: Names, depth: int = 0) -> Iterator[str]:
    """Return the texts that an expression may stand for, or contain."""
    if depth > MAX_DEPTH:
        return
    if isinstance(expression, ast.Constant):
        if isinstance(expression.value, str):
            yield expression.value
    elif isinstance(expression, ast.JoinedStr):
        parts = (p.value if isinstance(p, ast.Constant) else "0" for p in expression.values)
        yield "".join(map(str, parts))
    elif isinstance(expression, ast.Name):
        for value in names.get(expression.id, []):
            yield from _texts(value, names, depth + 1)
    elif isinstance(expression, ast.Call):
        yield from _texts_of_call(expression, names, depth)
    else:
        for child in ast.iter_child_nodes(expression):
            if isinstance(child, ast.expr):
                yield from _texts(child, names, depth + 1)


def _texts_of_call(call: ast.Call, names: Names, depth: int) -> Iterator[str]:
    """Return the texts of a call's arguments; of `read_text`, those of the file that the path names."""
    if isinstance(call.func, ast.Attribute):
        if call.func.attr == "read_text":
            for name in _texts(call.func.value, names, depth + 1):
                file = _first_file(Path(name).name) if name.strip(".") else None
                if file is not None and file.suffix in {".txt", ".json", ".md"}:
                    yield file.read_text()
            return
        yield from _texts(call.func.value, names, depth + 1)
    if isinstance(call.func, ast.Attribute | ast.Name):
        for argument in (*call.args, *(word.value for word in call.keywords)):
            yield from _texts(argument, names, depth + 1)


@cache
def _first_file(name: str) -> Path | None:
    """Return the first of the files below `tests` whose name matches."""
    return min(TESTS.rglob(name), default=None)


def main() -> int:
    """Print how many assertions compare with prose, by folder, or list them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--list", action="store_true", help="print each assertion with its text")
    arguments = parser.parse_args()
    found = all_prose_assertions()
    if arguments.list:
        for assertion in found:
            text = " ".join(assertion.text.split())[:120]
            print(f"{assertion.path.relative_to(REPOSITORY)}:{assertion.line}: {text}")
    folders = Counter(assertion.path.relative_to(TESTS).parts[0] for assertion in found)
    for folder, count in folders.most_common():
        print(f"{count:5}  {folder}")
    print(f"{len(found):5}  assertions compare with prose")
    return 0


if __name__ == "__main__":
    sys.exit(main())
