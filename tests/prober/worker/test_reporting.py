"""The reporter: results reach the ledger whole, once, and not too late."""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Collection, Sequence
from datetime import UTC, datetime

import pytest
from tests.support.memory_ledger import MemoryLedger
from tests.support.virtual_loop import in_virtual_time, virtual_loop

from lifesign.domain.observation.probe_memory import ProbeMemory
from lifesign.domain.observation.results import LayerResult, Observation, ResultClass
from lifesign.domain.published_interface.published import Interface, InterfaceKind, bounded_interface
from lifesign.prober.definition.models import FLUSH_SECONDS
from lifesign.prober.registry_exchange.ledger import (
    LedgerUnreachable,
    ProbeReport,
    ReportAnswer,
    ShardBatch,
    WitnessNews,
)
from lifesign.prober.worker.outbox import MAX_QUEUED_SECONDS, Outbox, Result
from lifesign.prober.worker.reporting import MAX_BAD, MAX_BATCH, Reporter
from lifesign.prober.worker.shards import OwnedShards, TargetSlot

OK = LayerResult(result=ResultClass.OK)


class Desk:
    """A running reporter between an outbox and a ledger."""

    def __init__(self, ledger: MemoryLedger | None = None) -> None:
        self.loop = virtual_loop()
        self.ledger = ledger or MemoryLedger(self.loop.clock)
        self.holdings = OwnedShards()
        self.outbox = Outbox()
        self.lost: list[int] = []
        self.news: list[WitnessNews] = []
        self.reporter = Reporter(
            self.ledger,
            self.outbox,
            self.loop.clock,
            lose=self._lose,
            news=self.news.append,
            interval_s=300.0,
            chance=lambda: 0.5,
        )

    async def hold(self, *urls: str) -> list[TargetSlot]:
        self.ledger.add(*urls)
        self.holdings.take((await self.ledger.claim("worker", 3_600.0, {})).claims)
        for shard in self.holdings.shards.values():
            self.holdings.apply(shard, await self.ledger.targets(shard.number, None))
        found = {slot.url: slot for slot in self.holdings.slots()}
        return [found[url] for url in urls]

    def add(self, slot: TargetSlot, *, is_urgent: bool = False) -> None:
        observation = Observation(
            target_url=slot.url, observed_at=datetime.fromtimestamp(self.loop.wall_s(), UTC), discovery=OK
        )
        memory = ProbeMemory(probed_at_s=self.loop.wall_s())
        report = ProbeReport(subject_id=slot.subject_id, observation=observation, memory=memory)
        result = Result(slot, report, made_at_s=self.loop.clock.boot_s())
        self.reporter.add(result, is_urgent=is_urgent)

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.reporter.run())
        yield
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    def _lose(self, numbers: Collection[int]) -> None:
        self.lost += numbers
        for number in numbers:
            self.holdings.lose(number)


@in_virtual_time
async def test_interface_is_sent_with_the_next_accepted_result() -> None:
    desk = Desk()
    (slot,) = await desk.hold("https://agent.example/")
    sent: list[list[Interface | None]] = []
    desk.ledger.on_report = lambda batch: sent.append(list(batch.interfaces))
    interface = bounded_interface(InterfaceKind.AGENT_CARD, {"name": "a"})
    desk.reporter.interfaces.add(slot, interface)
    desk.ledger.is_unreachable = True
    desk.add(slot)
    with pytest.raises(LedgerUnreachable):
        await desk.reporter.flush()
    desk.ledger.is_unreachable = False
    await desk.reporter.flush()
    desk.add(slot)
    await desk.reporter.flush()
    assert sent == [[interface], []]


def urls_of(count: int) -> list[str]:
    return [f"https://agent-{number}.example/" for number in range(count)]


@in_virtual_time
async def test_single_result_waits_up_to_five_seconds_for_others() -> None:
    desk = Desk()
    (slot,) = await desk.hold("https://agent.example/")
    async with desk.open():
        await asyncio.sleep(3)
        desk.add(slot)
        await asyncio.sleep(FLUSH_SECONDS - 0.1)
        assert desk.ledger.calls == []
        await asyncio.sleep(0.2)
        assert desk.ledger.calls == [1]
    assert desk.reporter.reported == 1


@in_virtual_time
async def test_awaited_result_is_sent_at_once() -> None:
    desk = Desk()
    slots = await desk.hold(*urls_of(3))
    async with desk.open():
        desk.add(slots[0])
        await asyncio.sleep(1)
        desk.add(slots[1], is_urgent=True)
        await asyncio.sleep(0.1)
        assert desk.ledger.calls == [2]
        desk.add(slots[2])
        await asyncio.sleep(FLUSH_SECONDS + 0.1)
        assert desk.ledger.calls == [2, 1]


@in_virtual_time
async def test_many_results_are_sent_in_full_batches_across_shards() -> None:
    desk = Desk()
    slots = await desk.hold(*urls_of(1_300))
    async with desk.open():
        for slot in slots:
            desk.add(slot)
        await asyncio.sleep(0.1)
        assert desk.ledger.calls == [MAX_BATCH, MAX_BATCH, 300]


@in_virtual_time
async def test_endless_results_are_sent_in_full_batches() -> None:
    desk = Desk()
    slots = deque(await desk.hold(*urls_of(100)))
    async with desk.open():
        for _ in range(1_000):
            await asyncio.sleep(0.01)
            for _ in range(10):
                slots.rotate()
                desk.add(slots[0])
    assert len(desk.ledger.calls) <= 10_000 / MAX_BATCH
    assert min(desk.ledger.calls) >= MAX_BATCH


@in_virtual_time
async def test_results_are_sent_immediately_at_the_end() -> None:
    desk = Desk()
    (slot,) = await desk.hold("https://agent.example/")
    async with desk.open():
        desk.add(slot)
        await asyncio.sleep(0.01)
        desk.reporter.hurry()
        await asyncio.sleep(0.01)
        assert desk.ledger.calls == [1]


@in_virtual_time
async def test_results_keep_their_order_when_a_call_fails_half_way_and_count_once() -> None:
    class Forgetful(MemoryLedger):
        """Takes the first call, and its answer is lost on the way."""

        failures = 3

        async def report(self, batches: Sequence[ShardBatch], interval_s: float) -> ReportAnswer:
            answer = await super().report(batches, interval_s)
            if self.failures:
                self.failures -= 1
                raise LedgerUnreachable("the answer was lost")
            return answer

    desk = Desk(Forgetful(virtual_loop().clock))
    (slot,) = await desk.hold("https://agent.example/")
    async with desk.open():
        for _ in range(20):
            desk.add(slot)
            await asyncio.sleep(1)
        await asyncio.sleep(60)
    seen = [one.observed_at for one in desk.ledger.observations(slot.url)]
    assert len(seen) == 20
    assert seen == sorted(seen)
    assert desk.reporter.outage is None


class NarrowLink(MemoryLedger):
    """Takes `result_s` per result and `call_s` per call; a call fails after 5 s."""

    result_s = 0.0
    call_s = 0.0
    failures = 0

    async def report(self, batches: Sequence[ShardBatch], interval_s: float) -> ReportAnswer:
        try:
            async with asyncio.timeout(5):
                await asyncio.sleep(
                    self.call_s + self.result_s * sum(len(batch.reports) for batch in batches)
                )
        except TimeoutError:
            self.is_unreachable = True
            self.failures += 1
        try:
            return await super().report(batches, interval_s)
        finally:
            self.is_unreachable = False


@in_virtual_time
async def test_backlog_passes_a_link_that_is_too_narrow_for_a_full_batch() -> None:
    desk = Desk(ledger := NarrowLink(virtual_loop().clock))
    ledger.result_s = 0.04
    slots = await desk.hold(*urls_of(1_300))
    async with desk.open():
        for slot in slots:
            desk.add(slot)
        await asyncio.sleep(1_300 * 0.04 + 30)
        assert desk.reporter.reported == 1_300
    # 500, 250 and 125
    assert ledger.failures == 3


@in_virtual_time
@pytest.mark.parametrize("call_s", [0.0, 1.5])
async def test_batches_are_full_again_some_time_after_an_outage(call_s: float) -> None:
    desk = Desk(ledger := NarrowLink(virtual_loop().clock))
    ledger.call_s = 5.0
    slots = await desk.hold(*urls_of(20_000))
    async with desk.open():
        for slot in slots:
            desk.add(slot)
        await asyncio.sleep(300)
        assert ledger.calls == []
        ledger.call_s = call_s
        await asyncio.sleep(180)
        assert desk.reporter.reported == 20_000
    assert ledger.calls[0] == 1
    assert MAX_BATCH in ledger.calls


@in_virtual_time
async def test_old_results_are_dropped_while_a_slow_ledger_takes_others() -> None:
    desk = Desk(ledger := NarrowLink(virtual_loop().clock))
    ledger.result_s = 0.5
    slots = await desk.hold(*urls_of(3_000))
    async with desk.open():
        for slot in slots:
            desk.add(slot)
        await asyncio.sleep(MAX_QUEUED_SECONDS + 10)
        assert len(desk.outbox) == 0
    assert 1_000 < desk.reporter.reported < 3_000


@in_virtual_time
async def test_lost_shard_is_reported_once_and_its_results_dropped() -> None:
    desk = Desk()
    slots = await desk.hold(*urls_of(10))
    number = slots[3].shard.number
    desk.ledger.leases[number].token += 1
    async with desk.open():
        for slot in slots:
            desk.add(slot)
            desk.add(slots[3])
        await asyncio.sleep(FLUSH_SECONDS + 0.1)
    assert desk.lost == [number]
    assert desk.ledger.observations(slots[3].url) == []
    assert desk.reporter.reported == len(desk.ledger.seen)


@in_virtual_time
async def test_rejected_results_of_a_batch_are_isolated_one_by_one() -> None:
    desk = Desk()
    slots = await desk.hold(*urls_of(200))
    bad = {slots[17], slots[18], slots[163]}
    desk.ledger.indigestible = {slot.subject_id for slot in bad}
    async with desk.open():
        for slot in slots:
            desk.add(slot)
        await asyncio.sleep(FLUSH_SECONDS + 0.1)
    assert len(desk.ledger.seen) == 197
    assert {slot for slot in slots if slot.given_up} == bad


@in_virtual_time
async def test_ledger_that_rejects_everything_gets_few_requests() -> None:
    class Broken(MemoryLedger):
        asked = 0

        async def report(self, batches: Sequence[ShardBatch], interval_s: float) -> ReportAnswer:
            self.asked += 1
            raise ZeroDivisionError

    desk = Desk(ledger := Broken(virtual_loop().clock))
    slots = await desk.hold(*urls_of(400))
    async with desk.open():
        for slot in slots:
            desk.add(slot)
        await asyncio.sleep(FLUSH_SECONDS + 0.1)
    assert len(desk.outbox) == 0
    assert all(slot.given_up == 1 for slot in slots)
    assert ledger.asked < 5 * MAX_BAD


@in_virtual_time
async def test_interrupted_report_is_not_lost() -> None:
    class Slow(MemoryLedger):
        async def report(self, batches: Sequence[ShardBatch], interval_s: float) -> ReportAnswer:
            await asyncio.sleep(100)
            return await super().report(batches, interval_s)

    desk = Desk(Slow(virtual_loop().clock))
    (slot,) = await desk.hold("https://agent.example/")
    async with desk.open():
        desk.add(slot)
        await asyncio.sleep(FLUSH_SECONDS + 10)
    assert len(desk.outbox) == 1
    desk.reporter.hurry()
    await desk.reporter.flush()
    assert len(desk.ledger.observations(slot.url)) == 1


@in_virtual_time
async def test_results_are_numbered_per_token_with_ages_at_sending_time() -> None:
    class Late(MemoryLedger):
        failures = 2

        async def report(self, batches: Sequence[ShardBatch], interval_s: float) -> ReportAnswer:
            if self.failures:
                self.failures -= 1
                raise LedgerUnreachable("not now")
            return await super().report(batches, interval_s)

    desk = Desk(Late(virtual_loop().clock))
    one, other = await desk.hold("https://a.example/", "https://b.example/")
    made_at_s = []
    async with desk.open():
        for slot in (one, other, one):
            made_at_s.append(desk.loop.clock.wall_s())
            desk.add(slot)
            await asyncio.sleep(1)
        # The machine sleeps; its monotonic clock does not count that.
        desk.loop.suspended_s += 100.0
        desk.loop.steps_s += 100.0
        await asyncio.sleep(60)
    first, second = desk.ledger.received[one.subject_id]
    assert (first.number, second.number) == (1, 2)
    assert [first.at_s, second.at_s] == pytest.approx([made_at_s[0], made_at_s[2]], abs=0.01)
    assert first.age_s > 100
    (only,) = desk.ledger.received[other.subject_id]
    assert only.number == 1


@in_virtual_time
async def test_witness_information_of_the_ledger_is_passed_on() -> None:
    desk = Desk()
    (slot,) = await desk.hold("https://agent.example/")
    desk.ledger.news = WitnessNews(silent_classes=frozenset({"public_ipv4"}))
    async with desk.open():
        desk.add(slot)
        await asyncio.sleep(FLUSH_SECONDS + 0.1)
    assert desk.news == [desk.ledger.news]
