"""Backend of a crawl: the source of its targets and the destination of its results.

It is a local database, which is a registry's, so that the verdicts are made here; or a remote registry, which
any number of machines share.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Final, Protocol
from uuid import uuid4

from lifesign.census.registry_counts import census_at, census_of
from lifesign.census.report_files import Report, titled, write_report
from lifesign.client import RegistryClient
from lifesign.client.registry_errors import NotPermitted
from lifesign.crawl.database_lock import locked_database
from lifesign.crawl.directory_import import TakesLists
from lifesign.crawl.local_registry import LocalDirectories, LocalRegistry, LocalTargets
from lifesign.crawl.local_sweeps import local_sweeper
from lifesign.crawl.process import registry_client
from lifesign.crawl.worker_config import RegistryAddress, WorkerConfig, is_predecessor, worker_name
from lifesign.domain.access.permissions import Role
from lifesign.domain.common.clock_skew import is_in_future, last_not_ahead
from lifesign.domain.models.census import MAX_NOT_READ, Deadlines
from lifesign.domain.observation.results import ResultClass
from lifesign.errors import LifesignError
from lifesign.prober.definition.models import ProbeDefinition
from lifesign.prober.worker.jobs import JobFunction
from lifesign.registry.history_pruning import (
    DAY_SECONDS,
    PRUNE_SECONDS,
    ROUND_SECONDS,
    HistoryPruner,
    finish_imports,
)
from lifesign.registry.probing.begin_pass import begin_or_join, may_resume
from lifesign.registry.probing.claim_shards import LeavingWorker, leave_shards
from lifesign.storage.engine import schema_version
from lifesign.storage.engine.database import open_database
from lifesign.storage.engine.sqlite_path import sqlite_file
from lifesign.storage.engine.transaction import Database, Transaction
from lifesign.storage.probing import probe_results, probers
from lifesign.storage.targets import census_counts

NOT_ALLOWED: Final = "not_allowed"
"""Code of a registry that refuses a valid key."""
DATABASE_SUFFIXES: Final = ("", "-wal", "-shm", "-journal")
"""Suffixes of the files in which SQLite stores a database."""
REPORT_SECONDS: Final = 3600.0
MAX_PAUSE_SECONDS: Final = 32 * DAY_SECONDS
"""Time since the last crawl after which the clock is not trusted: a crawl of each month prunes at its end."""
MAX_STALE_PROBERS: Final = 1_024
"""Workers that a crawl which was killed may have left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CrawlPass:
    """One pass over all targets."""

    run_id: str
    name: str
    """Name of the probe definition."""
    since_s: float
    """Start in seconds since the epoch: targets that were probed since then are done."""
    deadlines: Deadlines
    """Deadlines of the requests."""
    is_resumed: bool
    is_set_back: bool
    """Whether an earlier pass is in the future: the clock was set back since."""


class CrawlBackend(Protocol):
    """Source of a crawl's targets, and destination of its results."""

    lists: TakesLists
    text: str
    """Its place, for people."""
    option: str
    """Option with which other commands find it; empty if they find it without."""
    is_shared: bool
    """Whether others use the backend too, with their own directories."""
    is_alone: bool
    """Whether no other process can crawl with it."""

    def shares(
        self, definition: ProbeDefinition, processes: int, since_s: float | None
    ) -> list[WorkerConfig]:
        """Return the configuration of each process."""
        ...

    async def begin_run(self, name: str, deadlines: Deadlines) -> CrawlPass:
        """Begin a pass over all targets, or continue an interrupted one.

        `deadlines` are those of this crawl's requests.
        """
        ...

    async def note_not_read(self, run: CrawlPass, names: Sequence[str]) -> None:
        """Store which directories could not be read for this pass."""
        ...

    async def end_run(self, run: CrawlPass) -> Mapping[ResultClass | None, int]:
        """Store that all targets were probed; return their number by result."""
        ...

    async def drop_run(self, run: CrawlPass) -> None:
        """End a pass in which this crawl sent no requests."""
        ...

    async def unprobed(self, since_s: float) -> int:
        """Return the number of targets without a probe since this time (epoch)."""
        ...

    async def tend(self) -> None:
        """Run the background work of a crawl until cancelled."""
        ...

    def jobs(self) -> Mapping[str, tuple[float, JobFunction]]:
        """Return the periodic jobs of a continuous crawl: interval and function, by name."""
        ...


class LocalBackend:
    """Backend of a crawl that opens a database itself, without a registry's server."""

    def __init__(self, url: str, database: Database, report: Report | None, *, is_alone: bool) -> None:
        self.text = f"database {url}"
        self.option = f"--database {url}"
        self.is_shared = False
        self.is_alone = is_alone
        self.lists: TakesLists = LocalDirectories(LocalRegistry(database, Role.ADMIN))
        self.database = database
        self.pruner = HistoryPruner(database)
        self._url = url
        self._report = report

    def shares(
        self, definition: ProbeDefinition, processes: int, since_s: float | None
    ) -> list[WorkerConfig]:
        """Return the configuration of each process."""
        return [
            WorkerConfig(
                definition=definition,
                worker=worker_name(number, is_alone=self.is_alone),
                since_s=since_s,
                database=self._url,
                companions=processes - 1,
            )
            for number in range(1, processes + 1)
        ]

    async def begin_run(self, name: str, deadlines: Deadlines) -> CrawlPass:
        """Begin a pass over all targets, or continue an interrupted one. Raises StoreUnavailable."""

        def function(transaction: Transaction) -> CrawlPass:
            latest = census_counts.runs(transaction, name, 1)
            is_set_back = bool(latest) and is_in_future(latest[0].began_at_s, transaction.now_s)
            run_id = uuid4().hex
            run = begin_or_join(transaction, run_id, name, deadlines)
            return CrawlPass(
                run_id=run.run_id,
                name=name,
                since_s=run.began_at_s,
                deadlines=deadlines,
                is_resumed=run.run_id != run_id,
                is_set_back=is_set_back,
            )

        return await self.database.write(function)

    async def drop_run(self, run: CrawlPass) -> None:
        """Remove a pass without requests, or end it if other machines may work on it.

        Raises StoreUnavailable.
        """
        if self.is_alone:
            await self.database.write(partial(census_counts.drop_run, run_id=run.run_id))
        else:
            await self.end_run(run)

    async def note_not_read(self, run: CrawlPass, names: Sequence[str]) -> None:
        """Store which directories could not be read for this pass. Raises StoreUnavailable."""
        await self.database.write(
            partial(census_counts.note_not_read, run_id=run.run_id, names=names[:MAX_NOT_READ])
        )

    async def end_run(self, run: CrawlPass) -> Mapping[ResultClass | None, int]:
        """Store that all targets were probed; return their number by result. Raises StoreUnavailable."""
        counts = await self.database.read(partial(census_counts.results_since, since_s=run.since_s))
        await self.database.write(partial(census_counts.end_run, run_id=run.run_id, counts=counts))
        return {None if result is None else ResultClass(result): count for result, count in counts.items()}

    async def unprobed(self, since_s: float) -> int:
        """Return the number of targets without a probe since this time (epoch). Raises StoreUnavailable."""
        return await self.database.read(partial(probe_results.count_unprobed, since_s=since_s))

    async def tend(self) -> None:
        """Run sweeps, which assess the agents whose deadlines have passed, until cancelled."""
        await local_sweeper(self.database, time.monotonic).run()

    def jobs(self) -> Mapping[str, tuple[float, JobFunction]]:
        """Return the periodic jobs: finishing imports, pruning, and the report if one was requested."""
        jobs: dict[str, tuple[float, JobFunction]] = {
            "imports": (ROUND_SECONDS, partial(finish_imports, self.database)),
            "pruning": (PRUNE_SECONDS, self.pruner.prune_if_due),
        }
        if self._report is not None:
            jobs["report"] = (REPORT_SECONDS, self.write_report)
        return jobs

    async def write_report(self) -> None:
        """Write the census of the present results, if a report was requested. Raises StoreUnavailable."""
        report = self._report
        if report is not None:
            taken = await self.database.read(partial(census_of, name=None))
            taken = titled(taken, report.name)
            if not taken.runs:
                # All results are of this crawl, or of one like it.
                taken = taken.model_copy(update={"deadlines": report.deadlines})
            targets = LocalTargets(LocalRegistry(self.database, Role.READER))
            await write_report(taken, targets, report.directory)

    async def clear(self) -> None:
        """Release the leases of a crawl that was killed; otherwise workers wait until the leases expire."""
        left_behind = await self.database.read(
            lambda transaction: probers.listing(transaction, MAX_STALE_PROBERS)
        )
        names = {holder.rpartition("/")[2] for holder, *_ in left_behind}
        registry = LocalRegistry(self.database, Role.PROBER)
        for name in sorted(names):
            await registry.do(leave_shards, query=LeavingWorker(worker=name))


class RegistryBackend:
    """Backend of a crawl that uses a remote registry, and shares the work with its other probers."""

    option = ""
    is_shared = True
    is_alone = False

    def __init__(self, place: RegistryAddress, client: RegistryClient, report: Report | None) -> None:
        self.text = f"registry {place.url}"
        self.lists: TakesLists = client.directories
        self._place = place
        self._client = client
        self._report = report

    def shares(
        self, definition: ProbeDefinition, processes: int, since_s: float | None
    ) -> list[WorkerConfig]:
        """Return the configuration of each process."""
        return [
            WorkerConfig(
                definition=definition,
                worker=worker_name(number, is_alone=False),
                since_s=since_s,
                registry=self._place,
                companions=processes - 1,
            )
            for number in range(1, processes + 1)
        ]

    async def begin_run(self, name: str, deadlines: Deadlines) -> CrawlPass:
        """Begin a pass over all targets, or join one that other machines may be working on.

        Raises RegistryError.
        """
        counts = await self._client.census.counts(name=name)
        now_s, known = counts.made_at.timestamp(), counts.runs
        is_set_back = bool(known) and is_in_future(known[0].began_at.timestamp(), now_s)
        last = last_not_ahead(known, lambda run: run.began_at.timestamp(), now_s)
        new_id = run_id = uuid4().hex
        if last is not None:
            ended_at_s = None if last.ended_at is None else last.ended_at.timestamp()
            if may_resume(last.began_at.timestamp(), ended_at_s, now_s):
                run_id = last.run_id
        begun = await self._client.census.begin_run(run_id, name, deadlines)
        return CrawlPass(
            run_id=begun.run_id,
            name=begun.name,
            since_s=begun.began_at.timestamp(),
            deadlines=deadlines,
            is_resumed=begun.run_id != new_id,
            is_set_back=is_set_back,
        )

    async def drop_run(self, run: CrawlPass) -> None:
        """End the pass: other machines may have probed targets in it. Raises RegistryError."""
        await self.end_run(run)

    async def note_not_read(self, run: CrawlPass, names: Sequence[str]) -> None:
        """Add the directories that could not be read here to those that other machines could not read.

        Raises RegistryError.
        """
        if names:
            await self._client.census.note_not_read(run.run_id, run.name, names, run.deadlines)

    async def end_run(self, run: CrawlPass) -> Mapping[ResultClass | None, int]:
        """Store that all targets were probed; return their number by result. Raises RegistryError."""
        ended = await self._client.census.end_run(run.run_id, run.name)
        return {row.result: row.count for row in ended.counts}

    async def unprobed(self, since_s: float) -> int:
        """Return the number of targets without a probe since this time (epoch). Raises RegistryError."""
        since = datetime.fromtimestamp(since_s, UTC)
        return (await self._client.shards.show(unprobed_since=since)).unprobed or 0

    async def tend(self) -> None:
        """Do nothing until cancelled: the registry assesses its agents itself."""
        await asyncio.Event().wait()

    def jobs(self) -> Mapping[str, tuple[float, JobFunction]]:
        """Return the job that writes the report, if one was requested. The registry has jobs of its own."""
        return {} if self._report is None else {"report": (REPORT_SECONDS, self.write_report)}

    async def write_report(self) -> None:
        """Write the census of the registry's present results, if a report was requested.

        Raises RegistryError.
        """
        report = self._report
        if report is not None:
            taken = titled(await census_at(self._client, None), self._place.url)
            await write_report(taken, self._client.targets, report.directory)

    async def clear(self) -> None:
        """Release the leases of a crawl on this machine that was killed. Raises RegistryError.

        Otherwise each restart of a crawl that is killed again and again leaves a share of the targets without
        a prober until the leases expire.
        """
        for prober in (await self._client.shards.show()).probers:
            name = prober.holder.rpartition("/")[2]
            if is_predecessor(name):
                # Nothing happens to a worker of another key.
                await self._client.shards.leave(name)


@asynccontextmanager
async def open_registry_backend(
    place: RegistryAddress, report: Report | None = None
) -> AsyncIterator[RegistryBackend]:
    """Connect a crawl to a registry, which has its targets and stores its results.

    Raises RegistryError if the registry cannot be reached, or refuses.

    `report` is the directory for census reports, written regularly and at the end.
    """
    async with registry_client(place) as client:
        # A first request, which changes nothing, shows whether there is a registry.
        try:
            await client.directories.all()
        except NotPermitted as error:
            # A registry, not another server that answers 403. The next answer names the roles that may probe.
            if error.code != NOT_ALLOWED:
                raise
        # A key without permission to probe is refused before anything is read; no pass has this name.
        await client.shards.leave(worker_name(0, is_alone=False))
        home = RegistryBackend(place, client, report)
        await home.clear()
        yield home
        await home.write_report()


@asynccontextmanager
async def open_local_backend(
    url: str, report: Report | None = None, *, is_once: bool = False
) -> AsyncIterator[LocalBackend]:
    """Open a database, created if it is empty; it is closed at the end of the block.

    `report` says where a census is written, regularly and at the end. `is_once`: an SQLite file that was
    created here is deleted again if no list was stored in it; an existing one never is.

    Raises InvalidValue if another process crawls with it, and SchemaOutdated, ForeignDatabase or
    StoreUnavailable.
    """
    file = sqlite_file(url)
    with locked_database(file):
        made = file if is_once and file is not None and not file.exists() else None
        database = open_database(url)
        is_empty = made is not None
        try:
            await database.write(schema_version.set_up_or_check)
            is_empty = False
            home = LocalBackend(url, database, report, is_alone=file is not None)
            if file is not None:
                await home.clear()
            await home.pruner.trust_clock(MAX_PAUSE_SECONDS)
            try:
                yield home
            finally:
                with suppress(LifesignError):
                    is_empty = made is not None and not await home.lists.all()
            await home.pruner.prune_if_due()
            await home.write_report()
        finally:
            await database.close()
            if made is not None and is_empty:
                for suffix in DATABASE_SUFFIXES:
                    made.with_name(made.name + suffix).unlink(missing_ok=True)
