"""How long does it take to import us, and to start the command line?

Each sample is a fresh interpreter; what is compared is the wall time until it has ended. All have
their bytecode in a directory that is made for this: where none may be written beside the sources,
only what pip has installed would be compiled already.
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

COMMAND_LINE = Path(sys.executable).with_name("agent-health")
BARE = "python, nothing imported"
PYDANTIC = "import pydantic"
MIDDLEWARE = "import agent_health.middleware"
HELP = "agent-health --help"
COMMANDS: dict[str, Sequence[str]] = {
    BARE: (sys.executable, "-c", "pass"),
    PYDANTIC: (sys.executable, "-c", "import pydantic; pydantic.BaseModel"),
    "a pydantic model of one member": (
        sys.executable,
        "-c",
        "import pydantic\nclass Model(pydantic.BaseModel):\n    member: int",
    ),
    MIDDLEWARE: (sys.executable, "-c", "import agent_health.middleware"),
    "import starlette.applications": (sys.executable, "-c", "import starlette.applications"),
    "import aiohttp": (sys.executable, "-c", "import aiohttp"),
    "import agent_health.client": (
        sys.executable,
        "-c",
        "from agent_health.client import fetch_health",
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
    with tempfile.TemporaryDirectory(prefix="agent-health-bench-") as bytecode:
        environment = {**inherited, "PYTHONPYCACHEPREFIX": bytecode}
        working = {name: command for name, command in COMMANDS.items() if starts(command, environment)}
        questions = {name: timed(command, environment) for name, command in working.items()}
        measured = in_rounds(questions, rounds=rounds)
    rows = []
    for name in COMMANDS:
        if name not in working:
            rows.append([name, "does not start", "", "", ""])
            continue
        above_pydantic_ms = measured.added(name, PYDANTIC)
        target = ""
        if name == MIDDLEWARE:
            target = "above pydantic " + verdict(above_pydantic_ms, at_most=60)
        elif name == HELP:
            target = "in all " + verdict(measured.median(name), at_most=150)
        rows.append(
            [
                name,
                f"{measured.median(name):.0f}",
                f"{above_pydantic_ms:+.0f}",
                f"{measured.ratio(name, BARE):.1f}",
                target,
            ]
        )
    print_table(
        "Wall time of a fresh interpreter, ms", ["", "in all", "above pydantic", "x bare", "target"], rows
    )


if __name__ == "__main__":
    main()
