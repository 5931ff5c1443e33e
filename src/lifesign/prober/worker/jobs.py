"""Periodic jobs beside the probes: reading directories, writing reports, pruning history.

Each job runs at its interval, by the library `schedule`; targets have a schedule of their own. A job never
runs twice at once and delays no other job. After a failure it runs again at its next time.

The library compares local times, which jump if the clock is set and when daylight saving begins or ends. So
the times of all jobs move with each jump.
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from schedule import Scheduler

from lifesign.errors import InvalidValue
from lifesign.prober.network.clock import SYSTEM_CLOCK, Clock

MAX_JOBS: Final = 1_000
MIN_WAIT_SECONDS: Final = 0.1
MAX_WAIT_SECONDS: Final = 60.0
"""The clock may be set, so it is checked at least this often."""

_log = logging.getLogger("lifesign.prober")

JobFunction = Callable[[], Awaitable[object]] | Callable[[], object]
"""A coroutine function runs in the event loop; any other runs in a thread, and may be slow."""


@dataclass(slots=True)
class _Job:
    name: str
    function: JobFunction
    is_due: bool = False
    running: asyncio.Task[None] | None = field(default=None, repr=False)


class Jobs:
    """Runs functions at regular intervals."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._started = self._local_start()
        self._scheduler = Scheduler()
        self._jobs: dict[str, _Job] = {}

    def add(
        self, name: str, every_seconds: float, function: JobFunction, *, is_due_now: bool = False
    ) -> None:
        """Add a function to be run at an interval of at least one second, the first time at once if wanted.

        InvalidValue for a name that exists already, and for invalid intervals.
        """
        if name in self._jobs or len(self._jobs) >= MAX_JOBS:
            raise InvalidValue("name", name, f"a unique name, for at most {MAX_JOBS} jobs")
        if not 1 <= every_seconds < float("inf"):
            raise InvalidValue("every_seconds", every_seconds, "1 or more")
        job = self._jobs[name] = _Job(name, function, is_due=is_due_now)
        self._scheduler.every(round(every_seconds)).seconds.do(self._note_due, job)

    async def run(self) -> None:
        """Run functions when they are due, until cancelled. Threads that run then end by themselves."""
        try:
            while True:
                self._follow_clock()
                self._scheduler.run_pending()
                for job in self._jobs.values():
                    if job.is_due and job.running is None:
                        job.is_due = False
                        job.running = asyncio.create_task(self._do(job))
                idle_s = self._scheduler.idle_seconds or 0.0
                await asyncio.sleep(min(max(idle_s, MIN_WAIT_SECONDS), MAX_WAIT_SECONDS))
        finally:
            running = [job.running for job in self._jobs.values() if job.running is not None]
            for task in running:
                task.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.gather(*running, return_exceptions=True)

    async def run_now(self, name: str) -> None:
        """Run one function now, or wait for it if it runs already; KeyError for an unknown name."""
        job = self._jobs[name]
        if job.running is None:
            job.running = asyncio.create_task(self._do(job))
        await asyncio.shield(job.running)

    def _local_start(self) -> datetime:
        """Return the machine's start by its local clock. It changes only if that clock jumps."""
        local_now = datetime.fromtimestamp(self._clock.wall_s())  # noqa: DTZ006 - as the library
        return local_now - timedelta(seconds=self._clock.boot_s())

    def _follow_clock(self) -> None:
        started = self._local_start()
        for planned in self._scheduler.jobs:
            if planned.next_run is not None:
                planned.next_run += started - self._started
        self._started = started

    def _note_due(self, job: _Job) -> None:
        if job.running is not None:
            _log.warning("%s is still running and due again: the new run is skipped", job.name)
            return
        job.is_due = True

    async def _do(self, job: _Job) -> None:
        try:
            if inspect.iscoroutinefunction(job.function):
                await job.function()
            else:
                await asyncio.to_thread(job.function)
        except Exception:  # noqa: BLE001 - it comes round again, and the others with it
            _log.exception("%s failed; it runs again when it is due", job.name)
        finally:
            job.running = None
