"""What goes on of a run whose adapter or watchers are gone, and how is it ended?

A process tells of which run it is by the environment that it was started with, as its warden and keeper do.
Where those were stopped, all that has another environment is still below them.
"""

import asyncio
import os
import signal
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Final

from agent_health.adapter import warden
from agent_health.adapter.lease_environment import RUN_ID_VARIABLE

KILL_SECONDS: Final = 10.0
"""For the kernel, to end processes that were killed; who is stuck in it is left."""


def _is_of_run(pid: int, run_ids: Collection[str]) -> bool:
    """Whether a process was started for one of these runs."""
    with suppress(OSError), Path(f"/proc/{pid}/environ").open("rb") as file:
        said = file.read(warden.MAX_JOB_BYTES).split(b"\0")
        return any(f"{RUN_ID_VARIABLE}={run_id}".encode() in said for run_id in run_ids)
    return False


async def end_left(run_ids: Collection[str], session: int | None = None) -> int:
    """Kill what goes on of these runs or in this session, and all below it; return how many that was.

    Until nothing of it is left, since who is killed may have forked just before; KILL_SECONDS at most.
    """
    if not run_ids and session is None:
        return 0
    give_up_s = asyncio.get_running_loop().time() + KILL_SECONDS
    killed: set[int] = set()
    while asyncio.get_running_loop().time() < give_up_s:
        left = await asyncio.to_thread(_found, run_ids, session)
        if not left:
            break
        for pid in left:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        killed |= left
        await asyncio.sleep(warden.KILL_AGAIN_MS / 1_000)
    return len(killed)


def _found(run_ids: Collection[str], session: int | None) -> set[int]:
    known = {
        pid for pid, (_, _, its) in warden.processes().items() if its == session or _is_of_run(pid, run_ids)
    }
    below = {pid for one in known for pid in warden.descendants(one)}
    return (known | below) - _ours()


def _ours() -> set[int]:
    """Return this process and those above it: what a run has started may be an adapter."""
    living = warden.processes()
    ours, pid = set[int](), os.getpid()
    while pid in living and pid not in ours:
        ours.add(pid)
        pid = living[pid][0]
    return ours
