"""End of the processes of a run whose adapter or watcher is gone.

The environment at the start of a process identifies its run; the last argument does so for its watcher. If
the watcher was stopped, processes with another environment are still its descendants.
"""

import asyncio
import os
import signal
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from lifesign.adapter.process import process_watcher
from lifesign.adapter.process.lease_environment import RUN_ID_VARIABLE

KILL_SECONDS: Final = 10.0
"""Time for the kernel to end killed processes; one that is stuck in it is left."""
_WATCHER: Final = b"/adapter/process/process_watcher.py"


def _is_of_run(pid: int, run_ids: Collection[str]) -> bool:
    """Return whether a process was started for one of these runs, or is the watcher of one."""
    arguments = _parts_of(f"/proc/{pid}/cmdline")
    *_, program, _, mark = (b"", b"", b"", *arguments)
    if program.endswith(_WATCHER):
        return any(run_id.encode() == mark for run_id in run_ids)
    environment = _parts_of(f"/proc/{pid}/environ")
    return any(f"{RUN_ID_VARIABLE}={run_id}".encode() in environment for run_id in run_ids)


def _parts_of(file: str) -> list[bytes]:
    """Return the items of a kernel list; none if the process has ended or is hidden."""
    with suppress(*process_watcher.GONE), Path(file).open("rb") as opened:
        return opened.read(process_watcher.MAX_JOB_BYTES).removesuffix(b"\0").split(b"\0")
    return []


class Ended(NamedTuple):
    """Number of processes that were killed, and of those that still exist."""

    killed: int
    left: int


async def end_remaining(run_ids: Collection[str], session: int | None = None) -> Ended:
    """Kill all processes that these runs, or this session, have left, with their descendants.

    Repeated until none is left, since a killed process may have forked just before; KILL_SECONDS at most.
    OSError or RuntimeError if no descriptor or no thread is available for the search.
    """
    if not run_ids and session is None:
        return Ended(0, 0)
    give_up_s = asyncio.get_running_loop().time() + KILL_SECONDS
    killed: set[int] = set()
    # Killed once, and searched for once more at the end, however long the machine stands still.
    while left := await asyncio.to_thread(_find_processes, run_ids, session):
        if killed and asyncio.get_running_loop().time() >= give_up_s:
            break
        for pid in left:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        killed |= left
        await asyncio.sleep(process_watcher.KILL_AGAIN_SECONDS)
    return Ended(len(killed), len(left))


def _find_processes(run_ids: Collection[str], session: int | None) -> set[int]:
    known = {
        pid
        for pid, (_, _, its) in process_watcher.processes().items()
        if its == session or _is_of_run(pid, run_ids)
    }
    below = {pid for one in known for pid in process_watcher.descendants(one)}
    return (known | below) - _own_process_ids()


def _own_process_ids() -> set[int]:
    """Return this process and its ancestors: a process of a run may itself be an adapter."""
    living = process_watcher.processes()
    ours, pid = set[int](), os.getpid()
    while pid in living and pid not in ours:
        ours.add(pid)
        pid = living[pid][0]
    return ours
