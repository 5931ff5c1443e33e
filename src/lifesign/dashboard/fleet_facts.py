"""Counts of the whole fleet, and their age.

Counting two hundred thousand agents takes too long for a page. Therefore no page waits for an existing count:
an old one is shown once more while one task counts again for all visitors.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from lifesign.dashboard.labels import label_of_result
from lifesign.dashboard.maintenance_facts import MaintenanceGroup, maintenances
from lifesign.domain.health.document import HealthStatus
from lifesign.domain.lifecycle.status_table import Status
from lifesign.domain.tasks.task_states import TaskStatus
from lifesign.storage.agents import dashboard_table
from lifesign.storage.engine.transaction import Database, Transaction
from lifesign.storage.errors import StoreUnavailable
from lifesign.storage.probing import probe_results, probers
from lifesign.storage.targets import census_counts
from lifesign.storage.tasks import task_rows
from lifesign.storage.tasks.task_rows import TaskFilter

FRESH_SECONDS: Final = 2.0
"""Age from which agents are counted again, unless a count takes long."""
OBSERVED_FRESH_SECONDS: Final = 15.0
"""Age from which targets are counted again; there may be a million."""
MAX_SHARE: Final = 0.01
"""Maximum share of the time that counting may take, so that it does not slow down pages."""
USABLE_SECONDS: Final = 60.0
"""Maximum age of a count that is shown while a new one is taken. Above it, pages wait."""

MAX_PROBERS: Final = 10_000
"""Maximum of counted workers."""

SHOWN_STATUSES: Final = (
    Status.ACTIVE, Status.UNHEALTHY, Status.DRAINING, Status.DEAD, Status.DEREGISTERED,
)  # fmt: skip
SHOWN_HEALTH: Final = (
    HealthStatus.HEALTHY, HealthStatus.DEGRADED, HealthStatus.UNHEALTHY, HealthStatus.UNKNOWN,
)  # fmt: skip
SHOWN_PROBE_LABELS: Final = ("answers", "gated", "down", "unknown", "never probed")

WAITING: Final = (TaskStatus.HANDOFF, TaskStatus.REVIEW)
"""Statuses in which tasks wait for people."""

_log = logging.getLogger("lifesign.dashboard")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class FleetCounts:
    """Number of agents by status and health."""

    by_both: Mapping[tuple[str, str], int]
    """By status and health."""

    @property
    def total(self) -> int:
        """All agents, including former ones."""
        return sum(self.by_both.values())

    @property
    def by_status(self) -> dict[str, int]:
        """Number of agents with each status."""
        return {status.value: self.of(status=status) for status in SHOWN_STATUSES}

    @property
    def by_health(self) -> dict[str, int]:
        """Number of living agents with each health; dead agents have none."""
        alive = (Status.ACTIVE, Status.UNHEALTHY, Status.DRAINING)
        return {
            health.value: sum(self.of(status=status, health=health) for status in alive)
            for health in SHOWN_HEALTH
        }

    def of(self, *, status: str | None = None, health: str | None = None) -> int:
        """Return the number of agents with this status and this health; None: any."""
        return sum(
            count
            for (counted_status, counted_health), count in self.by_both.items()
            if status in {None, counted_status} and health in {None, counted_health}
        )


@dataclass(frozen=True, slots=True)
class ObservedCounts:
    """Number of targets by probe result, and facts about the probers."""

    by_label: Mapping[str, int]
    """Number of targets for each label of a probe."""
    last_observed_at_s: float | None
    """End of the last probe; None without one."""
    probers: int
    """Number of living workers."""
    clock_offsets_s: Mapping[str, float]
    """Offset of each worker's wall clock from the registry's, if known; positive if it is ahead."""

    @property
    def total(self) -> int:
        """All targets."""
        return sum(self.by_label.values())


class FleetCountCache:
    """The counts of one server process."""

    def __init__(self, database: Database) -> None:
        self.agents: CachedFact[FleetCounts] = CachedFact(database, _count_agents, FRESH_SECONDS)
        self.observed: CachedFact[ObservedCounts] = CachedFact(
            database, _count_observed, OBSERVED_FRESH_SECONDS
        )
        self.maintained: CachedFact[Sequence[MaintenanceGroup]] = CachedFact(
            database, maintenances, FRESH_SECONDS
        )
        self.waiting: CachedFact[int] = CachedFact(database, _count_waiting, FRESH_SECONDS)

    async def count(self) -> None:
        """Compute all counts that are too old. Raises StoreUnavailable."""
        await asyncio.gather(
            self.agents.get(), self.observed.get(), self.maintained.get(), self.waiting.get()
        )


class CachedFact(Generic[T]):
    """One count: computed on demand, and cached for a while."""

    def __init__(self, database: Database, take: Callable[[Transaction], T], fresh_s: float) -> None:
        self._database = database
        self._take = take
        self._least_fresh_s = self._fresh_s = fresh_s
        self._kept: tuple[float, T] | None = None
        self._taking: asyncio.Task[T] | None = None

    async def get(self) -> T:
        """Return the cached count, or a new one if it is too old. Raises StoreUnavailable."""
        now_s = time.monotonic()
        if self._kept is not None and now_s - self._kept[0] < self._fresh_s:
            return self._kept[1]
        if self._taking is None:
            self._taking = asyncio.create_task(self._refresh())
            self._taking.add_done_callback(self._on_counted)
        if self._kept is not None and now_s - self._kept[0] < max(USABLE_SECONDS, 2 * self._fresh_s):
            return self._kept[1]
        return await asyncio.shield(self._taking)

    async def _refresh(self) -> T:
        began_s = time.monotonic()
        taken = await self._database.read(self._take)
        now_s = time.monotonic()
        self._kept = now_s, taken
        self._fresh_s = max(self._least_fresh_s, (now_s - began_s) / MAX_SHARE)
        return taken

    def _on_counted(self, task: "asyncio.Task[T]") -> None:
        self._taking = None
        failure = None if task.cancelled() else task.exception()
        if failure is not None and not isinstance(failure, StoreUnavailable):
            _log.error("the agents could not be counted for the dashboard", exc_info=failure)


def _count_agents(transaction: Transaction) -> FleetCounts:
    return FleetCounts(dashboard_table.counts(transaction))


def _count_waiting(transaction: Transaction) -> int:
    return task_rows.count(transaction, TaskFilter(statuses=WAITING))


def _count_observed(transaction: Transaction) -> ObservedCounts:
    by_label = Counter(dict.fromkeys(SHOWN_PROBE_LABELS, 0))
    for result, count in census_counts.results(transaction).items():
        by_label[label_of_result(result).word] += count
    living = probers.running(transaction, MAX_PROBERS)
    return ObservedCounts(
        by_label=by_label,
        last_observed_at_s=probe_results.last_observed_at_s(transaction),
        probers=len(living),
        clock_offsets_s={each.holder: each.offset_s for each in living if each.offset_s is not None},
    )
