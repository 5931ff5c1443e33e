"""The claims of a worker: it wins shards, and keeps them."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from itertools import pairwise

import pytest
from tests.support.memory_ledger import MemoryLedger
from tests.support.virtual_loop import VirtualLoop, in_virtual_time, virtual_loop

from lifesign.domain.targets.target import SHARDS
from lifesign.prober.network.clock import Clock, LedgerClock
from lifesign.prober.registry_exchange.ledger import (
    NO_WITNESS_REPORT,
    Granted,
    WitnessNews,
    WitnessReport,
)
from lifesign.prober.worker.claims import RENEW_JITTER_RATIO, RENEW_RATIO, ClaimRenewer
from lifesign.prober.worker.shards import OwnedShards, Shard

TTL_S = 100.0


class Listening(MemoryLedger):
    """Stores the times of the calls."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__(loop.clock)
        self.requested_at_s: list[float] = []

    async def claim(
        self,
        worker: str,
        ttl_s: float,
        held: Mapping[int, int],
        companions: int = 0,
        witness_report: WitnessReport = NO_WITNESS_REPORT,
    ) -> Granted:
        self.requested_at_s.append(self.clock.monotonic_s())
        return await super().claim(worker, ttl_s, held, companions, witness_report)


class Keeping:
    """A running keeper and its reports."""

    def __init__(
        self,
        ledger: MemoryLedger,
        name: str = "worker",
        *,
        chance: float = 0.5,
        companions: int = 0,
        machine: Clock | None = None,
    ) -> None:
        self.holdings = OwnedShards()
        self.lost: list[int] = []
        self.news: list[WitnessNews] = []
        self.witness_report = NO_WITNESS_REPORT
        self.clock = LedgerClock(machine or ledger.clock)
        self.keeper = ClaimRenewer(
            ledger,
            self.holdings,
            name,
            ttl_s=TTL_S,
            held=_pass,
            lost=self._lose,
            clock=self.clock,
            max_offset_s=30.0,
            witness_report=self._tell_standing,
            news=self.news.append,
            other_credentials=lambda _missing, _working: None,
            chance=lambda: chance,
            companions=companions,
        )

    @contextlib.asynccontextmanager
    async def going_on(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.keeper.run())
        await asyncio.sleep(0.01)
        yield
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def _tell_standing(self) -> WitnessReport:
        return self.witness_report

    def _lose(self, shards: Sequence[Shard]) -> None:
        self.lost += [shard.number for shard in shards]


def _pass(_shards: Sequence[Shard]) -> None:
    pass


@pytest.mark.parametrize("chance", [0.0, 0.5, 1.0])
def test_worker_renews_its_claim_after_60_percent_of_its_lifetime_with_jitter(chance: float) -> None:
    @in_virtual_time
    async def assess() -> None:
        ledger = Listening(virtual_loop())
        async with Keeping(ledger, chance=chance).going_on():
            await asyncio.sleep(1_000)
        gaps = [
            later - earlier
            for earlier, later in zip(ledger.requested_at_s, ledger.requested_at_s[1:], strict=False)
        ]
        assert gaps[:7] == pytest.approx([0.5, 1, 2, 4, 8, 16, 32])
        wanted_s = TTL_S * RENEW_RATIO * (1 + RENEW_JITTER_RATIO * (2 * chance - 1))
        assert gaps[8:] == pytest.approx([wanted_s] * len(gaps[8:]))

    assess()


@in_virtual_time
async def test_worker_claims_soon_after_a_change_of_shards() -> None:
    ledger = Listening(virtual_loop())
    keeping = Keeping(ledger)
    async with keeping.going_on():
        await asyncio.sleep(500)
        await ledger.claim("other", TTL_S, {})
        await asyncio.sleep(70)
        assert len(keeping.holdings.shards) == len(keeping.lost) == SHARDS // 2
        gaps = [later - earlier for earlier, later in pairwise(ledger.requested_at_s)]
        assert gaps[-5:] == pytest.approx([0.5, 1, 2, 4, 8])


@in_virtual_time
async def test_claim_deadline_counts_from_the_time_of_the_request() -> None:
    class Slow(MemoryLedger):
        async def claim(
            self,
            worker: str,
            ttl_s: float,
            held: Mapping[int, int],
            companions: int = 0,
            witness_report: WitnessReport = NO_WITNESS_REPORT,
        ) -> Granted:
            granted = await super().claim(worker, ttl_s, held, companions, witness_report)
            await asyncio.sleep(30)
            return granted

    loop = virtual_loop()
    requested_at_s = loop.time()
    keeping = Keeping(Slow(loop.clock))
    async with keeping.going_on():
        await asyncio.sleep(31)
        shard = next(iter(keeping.holdings.shards.values()))
        assert shard.claim is not None
        assert shard.claim.expires_at_s == pytest.approx(requested_at_s + TTL_S)


@in_virtual_time
async def test_unreachable_ledger_is_retried_with_backoff_until_it_returns() -> None:
    ledger = Listening(virtual_loop())
    keeping = Keeping(ledger, chance=1.0)
    ledger.is_unreachable = True
    async with keeping.going_on():
        await asyncio.sleep(200)
        gaps = [
            later - earlier
            for earlier, later in zip(ledger.requested_at_s, ledger.requested_at_s[1:], strict=False)
        ]
        assert gaps[:6] == pytest.approx([1, 2, 4, 8, 16, 30])
        assert not keeping.keeper.has_asked.is_set()
        ledger.is_unreachable = False
        await asyncio.sleep(31)
        assert len(keeping.holdings.shards) == SHARDS


@in_virtual_time
async def test_urgent_claim_request_is_sent_at_once() -> None:
    ledger = Listening(virtual_loop())
    keeping = Keeping(ledger)
    async with keeping.going_on():
        await asyncio.sleep(500)
        before = len(ledger.requested_at_s)
        keeping.keeper.hurry()
        await asyncio.sleep(0.01)
        assert len(ledger.requested_at_s) == before + 1


@in_virtual_time
async def test_worker_claims_soon_after_another_worker_joined_or_ended() -> None:
    ledger = Listening(virtual_loop())
    keeping = Keeping(ledger)
    workers = [frozenset("a"), frozenset("a"), frozenset("ab"), frozenset("ab"), None, frozenset("a")]
    claimed = []
    async with keeping.going_on():
        await asyncio.sleep(500)
        for each in workers:
            before = len(ledger.requested_at_s)
            keeping.keeper.note_workers(each)
            await asyncio.sleep(0.01)
            claimed.append(len(ledger.requested_at_s) - before)
            await asyncio.sleep(6)
    assert claimed == [0, 0, 1, 0, 0, 1]


@in_virtual_time
async def test_changes_of_workers_cause_few_claims() -> None:
    ledger = Listening(virtual_loop())
    keeping = Keeping(ledger)
    async with keeping.going_on():
        await asyncio.sleep(500)
        before = len(ledger.requested_at_s)
        for second in range(49):
            keeping.keeper.note_workers(frozenset(map(str, range(200 + second % 2))))
            await asyncio.sleep(1)
    assert len(ledger.requested_at_s) - before <= 5


@in_virtual_time
async def test_workers_that_start_together_take_no_shards_from_each_other() -> None:
    ledger = MemoryLedger(virtual_loop().clock)
    crew = [Keeping(ledger, f"worker {number}", companions=2) for number in range(3)]
    async with crew[0].going_on():
        await asyncio.sleep(0.3)
        async with crew[1].going_on(), crew[2].going_on():
            await asyncio.sleep(4)
            assert [len(one.holdings.shards) for one in crew] == [342, 342, 340]
            assert [one.lost for one in crew] == [[], [], []]


@in_virtual_time
async def test_workers_that_start_together_get_their_shares_at_once() -> None:
    ledger = MemoryLedger(virtual_loop().clock)
    crew = [Keeping(ledger, f"worker {number}", companions=2) for number in range(3)]
    async with crew[0].going_on():
        await asyncio.sleep(4)
        async with crew[1].going_on():
            assert [len(one.holdings.shards) for one in crew] == [342, 342, 0]
            async with crew[2].going_on():
                assert [len(one.holdings.shards) for one in crew] == [342, 342, 340]
    assert len(ledger.grants) == SHARDS, "a shard was granted twice"


@in_virtual_time
async def test_shards_of_an_absent_companion_are_claimed_after_a_timeout() -> None:
    ledger = MemoryLedger(virtual_loop().clock)
    keeping = Keeping(ledger, companions=1)
    async with keeping.going_on():
        await asyncio.sleep(9)
        assert len(keeping.holdings.shards) == SHARDS // 2
        await asyncio.sleep(9)
        assert len(keeping.holdings.shards) == SHARDS


@in_virtual_time
async def test_claim_carries_witnesses_and_applies_the_answer() -> None:
    ledger = MemoryLedger(virtual_loop().clock)
    ledger.news = WitnessNews(handed_out=[("public_ipv6", "https://a.example/")])
    keeping = Keeping(ledger)
    keeping.witness_report = WitnessReport(reached_classes=["public_ipv4"], wanted={"public_ipv6": 3})
    async with keeping.going_on():
        assert ledger.standings == [("worker", keeping.witness_report)]
        assert keeping.news == [ledger.news]


@in_virtual_time
async def test_reason_for_withheld_shards_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    ledger = MemoryLedger(virtual_loop().clock)
    keeping = Keeping(ledger)
    async with keeping.going_on():
        assert len(keeping.holdings.shards) == SHARDS
        ledger.reason = "reaches_less"
        await asyncio.sleep(500)
        assert keeping.holdings.shards == {}
        errors = [record for record in caplog.records if record.levelname == "ERROR"]
        assert len(errors) == 1
        assert "reaches_less" in errors[0].getMessage()
        ledger.reason = None
        await asyncio.sleep(100)
        assert len(keeping.holdings.shards) == SHARDS
    assert [record.levelname for record in caplog.records].count("WARNING") == 1


@pytest.mark.parametrize("ahead_s", [3_600.0, -3_600.0])
def test_wrong_clock_is_reported_once(ahead_s: float, caplog: pytest.LogCaptureFixture) -> None:
    @in_virtual_time
    async def assess() -> None:
        loop = virtual_loop()
        ledger = MemoryLedger(loop.clock)
        ledger.wall_s = lambda: loop.wall_s() - ahead_s
        keeping = Keeping(ledger)
        async with keeping.going_on():
            await asyncio.sleep(500)
            assert keeping.clock.offset_s == pytest.approx(ahead_s, abs=1.0)
            assert keeping.clock.clock.wall_s() == pytest.approx(ledger.wall_s(), abs=1.0)
            loop.steps_s -= ahead_s
            ledger.wall_s = loop.wall_s
            await asyncio.sleep(200)
            assert keeping.clock.offset_s == pytest.approx(0.0, abs=1.0)

    assess()
    assert [record.levelname for record in caplog.records if "clock" in record.getMessage()] == [
        "ERROR",
        "WARNING",
    ]
