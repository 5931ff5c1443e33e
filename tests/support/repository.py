"""Files and history of the repository: a checkout, or an unpacked source distribution without git."""

import re
import subprocess
from functools import cache
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
MAY_BE_THERE = {".venv", ".git", "__pycache__", "build", "dist"}
"""Folders that running the tests creates in an unpacked source distribution."""


def git(*arguments: str, repository: Path = REPOSITORY) -> str:
    """Return the output of a git command, also if another user owns the checkout."""
    command = ["git", "-c", "safe.directory=*", *arguments]
    return subprocess.run(command, cwd=repository, capture_output=True, check=True).stdout.decode()


def tracked_files() -> list[Path]:
    """Return every file of the repository, as git lists them if it can."""
    if (REPOSITORY / ".git").exists():
        named = [REPOSITORY / name for name in git("ls-files", "-z").split("\0") if name]
    else:
        named = [path for path in REPOSITORY.rglob("*") if not _is_generated(path.relative_to(REPOSITORY))]
    return [file for file in named if file.is_file()]


@cache
def functions_of(file: Path) -> frozenset[str]:
    """Return the test functions that pytest finds in a file."""
    return frozenset(re.findall(r"^(?:async )?def (test_\w+)", file.read_text(), re.MULTILINE))


def _is_generated(path: Path) -> bool:
    return any(part in MAY_BE_THERE or part.startswith((".venv-", ".mypy", ".ruff")) for part in path.parts)
