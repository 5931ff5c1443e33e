"""Processes of a crawl: distribution of the work, and replacement of dead processes.

Each process claims its share of the shards from the ledger, like any other worker: there is no coordinator. A
dead process is replaced, after a wait that grows while its successors die too.
"""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Final

from lifesign.crawl.errors import CrawlStopped
from lifesign.crawl.pipe_reader import add_pipe_reader
from lifesign.crawl.process import run_worker, run_worker_process
from lifesign.crawl.progress_display import CrawlState
from lifesign.crawl.token_pipe import TokenOwner
from lifesign.crawl.worker_config import EXIT_SHARDS_WITHHELD, EXIT_UNFINISHED, WorkerConfig, WorkerStatus
from lifesign.domain.observation.results import ResultClass
from lifesign.domain.targets.target import SHARDS
from lifesign.domain.text.counts import plural, pluralize
from lifesign.loopback.listeners import IN_THIS_PROCESS
from lifesign.prober.errors import PassDelayed
from lifesign.prober.worker.claims import SHARD_TTL_SECONDS, takeover_s
from lifesign.prober.worker.progress_counts import Progress
from lifesign.serving.worker_start import (
    WorkerContext,
    WorkerProcess,
    death_text,
    main_with_listeners,
    start_worker,
)

FIRST_WAIT_SECONDS: Final = 1.0
"""Before a process that died is replaced; doubled each time that its successor dies early."""
MAX_WAIT_SECONDS: Final = 60.0
STEADY_SECONDS: Final = 60.0
"""A process that lived longer did not fail at its start."""
MAX_EARLY_DEATHS: Final = 5
"""Number of early deaths in a row of one worker slot that end the crawl."""
STOP_SECONDS: Final = 30.0
"""Time for a process to end before it is killed. It reports its results within it."""
MODULES: Final = ("lifesign.cli", "lifesign.crawl.process", "uvloop")
"""Modules of each process."""
DATABASE_MODULES: Final = ("lifesign.crawl.local_ledger", "lifesign.storage.engine.database")
"""Further modules of a process that uses the database itself."""


@dataclass(slots=True)
class WorkerStatuses:
    """Progress of all processes of a crawl, including dead ones."""

    total: int | None
    """Number of targets to probe; None: the crawl never ends."""
    workers: int | None = None
    """Number of processes; None: unknown during the start."""
    is_alone: bool = False
    """Whether no other machine can hold shards."""
    lease_s: float = SHARD_TTL_SECONDS
    """Duration of a process's lease on a shard without renewal."""
    listed: int | None = None
    """Number of targets in all shards, including those of other workers; None: not counted."""
    now: dict[str, Progress] = field(default_factory=dict)
    """By worker."""
    _past_reported: int = 0
    _past: Counter[ResultClass] = field(default_factory=Counter)
    _exited_probed: int = 0
    _past_unanswered: int = 0
    _past_missed: int = 0
    _past_failed_assertions: int = 0
    _exited_given_up: int = 0

    def note(self, worker: str, progress: Progress) -> None:
        """Store a worker's report about itself."""
        self.now[worker] = progress

    def keep_totals(self, worker: str) -> None:
        """Keep the sums of a worker that has died: its successor counts from zero."""
        progress = self.now.pop(worker, None)
        if progress is not None:
            self._past.update(progress.classes)
            self._exited_probed += progress.probed
            self._past_reported += progress.reported
            self._past_unanswered += progress.unanswered
            self._past_missed += progress.missed
            self._past_failed_assertions += progress.with_failed_assertions
            self._exited_given_up += progress.given_up

    @property
    def reported(self) -> int:
        """Number of reported results."""
        return self._past_reported + sum(progress.reported for progress in self.now.values())

    @property
    def elsewhere(self) -> int:
        """Number of shards that other crawls hold; 0 until all processes of this crawl have their share."""
        if self.is_alone or self.workers is None or self.starting:
            return 0
        return max(0, SHARDS - sum(progress.shards for progress in self.now.values()))

    @property
    def starting(self) -> int:
        """Number of processes that do not know their targets yet."""
        begun = sum(progress.has_begun for progress in self.now.values())
        return 0 if self.workers is None else max(0, self.workers - begun)

    @property
    def state(self) -> CrawlState:
        """Progress of all processes together."""
        results: Counter[ResultClass | None] = Counter()
        if self.total is not None:
            results.update(self._past)
        for progress in self.now.values():
            results.update(progress.latest if self.total is None else progress.classes)
        return CrawlState(
            probed=self._exited_probed + sum(progress.probed for progress in self.now.values()),
            total=self.total,
            results=results,
            listed=self.listed if self.is_alone and self.starting else None,
            unanswered=self._past_unanswered + sum(progress.unanswered for progress in self.now.values()),
            note="; ".join(self._notes()),
        )

    def _wrong_answers(self) -> list[str]:
        # In a crawl without an end, the successor of a process probes its targets again.
        past = 0 if self.total is None else self._past_failed_assertions
        failed = past + sum(progress.with_failed_assertions for progress in self.now.values())
        return [f"{pluralize(failed, 'target')} with failed assertions"] if failed else []

    def _notes(self) -> list[str]:
        now = self.now.values()
        notes = self._wrong_answers()
        if any(progress.is_ledger_unreachable for progress in now):
            notes.append(f"results cannot be stored: {sum(progress.held for progress in now):,} are waiting")
        if given_up := self._exited_given_up + sum(progress.given_up for progress in now):
            notes.append(f"{given_up:,} {plural(given_up, 'result was', 'results were')} lost")
        if slow := sorted({progress.slowness for progress in now if progress.slowness is not None}):
            notes.append(f"timeouts are not measured: {', '.join(slow)}")
        if unreached := sorted({name for progress in now for name in progress.unreached_classes}):
            notes.append(f"no witness answers in {', '.join(unreached)}: failures there are not measured")
        if (starting := self.starting) and self.workers != 1:
            notes.append(f"{starting} of {self.workers} processes {plural(starting, 'is', 'are')} starting")
        if elsewhere := self.elsewhere:
            notes.append(_work_elsewhere_text(elsewhere, self._targets_elsewhere(), self.lease_s))
        if self.total is None:
            late = [
                progress.start_error_p99_ms for progress in now if progress.start_error_p99_ms is not None
            ]
            if late:
                notes.append(f"started up to {max(late):,.0f} ms late (p99)")
        if missed := self._past_missed + sum(progress.missed for progress in now):
            notes.append(f"{pluralize(missed, 'due probe')} missed")
        return notes

    def _targets_elsewhere(self) -> int | None:
        if self.listed is None:
            return None
        return max(0, self.listed - sum(progress.targets for progress in self.now.values()))


def _work_elsewhere_text(shards: int, targets: int | None, lease_s: float) -> str:
    """Return which part of the work other workers have, and why."""
    with_targets = "" if targets is None else f" with {pluralize(targets, 'target')}"
    return (
        f"{shards:,} of {SHARDS:,} shards{with_targets} belong to another crawl; if that was killed, "
        f"its shards move within {takeover_s(lease_s):.0f} s"
    )


Report = Callable[[str, WorkerStatus], None]
"""Receives a worker's status, with its name."""


async def probe_all(
    shares: Sequence[WorkerConfig],
    stop: asyncio.Event,
    report: Report,
    died: Callable[[str], None],
    main: Callable[..., None] = run_worker_process,
    *,
    tokens: TokenOwner | None = None,
) -> bool:
    """Run a worker for each share until `stop` is set or a census is complete; return whether all is done.

    A single share is probed in this process, several in one process each. `died` is called for each replaced
    worker; `main` is the function of each process. `tokens` requests tokens for all processes. Raise
    CrawlStopped if replacements fail too, PassDelayed if a census can store no result for too long.
    """
    if len(shares) == 1:
        return await run_worker(shares[0], stop, partial(report, shares[0].worker))
    places = [
        asyncio.create_task(_ProcessSlot(share, report, died, main, tokens).keep(stop)) for share in shares
    ]
    try:
        return all(await asyncio.gather(*places))
    finally:
        for place in places:
            place.cancel()
        await asyncio.gather(*places, return_exceptions=True)


class _ProcessSlot:
    """One process of a crawl, and its successors."""

    def __init__(
        self,
        share: WorkerConfig,
        report: Report,
        died: Callable[[str], None],
        main: Callable[..., None],
        tokens: TokenOwner | None,
    ) -> None:
        self._share = share
        self._tokens = tokens
        self._main = main
        self._tell = partial(report, share.worker)
        self._died = died
        self._withheld: tuple[str, float] | None = None

    async def keep(self, stop: asyncio.Event) -> bool:
        """Run a worker process, and replace it if it dies, until it is done or `stop` is set.

        Return whether it is done.
        """
        loop = asyncio.get_running_loop()
        early_deaths = 0
        while True:
            began_s = loop.time()
            code = await self._live(stop)
            if code == 0:
                return True
            if stop.is_set() or code == EXIT_UNFINISHED:
                return False
            if code == EXIT_SHARDS_WITHHELD and self._withheld is not None:
                raise PassDelayed(*self._withheld)
            early_deaths = 0 if loop.time() - began_s >= STEADY_SECONDS else early_deaths + 1
            if early_deaths >= MAX_EARLY_DEATHS:
                raise CrawlStopped(self._share.worker, early_deaths)
            self._died(self._share.worker)
            wait_s = min(MAX_WAIT_SECONDS, FIRST_WAIT_SECONDS * 2 ** max(0, early_deaths - 1))
            text = f"{self._share.worker} died ({death_text(code)}): it is replaced in {wait_s:g} s"
            self._tell(WorkerStatus(line=text))
            if await _is_set_within(stop, wait_s):
                return False

    async def _live(self, stop: asyncio.Event) -> int:
        """Run one process to its end, and return its exit code."""
        loop = asyncio.get_running_loop()
        ours, *theirs = Pipe()
        answering: AbstractContextManager[None] = nullcontext()
        if self._tokens is not None:
            token_pipe, their_token_pipe = Pipe()
            theirs.append(their_token_pipe)
            answering = self._tokens.answering(token_pipe)

        def new_process(context: WorkerContext) -> WorkerProcess:
            return context.Process(**main_with_listeners(self._main, self._share, *theirs), daemon=True)

        modules = MODULES if self._share.database is None else (*MODULES, *DATABASE_MODULES)
        process = start_worker(new_process, modules)
        for pipe in theirs:
            pipe.close()
        # Its end of the pipe is closed when it has ended. The sentinel can be ready before, see EXIT_UNKNOWN.
        ended = asyncio.Event()
        add_pipe_reader(loop, ours, self._receive_status, ours, ended)
        stopping = asyncio.create_task(_request_end(process, stop, ended))
        try:
            with answering:
                await ended.wait()
        finally:
            stopping.cancel()
            loop.remove_reader(ours.fileno())
            if not ended.is_set():
                # After a cancellation, no other code would wait for it.
                _send_signal(process, signal.SIGKILL)
            process.join()
            ours.close()
        return process.exitcode or 0

    def _receive_status(self, pipe: Connection, ended: asyncio.Event) -> None:
        """Pass on the messages of the process."""
        try:
            while pipe.poll():
                status: WorkerStatus = pipe.recv()
                IN_THIS_PROCESS.learn(status.first_users)
                self._withheld = status.withheld or self._withheld
                self._tell(status)
        except (EOFError, OSError):
            asyncio.get_running_loop().remove_reader(pipe.fileno())
            ended.set()


async def _request_end(process: WorkerProcess, stop: asyncio.Event, ended: asyncio.Event) -> None:
    """Once `stop` is set, ask a process to end; kill it if it does not."""
    await stop.wait()
    _send_signal(process, signal.SIGTERM)
    if not await _is_set_within(ended, STOP_SECONDS):
        _send_signal(process, signal.SIGKILL)


def _send_signal(process: WorkerProcess, number: signal.Signals) -> None:
    """Send a signal, also after the fork server was killed, when multiprocessing would send none."""
    assert process.pid is not None  # noqa: S101 - it was started
    with suppress(ProcessLookupError):
        os.kill(process.pid, number)


async def _is_set_within(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
