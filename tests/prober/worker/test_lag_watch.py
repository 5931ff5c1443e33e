"""The loop that measures how late a prober's event loop is."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from tests.support.virtual_loop import in_virtual_time, virtual_loop

from lifesign.prober.definition.lag_limits import SelfCheck
from lifesign.prober.worker.lag_watch import LagWatch


class Watching:
    """A watch and its reports."""

    def __init__(self) -> None:
        self.loop = virtual_loop()
        self.check = SelfCheck(self.loop.time())
        self.turns: list[str | None] = []
        self.seconds = 0

    @contextlib.asynccontextmanager
    async def going_on(self) -> AsyncIterator[None]:
        watch = LagWatch(self.check, self.loop.clock, turned=self.turns.append, each_second=self._count)
        task = asyncio.create_task(watch.run())
        await asyncio.sleep(0.01)
        yield
        assert not task.done()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    def _count(self) -> None:
        self.seconds += 1


@in_virtual_time
async def test_a_loop_in_time_is_not_slow() -> None:
    watching = Watching()
    async with watching.going_on():
        await asyncio.sleep(150)
    assert watching.turns == []
    assert watching.seconds == pytest.approx(150, abs=20)


@in_virtual_time
async def test_stalled_process_counts_as_slow_for_a_while(caplog: pytest.LogCaptureFixture) -> None:
    watching = Watching()
    async with watching.going_on():
        await asyncio.sleep(5)
        watching.loop.stand_still(30)
        await asyncio.sleep(2)
        assert len(watching.turns) == 1
        assert watching.turns[0] is not None
        await asyncio.sleep(20)
    assert watching.turns[1:] == [None]
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]


@in_virtual_time
async def test_suspended_machine_is_slow_and_a_changed_wall_clock_is_not() -> None:
    watching = Watching()
    async with watching.going_on():
        await asyncio.sleep(5)
        watching.loop.steps_s += 3_600
        await asyncio.sleep(2)
        assert watching.turns == []
        watching.loop.suspended_s += 30
        await asyncio.sleep(2)
        assert len(watching.turns) == 1
