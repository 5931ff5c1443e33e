import asyncio

import pytest

from lifesign.registry.errors import BodyTooSlow
from lifesign.registry.request_handling import body_timeout
from lifesign.registry.request_handling.body_timeout import BodyTime


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_timeout, "MAX_BODY_SECONDS", 0.05)
    monkeypatch.setattr(body_timeout, "CHECK_SECONDS", 0.01)


async def _read_for_ever(time: BodyTime, began: asyncio.Event | None = None) -> None:
    with time:
        if began is not None:
            began.set()
        await asyncio.Event().wait()


async def test_overlong_bodies_are_aborted() -> None:
    time = BodyTime()
    ends = await asyncio.gather(*(_read_for_ever(time) for _ in range(3)), return_exceptions=True)
    assert [type(end) for end in ends] == [BodyTooSlow] * 3


async def test_ended_caller_may_continue() -> None:
    with pytest.raises(BodyTooSlow):
        await _read_for_ever(BodyTime())
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_timely_reader_is_not_disconnected() -> None:
    time = BodyTime()
    with time:
        await asyncio.sleep(0)
    with pytest.raises(BodyTooSlow):
        await _read_for_ever(time)
    await asyncio.sleep(0.03)


async def test_cancellation_by_another_task_is_not_turned_into_a_timeout() -> None:
    began = asyncio.Event()
    reading = asyncio.create_task(_read_for_ever(BodyTime(), began))
    await began.wait()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading


async def test_exception_of_the_reader_is_not_changed() -> None:
    def read() -> None:
        with BodyTime():
            raise LookupError("on purpose")

    with pytest.raises(LookupError):
        read()


async def test_no_timer_remains_without_a_reader() -> None:
    time = BodyTime()
    with time:
        await asyncio.sleep(0)
    await asyncio.sleep(0.03)
    assert time._timer is None
