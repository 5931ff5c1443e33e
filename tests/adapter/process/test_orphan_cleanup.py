import asyncio
import os
from contextlib import suppress
from pathlib import Path

import pytest

from lifesign.adapter.process import orphan_cleanup
from lifesign.adapter.process.lease_environment import RUN_ID_VARIABLE
from lifesign.adapter.process.orphan_cleanup import Ended, end_remaining


async def test_orphan_is_killed_even_if_the_time_limit_has_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orphan_cleanup, "KILL_SECONDS", 0.0)
    run_id = f"run_of_{os.getpid()}_{tmp_path.name}"
    left = await asyncio.create_subprocess_exec("sleep", "1000", env={**os.environ, RUN_ID_VARIABLE: run_id})
    try:
        assert (await end_remaining([run_id])).killed == 1
    finally:
        with suppress(ProcessLookupError):
            left.kill()
        await left.wait()
    assert await end_remaining([run_id]) == Ended(0, 0)


async def test_cleanup_without_a_run_ends_no_process() -> None:
    assert await end_remaining([]) == Ended(0, 0)
