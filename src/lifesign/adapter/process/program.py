"""Program of a command, and whether its user may run it."""

import os
import stat
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Final

from lifesign.adapter.errors import CommandFailed
from lifesign.adapter.process.agent_user import AgentUser

_MAX_FIRST_LINE_BYTES: Final = 256
"""The kernel looks no further for an interpreter."""


def program_called(name: str, user: AgentUser | None = None) -> Path:
    """Return the program with this name in PATH, or at this path, that `user` (None: this one) can start.

    CommandFailed if there is none: with which one was passed over and why.
    """
    passed_over = ""
    for place in _places(name):
        if not _is_there(place):
            continue
        why = _start_obstacle(place, user)
        if not why:
            return place.absolute()
        passed_over = passed_over or f"{place}: {why}"
    raise CommandFailed(passed_over or ("no such file" if os.sep in name else "no such file in PATH"))


def _places(name: str) -> Iterator[Path]:
    if os.sep in name:
        yield Path(name)
        return
    for directory in os.environ.get("PATH", os.defpath).split(os.pathsep):
        yield Path(directory) / name


def _is_there(place: Path) -> bool:
    # Unlike Path.is_file, this also works for files without access.
    return os.path.isfile(place)  # noqa: PTH113


def _start_obstacle(program: Path, user: AgentUser | None) -> str:
    """Return why an existing file cannot be started; an empty text if it can."""
    if not _may_start(program, user):
        return _obstacle(program, user)
    interpreter = _interpreter_of(program)
    if interpreter is None or not interpreter.is_absolute():
        return ""
    text = f"its first line names {str(interpreter)!r}"
    if not _is_there(interpreter):
        return f"{text}, which does not exist"
    return "" if _may_start(interpreter, user) else f"{text}: {_obstacle(interpreter, user)}"


def _may_start(program: Path, user: AgentUser | None) -> bool:
    """Ask the kernel, which applies all access rules."""
    try:
        with nullcontext() if user is None else user.rights():
            return os.access(program, os.X_OK, effective_ids=True)
    except PermissionError:
        raise CommandFailed("this process may not change its user") from None


def _obstacle(program: Path, user: AgentUser | None) -> str:
    """Return the obstacle to running a file, as far as modes show it."""
    if user is not None:
        for step in _steps(program.absolute()):
            for above in reversed(step.parents):
                if why := user.unsearchable_directory(above):
                    return why
    target = program.resolve()
    found = target.stat()
    return f"{target} has mode {stat.S_IMODE(found.st_mode):04o} and user {found.st_uid}"


def _steps(place: Path) -> Iterator[Path]:
    """Yield a path, and the targets of its links."""
    yield place
    while place.is_symlink():
        place = place.parent / place.readlink()
        yield place


def _interpreter_of(program: Path) -> Path | None:
    """Return the interpreter that the kernel starts for a script; None if it is no script, or unreadable."""
    try:
        with program.open("rb") as file:
            line = file.readline(_MAX_FIRST_LINE_BYTES)
    except OSError:
        return None
    words = line.removeprefix(b"#!").replace(b"\t", b" ").rstrip(b"\n").split(b" ")
    named = next((word for word in words if word), None)
    return Path(os.fsdecode(named)) if line.startswith(b"#!") and named else None
