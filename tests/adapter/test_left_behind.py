"""What goes on of a run whose adapter or watchers are gone, and how is it ended?"""

import asyncio
import os
from contextlib import suppress
from pathlib import Path

import pytest

from agent_health.adapter import left_behind
from agent_health.adapter.lease_environment import RUN_ID_VARIABLE
from agent_health.adapter.left_behind import Ended, end_left


async def test_a_machine_that_stood_still_does_not_keep_it_from_being_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(left_behind, "KILL_SECONDS", 0.0)
    run_id = f"run_of_{os.getpid()}_{tmp_path.name}"
    left = await asyncio.create_subprocess_exec("sleep", "1000", env={**os.environ, RUN_ID_VARIABLE: run_id})
    try:
        assert (await end_left([run_id])).killed == 1
    finally:
        with suppress(ProcessLookupError):
            left.kill()
        await left.wait()
    assert await end_left([run_id]) == Ended(0, 0)


async def test_of_no_run_nothing_is_ended() -> None:
    assert await end_left([]) == Ended(0, 0)
