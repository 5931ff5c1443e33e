"""Result of a check, and the common answer to several results."""

import os
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from lifesign.domain.text.durations import precise_text
from lifesign.storage.engine.sqlite import ROOM_BYTES

CLOCK_WARNING_SECONDS: Final = 2.0
"""Smaller differences are normal: a registry reports its time in whole seconds."""
CLOCK_FAULT_SECONDS: Final = 60.0
"""Above this difference, times of heartbeats and documents are unusable."""
ROOM_WARNING_BYTES: Final = 1_000_000_000
Verdict = Literal["ok", "warning", "fault", "skipped"]


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Result of one check of `lifesign doctor`."""

    about: str
    verdict: Verdict
    summary: str
    advice: str = ""
    """Remedy; empty if none is needed."""


def ahead_s(server_time_s: float, asked_s: float, answered_s: float) -> float:
    """Return by how many seconds a server's clock is ahead of ours, from the time in its answer.

    0 for any time in between: a slow answer is no wrong clock. Negative if the clock is behind.
    """
    return server_time_s - min(max(server_time_s, asked_s), answered_s)


def of_the_clock(about: str, whose: str, apart_s: float) -> CheckResult:
    """Check whether a clock agrees with this machine's; `apart_s` is how many seconds it is ahead."""
    if abs(apart_s) < CLOCK_WARNING_SECONDS:
        return CheckResult(about, "ok", f"{whose} agrees with this machine's clock")
    side = "ahead of" if apart_s > 0 else "behind"
    summary = f"{whose} is {precise_text(abs(apart_s))} {side} this machine's"
    if abs(apart_s) >= CLOCK_FAULT_SECONDS:
        return CheckResult(
            about, "fault", summary, "synchronise both clocks by NTP: timedatectl set-ntp true"
        )
    return CheckResult(about, "warning", summary, "synchronise both clocks by NTP: timedatectl set-ntp true")


def of_the_directory(directory: Path, about: str) -> Iterator[CheckResult]:
    """Check whether a directory exists, is writable, and has free disk space."""
    if not directory.is_dir():
        yield CheckResult(
            about, "fault", f"the directory {directory} does not exist", f"mkdir -p {directory}"
        )
        return
    if not os.access(directory, os.W_OK | os.X_OK):
        yield CheckResult(
            about,
            "fault",
            f"this user cannot write to {directory}",
            "change its owner (chown), or run as its owner",
        )
    free = shutil.disk_usage(directory).free
    summary = f"{_room(free)} free in {directory.absolute()}"
    if free < ROOM_BYTES:
        yield CheckResult("disk", "fault", summary, "free some space: changes cannot be stored")
    elif free < ROOM_WARNING_BYTES:
        yield CheckResult(
            "disk", "warning", summary, "free some space, or archive old events: --event-retention"
        )
    else:
        yield CheckResult("disk", "ok", summary)


def _room(free: int) -> str:
    """Say how much that is in the largest unit of which it is one."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if free >= size:
            return f"{free / size:.1f} {unit} are"
    return f"{free} bytes are"


def of_the_mode(file: Path, what: str) -> Iterator[CheckResult]:
    """Yield a warning if other users can read a file that contains secrets."""
    try:
        mode = stat.S_IMODE(file.stat().st_mode)
    except OSError:
        return
    if mode & 0o077:
        summary = f"{file} contains secrets, and other users can read it (mode {mode:04o})"
        yield CheckResult(what, "warning", summary, f"chmod 600 {file}")
