import asyncio
import datetime as dt
import threading
import time
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace

import pytest
import schedule
from tests.support.servers import PATIENCE_SECONDS
from tests.support.virtual_loop import in_virtual_time, virtual_loop

from lifesign.errors import InvalidValue
from lifesign.prober.worker.jobs import Jobs


@pytest.fixture(autouse=True)
def _virtual_calendar(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library asks the calendar: it gets the virtual loop's."""

    class Calendar(dt.datetime):
        @classmethod
        def now(cls, tz: dt.tzinfo | None = None) -> "Calendar":
            try:
                return cls.fromtimestamp(virtual_loop().wall_s(), tz)
            except (RuntimeError, AssertionError):
                return cls.fromtimestamp(time.time(), tz)

    calendar = SimpleNamespace(**{**vars(dt), "datetime": Calendar})
    monkeypatch.setattr(schedule, "datetime", calendar)


async def run_for(jobs: Jobs, seconds: float) -> None:
    running = asyncio.create_task(jobs.run())
    await asyncio.sleep(seconds)
    assert not running.done()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


@in_virtual_time
async def test_job_runs_periodically_and_at_once_on_request() -> None:
    jobs, began_s = Jobs(virtual_loop().clock), virtual_loop().time()
    hourly: list[float] = []
    at_once: list[float] = []

    async def note(where: list[float]) -> None:
        where.append(round(virtual_loop().time() - began_s))

    async def note_hourly() -> None:
        await note(hourly)

    async def note_at_once() -> None:
        await note(at_once)

    jobs.add("hourly", 3_600, note_hourly)
    jobs.add("at once", 3_600, note_at_once, is_due_now=True)
    await run_for(jobs, 7_300)
    assert hourly == [3_600, 7_200]
    assert at_once == [0, 3_600, 7_200]


@pytest.fixture
def _in_berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


async def runs_of(step_s: float) -> list[int]:
    """Return when a minutely job runs. The clock makes a step after 250 s, and is right after 550 s."""
    loop = virtual_loop()
    ran_s: list[int] = []
    jobs, began_s = Jobs(loop.clock), loop.time()

    async def note() -> None:
        ran_s.append(round(loop.time() - began_s))

    jobs.add("minutely", 60, note)
    loop.call_later(250, partial(setattr, loop, "steps_s", loop.steps_s + step_s))
    loop.call_later(550, partial(setattr, loop, "steps_s", loop.steps_s))
    await run_for(jobs, 700)
    return ran_s


@pytest.mark.parametrize("step_s", [-157_680_000.0, -3_600.0, 30.0, 3_600.0, 34_560_000.0])
def test_jobs_keep_their_times_if_the_clock_is_set(step_s: float) -> None:
    found = in_virtual_time(partial(runs_of, step_s))()
    assert found == list(range(60, 661, 60))


@pytest.mark.usefixtures("_in_berlin")
@pytest.mark.parametrize("month_day", [(3, 29), (10, 25)])
def test_jobs_keep_their_times_when_daylight_saving_begins_or_ends(month_day: tuple[int, int]) -> None:
    changes_s = dt.datetime(2026, *month_day, 1, tzinfo=dt.UTC).timestamp()

    async def runs() -> list[int]:
        loop = virtual_loop()
        loop.steps_s = changes_s - 200 - loop.wall_s()
        return await runs_of(0.0)

    assert in_virtual_time(runs)() == list(range(60, 661, 60))


@in_virtual_time
async def test_failed_job_is_retried_and_does_not_stop_others(caplog: pytest.LogCaptureFixture) -> None:
    jobs = Jobs(virtual_loop().clock)
    failed, fine = [], []

    async def fail() -> None:
        failed.append(1)
        raise OSError("no disk")

    async def work() -> None:
        fine.append(1)

    jobs.add("pruning", 100, fail)
    jobs.add("report", 100, work)
    await run_for(jobs, 350)
    assert (len(failed), len(fine)) == (3, 3)
    assert [(record.levelname, record.args) for record in caplog.records] == [("ERROR", ("pruning",))] * 3
    assert all(record.exc_info for record in caplog.records)


@in_virtual_time
async def test_job_slower_than_its_period_never_runs_twice_concurrently() -> None:
    jobs = Jobs(virtual_loop().clock)
    at_work, most, other = 0, 0, []

    async def work() -> None:
        nonlocal at_work, most
        at_work += 1
        most = max(most, at_work)
        await asyncio.sleep(250)
        at_work -= 1

    async def note() -> None:
        other.append(1)

    jobs.add("refresh", 100, work)
    jobs.add("report", 100, note)
    await run_for(jobs, 1_050)
    assert most == 1
    assert len(other) == 10


@in_virtual_time
async def test_job_can_be_run_immediately() -> None:
    jobs, done = Jobs(virtual_loop().clock), []

    async def work() -> None:
        await asyncio.sleep(10)
        done.append(1)

    jobs.add("refresh", 3_600, work)
    await asyncio.gather(jobs.run_now("refresh"), jobs.run_now("refresh"))
    assert done == [1]
    with pytest.raises(KeyError):
        await jobs.run_now("something else")


@in_virtual_time
async def test_running_jobs_are_cancelled_at_the_end() -> None:
    jobs, ended = Jobs(virtual_loop().clock), []

    async def work() -> None:
        try:
            await asyncio.sleep(1e6)
        finally:
            ended.append(1)

    jobs.add("refresh", 3_600, work, is_due_now=True)
    await run_for(jobs, 10)
    assert ended == [1]


async def test_blocking_job_runs_in_a_thread() -> None:
    jobs = Jobs()
    may_end, where = threading.Event(), []

    def block() -> None:
        where.append(threading.current_thread())
        assert may_end.wait(PATIENCE_SECONDS)

    jobs.add("pruning", 3_600, block)
    running = asyncio.create_task(jobs.run_now("pruning"))
    for _ in range(100):
        await asyncio.sleep(0.001)
    assert not running.done()
    may_end.set()
    await running
    assert where != [threading.main_thread()]


@pytest.mark.parametrize("every_seconds", [0, -1, 0.5, float("nan"), float("inf")])
def test_invalid_time_is_refused(every_seconds: float) -> None:
    with pytest.raises(InvalidValue, match="every_seconds"):
        Jobs().add("job", every_seconds, lambda: None)


def test_action_name_means_one_job() -> None:
    jobs = Jobs()
    jobs.add("job", 10, lambda: None)
    with pytest.raises(InvalidValue, match="name"):
        jobs.add("job", 10, lambda: None)
