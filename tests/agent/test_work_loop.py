import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.support.servers import PATIENCE_SECONDS

from lifesign.agent.errors import WorkDropped, WorkRefused
from lifesign.agent.registration import Load
from lifesign.agent.work_loop import WorkLoop
from lifesign.agent.work_sources import MAX_WAITING, Assignment, HandedIn
from lifesign.errors import InvalidValue


class Hands:
    """A handler whose work ends when the test decides."""

    def __init__(self) -> None:
        self.begun: list[Any] = []
        self.may_end = asyncio.Event()

    async def __call__(self, task: Any) -> Any:
        self.begun.append(task)
        await self.may_end.wait()
        if isinstance(task, BaseException):
            raise task
        return f"done {task}"

    async def until_begun(self, number: int) -> None:
        while len(self.begun) < number:  # noqa: ASYNC110 - the handler is to know nothing of the test
            await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def working(source: Any, hands: Hands, capacity: int | None = None) -> AsyncIterator[WorkLoop]:
    work = WorkLoop("a", source, hands.__call__, capacity)
    task = asyncio.create_task(work.run())
    try:
        yield work
    finally:
        task.cancel()
        work.drop_all("the test ends")
        await work.idle()
        await asyncio.gather(task, return_exceptions=True)


def outcome(assignment: Assignment) -> "asyncio.Future[Any]":
    assert assignment.outcome is not None
    return assignment.outcome


async def test_work_runs_concurrently_up_to_the_capacity_and_counts_as_load() -> None:
    source, hands = HandedIn("a"), Hands()
    async with working(source, hands, capacity=2) as work:
        given = [source.put(number, f"task-{number}" if number else None) for number in range(3)]
        await hands.until_begun(2)
        assert hands.begun == [0, 1]
        assert work.load() == Load(2, ("task-1",))
        hands.may_end.set()
        assert await asyncio.gather(*map(outcome, given)) == ["done 0", "done 1", "done 2"]
        await work.idle()
        assert work.load() == Load()


async def test_exception_of_the_handler_reaches_the_submitter() -> None:
    source, hands = HandedIn("a"), Hands()
    hands.may_end.set()
    async with working(source, hands):
        with pytest.raises(ZeroDivisionError):
            await outcome(source.put(ZeroDivisionError()))
        assert await outcome(source.put(1)) == "done 1"


async def test_dropped_work_is_cancelled_and_reported() -> None:
    source, hands = HandedIn("a"), Hands()
    async with working(source, hands) as work:
        given = source.put(1)
        await hands.until_begun(1)
        work.drop_all("incarnation 2")
        with pytest.raises(WorkDropped, match="incarnation 2"):
            await outcome(given)
        await asyncio.wait_for(work.idle(), PATIENCE_SECONDS)


async def test_work_that_is_dropped_before_its_first_step_is_not_begun() -> None:
    source, hands = HandedIn("a"), Hands()
    async with working(source, hands) as work:
        given = source.put(1)
        while not work.load().count:  # noqa: ASYNC110 - nothing tells when it is taken
            await asyncio.sleep(0)
        work.drop_all("at once")
        with pytest.raises(WorkDropped):
            await outcome(given)
        assert hands.begun == []
        assert work.load() == Load()


async def test_handler_that_returns_after_cancellation_does_not_count_as_finished() -> None:
    source = HandedIn("a")
    begun = asyncio.Event()

    async def stubborn(_task: Any) -> str:
        begun.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return "done"

    work = WorkLoop("a", source, stubborn, None)
    task = asyncio.create_task(work.run())
    given = source.put(1)
    await begun.wait()
    work.drop_all("it was given up")
    with pytest.raises(WorkDropped):
        await outcome(given)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_handler_that_ends_cancelled_without_being_dropped_has_failed() -> None:
    source, hands = HandedIn("a"), Hands()
    hands.may_end.set()
    async with working(source, hands):
        failed = source.put(asyncio.CancelledError())
        with pytest.raises(RuntimeError, match="CancelledError"):
            await outcome(failed)
        assert await outcome(source.put(1)) == "done 1"


async def test_no_work_begins_while_paused() -> None:
    source, hands = HandedIn("a"), Hands()
    hands.may_end.set()
    async with working(source, hands) as work:
        await asyncio.sleep(0)
        work.pause()
        # The source was waited for already.
        caught = source.put(1)
        with pytest.raises(WorkDropped, match="starts no work"):
            await outcome(caught)
        later = source.put(2)
        for _ in range(10):
            await asyncio.sleep(0)
        assert not outcome(later).done()
        work.resume()
        assert await outcome(later) == "done 2"
        assert hands.begun == [2]


async def test_closed_source_refuses_waiting_and_new_work() -> None:
    source = HandedIn("a")
    waiting = source.put(1)
    source.close("it leaves")
    with pytest.raises(WorkRefused, match="it leaves"):
        await outcome(waiting)
    with pytest.raises(WorkRefused, match="it leaves"):
        source.put(2)


async def test_amount_of_waiting_work_is_bounded() -> None:
    source = HandedIn("a")
    for number in range(MAX_WAITING):
        source.put(number)
    with pytest.raises(WorkRefused, match="1000 assignments"):
        source.put(MAX_WAITING)


@pytest.mark.parametrize("task_id", [5, "", "orders/2026 #17", "x" * 257])
async def test_task_id_that_heartbeats_cannot_send_is_refused(task_id: Any) -> None:
    with pytest.raises(InvalidValue, match="task_id"):
        HandedIn("a").put(1, task_id)


async def test_cancelled_work_is_not_started() -> None:
    source, hands = HandedIn("a"), Hands()
    hands.may_end.set()
    left, kept = source.put(1), source.put(2)
    outcome(left).cancel()
    async with working(source, hands):
        await outcome(kept)
        assert hands.begun == [2]


@pytest.mark.parametrize(
    "error",
    [OSError("away"), asyncio.CancelledError(), BaseExceptionGroup("", [asyncio.CancelledError()])],
    ids=repr,
)
async def test_failed_task_source_is_retried(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    monkeypatch.setattr("lifesign.agent.work_loop.SOURCE_RETRY_SECONDS", 0)
    source, hands = HandedIn("a"), Hands()
    hands.may_end.set()
    take, failures = source.take, [error] * 2

    async def fail_first() -> Assignment:
        if failures:
            raise failures.pop()
        return await take()

    source.take = fail_first  # type: ignore[method-assign]
    async with working(source, hands):
        assert await outcome(source.put(1)) == "done 1"
        assert caplog.text.count("could not get work") == 2


async def test_source_that_gives_no_new_assignment_is_asked_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lifesign.agent.work_loop.SOURCE_RETRY_SECONDS", 0)
    source, hands = HandedIn("a"), Hands()
    take = source.take
    first = Assignment(1, outcome=asyncio.get_running_loop().create_future())
    taken: list[Any] = [first, {"no": "assignment"}, first]

    async def take_wrong() -> Any:
        return taken.pop(0) if taken else await take()

    source.take = take_wrong  # type: ignore[method-assign]
    async with working(source, hands) as work:
        await hands.until_begun(1)
        while taken:  # noqa: ASYNC110 - the source is asked without an event
            await asyncio.sleep(0)
        hands.may_end.set()
        assert await outcome(first) == "done 1"
        assert await outcome(source.put(2)) == "done 2"
        await work.idle()
    assert caplog.text.count("not get work") == 2
