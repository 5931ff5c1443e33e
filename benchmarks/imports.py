"""Import time of the packages, and start time of the command line.

Each sample is the wall time of a fresh interpreter. All samples read their bytecode from a directory that
is made for this run: otherwise, where no bytecode can be written beside the sources, only packages that pip
installed would be compiled.

`import pydantic` alone loads little; the first model loads the rest. Therefore the middleware's target is
stated relative to an import with one model.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # it may be started as a file
from benchmarks.interleaved import in_rounds, is_quick, print_table, verdict

COMMAND_LINE = Path(sys.executable).with_name("lifesign")
BARE = "python, nothing imported"
PYDANTIC = "import pydantic"
MODEL = "a pydantic model of one member"
MIDDLEWARE = "import lifesign.middleware"
HELP = "lifesign --help"
COMMANDS: dict[str, Sequence[str]] = {
    BARE: (sys.executable, "-c", "pass"),
    PYDANTIC: (sys.executable, "-c", "import pydantic; pydantic.BaseModel"),
    MODEL: (
        sys.executable,
        "-c",
        "import pydantic\nclass Model(pydantic.BaseModel):\n    member: int",
    ),
    MIDDLEWARE: (sys.executable, "-c", "import lifesign.middleware"),
    "import starlette.applications": (sys.executable, "-c", "import starlette.applications"),
    "import aiohttp": (sys.executable, "-c", "import aiohttp"),
    "import lifesign.client": (
        sys.executable,
        "-c",
        "from lifesign.client import fetch_health",
    ),
    HELP: (str(COMMAND_LINE), "--help"),
}


def starts(command: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Whether the command ends well; it leaves its bytecode."""
    try:
        return subprocess.run(command, capture_output=True, check=False, env=environment).returncode == 0
    except FileNotFoundError:
        return False


def timed(command: Sequence[str], environment: Mapping[str, str]) -> Callable[[], float]:
    def sample() -> float:
        began = time.perf_counter()
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True, env=environment)
        return (time.perf_counter() - began) * 1000

    return sample


def main() -> None:
    rounds = 7 if is_quick(__doc__) else 41
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with tempfile.TemporaryDirectory(prefix="lifesign-bench-") as bytecode:
        environment = {**inherited, "PYTHONPYCACHEPREFIX": bytecode}
        working = {name: command for name, command in COMMANDS.items() if starts(command, environment)}
        questions = {name: timed(command, environment) for name, command in working.items()}
        measured = in_rounds(questions, rounds=rounds)
    rows = []
    for name in COMMANDS:
        if name not in working:
            rows.append([name, "does not start", "", "", "", ""])
            continue
        above_model_ms = measured.added(name, MODEL)
        target = ""
        if name == MIDDLEWARE:
            target = "above a model " + verdict(above_model_ms, at_most=60)
        elif name == HELP:
            target = "in all " + verdict(measured.median(name), at_most=150)
        rows.append(
            [
                name,
                f"{measured.median(name):.0f}",
                f"{measured.added(name, PYDANTIC):+.0f}",
                f"{above_model_ms:+.0f}",
                f"{measured.ratio(name, BARE):.1f}",
                target,
            ]
        )
    print_table(
        "Wall time of a fresh interpreter, ms",
        ["", "in all", "above pydantic", "above a model", "x bare", "target"],
        rows,
    )


if __name__ == "__main__":
    main()
