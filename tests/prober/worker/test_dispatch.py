"""The dispatch of probes."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from tests.support.memory_ledger import MemoryLedger
from tests.support.probed_world import World, definition_of
from tests.support.virtual_loop import in_virtual_time, virtual_loop

from lifesign.domain.net.network_class import PUBLIC_CLASSES, PUBLIC_IPV4
from lifesign.domain.observation.probe_memory import ProbeMemory
from lifesign.domain.observation.results import InconclusiveReason, ResultClass
from lifesign.domain.observation.witness_rule import Canary, WitnessPolicy
from lifesign.prober.definition.lag_limits import SelfCheck
from lifesign.prober.network.host_limiter import HostLimiter
from lifesign.prober.worker import dispatch as dispatch_module
from lifesign.prober.worker.dispatch import MIN_CONCURRENCY, Dispatch, Due
from lifesign.prober.worker.outbox import Outbox
from lifesign.prober.worker.progress_counts import Tally
from lifesign.prober.worker.reachability_witnesses import ReachabilityWitnesses
from lifesign.prober.worker.reporting import Reporter
from lifesign.prober.worker.schedule import CensusPlan, WatchPlan
from lifesign.prober.worker.shards import OwnedShards, TargetSlot
from lifesign.prober.worker.waiting_failures import WaitingFailures

OK, TIMEOUT, REFUSED = ResultClass.OK, ResultClass.TIMEOUT, ResultClass.REFUSED
NOT_MEASURED = ResultClass.NOT_MEASURED


class Bench:
    """A dispatch with everything that it needs, and nothing else."""

    def __init__(
        self,
        *urls: str,
        is_census: bool = True,
        canaries: int = 0,
        max_waiting: int = 1_000,
        **limits: Any,
    ) -> None:
        self.loop = virtual_loop()
        self.world = World(self.loop.clock)
        self.holdings, self.outbox = OwnedShards(), Outbox()
        self.tally, self.check = Tally(self.loop.time()), SelfCheck(self.loop.time())
        self.ledger = MemoryLedger(self.loop.clock)
        self.ledger.add(*urls)
        known = definition_of(limits=limits).limits
        self.pace: HostLimiter[Due] = HostLimiter(
            concurrency=known.concurrency,
            per_host=known.per_host,
            per_address=known.per_address,
            host_requests_per_second=known.host_requests_per_second,
        )
        cadence, policy = self.world.cadence, WitnessPolicy()
        self.failures = WaitingFailures(max_waiting)
        self.clock_offset_s = 0.0
        self.dispatch = Dispatch(
            self.world,
            CensusPlan(self.loop.wall_s()) if is_census else WatchPlan(cadence),
            self.pace,
            clock=self.loop.clock,
            cadence=cadence,
            holdings=self.holdings,
            outbox=self.outbox,
            reporter=Reporter(
                self.ledger,
                self.outbox,
                self.loop.clock,
                lose=lambda _: None,
                news=lambda _: None,
                interval_s=300.0,
                chance=lambda: 0.5,
            ),
            tally=self.tally,
            check=self.check,
            failures=self.failures,
            policy=policy,
            clock_offset_s=lambda: self.clock_offset_s,
            max_probe_s=70.0,
        )
        named = [Canary(url=f"https://canary-{number}.example/") for number in range(canaries)]
        intake = self.dispatch.intake
        self.witnesses = intake.witnesses = ReachabilityWitnesses(
            self.failures,
            self.world,
            self.loop.clock,
            class_names=PUBLIC_CLASSES,
            canaries={PUBLIC_IPV4: named} if named else {},
            policy=policy,
            interval_s=300.0,
            witnessed=intake.note_witnessed,
            unwitnessed=intake.note_unwitnessed,
        )

    async def begin(self, ttl_s: float = 3_600.0) -> None:
        granted = await self.ledger.claim("worker", ttl_s, self.holdings.tokens())
        held, _ = self.holdings.take(granted.claims)
        for shard in held:
            page = await self.ledger.targets(shard.number, None)
            self.dispatch.note_applied(shard, self.holdings.apply(shard, page))

    def renew(self) -> None:
        """Hear that all claims are still ours, later than we hoped."""
        for shard in self.holdings.shards.values():
            if shard.claim is not None:
                shard.claim = replace(shard.claim, expires_at_s=self.loop.time() + 3_600)
        self.dispatch.replan(self.holdings.shards.values())

    async def until_probed(self, times: int) -> None:
        """Let time pass until so many looks have begun."""
        while len(self.world.looks) < times:  # noqa: ASYNC110 - time passes of itself here
            await asyncio.sleep(0.1)

    async def until_waiting(self) -> None:
        """Let time pass until a failure waits for a witness."""
        async with asyncio.timeout(400):
            while not self.failures:  # noqa: ASYNC110 - time passes of itself here
                await asyncio.sleep(0.1)

    def slot(self, url: str) -> TargetSlot:
        return next(slot for slot in self.holdings.slots() if slot.url == url)

    def results(self) -> list[ResultClass]:
        return [result.report.observation.result for result in self.outbox]


def urls_of(count: int) -> list[str]:
    return [f"https://agent-{number}.example/" for number in range(count)]


@in_virtual_time
async def test_a_census_goes_through_its_shards_in_their_order() -> None:
    bench = Bench(*urls_of(300), concurrency=10)
    await bench.begin()
    await asyncio.sleep(10)
    assert bench.dispatch.is_idle
    order = [next(slot.shard.number for slot in [bench.slot(assess.url)]) for assess in bench.world.looks]
    assert order == sorted(order)


@in_virtual_time
async def test_target_due_during_a_lapsed_claim_is_probed_after_renewal() -> None:
    bench = Bench(*urls_of(40), concurrency=4)
    await bench.begin(ttl_s=0.5)
    await asyncio.sleep(5)
    # Running jobs have ended, and no new one has started.
    begun = len(bench.world.looks)
    assert 4 <= begun <= 24
    bench.renew()
    await asyncio.sleep(5)
    assert len(bench.world.looks) == 40
    assert bench.dispatch.is_idle


@in_virtual_time
async def test_target_of_a_lost_shard_is_neither_probed_nor_reported() -> None:
    bench = Bench(*urls_of(40), concurrency=4)
    await bench.begin()
    await asyncio.sleep(0.05)
    bench.dispatch.note_lost([bench.holdings.lose(number) for number in list(bench.holdings.shards)])  # type: ignore[misc]  # all are held
    await asyncio.sleep(5)
    assert len(bench.world.looks) == 4
    assert (len(bench.outbox), bench.tally.probed) == (0, 4)
    assert bench.dispatch.is_idle


@in_virtual_time
async def test_simultaneously_due_targets_are_started_in_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dispatch_module, "MAX_OFFERED", 7)
    bench = Bench(*urls_of(100), is_census=False)
    await bench.begin()
    bench.loop.stand_still(300)
    await asyncio.sleep(1)
    assert len(bench.world.looks) == 100


@in_virtual_time
async def test_target_with_a_pending_failure_is_not_probed_and_others_are() -> None:
    urls = urls_of(40)
    bench = Bench(*urls, is_census=False, canaries=5, concurrency=1, per_host=1)
    await bench.begin()
    await asyncio.sleep(301)
    # The canaries were asked just now.
    await bench.witnesses.ask_canaries()
    bench.world.ends[urls[0]] = REFUSED
    bench.ledger.request_recheck(urls[0])
    slot = bench.slot(urls[0])
    slot.recheck_at_s = bench.loop.wall_s()
    bench.dispatch.plan.add(slot, slot.recall(), bench.loop.wall_s())
    bench.dispatch.pump()
    await asyncio.sleep(1)
    assert len(bench.failures) == 1
    assert (slot.is_busy, slot.due_at_s, bench.pace.in_flight) == (True, None, 0)
    before = len(bench.world.looks)
    await asyncio.sleep(28)
    assert len(bench.failures) == 1
    assert len(bench.world.looks) > before
    assert bench.world.looks_at(urls[0])[-1] < bench.loop.wall_s() - 25
    await asyncio.sleep(3)
    assert (len(bench.failures), bench.failures.asked_again, slot.is_busy) == (0, 0, False)
    assert bench.world.looks[-1].is_second or any(
        assess.is_second and assess.url == urls[0] for assess in bench.world.looks[before:]
    )
    assert slot.recall().failures_in_row == 1


@pytest.mark.parametrize("result", [ResultClass.DNS_FAILURE, REFUSED])
@in_virtual_time
async def test_second_request_knows_when_the_name_failed(result: ResultClass) -> None:
    (url,) = urls_of(1)
    bench = Bench(url, is_census=False, canaries=5)
    await bench.begin()
    await asyncio.sleep(301)
    bench.world.ends[url] = result
    await asyncio.sleep(400)
    number = next(number for number, look in enumerate(bench.world.looks) if look.is_second)
    first, second = bench.world.looks[number - 1 : number + 1]
    assert first.ended_at_s is not None
    failed_at_s = bench.loop.time() - (bench.loop.wall_s() - first.ended_at_s)
    assert second.name_failed_at_s == (None if result is REFUSED else pytest.approx(failed_at_s))


@in_virtual_time
async def test_the_second_request_of_a_target_goes_before_others_of_its_host() -> None:
    urls = [f"https://crowd.example/{number}" for number in range(50)]
    bench = Bench(*urls, is_census=False, canaries=5, per_host=1, host_requests_per_second=1.0)
    await bench.begin()
    await asyncio.sleep(400)
    bench.world.ends[urls[7]] = REFUSED
    before = len(bench.world.looks)
    bench.loop.stand_still(300)
    await asyncio.sleep(100)
    looks = bench.world.looks[before:]
    first = next(number for number, assess in enumerate(looks) if assess.url == urls[7])
    second = next(number for number, assess in enumerate(looks) if assess.is_second)
    assert looks[second].url == urls[7]
    assert second - first <= 3
    assert len(looks) > 40


@in_virtual_time
async def test_a_failure_whose_claim_is_over_is_dropped_and_its_target_probed_after_the_renewal() -> None:
    urls = urls_of(10)
    bench = Bench(*urls, is_census=False, canaries=5)
    await bench.begin()
    await asyncio.sleep(301)
    await bench.witnesses.ask_canaries()
    bench.world.ends[urls[3]] = REFUSED
    await bench.until_waiting()
    for shard in bench.holdings.shards.values():
        assert shard.claim is not None
        shard.claim = replace(shard.claim, expires_at_s=bench.loop.time())
    await asyncio.sleep(40)
    assert (len(bench.failures), bench.failures.asked_again) == (0, 0)
    assert bench.slot(urls[3]).recall().failures_in_row == 0
    bench.renew()
    await asyncio.sleep(340)
    assert bench.slot(urls[3]).recall().failures_in_row == 1


@in_virtual_time
async def test_targets_are_not_probed_after_their_claim_ended_while_the_machine_slept() -> None:
    bench = Bench(*urls_of(10), is_census=False)
    await bench.begin(ttl_s=600.0)
    await asyncio.sleep(301)
    probed = len(bench.world.looks)
    assert probed
    bench.loop.suspended_s += 600.0
    await asyncio.sleep(250)
    assert len(bench.world.looks) == probed


@in_virtual_time
async def test_failures_of_a_lost_shard_are_forgotten() -> None:
    urls = urls_of(10)
    bench = Bench(*urls, is_census=False)
    await bench.begin()
    await asyncio.sleep(301)
    bench.world.ends.update(dict.fromkeys(urls, REFUSED))
    await bench.until_waiting()
    reported = len(bench.outbox)
    bench.dispatch.note_lost([bench.holdings.lose(number) for number in list(bench.holdings.shards)])  # type: ignore[misc]  # all are held
    await asyncio.sleep(60)
    assert (len(bench.failures), bench.failures.asked_again) == (0, 0)
    assert len(bench.outbox) == reported


@in_virtual_time
async def test_census_respects_a_requested_wait() -> None:
    bench = Bench(*urls_of(3))
    bench.ledger.add(urls_of(1)[0], memory=ProbeMemory(not_before_s=bench.loop.wall_s() + 600))
    await bench.begin()
    await asyncio.sleep(5)
    assert {assess.url for assess in bench.world.looks} == set(urls_of(3)[1:])
    members = {result.report.observation.target_url: result.report for result in bench.outbox}
    left = members[urls_of(1)[0]]
    assert left.observation.result is ResultClass.NOT_MEASURED
    assert left.observation.inconclusive_reason is InconclusiveReason.ASKED_TO_WAIT
    assert left.memory.not_before_s is not None
    assert bench.dispatch.is_idle


@in_virtual_time
async def test_slow_census_reduces_its_concurrency() -> None:
    bench = Bench(*urls_of(2), concurrency=400)
    bench.dispatch.note_turn("overloaded")
    assert bench.pace.concurrency == 100
    bench.dispatch.note_turn(None)
    assert bench.pace.concurrency == 400
    few = Bench(*urls_of(2), concurrency=MIN_CONCURRENCY - 6)
    few.dispatch.note_turn("overloaded")
    assert few.pace.concurrency == MIN_CONCURRENCY - 6
    watch = Bench(*urls_of(2), is_census=False, concurrency=400)
    watch.dispatch.note_turn("overloaded")
    assert watch.pace.concurrency == 400


@in_virtual_time
async def test_unexpected_error_in_the_schedule_is_logged() -> None:
    bench = Bench(*urls_of(2))
    await bench.begin()

    def fail(_now_s: float) -> Any:
        raise ZeroDivisionError

    bench.dispatch.plan.take = fail  # type: ignore[method-assign,assignment]  # a plan with a defect
    bench.dispatch.pump()
    assert bench.dispatch.has_failed.is_set()
    assert isinstance(bench.dispatch.failure, ZeroDivisionError)


@in_virtual_time
async def test_probe_that_ignores_cancellation_blocks_only_briefly() -> None:
    bench = Bench(*urls_of(1))

    async def stubborn(*_: Any) -> Any:
        while True:
            try:
                await asyncio.sleep(1e6)
            except asyncio.CancelledError:
                if bench.loop.time() > began_s + 100:
                    raise

    began_s = bench.loop.time()
    bench.dispatch._prober = type("Stubborn", (), {"probe": staticmethod(stubborn)})()
    await bench.begin()
    await asyncio.sleep(1)
    await bench.dispatch.end(5.0)
    assert bench.loop.time() - began_s == pytest.approx(11.0)
    bench.loop.stand_still(200)


@in_virtual_time
async def test_memory_leads_no_witness_request_to_another_origin(monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[str] = []
    monkeypatch.setattr(
        ReachabilityWitnesses, "note_known", lambda _self, _host, _class, url, _at_s: noted.append(url)
    )
    urls = urls_of(2)
    bench = Bench(*urls, is_census=False)
    places = (urls[0] + "card.json", "https://internal.example/admin/reboot?now=1")
    for url, card_url in zip(urls, places, strict=True):
        memory = ProbeMemory(probed_at_s=1.0, alive_at_s=1.0, network_class=PUBLIC_IPV4, card_url=card_url)
        bench.ledger.add(url, memory=memory)
    await bench.begin()
    assert sorted(noted) == sorted([places[0], urls[1]])
