import asyncio
import gc
from collections.abc import Collection, Mapping

import pytest
from tests.support.memory_ledger import MemoryLedger
from tests.support.virtual_loop import in_virtual_time, virtual_loop

from lifesign.domain.targets.target import SHARDS, host_of, shard_of
from lifesign.prober.registry_exchange.ledger import LedgerUnreachable, TargetPage
from lifesign.prober.worker import target_feed as feed_module
from lifesign.prober.worker.shards import ApplyResult, OwnedShards, Shard
from lifesign.prober.worker.target_feed import POLL_SECONDS, TargetFeed


class Counting(MemoryLedger):
    """Counts the calls."""

    asked = 0
    read = 0

    async def changed(self, versions: Mapping[int, int]) -> Collection[int]:
        self.asked += 1
        return await super().changed(versions)

    async def targets(self, shard: int, after_version: int | None) -> TargetPage:
        self.read += 1
        return await super().targets(shard, after_version)


class Feeding:
    """A feed of all shards and its reports."""

    def __init__(self, *urls: str) -> None:
        self.ledger = Counting(virtual_loop().clock)
        self.ledger.add(*urls)
        self.holdings = OwnedShards()
        self.planned: list[str] = []
        self.gone: list[str] = []
        self.feed = TargetFeed(self.ledger, self.holdings, applied=self._note, chance=lambda: 0.5)

    async def claim(self) -> None:
        granted = await self.ledger.claim("worker", 3_600.0, self.holdings.tokens())
        self.holdings.take(granted.claims)

    def _note(self, _shard: Shard, applied: ApplyResult) -> None:
        self.planned += [slot.url for slot, _ in applied.to_plan]
        self.gone += [slot.url for slot in applied.gone]


def urls_of(count: int) -> list[str]:
    return [f"https://agent-{number}.example/" for number in range(count)]


@in_virtual_time
async def test_empty_shards_are_not_read() -> None:
    feeding = Feeding(*urls_of(20))
    await feeding.claim()
    await feeding.feed.poll()
    assert sorted(feeding.planned) == sorted(urls_of(20))
    assert feeding.ledger.read == len({shard_of(host_of(url)) for url in urls_of(20)})
    assert all(shard.is_current for shard in feeding.holdings.shards.values())
    assert len(feeding.holdings.shards) == SHARDS


@in_virtual_time
async def test_recheck_requested_before_the_clock_was_set_back_is_due_now() -> None:
    (url,) = urls_of(1)
    feeding = Feeding(url)
    now_s = feeding.ledger.clock.wall_s()
    feed = TargetFeed(
        feeding.ledger,
        feeding.holdings,
        applied=lambda *_: None,
        chance=lambda: 0.5,
        wall_s=lambda: now_s - 3_600.0,
    )
    feeding.ledger.request_recheck(url)
    await feeding.claim()
    await feed.poll()
    (slot,) = feeding.holdings.slots()
    assert slot.recheck_at_s == now_s - 3_600.0


@in_virtual_time
async def test_changed_shards_are_queried_in_one_request_and_only_these_are_read() -> None:
    feeding = Feeding(*urls_of(20))
    await feeding.claim()
    await feeding.feed.poll()
    feeding.planned.clear()
    feeding.ledger.asked = feeding.ledger.read = 0
    await feeding.feed.poll()
    assert (feeding.ledger.asked, feeding.ledger.read) == (1, 0)
    feeding.ledger.add("https://new.example/")
    feeding.ledger.request_recheck(urls_of(1)[0])
    feeding.ledger.remove(urls_of(2)[1])
    await feeding.feed.poll()
    assert sorted(feeding.planned) == ["https://agent-0.example/", "https://new.example/"]
    assert (feeding.gone, feeding.ledger.read) == (["https://agent-1.example/"], 3)


@pytest.mark.parametrize("has_change", [False, True])
@in_virtual_time
async def test_targets_stay_if_their_shards_become_stale_during_a_poll(
    monkeypatch: pytest.MonkeyPatch, *, has_change: bool
) -> None:
    feeding = Feeding(*(f"https://agent.example/{number}" for number in range(20)))
    await feeding.claim()
    await feeding.feed.poll()
    if has_change:
        feeding.ledger.request_recheck("https://agent.example/7")
    changed = feeding.ledger.changed

    async def changed_later(versions: Mapping[int, int]) -> Collection[int]:
        feeding.holdings.mark_all_stale()
        return await changed(versions)

    monkeypatch.setattr(feeding.ledger, "changed", changed_later)
    await feeding.feed.poll()
    assert (feeding.gone, feeding.holdings.targets) == ([], 20)


@in_virtual_time
async def test_changes_are_polled_every_two_seconds_and_less_often_during_an_outage() -> None:
    feeding = Feeding(*urls_of(5))
    await feeding.claim()
    running = asyncio.create_task(feeding.feed.run())
    await asyncio.sleep(100 * POLL_SECONDS + 0.5)
    assert feeding.ledger.asked == 101
    feeding.ledger.is_unreachable = True
    await asyncio.sleep(300)
    assert feeding.ledger.asked < 125
    feeding.ledger.is_unreachable = False
    feeding.ledger.add("https://new.example/")
    await asyncio.sleep(31)
    assert feeding.planned[-1] == "https://new.example/"
    running.cancel()


@in_virtual_time
async def test_page_of_a_shard_that_was_lost_and_reclaimed_is_discarded() -> None:
    feeding = Feeding("https://agent.example/")
    await feeding.claim()
    number = shard_of("agent.example")
    shard = feeding.holdings.shards[number]

    class Slow(Counting):
        async def targets(self, shard: int, after_version: int | None) -> TargetPage:
            page = await super().targets(shard, after_version)
            for lease in self.leases.values():
                lease.worker = None
            await feeding.claim()
            return page

    feeding.ledger.__class__ = Slow
    await feeding.feed.poll()
    assert (feeding.planned, shard.is_current) == ([], False)
    feeding.ledger.__class__ = Counting
    await feeding.feed.poll()
    assert (feeding.planned, shard.is_current) == (["https://agent.example/"], True)


@in_virtual_time
async def test_without_a_shard_no_changes_are_polled() -> None:
    feeding = Feeding("https://agent.example/")
    await feeding.feed.poll()
    assert feeding.ledger.asked == 0
    feeding.ledger.is_unreachable = True
    await feeding.feed.poll()
    feeding.ledger.is_unreachable = False
    await feeding.claim()
    feeding.ledger.is_unreachable = True
    with pytest.raises(LedgerUnreachable):
        await feeding.feed.poll()


@in_virtual_time
async def test_garbage_collector_freezes_long_lived_targets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    frozen: list[int] = []
    monkeypatch.setattr(feed_module, "FREEZE_EVERY", 100)
    feeding = Feeding(*urls_of(350))
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(feeding.holdings.targets))
    await feeding.claim()
    await feeding.feed.poll()
    await feeding.feed.poll()
    assert len(frozen) == 3
