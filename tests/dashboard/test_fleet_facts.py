import asyncio
import time
from pathlib import Path

import pytest

from lifesign.dashboard import fleet_facts
from lifesign.dashboard.fleet_facts import CachedFact, FleetCounts
from lifesign.storage.engine.database import open_database
from lifesign.storage.engine.transaction import Database, Transaction
from lifesign.storage.errors import StoreUnavailable


@pytest.fixture
def nowhere(tmp_path: Path) -> Database:
    return open_database(f"sqlite:///{tmp_path}/empty.db")


async def test_concurrent_views_share_one_count(nowhere: Database) -> None:
    taken: list[int] = []

    def count(_transaction: Transaction) -> int:
        taken.append(1)
        return len(taken)

    kept = CachedFact(nowhere, count, fresh_s=60)
    assert await asyncio.gather(*(kept.get() for _ in range(20))) == [1] * 20
    assert await kept.get() == 1
    await nowhere.close()


async def test_older_count_is_served_without_waiting(nowhere: Database) -> None:
    taken: list[int] = []

    def count(_transaction: Transaction) -> int:
        taken.append(1)
        return len(taken)

    kept = CachedFact(nowhere, count, fresh_s=0)
    assert await kept.get() == 1
    kept._fresh_s = 0.0
    assert await kept.get() == 1
    assert kept._taking is not None
    assert await kept._taking == 2
    await nowhere.close()


async def test_failed_count_is_logged_and_retried(nowhere: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_facts, "USABLE_SECONDS", 0.0)
    is_unreachable = True

    def count(_transaction: Transaction) -> str:
        if is_unreachable:
            raise StoreUnavailable("away")
        return "counted"

    kept = CachedFact(nowhere, count, fresh_s=60)
    with pytest.raises(StoreUnavailable):
        await kept.get()
    is_unreachable = False
    assert await kept.get() == "counted"
    await nowhere.close()


async def test_counting_uses_at_most_one_percent_of_the_time(nowhere: Database) -> None:
    def count(_transaction: Transaction) -> str:
        time.sleep(0.05)
        return "counted"

    kept = CachedFact(nowhere, count, fresh_s=0.001)
    await kept.get()
    assert kept._fresh_s >= 5
    await nowhere.close()


def test_dead_agents_are_excluded_from_reported_health() -> None:
    counts = FleetCounts({("active", "healthy"): 3, ("unhealthy", "unknown"): 2, ("dead", "healthy"): 5})
    assert counts.total == 10
    assert counts.by_status["dead"] == 5
    assert counts.by_health == {"healthy": 3, "degraded": 0, "unhealthy": 0, "unknown": 2}
    assert counts.of(status="dead", health="healthy") == 5
