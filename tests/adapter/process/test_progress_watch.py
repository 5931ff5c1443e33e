"""Progress of an agent's process, in a time of the test's own."""

import asyncio

from tests.support.virtual_loop import in_virtual_time, virtual_loop

from lifesign.adapter.process.progress_watch import LATE_SECONDS, ProgressWatch


@in_virtual_time
async def test_agent_counts_as_hung_after_the_time_since_its_last_progress() -> None:
    watch, began_s = ProgressWatch(), virtual_loop().time()
    waiting = asyncio.create_task(watch.wait_stalled(60))
    await asyncio.sleep(50)
    with watch.busy():
        pass
    await waiting
    assert virtual_loop().time() - began_s == 110


@in_virtual_time
async def test_running_tool_call_counts_as_progress() -> None:
    watch, began_s = ProgressWatch(), virtual_loop().time()
    waiting = asyncio.create_task(watch.wait_stalled(60))
    with watch.busy():
        await asyncio.sleep(300)
    assert not waiting.done()
    await waiting
    assert virtual_loop().time() - began_s == 360


@in_virtual_time
async def test_adapter_that_was_suspended_restarts_its_count() -> None:
    watch = ProgressWatch()
    waiting = asyncio.create_task(watch.wait_stalled(60))
    await asyncio.sleep(30)
    virtual_loop().stand_still(30 + LATE_SECONDS + 1)
    woken_s = virtual_loop().time()
    await waiting
    assert virtual_loop().time() - woken_s == 60
