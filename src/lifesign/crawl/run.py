"""Course of a crawl, from its first line to its last.

Directories come first, to get targets, some of them at a time; then all processes run, until a census is
complete or the crawl is stopped. Meanwhile the backend runs its periodic work, and directories are read again
at their interval. A continuous crawl waits only START_READING_SECONDS for directories: a slow one must not
delay the probes of all other targets.
"""

import asyncio
import logging
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from lifesign.client.environment_variables import KEY_VARIABLE
from lifesign.crawl.backend import CrawlBackend, CrawlPass
from lifesign.crawl.directory_import import DirectoryImporter, ImportOutcome, opt_outs_of, targets_text
from lifesign.crawl.prober_assembly import open_credentials, open_token_owner
from lifesign.crawl.process_pool import WorkerStatuses, probe_all
from lifesign.crawl.progress_display import ProgressDisplay, counts_text
from lifesign.crawl.worker_config import WorkerStatus
from lifesign.domain.observation.results import ResultClass
from lifesign.domain.text.counts import pluralize
from lifesign.errors import LifesignError
from lifesign.prober.definition.directory_source import DirectorySource
from lifesign.prober.definition.models import ProbeDefinition
from lifesign.prober.directories.fetching import TIMEOUTS, fetching_with
from lifesign.prober.network.fetch import Fetcher
from lifesign.prober.network.resolver import Resolver
from lifesign.prober.secrets.secret_reader import Secrets, forget_variables, read_secrets
from lifesign.prober.worker.jobs import Jobs
from lifesign.serving.ending_signals import (
    EndRequests,
    end_at_next,
    ending_signals,
    redirect_closed_terminal,
    restore_default,
)

SHOW_SECONDS: Final = 0.5
START_READING_SECONDS: Final = 60.0
"""Time for which a continuous crawl waits for its directories before it probes."""
MAX_READINGS: Final = 4
"""Maximum number of directories that are read at once; a reading takes at most about 1 GiB of memory."""
COUNT_SECONDS: Final = 5.0
"""Interval of counts of remaining targets while other machines probe the same ones."""
COUNT_ALL_SECONDS: Final = 60.0
"""Interval at which all targets are counted, if other probers have a part of them."""
AHEAD_SECONDS: Final = 3_600.0
"""A start so far ahead of now means that all targets count as not probed."""
RETRY_SECONDS: Final = 600.0
"""Interval at which unreadable directories are read again, unless their own interval is shorter."""
START_TARGETS: Final = 1_000
"""Number of targets that are probed in the processor time in which another process starts."""
CLOSED_NETWORKS: Final = (
    "no request was sent to addresses in networks that are not allowed: allow your own with "
    "--allow-network of a census, or networks.allow of a definition"
)
ONE_TARGET: Final = (
    "layers and assertions of one target, probed again: lifesign probe URL "
    "(with --definition, --credential and --allow-network as here)"
)
SET_BACK: Final = "the last run is in the future: the clock was set back, and its targets are probed again"
NO_CANARIES: Final = (
    "no canaries are configured: a failure counts only while another target of its network class answers; "
    "see canaries in probes/reference.yml"
)
STILL_READING: Final = "the other directories are read while the targets that are known are probed"
ALL_BEFORE: Final = "all targets were probed before that pass was interrupted, and count now"
UNANSWERED: Final = (
    "of host names could not be resolved: no name server answered; in a definition, lower "
    "limits.concurrency, or set other resolver.servers"
)

_log = logging.getLogger("lifesign.prober")


@dataclass(frozen=True, slots=True, kw_only=True)
class Crawled:
    """Result of a crawl."""

    is_done: bool
    """Whether all work was done; a continuous crawl is done whenever it is asked to end."""
    probed: int
    suspended: tuple[str, ...] = ()
    """Directories that an operator has to confirm."""
    failed: tuple[str, ...] = ()
    """Directories that could not be read."""


class Crawl:
    """One crawl of a definition, until it is complete or `stop` is set."""

    def __init__(
        self,
        definition: ProbeDefinition,
        home: CrawlBackend,
        progress: ProgressDisplay,
        stop: asyncio.Event,
        secrets: Secrets | None = None,
    ) -> None:
        """`secrets`: those of the definition's credentials; None: they are read here, or InvalidValue."""
        self._definition = definition
        self._secrets = read_secrets(definition.credentials) if secrets is None else secrets
        self._home = home
        self._progress = progress
        self._stop = stop
        self.statuses: WorkerStatuses | None = None
        """Progress of all processes, once they probe."""
        self._readings = asyncio.Semaphore(MAX_READINGS)
        self.outcomes: dict[str, ImportOutcome] = {}
        """Results of the last reading of each directory."""

    async def watch(self, *, processes: int) -> Crawled:
        """Probe every target continuously, each at its own time. LifesignError if it cannot continue."""
        if not self._definition.canaries_by_class and not self._definition.needs_no_witness:
            self._progress.print_line(NO_CANARIES)
        return await self._run(processes)

    async def once(self, *, processes: int) -> Crawled:
        """Probe every target once, or the remaining ones of an interrupted pass. Raises LifesignError."""
        run = await self._home.begin_run(self._definition.name, self._definition.timeouts.deadlines)
        if run.is_set_back:
            self._progress.print_line(SET_BACK)
        if run.is_resumed:
            began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(run.since_s))
            self._progress.print_line(f"continuing the pass that began at {began}")
        crawled = await self._run(processes, run)
        if crawled.is_done and (crawled.probed or not crawled.failed):
            if crawled.probed or run.is_resumed:
                counts = await self._home.end_run(run)
                if not crawled.probed:
                    self._progress.print_line(f"{ALL_BEFORE}: {counts_text(counts)}")
            else:
                await self._home.drop_run(run)
            if not self._home.is_shared:
                self._progress.print_line(f"result of each target: lifesign targets list {self._home.option}")
                self._progress.print_line(ONE_TARGET)
        return crawled

    async def _run(self, processes: int, run: CrawlPass | None = None) -> Crawled:
        """Read the directories, and probe; without a pass it never ends."""
        since_s = None if run is None else run.since_s
        seconds = START_READING_SECONDS if run is None else None
        async with self._importer(is_continuous=run is None) as importer, self._reading(importer, seconds):
            total = None if since_s is None else await self._home.unprobed(since_s)
            if total is not None:
                processes = worth_starting(processes, total, self._definition.limits.concurrency)
            statuses = WorkerStatuses(
                total,
                workers=processes,
                is_alone=self._home.is_alone,
                lease_s=self._definition.results.lease_seconds,
            )
            if total is None and statuses.is_alone:
                statuses.listed = await self._home.unprobed(time.time() + AHEAD_SECONDS)
            self.statuses = statuses
            if run is not None and not self._has_no_target(statuses):
                await self._home.note_not_read(run, self._failed)
            beside = [self._home.tend(), self._show(statuses)]
            if since_s is None:
                beside += [self._jobs(importer).run(), self._count_listed(statuses)]
            elif self._home.is_shared:
                beside.append(self._count_left(statuses, since_s))
            tasks = [asyncio.create_task(each) for each in beside]
            try:
                is_done = not self._stop.is_set() and (
                    self._has_no_target(statuses)
                    or await self._probe(statuses, processes, since_s)
                    or (since_s is not None and await self._has_probed_all(since_s))
                )
            finally:
                await _end(tasks)
            if is_done and since_s is not None:
                # The others have done the rest.
                statuses.total = statuses.state.probed
            # A crawl that was stopped before its list was read is never complete.
            if is_done or statuses.total != 0:
                self._progress.show(statuses.state)
            if statuses.state.results.get(ResultClass.BLOCKED_ADDRESS):
                self._progress.print_line(CLOSED_NETWORKS)
            if unanswered := statuses.state.unanswered:
                self._progress.print_line(f"{pluralize(unanswered, 'look-up')} {UNANSWERED}")
        return Crawled(
            is_done=is_done,
            probed=statuses.state.probed,
            suspended=tuple(outcome.directory for outcome in self.outcomes.values() if outcome.is_suspended),
            failed=self._failed,
        )

    @property
    def _failed(self) -> tuple[str, ...]:
        """Directories that could not be read the last time."""
        return tuple(outcome.directory for outcome in self.outcomes.values() if outcome.has_failed)

    def _has_no_target(self, statuses: WorkerStatuses) -> bool:
        """Return whether a local pass has no target, because no list could be read.

        Its shards are not claimed then: a full disk could not release them.
        """
        outcomes = self.outcomes.values()
        has_failed = bool(outcomes) and all(outcome.has_failed for outcome in outcomes)
        return has_failed and statuses.total == 0 and not self._home.is_shared

    async def _has_probed_all(self, since_s: float) -> bool:
        """Return whether a stopped pass has no target left: its last results may have arrived since."""
        try:
            return await self._home.unprobed(since_s) == 0
        except LifesignError:
            return False

    @asynccontextmanager
    async def _reading(self, importer: DirectoryImporter, seconds: float | None) -> AsyncIterator[None]:
        """Read all directories: before the block for at most these seconds, the rest beside it.

        `stop` and the end of the block end the reading.
        """
        reading = asyncio.create_task(self._read_directories(importer))
        showing = asyncio.create_task(self._show_import(importer))
        stopping = asyncio.create_task(self._stop.wait())
        running: list[asyncio.Task[Any]] = [reading, showing, stopping]
        try:
            await asyncio.wait([reading, stopping], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            await _end([showing])
            if reading.done():
                running.remove(reading)
                reading.result()
            elif self._stop.is_set():
                await _end([reading])
            else:
                self._progress.print_line(STILL_READING)
            yield
        finally:
            await _end(running)

    async def _probe(self, statuses: WorkerStatuses, processes: int, since_s: float | None) -> bool:
        def report(worker: str, status: WorkerStatus) -> None:
            if status.progress is not None:
                statuses.note(worker, status.progress)
            if status.line is not None:
                self._progress.print_line(status.line)
            if status.logged is not None:
                self._progress.log(status.logged)

        shares = self._home.shares(self._definition, processes, since_s)
        credentials = self._definition.credentials
        # Several processes get their tokens from this one.
        secrets = self._secrets if len(shares) == 1 else self._secrets.for_worker(credentials)
        shares = [replace(share, log_format=self._progress.log_format, secrets=secrets) for share in shares]
        # The workers get the key for the registry through a pipe.
        forget_variables(credentials, others=[KEY_VARIABLE])
        if len(shares) == 1:
            return await probe_all(shares, self._stop, report, statuses.keep_totals)
        async with open_token_owner(self._definition, self._secrets) as tokens:
            return await probe_all(shares, self._stop, report, statuses.keep_totals, tokens=tokens)

    async def _show(self, statuses: WorkerStatuses) -> None:
        while True:
            self._progress.show(statuses.state)
            await asyncio.sleep(SHOW_SECONDS)

    async def _show_import(self, importer: DirectoryImporter) -> None:
        while True:
            await asyncio.sleep(SHOW_SECONDS)
            if importer.step is not None:
                self._progress.show_import(importer.step)

    async def _count_left(self, statuses: WorkerStatuses, since_s: float) -> None:
        """Update the number of remaining targets of this worker: other workers take their share."""
        while True:
            await asyncio.sleep(COUNT_SECONDS)
            with suppress(LifesignError):
                # Results that were not stored yet count as not probed: they count once.
                reported = statuses.reported
                left = await self._home.unprobed(since_s)
                statuses.total = max(statuses.state.probed, reported + left)

    async def _count_listed(self, statuses: WorkerStatuses) -> None:
        """Count all targets regularly while other workers have some, or one of this crawl restarts."""
        while True:
            await asyncio.sleep(COUNT_SECONDS)
            if not (statuses.elsewhere or statuses.starting):
                continue
            with suppress(LifesignError):
                statuses.listed = await self._home.unprobed(time.time() + AHEAD_SECONDS)
            await asyncio.sleep(COUNT_ALL_SECONDS)

    @asynccontextmanager
    async def _importer(self, *, is_continuous: bool) -> AsyncIterator[DirectoryImporter]:
        definition = self._definition
        async with Resolver(
            definition.resolver.servers, timeout_s=definition.timeouts.dns_seconds
        ) as resolver:
            opened = partial(
                Fetcher,
                timeouts=TIMEOUTS,
                networks=definition.networks_allowed,
                is_public_allowed=definition.has_contact,
                user_agent=definition.user_agent,
                resolver=resolver,
            )
            async with (
                opened() as token_fetcher,
                # No directory gets a credential, but its origin may send back a secret.
                open_credentials(definition, self._secrets, token_fetcher) as credentials,
                opened(opt_outs=opt_outs_of(definition), credentials=credentials) as fetcher,
            ):
                yield DirectoryImporter(
                    definition,
                    self._home.lists,
                    fetching_with(fetcher),
                    is_shared=self._home.is_shared,
                    is_continuous=is_continuous,
                )

    async def _read_directories(self, importer: DirectoryImporter) -> None:
        """Read all directories of the definition, and report those that only the backend has."""
        inline = await importer.import_inline()
        if inline is not None:
            self._note(inline)
        await _run_all(self._read_first(importer, source) for source in self._definition.directories)
        if not self._home.is_shared:
            for record in await importer.unnamed():
                text = f"{record.name}: not in this definition, but also probed: {targets_text(record.size)}"
                self._progress.print_line(f"{text} ({self._command('remove', record.name)})")

    async def _read_first(self, importer: DirectoryImporter, source: DirectorySource) -> None:
        async with self._readings:
            self._progress.print_line(f"{source.label}: reading {source.url or source.file}")
            self._note(await importer.import_directory(source))

    def _jobs(self, importer: DirectoryImporter) -> Jobs:
        """Return the periodic jobs of a continuous crawl."""
        jobs = Jobs()
        for source in self._definition.directories:
            jobs.add(
                f"directory {source.label}",
                source.refresh_seconds,
                partial(self._read_again, importer, source),
            )
        jobs.add("directories that failed", RETRY_SECONDS, partial(self._retry, importer))
        for name, (every_seconds, function) in self._home.jobs().items():
            jobs.add(name, every_seconds, function)
        return jobs

    async def _read_again(self, importer: DirectoryImporter, source: DirectorySource) -> None:
        """Read one directory, and report the result unless it is the same as last time."""
        async with self._readings:
            last = self.outcomes.get(source.label)
            outcome = await importer.import_directory(source, is_again=True)
        if last is None or outcome.text != last.text:
            self._note(outcome)

    async def _retry(self, importer: DirectoryImporter) -> None:
        """Read directories again that could not be read last time, before their regular time."""
        await _run_all(
            self._read_again(importer, source)
            for source in self._definition.directories
            if (last := self.outcomes.get(source.label)) is not None and last.has_failed
        )

    def _note(self, outcome: ImportOutcome) -> None:
        self.outcomes[outcome.directory] = outcome
        self._progress.print_line(outcome.text)
        if outcome.is_suspended:
            self._progress.print_line(f"  {self._command('confirm', outcome.directory)}")

    def _command(self, verb: str, directory: str) -> str:
        """Return the command that changes a directory of this backend."""
        return f"lifesign directories {verb} {directory} {self._home.option}".rstrip()


def worth_starting(processes: int, targets: int, concurrency: int) -> int:
    """Return how many of so many processes are useful for probing so many targets once, at least 1.

    A process probes `concurrency` targets at once, and has probed START_TARGETS before another one has
    started: with less work for each, more processes only take longer.
    """
    return max(1, min(processes, -(-targets // min(concurrency, START_TARGETS))))


async def _run_all(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run coroutines at once; the first exception ends the others."""
    tasks = [asyncio.create_task(each) for each in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _end(tasks: Sequence["asyncio.Task[Any]"]) -> None:
    """End the tasks beside a crawl; the defect that ended one of them is logged."""
    for task in tasks:
        task.cancel()
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(outcome, Exception):
            _log.error("a part of the crawl ended because of a defect in lifesign", exc_info=outcome)


@contextmanager
def stopped_by_signals(stop: asyncio.Event, print_line: Callable[[str], None]) -> Iterator[None]:
    """Set `stop` on Ctrl-C, SIGTERM and SIGHUP; a second request ends the process, except in `finishing`.

    Not SIGHUP after another signal. Only the main thread gets signals; in any other one no handler is set.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    numbers = ending_signals()
    again = (signal.SIGINT, signal.SIGTERM)
    requests = EndRequests()

    def on_signal(number: signal.Signals) -> None:
        if number is signal.SIGHUP:
            redirect_closed_terminal()
        if not requests.is_new(number):
            return
        for each in again:
            loop.remove_signal_handler(each)
        end_at_next(again, requests)
        if stop.is_set():
            return
        # First, because the reader of the message may have left.
        stop.set()
        print_line("stopping: results are stored, and running probes get a few seconds")

    for number in numbers:
        loop.add_signal_handler(number, on_signal, number)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
        restore_default(again)
