"""Who is probed now, and what follows from what came of it?"""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from tests.support.memory_ledger import MemoryLedger
from tests.support.probed_world import World, definition_of
from tests.support.virtual_loop import in_virtual_time, virtual_loop

from agent_health.observation import ResultClass
from agent_health.probe_memory import ProbeMemory
from agent_health.prober import dispatch as dispatch_module
from agent_health.prober.dispatch import ILL_CONCURRENCY, Dispatch, Due
from agent_health.prober.outbox import Outbox
from agent_health.prober.pace import Pace
from agent_health.prober.plans import CensusPlan, WatchPlan
from agent_health.prober.progress import Tally
from agent_health.prober.reporting import Reporter
from agent_health.prober.self_check import Doubt, SelfCheck
from agent_health.prober.shards import Holdings, Slot

SLOW = Doubt(why="overloaded", since_s=0.0, is_about_time=True)
BLIND = Doubt(why="nobody answers", since_s=0.0)
OK, TIMEOUT, REFUSED = ResultClass.OK, ResultClass.TIMEOUT, ResultClass.REFUSED


class Bench:
    """A dispatch with all that it stands on, and nothing around it."""

    def __init__(self, *urls: str, is_census: bool = True, **limits: Any) -> None:
        self.loop = virtual_loop()
        self.world = World(self.loop.clock)
        self.holdings, self.outbox = Holdings(), Outbox()
        self.tally, self.check = Tally(self.loop.time()), SelfCheck(self.loop.time())
        self.ledger = MemoryLedger(self.loop.clock)
        self.ledger.add(*urls)
        known = definition_of(limits=limits).limits
        self.pace: Pace[Due] = Pace(
            concurrency=known.concurrency,
            per_host=known.per_host,
            per_address=known.per_address,
            host_requests_per_second=known.host_requests_per_second,
        )
        cadence = self.world.cadence
        self.dispatch = Dispatch(
            self.world,
            CensusPlan(self.loop.wall_s()) if is_census else WatchPlan(cadence),
            self.pace,
            clock=self.loop.clock,
            cadence=cadence,
            holdings=self.holdings,
            outbox=self.outbox,
            reporter=Reporter(
                self.ledger, self.outbox, self.loop.clock, lose=lambda _: None, chance=lambda: 0.5
            ),
            tally=self.tally,
            check=self.check,
            max_probe_s=70.0,
        )

    async def begin(self, ttl_s: float = 3_600.0) -> None:
        held, _ = self.holdings.take(await self.ledger.claim("worker", ttl_s, self.holdings.tokens()))
        for shard in held:
            page = await self.ledger.targets(shard.number, None)
            self.dispatch.note_applied(shard, self.holdings.apply(shard, page))

    def renew(self) -> None:
        """Hear that all claims are still ours, later than we hoped."""
        for shard in self.holdings.shards.values():
            if shard.claim is not None:
                shard.claim = replace(shard.claim, expires_at_s=self.loop.time() + 3_600)
        self.dispatch.note_held(self.holdings.shards.values())

    async def until_looked(self, times: int) -> None:
        """Let time pass until so many looks have begun."""
        while len(self.world.looks) < times:  # noqa: ASYNC110 - time passes of itself here
            await asyncio.sleep(0.1)

    def slot(self, url: str) -> Slot:
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
    order = [next(slot.shard.number for slot in [bench.slot(look.url)]) for look in bench.world.looks]
    assert order == sorted(order)


@in_virtual_time
async def test_who_was_due_while_a_claim_was_over_is_probed_once_it_is_renewed() -> None:
    bench = Bench(*urls_of(40), concurrency=4)
    await bench.begin(ttl_s=0.5)
    await asyncio.sleep(5)
    # Those under way ended; nobody else began.
    begun = len(bench.world.looks)
    assert 4 <= begun <= 24
    bench.renew()
    await asyncio.sleep(5)
    assert len(bench.world.looks) == 40
    assert bench.dispatch.is_idle


@in_virtual_time
async def test_who_lies_in_a_lost_shard_is_neither_begun_nor_reported() -> None:
    bench = Bench(*urls_of(40), concurrency=4)
    await bench.begin()
    await asyncio.sleep(0.05)
    bench.dispatch.note_lost([bench.holdings.lose(number) for number in list(bench.holdings.shards)])  # type: ignore[misc]  # all are held
    await asyncio.sleep(5)
    assert len(bench.world.looks) == 4
    assert (len(bench.outbox), bench.tally.probed) == (0, 4)
    assert bench.dispatch.is_idle


@in_virtual_time
async def test_everything_that_is_due_at_once_is_begun_a_part_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dispatch_module, "MAX_OFFERED", 7)
    bench = Bench(*urls_of(100), is_census=False)
    await bench.begin()
    bench.loop.stand_still(300)
    await asyncio.sleep(1)
    assert len(bench.world.looks) == 100


@in_virtual_time
async def test_failures_that_wait_to_be_reported_are_taken_back_and_what_followed_from_them_too() -> None:
    url = "https://agent.example/"
    bench = Bench(url, is_census=False)
    await bench.begin()
    await asyncio.sleep(301)
    before = bench.slot(url).recall()
    bench.world.ends[url] = TIMEOUT
    # The next tick, its confirmation, and the tick after it.
    await asyncio.sleep(620)
    assert bench.slot(url).recall().failures_in_row == 3
    bench.outbox.put_back([])
    bench.dispatch.note_turn(Doubt(why="nobody answers", since_s=bench.loop.time() - 650))
    assert bench.results() == [OK, *[ResultClass.NOT_MEASURED] * 3]
    after = bench.slot(url).recall()
    assert (after.failures_in_row, after.result, after.confirm_at_s) == (0, OK, None)
    assert after.probed_at_s is not None
    assert before.probed_at_s is not None
    assert after.probed_at_s > before.probed_at_s + 500
    assert +bench.tally.classes == {OK: 1, ResultClass.NOT_MEASURED: 3}


@in_virtual_time
async def test_an_answer_that_came_after_a_failure_is_not_forgotten_when_that_is_taken_back() -> None:
    url = "https://agent.example/"
    bench = Bench(url, is_census=False)
    await bench.begin()
    await asyncio.sleep(301)
    bench.world.ends[url] = TIMEOUT
    await bench.until_looked(2)
    await asyncio.sleep(10)
    bench.world.ends[url] = OK
    # The confirmation.
    await bench.until_looked(3)
    await asyncio.sleep(1)
    after = bench.slot(url).recall()
    bench.dispatch.note_turn(Doubt(why="nobody answers", since_s=bench.loop.time() - 350))
    assert bench.results() == [OK, ResultClass.NOT_MEASURED, OK]
    assert bench.slot(url).recall() == after


@in_virtual_time
async def test_a_failure_that_is_taken_back_while_its_target_is_asked_again_is_not_counted_on() -> None:
    url = "https://agent.example/"
    bench = Bench(url, is_census=False)
    await bench.begin()
    await asyncio.sleep(301)
    bench.world.ends[url] = TIMEOUT
    await bench.until_looked(3)
    # It is being confirmed just now.
    bench.check.doubt = Doubt(why="nobody answers", since_s=bench.loop.time() - 350)
    bench.dispatch.note_turn(bench.check.doubt)
    await asyncio.sleep(6)
    assert bench.results() == [OK, ResultClass.NOT_MEASURED, ResultClass.NOT_MEASURED]
    assert bench.slot(url).recall().failures_in_row == 0


@in_virtual_time
async def test_a_census_leaves_in_peace_who_asked_for_it() -> None:
    bench = Bench(*urls_of(3))
    bench.ledger.add(urls_of(1)[0], memory=ProbeMemory(not_before_s=bench.loop.wall_s() + 600))
    await bench.begin()
    await asyncio.sleep(5)
    assert {look.url for look in bench.world.looks} == set(urls_of(3)[1:])
    told = {result.report.observation.target_url: result.report for result in bench.outbox}
    left = told[urls_of(1)[0]]
    assert left.observation.result is ResultClass.NOT_MEASURED
    assert left.observation.discovery is not None
    assert left.observation.discovery.reason == "it asked us not to come back yet"
    assert left.memory.not_before_s is not None
    assert bench.dispatch.is_idle


@in_virtual_time
async def test_what_ended_before_the_doubt_began_is_believed() -> None:
    bench = Bench(*urls_of(3), is_census=False)
    await bench.begin()
    bench.world.ends.update(dict.fromkeys(urls_of(3), REFUSED))
    await asyncio.sleep(301)
    bench.dispatch.note_turn(Doubt(why="nobody answers", since_s=bench.loop.time()))
    assert bench.results() == [REFUSED] * 3


@in_virtual_time
async def test_a_census_does_less_at_once_while_it_is_slow_and_little_while_it_is_blind() -> None:
    bench = Bench(*urls_of(2), concurrency=400)
    bench.dispatch.note_turn(SLOW)
    assert bench.pace.concurrency == 100
    bench.dispatch.note_turn(BLIND)
    assert bench.pace.concurrency == ILL_CONCURRENCY
    bench.dispatch.note_turn(None)
    assert bench.pace.concurrency == 400
    few = Bench(*urls_of(2), concurrency=4)
    few.dispatch.note_turn(BLIND)
    assert few.pace.concurrency == 4
    watch = Bench(*urls_of(2), is_census=False, concurrency=400)
    watch.dispatch.note_turn(BLIND)
    assert watch.pace.concurrency == 400


@in_virtual_time
async def test_a_defect_in_the_plan_is_heard_of() -> None:
    bench = Bench(*urls_of(2))
    await bench.begin()

    def fail(_now_s: float) -> Any:
        raise ZeroDivisionError

    bench.dispatch.plan.take = fail  # type: ignore[method-assign,assignment]  # a plan with a defect
    bench.dispatch.pump()
    assert bench.dispatch.has_failed.is_set()
    assert isinstance(bench.dispatch.failure, ZeroDivisionError)


@in_virtual_time
async def test_a_probe_that_will_not_end_even_so_holds_nobody_up_for_ever() -> None:
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
