"""The worker: one process claims shards, probes their targets when they are due, and reports."""

import asyncio
import contextlib
import re
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise
from typing import Any

import pytest
import uvloop
from tests.support.memory_ledger import MemoryLedger
from tests.support.probed_world import World, definition_of
from tests.support.repetitions import in_faults
from tests.support.virtual_loop import VirtualLoop, in_virtual_time, virtual_loop
from yarl import URL

from lifesign.domain.credentials.acceptance import CredentialState
from lifesign.domain.net.network_class import PUBLIC_IPV4, PUBLIC_IPV6
from lifesign.domain.observation.results import InconclusiveReason, Observation, ResultClass
from lifesign.domain.targets.target import SHARDS, phase_of, target_id
from lifesign.prober.definition import lag_limits
from lifesign.prober.definition.credentials import CredentialSettings
from lifesign.prober.errors import PassDelayed
from lifesign.prober.network.clock import SYSTEM_CLOCK
from lifesign.prober.registry_exchange.ledger import (
    NO_WITNESS_REPORT,
    Granted,
    LedgerUnreachable,
    ReportAnswer,
    ShardBatch,
    TargetPage,
    WitnessNews,
    WitnessReport,
)
from lifesign.prober.secrets.credential_store import CredentialStore
from lifesign.prober.secrets.secret_reader import read_secrets
from lifesign.prober.worker import lag_watch
from lifesign.prober.worker.dispatch import BEGUN_AT_ONCE
from lifesign.prober.worker.main_loop import GRACE_SECONDS, MAX_REREADS, ProbeWorker
from lifesign.prober.worker.progress_counts import Progress

INTERVAL_S = 300.0
OK, TIMEOUT, REFUSED = ResultClass.OK, ResultClass.TIMEOUT, ResultClass.REFUSED


@pytest.fixture(autouse=True)
def _few_lag_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check for lag once per second: ten times per second of virtual time is most of the work of a test."""
    for module in (lag_watch, lag_limits):
        monkeypatch.setattr(module, "LAG_EVERY_SECONDS", 1.0)


def urls_of(count: int) -> list[str]:
    return [f"https://agent-{number}.example/" for number in range(count)]


class Stage:
    """A ledger, a world, and workers between the two."""

    def __init__(self, *urls: str, **limits: Any) -> None:
        self.loop: VirtualLoop = virtual_loop()
        self.ledger = MemoryLedger(self.loop.clock)
        self.world = World(self.loop.clock)
        self.ledger.add(*urls)
        self.definition = definition_of(limits=limits)
        self.stops: dict[asyncio.Task[None], asyncio.Event] = {}

    def worker(self, name: str = "worker", **settings: Any) -> ProbeWorker:
        return ProbeWorker(
            self.ledger,
            self.world,
            self.definition,
            worker_name=name,
            **{"clock": self.loop.clock, "asks": self.world, **settings},
        )

    @contextlib.asynccontextmanager
    async def watching(self, name: str = "worker", **settings: Any) -> AsyncIterator[ProbeWorker]:
        """Let a worker run until the block ends."""
        worker, stop = self.worker(name, **settings), asyncio.Event()
        running = asyncio.create_task(worker.run(stop))
        try:
            # Until it has its shards and their targets.
            await asyncio.sleep(0.01)
            yield worker
        finally:
            stop.set()
            await running

    def lose_ledger(self) -> None:
        self.ledger.is_unreachable = True

    def find_ledger(self) -> None:
        self.ledger.is_unreachable = False

    def results(self, url: str) -> list[ResultClass]:
        return [observation.result for observation in self.ledger.observations(url)]

    def seen(self) -> list[Observation]:
        return [one for many in self.ledger.seen.values() for one in many]


def reason(observation: Observation) -> str:
    assert observation.discovery is not None
    return observation.discovery.reason


# At their ticks


@in_virtual_time
async def test_every_target_is_probed_at_its_own_tick_and_reported() -> None:
    urls = urls_of(100)
    stage = Stage(*urls)
    async with stage.watching() as worker:
        await asyncio.sleep(4 * INTERVAL_S)
        progress = worker.progress
    for url in urls:
        at_s = stage.world.looks_at(url)
        assert len(at_s) == 4
        due = [(at / INTERVAL_S - phase_of(target_id(url))) % 1 for at in at_s]
        assert max(min(late, 1 - late) for late in due) * INTERVAL_S < 0.02
        assert stage.results(url) == [OK] * 4
    assert (progress.probed, progress.missed, progress.targets) == (400, 0, 100)
    assert progress.start_error_p99_ms is not None
    assert progress.start_error_p99_ms < 20


@in_virtual_time
async def test_load_is_even_from_the_first_minute_on_and_over_a_restart() -> None:
    stage = Stage(*urls_of(300))
    began_s = stage.loop.wall_s()
    async with stage.watching():
        await asyncio.sleep(INTERVAL_S)
    async with stage.watching():
        await asyncio.sleep(INTERVAL_S)
    half_minutes = [0] * 20
    for assess in stage.world.looks:
        half_minutes[int((assess.at_s - began_s) / 30) % 20] += 1
    assert min(half_minutes) > 10
    assert max(half_minutes) < 60
    assert stage.world.most_under_way <= 5


@in_virtual_time
async def test_targets_that_are_added_are_found_within_seconds_and_not_probed_in_a_burst() -> None:
    stage = Stage("https://first.example/")
    async with stage.watching() as worker:
        await asyncio.sleep(100)
        stage.ledger.add(*urls_of(300))
        await asyncio.sleep(3)
        assert worker.progress.targets == 301
        assert len(stage.world.looks) < 15
        await asyncio.sleep(INTERVAL_S)
    assert {assess.url for assess in stage.world.looks} >= set(urls_of(300))


@in_virtual_time
async def test_former_target_is_not_probed() -> None:
    stage = Stage(*urls_of(50))
    async with stage.watching() as worker:
        await asyncio.sleep(INTERVAL_S)
        for url in urls_of(50)[:40]:
            stage.ledger.remove(url)
        await asyncio.sleep(3)
        before = len(stage.world.looks)
        await asyncio.sleep(INTERVAL_S)
        assert worker.progress.targets == 10
    assert len(stage.world.looks) - before == 10


@in_virtual_time
async def test_requested_recheck_is_reported_within_seconds() -> None:
    url = "https://agent.example/"
    stage = Stage(url, *urls_of(300))
    async with stage.watching():
        await asyncio.sleep(2 * INTERVAL_S + 120)
        tick_at_s = stage.world.looks_at(url)[-1]
        # Just after its tick, and long after it.
        for wait_s in (tick_at_s + INTERVAL_S + 5.0 - stage.loop.clock.wall_s(), 140.0):
            await asyncio.sleep(wait_s)
            before = len(stage.world.looks_at(url))
            stage.ledger.request_recheck(url)
            await asyncio.sleep(4.5)
            assert len(stage.world.looks_at(url)) == before + 1
            assert len(stage.ledger.observations(url)) == before + 1
    assert stage.ledger.entries[target_id(url)].recheck_at_s is None


@in_virtual_time
async def test_a_recovery_is_confirmed_once_after_half_a_minute() -> None:
    url = "https://agent.example/"
    stage = Stage(url)
    stage.world.ends[url] = REFUSED
    async with stage.watching():
        await asyncio.sleep(INTERVAL_S)
        del stage.world.ends[url]
        await asyncio.sleep(3 * INTERVAL_S)
    assert stage.results(url)[0] is REFUSED
    at_s = stage.world.looks_at(url)
    gaps = [later - earlier for earlier, later in pairwise(at_s)]
    assert [round(gap) for gap in gaps[-2:]] == [30, 270]


@in_virtual_time
async def test_results_are_handed_over_within_five_seconds_in_few_calls() -> None:
    stage = Stage(*urls_of(600))
    late: list[float] = []

    def look_at_ages(batch: ShardBatch) -> None:
        now_s = stage.loop.wall_s()
        late.extend(now_s - report.observation.observed_at.timestamp() for report in batch.reports)

    stage.ledger.on_report = look_at_ages
    async with stage.watching():
        await asyncio.sleep(INTERVAL_S)
    assert len(stage.ledger.calls) <= INTERVAL_S / 3 + 2
    assert len(late) == 600
    assert max(late) <= 5.1


# A census


@in_virtual_time
async def test_a_census_probes_every_target_once_and_ends() -> None:
    urls = urls_of(2_000)
    stage = Stage(*urls, concurrency=100)
    began_s = stage.loop.time()
    worker = stage.worker()
    assert await worker.run_once(stage.loop.wall_s(), asyncio.Event())
    assert sorted(assess.url for assess in stage.world.looks) == sorted(urls)
    assert stage.world.most_under_way == 100
    # 2,000 probes of 0.1 s, a hundred at once.
    assert stage.loop.time() - began_s < 5
    assert len(stage.seen()) == 2_000
    assert max(stage.ledger.calls) <= 500
    assert stage.ledger.held_by("worker") == set()
    progress = worker.progress
    assert (progress.left, progress.probed, progress.held, dict(progress.classes)) == (
        0,
        2_000,
        0,
        {OK: 2_000},
    )


@in_virtual_time
async def test_event_loop_runs_between_batches_of_started_probes() -> None:
    stage = Stage(*urls_of(1_000), concurrency=500)
    in_turn, most = 0, 0

    def end_turn() -> None:
        nonlocal in_turn, most
        most, in_turn = max(most, in_turn), 0

    def note(_url: str) -> None:
        nonlocal in_turn
        in_turn += 1
        if in_turn == 1:
            stage.loop.call_soon(end_turn)

    stage.world.on_look = note
    assert await stage.worker().run_once(stage.loop.wall_s(), asyncio.Event())
    assert most <= 2 * BEGUN_AT_ONCE
    assert stage.world.most_under_way == 500


@in_virtual_time
async def test_census_does_not_reread_shards_while_a_slow_ledger_takes_the_last_results(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage(*urls_of(100))
    reads: list[int] = []
    targets, report = stage.ledger.targets, stage.ledger.report

    async def targets_read(shard: int, after_version: int | None) -> TargetPage:
        reads.append(shard)
        return await targets(shard, after_version)

    async def slow_report(batches: Sequence[ShardBatch], interval_s: float) -> ReportAnswer:
        await asyncio.sleep(3)
        return await report(batches, interval_s)

    monkeypatch.setattr(stage.ledger, "targets", targets_read)
    monkeypatch.setattr(stage.ledger, "report", slow_report)
    assert await stage.worker().run_once(stage.loop.wall_s(), asyncio.Event())
    assert len(reads) == len(set(reads))


@in_virtual_time
async def test_census_whose_ledger_never_ends_it_rereads_all_targets_and_ends(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stage, reads = Stage(*urls_of(3)), Counter[int]()
    targets, unprobed = stage.ledger.targets, stage.ledger.unprobed

    async def targets_read(shard: int, after_version: int | None) -> TargetPage:
        reads[shard] += 1
        return await targets(shard, after_version)

    async def one_more(since_s: float) -> int:
        return 1 + await unprobed(since_s)

    monkeypatch.setattr(stage.ledger, "targets", targets_read)
    monkeypatch.setattr(stage.ledger, "unprobed", one_more)
    assert not await stage.worker().run_once(stage.loop.wall_s(), asyncio.Event())
    assert ("1 target",) in [record.args for record in caplog.records if record.levelname == "ERROR"]
    assert set(reads.values()) == {1 + MAX_REREADS}
    assert len(stage.world.looks) == 3


@in_virtual_time
async def test_census_requests_the_remaining_count_again_after_an_outage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage, asked = Stage(*urls_of(3)), []
    unprobed = stage.ledger.unprobed

    async def away_at_first(since_s: float) -> int:
        asked.append(since_s)
        if len(asked) == 1:
            raise LedgerUnreachable("no answer")
        return await unprobed(since_s)

    monkeypatch.setattr(stage.ledger, "unprobed", away_at_first)
    assert await stage.worker().run_once(stage.loop.wall_s(), asyncio.Event())
    assert len(asked) == 2
    assert len(stage.world.looks) == 3


@in_virtual_time
@pytest.mark.parametrize("away_at_s", [0.0, 2.05], ids=["from the beginning", "in the middle"])
async def test_census_without_ledger_ends_and_the_next_one_continues(
    away_at_s: float,
) -> None:
    urls = urls_of(500)
    stage = Stage(*urls, concurrency=10)
    since_s = stage.loop.wall_s()
    stage.loop.call_later(away_at_s, stage.lose_ledger)
    worker = stage.worker(patience_s=600)
    with pytest.raises(PassDelayed, match=r"\b600 s \(no answer\)") as caught:
        await worker.run_once(since_s, asyncio.Event())
    assert (caught.value.seconds, caught.value.why) == (600, "no answer")
    assert 600 < stage.loop.wall_s() - since_s < 700
    assert stage.ledger.seen == {}
    stage.ledger.is_unreachable = False
    assert await stage.worker().run_once(since_s, asyncio.Event())
    assert {observation.result for observation in stage.seen()} == {OK}
    assert set(stage.ledger.seen) == {target_id(url) for url in urls}


@in_virtual_time
async def test_census_waits_for_an_unreachable_ledger() -> None:
    urls = urls_of(500)
    stage = Stage(*urls, concurrency=10)
    stage.loop.call_later(2.05, stage.lose_ledger)
    stage.loop.call_later(200, stage.find_ledger)
    assert await stage.worker().run_once(stage.loop.wall_s(), asyncio.Event())
    assert sorted(assess.url for assess in stage.world.looks) == sorted(urls)


@in_virtual_time
async def test_stopped_census_reports_and_continues_later() -> None:
    urls = urls_of(500)
    stage = Stage(*urls, concurrency=10)
    since_s, stop = stage.loop.wall_s(), asyncio.Event()
    stage.loop.call_later(2.05, stop.set)
    worker = stage.worker()
    assert not await worker.run_once(since_s, stop)
    done = {assess.url for assess in stage.world.looks}
    assert 150 < len(done) < 300
    assert set(stage.ledger.seen) == {target_id(url) for url in done}
    assert await stage.worker().run_once(since_s, asyncio.Event())
    assert sorted(assess.url for assess in stage.world.looks) == sorted(urls)


@in_virtual_time
async def test_workers_share_a_census_and_each_ends_when_all_are_done() -> None:
    urls = urls_of(1_000)
    stage = Stage(*urls, concurrency=10)
    since_s = stage.loop.wall_s()
    # The first has all shards until the others come.
    workers = [stage.worker(f"worker {number}") for number in range(4)]
    ended = await asyncio.gather(*(worker.run_once(since_s, asyncio.Event()) for worker in workers))
    assert ended == [True] * 4
    assert len(stage.seen()) == 1_000
    assert min(worker.progress.probed for worker in workers) > 100
    twice = len(stage.world.looks) - 1_000
    assert twice <= 4 * 10


@in_virtual_time
async def test_a_worker_without_work_in_a_census_ends_soon_after_the_others() -> None:
    urls = [f"https://agent.example/{number}" for number in range(30)]
    stage = Stage(*urls)
    ended_s: dict[str, float] = {}

    async def count(name: str) -> None:
        assert await stage.worker(name, companions=1).run_once(stage.loop.wall_s(), asyncio.Event())
        ended_s[name] = stage.loop.wall_s()

    began_s = stage.loop.wall_s()
    await asyncio.gather(count("first"), count("second"))
    assert sorted(assess.url for assess in stage.world.looks) == sorted(urls)
    first_s, last_s = sorted(end_s - began_s for end_s in ended_s.values())
    assert last_s - first_s <= first_s / 4


@in_virtual_time
async def test_targets_of_a_worker_that_died_in_a_census_are_probed_by_others() -> None:
    urls = urls_of(400)
    stage = Stage(*urls, concurrency=5)
    since_s = stage.loop.wall_s()
    dead = await stage.ledger.claim("dead", 60.0, {})
    assert len(dead.claims) == SHARDS
    assert await stage.worker("living", shard_ttl_s=60).run_once(since_s, asyncio.Event())
    assert stage.loop.wall_s() - since_s > 60
    assert sorted(assess.url for assess in stage.world.looks) == sorted(urls)


def test_a_census_runs_on_the_fast_event_loop_and_the_real_clock_too() -> None:
    async def count() -> Progress:
        ledger, clock = MemoryLedger(SYSTEM_CLOCK), SYSTEM_CLOCK
        ledger.add(*urls_of(300))
        world = World(clock, takes_s=0.001)
        worker = ProbeWorker(ledger, world, definition_of(), worker_name="worker", clock=clock)
        assert await worker.run_once(clock.wall_s(), asyncio.Event())
        return worker.progress

    progress = uvloop.run(count())
    assert (progress.probed, progress.left) == (300, 0)
    assert progress.classes == {OK: 300}


@in_virtual_time
async def test_census_without_targets_ends_at_once() -> None:
    stage = Stage()
    assert await stage.worker().run_once(stage.loop.wall_s(), asyncio.Event())


@in_virtual_time
async def test_census_reports_its_progress() -> None:
    stage = Stage(*urls_of(1_000), concurrency=10)
    stop = asyncio.Event()
    worker = stage.worker()
    running = asyncio.create_task(worker.run_once(stage.loop.wall_s(), stop))
    await asyncio.sleep(5)
    progress = worker.progress
    stop.set()
    await running
    assert progress.left is not None
    assert progress.probed + progress.left == 1_000
    assert progress.rate_per_s == pytest.approx(100, rel=0.1)
    assert progress.seconds_left == pytest.approx(5, rel=0.2)
    assert (progress.in_flight, progress.shards) == (10, SHARDS)


# Claims


@in_virtual_time
async def test_shards_are_renewed_in_time_and_never_granted_again() -> None:
    stage = Stage(*urls_of(5))
    async with stage.watching(shard_ttl_s=60):
        await asyncio.sleep(600)
        assert len(stage.ledger.held_by("worker")) == SHARDS
    assert len(stage.ledger.grants) == SHARDS


@in_virtual_time
async def test_workers_that_join_and_leave_share_fairly_and_no_target_is_left_out() -> None:
    urls = urls_of(200)
    stage = Stage(*urls)
    async with stage.watching("first", shard_ttl_s=60) as first:
        await asyncio.sleep(INTERVAL_S)
        async with stage.watching("second", shard_ttl_s=60) as second:
            await asyncio.sleep(INTERVAL_S)
            assert (first.progress.shards, second.progress.shards) == (SHARDS // 2, SHARDS // 2)
            assert first.progress.targets + second.progress.targets == 200
            await asyncio.sleep(INTERVAL_S)
        await asyncio.sleep(INTERVAL_S)
        assert first.progress.shards == SHARDS
    for url in urls:
        at_s = stage.world.looks_at(url)
        assert all(later - earlier >= INTERVAL_S - 1 for earlier, later in pairwise(at_s))
        assert max(later - earlier for earlier, later in pairwise(at_s)) <= 2 * INTERVAL_S + 1


def lab_credentials(monkeypatch: pytest.MonkeyPatch) -> CredentialStore:
    monkeypatch.setenv("LAB_TOKEN", "canary-of-the-lab")
    lab = {"name": "lab", "origin": "https://lab.example", "bearer": {"env": "LAB_TOKEN"}}
    settings = (CredentialSettings.model_validate(lab),)
    return CredentialStore(settings, read_secrets(settings))


@in_virtual_time
async def test_shards_of_a_worker_that_ends_have_another_one_within_15_seconds() -> None:
    stage = Stage()
    async with stage.watching("first") as first:
        await asyncio.sleep(1_000)
        async with stage.watching("second") as second:
            await asyncio.sleep(15)
            assert (first.progress.shards, second.progress.shards) == (SHARDS // 2, SHARDS // 2)
            await asyncio.sleep(1_000)
        await asyncio.sleep(15)
        assert first.progress.shards == SHARDS


@in_virtual_time
async def test_changed_state_of_a_credential_is_claimed_within_20_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A claim renews the shards only every three minutes."""
    claimed: list[Sequence[CredentialState | None]] = []

    class Listening(MemoryLedger):
        async def claim(
            self,
            worker: str,
            ttl_s: float,
            held: Any,
            companions: int = 0,
            witness_report: WitnessReport = NO_WITNESS_REPORT,
        ) -> Granted:
            claimed.append([each.state for each in witness_report.credentials])
            return await super().claim(worker, ttl_s, held, companions, witness_report)

    (url,) = urls_of(1)
    stage = Stage(url)
    stage.ledger = Listening(stage.loop.clock)
    stage.ledger.add(url)
    store = lab_credentials(monkeypatch)
    async with stage.watching(credentials=store):
        await asyncio.sleep(200)
        for state in (CredentialState.TOKEN_ERROR, CredentialState.WORKS):
            before = len(claimed)
            store.note_use(URL(url), state, "lab", target=url)
            await asyncio.sleep(21)
            assert claimed[before:] == [[state]]


@in_virtual_time
async def test_faults_of_targets_that_moved_to_another_worker_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A fault that this worker cannot see the end of would be reported for a quarter of an hour."""
    store = lab_credentials(monkeypatch)
    urls = urls_of(40)
    stage = Stage(*urls)
    async with stage.watching("one", credentials=store) as one:
        for url in urls:
            store.note_use(URL(url), CredentialState.CREDENTIALS_REJECTED, "lab", target=url)
        async with stage.watching("two"):
            await asyncio.sleep(200)
            kept = [slot.url for slot in one._owned_shards.slots()]
            assert 0 < len(kept) < len(urls)
            assert [each.state for each in store.states] == [CredentialState.CREDENTIALS_REJECTED]
            for url in kept:
                store.note_use(URL(url), CredentialState.WORKS, "lab", target=url)
            assert [each.state for each in store.states] == [CredentialState.WORKS]


@in_virtual_time
async def test_the_shards_of_a_worker_that_falls_silent_move_when_its_claim_is_over() -> None:
    urls = urls_of(100)
    stage = Stage(*urls)
    dead = stage.worker("dead", shard_ttl_s=60)
    running = asyncio.create_task(dead.run(asyncio.Event()))
    await asyncio.sleep(INTERVAL_S)
    # Simulates `kill -9`: the worker reports nothing and releases no shard.
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        stage.ledger.is_unreachable = True
        await running
    stage.ledger.is_unreachable = False
    async with stage.watching("living", shard_ttl_s=60):
        await asyncio.sleep(60 + 2 * INTERVAL_S)
    for url in urls:
        gaps = [later - earlier for earlier, later in pairwise(stage.world.looks_at(url))]
        assert max(gaps) <= 60 + 2 * INTERVAL_S


@in_virtual_time
async def test_a_batch_with_a_stale_token_is_dropped_and_never_handed_over_again() -> None:
    urls = urls_of(100)
    stage = Stage(*urls)
    async with stage.watching(shard_ttl_s=3_600) as worker:
        await asyncio.sleep(INTERVAL_S)
        # The ledger has granted them to another prober meanwhile, which the worker cannot know.
        for lease in stage.ledger.leases.values():
            lease.token, lease.worker = lease.token + 1, "other-worker"
        before = {subject: len(many) for subject, many in stage.ledger.seen.items()}
        await asyncio.sleep(INTERVAL_S)
        assert worker.progress.targets == 0
    assert {subject: len(many) for subject, many in stage.ledger.seen.items()} == before
    refused = [report.subject_id for batch in stage.ledger.refused for report in batch.reports]
    assert len(refused) == len(set(refused)) > 50


@in_virtual_time
async def test_worker_reports_nothing_after_its_own_claim_deadline() -> None:
    stage = Stage(*urls_of(100))

    class Deaf(MemoryLedger):
        """Takes results, and has stopped to renew."""

        async def claim(
            self,
            worker: str,
            ttl_s: float,
            held: Any,
            companions: int = 0,
            witness_report: WitnessReport = NO_WITNESS_REPORT,
        ) -> Granted:
            if self.grants:
                raise LedgerUnreachable("no claims today")
            return await super().claim(worker, ttl_s, held, companions, witness_report)

        def _is_held(self, batch: Any) -> bool:
            return True

    stage.ledger = Deaf(stage.loop.clock)
    stage.ledger.add(*urls_of(100))
    async with stage.watching(shard_ttl_s=100):
        await asyncio.sleep(4 * INTERVAL_S)
    began_s = stage.world.looks[0].at_s
    assert max(assess.at_s for assess in stage.world.looks) - began_s <= 100
    assert len(stage.seen()) < 60


@in_virtual_time
async def test_results_of_an_expired_claim_are_reported_as_lost() -> None:
    urls = urls_of(100)
    stage = Stage(*urls)
    async with stage.watching(shard_ttl_s=30):
        await asyncio.sleep(INTERVAL_S)
        stage.ledger.is_unreachable = True
        await asyncio.sleep(40)
        made = {assess.url for assess in stage.world.looks if assess.at_s > stage.loop.wall_s() - 39}
        assert len(made) > 4
        before = {url: len(stage.ledger.observations(url)) for url in urls}
        stage.ledger.is_unreachable = False
        await asyncio.sleep(45)
        # Under the new token its age would be that of the token.
        assert all(len(stage.ledger.observations(url)) == before[url] for url in made)
        await asyncio.sleep(INTERVAL_S)
    for url in made:
        lost, ok = stage.ledger.observations(url)[before[url] : before[url] + 2]
        assert (lost.inconclusive_reason, ok.result) == (InconclusiveReason.NOT_PROBED, OK)
        assert "1 result " in reason(lost)


# Unreachable ledger


@in_virtual_time
async def test_short_outage_of_the_ledger_delays_reports_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    urls = urls_of(100)
    stage = Stage(*urls)
    async with stage.watching() as worker:
        await asyncio.sleep(2 * INTERVAL_S)
        stage.ledger.is_unreachable = True
        await asyncio.sleep(100)
        assert worker.progress.is_ledger_unreachable
        assert worker.progress.held > 20
        await asyncio.sleep(10)
        stage.ledger.is_unreachable = False
        await asyncio.sleep(2 * INTERVAL_S)
        assert worker.progress.given_up == 0
    held, resumed = (one for one in caplog.records if one.module == "reporting")
    assert isinstance(held.args, tuple)
    assert (held.levelname, str(held.args[-1])) == ("WARNING", "no answer")
    assert (resumed.levelname, resumed.funcName) == ("WARNING", "_report")
    for url in urls:
        results = stage.results(url)
        assert set(results) <= {OK, ResultClass.NOT_MEASURED}
        # All that was seen was reported.
        assert results.count(OK) == len(stage.world.looks_at(url))
        assert results.count(ResultClass.NOT_MEASURED) <= 1


@in_virtual_time
async def test_dropped_results_become_not_measured_and_probing_pauses() -> None:
    urls = urls_of(200)
    stage = Stage(*urls)
    async with stage.watching(shard_ttl_s=80_000) as worker:
        await asyncio.sleep(INTERVAL_S)
        stage.ledger.is_unreachable = True
        await asyncio.sleep(1_500)
        assert worker.progress.given_up > 100
        assert worker.progress.held < 700
        stage.ledger.is_unreachable = False
        await asyncio.sleep(2 * INTERVAL_S)
    found = [one for one in stage.seen() if one.result is ResultClass.NOT_MEASURED]
    assert {one.target_url for one in found} == set(urls)
    assert {one.inconclusive_reason for one in found} == {InconclusiveReason.NOT_PROBED}
    assert all(re.search(r"\b\d+ results? ", reason(one)) for one in found)
    assert not [one for one in stage.seen() if one.is_measured_failure]


@in_virtual_time
async def test_probing_pauses_when_results_cannot_be_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lifesign.prober.worker.main_loop.Outbox", _small_outbox)
    stage = Stage(*urls_of(200))
    stage.ledger.is_unreachable = False
    async with stage.watching(shard_ttl_s=80_000) as worker:
        await asyncio.sleep(30)
        stage.ledger.is_unreachable = True
        await asyncio.sleep(600)
        assert worker.progress.held <= 50
        made = len(stage.world.looks)
        await asyncio.sleep(120)
        assert len(stage.world.looks) == made
        stage.ledger.is_unreachable = False
        await asyncio.sleep(INTERVAL_S)
        assert len(stage.world.looks) > made + 150
    found = [one for one in stage.seen() if one.result is ResultClass.NOT_MEASURED]
    assert any(re.search(r"\b\d+ probes? ", reason(one)) for one in found)
    assert not [one for one in stage.seen() if one.is_measured_failure]


def _small_outbox() -> Any:
    from lifesign.prober.worker.outbox import Outbox  # noqa: PLC0415

    return Outbox(max_results=50)


@in_virtual_time
async def test_start_waits_for_an_unreachable_ledger() -> None:
    stage = Stage(*urls_of(20))
    stage.ledger.is_unreachable = True
    async with stage.watching():
        await asyncio.sleep(600)
        assert stage.world.looks == []
        stage.ledger.is_unreachable = False
        await asyncio.sleep(INTERVAL_S + 35)
    assert {assess.url for assess in stage.world.looks} == set(urls_of(20))


@in_virtual_time
async def test_worker_ends_although_the_ledger_is_unreachable() -> None:
    stage = Stage(*urls_of(50))
    async with stage.watching():
        await asyncio.sleep(INTERVAL_S)
        stage.ledger.is_unreachable = True
        await asyncio.sleep(60)
        asked_s = stage.loop.time()
    assert stage.loop.time() - asked_s <= GRACE_SECONDS + 20


@in_virtual_time
async def test_rejected_result_does_not_delay_others(caplog: pytest.LogCaptureFixture) -> None:
    urls = urls_of(100)
    stage = Stage(*urls)
    bad = urls[42]
    stage.ledger.indigestible.add(target_id(bad))
    async with stage.watching():
        await asyncio.sleep(3 * INTERVAL_S + 10)
        assert stage.ledger.observations(bad) == []
        stage.ledger.indigestible.clear()
        await asyncio.sleep(INTERVAL_S)
    assert all(len(stage.ledger.observations(url)) >= 4 for url in urls if url != bad)
    lost, ok = stage.ledger.observations(bad)
    assert (reason(lost).split()[:2], ok.result) == (["3", "results"], OK)
    given_up = [one for one in caplog.records if one.args and target_id(bad) in one.args]
    assert {one.levelname for one in given_up} == {"ERROR"}
    assert all(one.getMessage().endswith(": this cannot be taken") for one in given_up)


# Without a witness

CANARIES = [f"https://canary-{number}.example/" for number in range(5)]


def _with_canaries(stage: Stage, **members: Any) -> None:
    stage.definition = definition_of(canaries={PUBLIC_IPV4: CANARIES}, **members)


async def _cut_off(stage: Stage, seconds: float, **settings: Any) -> None:
    """Run well, then be cut off, then well again."""
    async with stage.watching(**settings):
        await asyncio.sleep(2 * INTERVAL_S)
        stage.world.is_cut = True
        await asyncio.sleep(seconds)
        stage.world.is_cut = False
        await asyncio.sleep(2 * INTERVAL_S)


def _failures(stage: Stage) -> dict[str, int]:
    counts = {}
    for url in [entry.url for entry in stage.ledger.entries.values()]:
        failed = [one for one in stage.ledger.observations(url) if one.is_measured_failure]
        if failed:
            counts[url] = len(failed)
    return counts


def _inconclusive(stage: Stage) -> Counter[InconclusiveReason | None]:
    return Counter(one.inconclusive_reason for one in stage.seen() if one.result is ResultClass.NOT_MEASURED)


@pytest.mark.parametrize("has_canaries", [False, True], ids=["without canaries", "with canaries"])
@pytest.mark.parametrize("hosts", [1, 3, *in_faults(12, 100)])
def test_outage_of_all_hosts_fails_no_target(hosts: int, *, has_canaries: bool) -> None:
    @in_virtual_time
    async def cut() -> None:
        urls = urls_of(hosts)
        stage = Stage(*urls)
        if has_canaries:
            _with_canaries(stage)
        await _cut_off(stage, 1_800)
        assert _failures(stage) == {}
        # Each tick is reported without back-off: the targets are found alive at once.
        unwitnessed = _inconclusive(stage)[InconclusiveReason.NO_WITNESS]
        assert 5 * hosts <= unwitnessed <= 7 * hosts
        assert all(stage.ledger.memory(url).failures_in_row == 0 for url in urls)
        assert all(stage.results(url)[-1] is OK for url in urls)

    cut()


@pytest.mark.parametrize("probers", [1, 3])
def test_outage_of_one_prober_fails_no_target(probers: int) -> None:
    @in_virtual_time
    async def cut() -> None:
        urls = urls_of(12)
        stage = Stage(*urls)
        async with contextlib.AsyncExitStack() as stack:
            for number in range(probers):
                await stack.enter_async_context(stage.watching(f"first {number}", shard_ttl_s=60))
            await asyncio.sleep(2 * INTERVAL_S)
            stage.world.is_cut = True
            await asyncio.sleep(900)
        # A prober that begins within the cut knows nothing but what the ledger remembers.
        async with stage.watching("second", shard_ttl_s=60):
            await asyncio.sleep(1_800)
            stage.world.is_cut = False
            await asyncio.sleep(2 * INTERVAL_S)
        assert _failures(stage) == {}
        assert all(stage.results(url)[-1] is OK for url in urls)

    cut()


@pytest.mark.parametrize(("up_s", "down_s"), [(20, 10), (60, 60), (30, 270), (255, 45)])
@pytest.mark.parametrize("has_canaries", [False, True], ids=["without canaries", "with canaries"])
@pytest.mark.parametrize("seconds", [1_800, *in_faults(7_200)])
def test_flapping_network_takes_no_agent_down(
    up_s: float, down_s: float, seconds: float, *, has_canaries: bool
) -> None:
    @in_virtual_time
    async def flap() -> None:
        urls = urls_of(12)
        stage = Stage(*urls)
        if has_canaries:
            _with_canaries(stage)
        async with stage.watching():
            await asyncio.sleep(2 * INTERVAL_S)
            for _ in range(int(seconds / (up_s + down_s))):
                await asyncio.sleep(up_s)
                stage.world.is_cut = True
                await asyncio.sleep(down_s)
                stage.world.is_cut = False
        # Two in a row, over 900 s, would make an agent unhealthy.
        assert max((stage.ledger.memory(url).failures_in_row for url in urls), default=0) <= 1
        assert max(_rows(stage).values(), default=0) <= 1

    flap()


def _rows(stage: Stage) -> dict[str, int]:
    """Return the most failures in a row of each target."""
    rows = {}
    for entry in stage.ledger.entries.values():
        row = most = 0
        for one in stage.ledger.observations(entry.url):
            if one.is_liveness_signal:
                row = 0
            row += one.is_measured_failure
            most = max(most, row)
        rows[entry.url] = most
    return rows


@pytest.mark.parametrize("hosts", [40, *in_faults(100)])
def test_hosts_unreachable_together_with_the_canaries_do_not_fail(hosts: int) -> None:
    @in_virtual_time
    async def cut() -> None:
        urls = urls_of(hosts)
        stage = Stage(*urls)
        _with_canaries(stage)
        async with stage.watching():
            await asyncio.sleep(2 * INTERVAL_S)
            stage.world.cut_urls = {*urls[: hosts // 2], *CANARIES}
            await asyncio.sleep(3_600)
        assert _failures(stage) == {}

    cut()


@pytest.mark.parametrize("hosts", [2, 30, *in_faults(100)])
def test_dead_hosts_are_detected_if_canaries_answer(hosts: int) -> None:
    @in_virtual_time
    async def die() -> None:
        urls = urls_of(hosts)
        stage = Stage(*urls)
        _with_canaries(stage)
        async with stage.watching():
            await asyncio.sleep(2 * INTERVAL_S)
            died_s = stage.loop.wall_s()
            stage.world.ends.update(dict.fromkeys(urls, TIMEOUT))
            await asyncio.sleep(4 * INTERVAL_S)
        failures = _failures(stage)
        assert set(failures) == set(urls)
        assert min(failures.values()) >= 3
        first = [
            next(one.observed_at for one in stage.ledger.observations(url) if one.is_measured_failure)
            for url in urls
        ]
        assert max(at.timestamp() for at in first) - died_s <= INTERVAL_S + 45
        # Each failure takes a second request, and nothing more.
        assert len([assess for assess in stage.world.looks if assess.is_second]) == sum(failures.values())

    die()


@in_virtual_time
async def test_dead_hosts_are_detected_without_canaries_while_others_answer() -> None:
    urls = urls_of(300)
    stage = Stage(*urls)
    async with stage.watching() as worker:
        await asyncio.sleep(2 * INTERVAL_S)
        for url in urls[:90]:
            stage.world.ends[url] = TIMEOUT
        await asyncio.sleep(3 * INTERVAL_S)
        # In a busy prober the next answer is the witness: nothing is asked on purpose.
        assert worker.progress.witness_rounds <= 15
    failures = _failures(stage)
    assert set(failures) == set(urls[:90])
    assert min(failures.values()) >= 2


@in_virtual_time
async def test_second_of_two_dead_hosts_has_no_witness() -> None:
    one, other = urls_of(2)
    stage = Stage(one, other)
    async with stage.watching():
        await asyncio.sleep(2 * INTERVAL_S)
        stage.world.ends[one] = TIMEOUT
        await asyncio.sleep(3 * INTERVAL_S)
        stage.world.ends[other] = TIMEOUT
        await asyncio.sleep(3 * INTERVAL_S)
    # When the second target is silent as well, neither has a witness.
    assert _failures(stage) == {one: 3}
    assert _inconclusive(stage) == {InconclusiveReason.NO_WITNESS: 6}


@in_virtual_time
async def test_an_answer_to_the_second_request_is_the_result() -> None:
    urls = urls_of(20)
    stage = Stage(*urls)
    _with_canaries(stage)
    async with stage.watching():
        await asyncio.sleep(2 * INTERVAL_S)
        failing = set(urls[:5])
        stage.world.ends.update(dict.fromkeys(failing, REFUSED))
        looks = len(stage.world.looks)
        # Each fails its first request alone.
        original = stage.world.result_of

        def first_fails(url: str) -> ResultClass:
            result = original(url)
            stage.world.ends.pop(url, None)
            return result

        stage.world.result_of = first_fails  # type: ignore[method-assign]  # what a request ends with
        await asyncio.sleep(INTERVAL_S + 40)
    assert _failures(stage) == {}
    assert {assess.url for assess in stage.world.looks[looks:] if assess.is_second} == failing
    assert all(stage.results(url)[-1] is OK for url in urls)
    assert _inconclusive(stage) == {}


@in_virtual_time
async def test_lost_ipv6_of_the_prober_fails_no_ipv6_target() -> None:
    urls = urls_of(40)
    stage = Stage(*urls)
    stage.world.classes = dict.fromkeys(urls[:20], PUBLIC_IPV6)
    async with stage.watching() as worker:
        await asyncio.sleep(2 * INTERVAL_S)
        before = stage.ledger.standings[-1][1].reached_classes
        stage.world.cut_classes = {PUBLIC_IPV6}
        # One of those that are reached really dies.
        stage.world.ends[urls[30]] = TIMEOUT
        await asyncio.sleep(6 * INTERVAL_S)
        assert worker.progress.unreached_classes == (PUBLIC_IPV6,)
    assert set(_failures(stage)) == {urls[30]}
    silent = {
        one.target_url for one in stage.seen() if one.inconclusive_reason is InconclusiveReason.NO_WITNESS
    }
    assert silent == set(urls[:20])
    assert {one.network_class for one in stage.seen() if one.target_url in silent} == {PUBLIC_IPV6}
    assert before == [PUBLIC_IPV4, PUBLIC_IPV6]
    assert stage.ledger.standings[-1][1].reached_classes == [PUBLIC_IPV4]


@in_virtual_time
async def test_unresolved_names_need_a_resolved_witness() -> None:
    urls = urls_of(20)
    stage = Stage(*urls)
    async with stage.watching():
        await asyncio.sleep(2 * INTERVAL_S)
        stage.world.has_no_names = True
        await asyncio.sleep(4 * INTERVAL_S)
        assert _failures(stage) == {}
        stage.world.has_no_names = False
        stage.world.ends[urls[0]] = ResultClass.DNS_FAILURE
        await asyncio.sleep(3 * INTERVAL_S)
    assert set(_failures(stage)) == {urls[0]}
    assert _failures(stage)[urls[0]] >= 2


@in_virtual_time
async def test_failure_that_needs_no_witness_counts() -> None:
    dead, broken = "https://dead.example/", "https://broken.example/"
    stage = Stage(dead, broken)
    stage.world.ends[dead] = REFUSED
    async with stage.watching() as worker:
        await asyncio.sleep(INTERVAL_S + 10)
        stage.world.ends[broken] = ResultClass.HTTP_ERROR
        await asyncio.sleep(2 * INTERVAL_S)
        assert worker.progress.witness_rounds == 0
    assert _failures(stage)[dead] >= 2
    assert _failures(stage)[broken] == 2
    assert not [assess for assess in stage.world.looks if assess.is_second]


@in_virtual_time
async def test_confirmed_outage_needs_no_witness_until_the_next_answer() -> None:
    one, other = urls_of(2)
    stage = Stage(one, other)
    async with stage.watching():
        await asyncio.sleep(2 * INTERVAL_S)
        stage.world.ends.update({one: TIMEOUT, other: TIMEOUT})
        await asyncio.sleep(2 * INTERVAL_S)
        assert _failures(stage) == {}
        stage.ledger.confirm(one)
        await asyncio.sleep(2 * INTERVAL_S)
        assert _failures(stage) == {one: 2}
        stage.ledger.news = WitnessNews(confirmed_at_s={PUBLIC_IPV4: stage.loop.wall_s()})
        await asyncio.sleep(2 * INTERVAL_S)
        assert _failures(stage) == {one: 4, other: 2}
        # An answer is newer than what was confirmed.
        stage.world.ends.clear()
        await asyncio.sleep(2 * INTERVAL_S)
        stage.world.ends.update({one: TIMEOUT, other: TIMEOUT})
        await asyncio.sleep(2 * INTERVAL_S)
    assert _failures(stage) == {one: 4, other: 2}


@in_virtual_time
async def test_only_canaries_are_witnesses_during_mass_silence() -> None:
    urls = urls_of(20)
    stage = Stage(*urls)
    stage.ledger.news = WitnessNews(silent_classes=frozenset({PUBLIC_IPV4}))
    async with stage.watching():
        await asyncio.sleep(2 * INTERVAL_S)
        stage.world.ends[urls[0]] = TIMEOUT
        await asyncio.sleep(3 * INTERVAL_S)
    assert _failures(stage) == {}
    assert _inconclusive(stage)[InconclusiveReason.NO_WITNESS] >= 3


@in_virtual_time
async def test_prober_without_shards_keeps_checking_its_network_classes() -> None:
    urls = urls_of(10)
    stage = Stage(*urls)
    async with stage.watching(shard_ttl_s=60) as worker:
        await asyncio.sleep(2 * INTERVAL_S)
        stage.world.is_cut = True
        await asyncio.sleep(INTERVAL_S + 120)
        assert stage.ledger.standings[-1][1].reached_classes == []
        stage.ledger.reason = "reaches_less"
        await asyncio.sleep(120)
        assert worker.progress.shards == 0
        stage.world.is_cut = False
        await asyncio.sleep(INTERVAL_S)
        stage.ledger.reason = None
        await asyncio.sleep(60)
        assert worker.progress.shards == SHARDS
        assert stage.ledger.standings[-1][1].reached_classes is not None


@in_virtual_time
async def test_timeouts_during_a_stall_of_the_prober_are_not_measured() -> None:
    urls = urls_of(300)
    stage = Stage(*urls)

    async def stop_for_a_minute() -> None:
        # Running probes seem to end in timeouts.
        for url in urls:
            stage.world.ends[url] = TIMEOUT
        stage.loop.stand_still(60)
        await asyncio.sleep(5.5)
        stage.world.ends.clear()

    async with stage.watching() as worker:
        await asyncio.sleep(2 * INTERVAL_S)
        await stop_for_a_minute()
        slow = worker.progress
        await asyncio.sleep(INTERVAL_S)
        assert (slow.slowness is not None, worker.progress.slowness) == (True, None)
    assert _failures(stage) == {}
    assert _inconclusive(stage)[InconclusiveReason.PROBER_SLOW] >= 1


@in_virtual_time
async def test_only_timeouts_are_not_measured_while_the_prober_is_slow() -> None:
    dead, hung = "https://dead.example/", "https://hung.example/"
    stage = Stage(dead, hung)
    stage.world.ends.update({dead: REFUSED, hung: TIMEOUT})

    async def be_slow() -> None:
        while True:
            stage.loop.stand_still(3)
            await asyncio.sleep(5)

    async with stage.watching():
        slow = asyncio.create_task(be_slow())
        await asyncio.sleep(2 * INTERVAL_S)
        slow.cancel()
    assert set(stage.results(dead)) == {REFUSED}
    assert set(stage.results(hung)) == {ResultClass.NOT_MEASURED}
    assert _inconclusive(stage) == {InconclusiveReason.PROBER_SLOW: len(stage.results(hung))}


@in_virtual_time
async def test_prober_suspended_for_a_day_reports_it_and_fails_no_agent() -> None:
    urls = urls_of(50)
    stage = Stage(*urls)
    async with stage.watching():
        await asyncio.sleep(2 * INTERVAL_S)
    stage.loop.stand_still(86_400)
    async with stage.watching() as worker:
        await asyncio.sleep(5)
        # It catches nothing up.
        assert worker.progress.probed < 5
        await asyncio.sleep(2 * INTERVAL_S)
    for url in urls:
        missed = [one for one in stage.ledger.observations(url) if one.result is ResultClass.NOT_MEASURED]
        assert len(missed) == 1
        assert missed[0].inconclusive_reason is InconclusiveReason.NOT_PROBED
        assert reason(missed[0]).startswith(("287 probes were due", "288 probes were due"))
        assert set(stage.results(url)) == {OK, ResultClass.NOT_MEASURED}


@in_virtual_time
async def test_census_probes_targets_without_a_witness_again_after_an_outage() -> None:
    urls = urls_of(400)
    stage = Stage(*urls, concurrency=20)
    assert await stage.worker().run_once(stage.loop.wall_s(), asyncio.Event())
    stage.world.is_cut = True
    stage.loop.call_later(40, setattr, stage.world, "is_cut", False)  # noqa: FBT003 - the attribute's value
    worker = stage.worker()
    assert await worker.run_once(stage.loop.wall_s(), asyncio.Event())
    assert _failures(stage) == {}
    assert all(stage.results(url)[-1] is OK for url in urls)
    assert worker.progress.classes[OK] == 400


@in_virtual_time
async def test_census_that_stays_cut_off_ends_without_failures() -> None:
    urls = urls_of(50)
    stage = Stage(*urls)
    assert await stage.worker().run_once(stage.loop.wall_s(), asyncio.Event())
    stage.world.is_cut = True
    began_s = stage.loop.time()
    worker = stage.worker()
    assert await worker.run_once(stage.loop.wall_s(), asyncio.Event())
    assert stage.loop.time() - began_s < 300
    assert _failures(stage) == {}
    assert dict(worker.progress.classes) == {ResultClass.NOT_MEASURED: 50}


# The clock


def _assert_probes_at_ticks(stage: Stage, first: int = 0) -> None:
    """Check that looks were made at the ticks of the ledger's calendar."""
    for assess in stage.world.looks[first:]:
        late = (assess.at_s / INTERVAL_S - phase_of(target_id(assess.url))) % 1
        assert min(late, 1 - late) * INTERVAL_S < 0.3


@pytest.mark.parametrize("step_s", [-3_600.0, 3_600.0, 86_400.0])
def test_changed_clock_of_a_local_ledger_moves_all_probes_to_its_ticks(
    step_s: float,
) -> None:
    @in_virtual_time
    async def set_clock() -> None:
        urls = urls_of(60)
        stage = Stage(*urls)
        async with stage.watching() as worker:
            await asyncio.sleep(2 * INTERVAL_S)
            stage.loop.steps_s += step_s
            before = len(stage.world.looks)
            await asyncio.sleep(2 * INTERVAL_S)
            assert len(stage.world.looks) - before <= 2 * 60 + 3
            assert {assess.url for assess in stage.world.looks[before:]} == set(urls)
            assert stage.world.most_under_way <= 3
            assert worker.progress.missed == 0
        _assert_probes_at_ticks(stage, before)

    set_clock()


@pytest.mark.parametrize("ahead_s", [-3_600.0, 3_600.0])
def test_prober_with_a_wrong_or_changed_clock_keeps_the_registrys_ticks(ahead_s: float) -> None:
    @in_virtual_time
    async def set_clock() -> None:
        urls = urls_of(60)
        stage = Stage(*urls)
        stage.loop.steps_s = ahead_s
        # The registry is another machine; its calendar is right.
        stage.ledger.wall_s = lambda: stage.loop.wall_s() - stage.loop.steps_s
        async with stage.watching() as worker:
            await asyncio.sleep(2 * INTERVAL_S)
            assert worker.progress.clock_offset_s == pytest.approx(ahead_s, abs=0.5)
            for step_s in (7_200.0, -86_400.0, 30.0):
                stage.loop.steps_s += step_s
                await asyncio.sleep(INTERVAL_S)
            assert len(stage.world.looks) == pytest.approx(5 * 60, abs=3)
        _assert_probes_at_ticks(stage)
        for url in urls:
            received = stage.ledger.received[target_id(url)]
            for one, assess in zip(received, stage.world.looks_at(url), strict=True):
                assert one.observation.result is OK
                assert one.at_s == pytest.approx(assess, abs=0.5)
            memory = stage.ledger.memory(url)
            assert memory.probed_at_s == pytest.approx(stage.world.looks_at(url)[-1], abs=0.1)

    set_clock()


# Too much at once


@in_virtual_time
async def test_missed_ticks_are_skipped_and_reported() -> None:
    urls = urls_of(100)
    stage = Stage(*urls, concurrency=1)
    # Each probe takes 6 s, so that half of them fit into an interval.
    stage.world.takes_s = 6.0
    async with stage.watching() as worker:
        await asyncio.sleep(6 * INTERVAL_S)
        assert worker.progress.waiting < 100
        assert worker.progress.missed > 50
    assert len(stage.world.looks) == pytest.approx(6 * INTERVAL_S / 6, abs=5)
    looked = [len(stage.world.looks_at(url)) for url in urls]
    assert min(looked) >= 1
    found = [one for one in stage.seen() if one.result is ResultClass.NOT_MEASURED]
    assert {one.inconclusive_reason for one in found} == {InconclusiveReason.NOT_PROBED}
    assert all(re.match(r"\d+ probes? ", reason(one)) for one in found)


@in_virtual_time
async def test_host_with_many_targets_does_not_delay_other_hosts() -> None:
    crowd = [f"https://platform.example/agent-{number}" for number in range(300)]
    others = urls_of(300)
    stage = Stage(*crowd, *others, per_host=1, host_requests_per_second=0.5)
    async with stage.watching():
        await asyncio.sleep(2 * INTERVAL_S)
    for url in others:
        for at_s in stage.world.looks_at(url):
            late = (at_s / INTERVAL_S - phase_of(target_id(url))) % 1
            assert min(late, 1 - late) * INTERVAL_S < 0.02
    begun_s = sorted(assess.at_s for assess in stage.world.looks if assess.url in set(crowd))
    assert len(begun_s) > 250
    assert min(later - earlier for earlier, later in pairwise(begun_s)) >= 2.0 - 0.01


@in_virtual_time
async def test_hosts_at_one_address_share_its_limit_and_are_all_probed() -> None:
    urls = urls_of(100)
    stage = Stage(*urls, per_address=3)
    stage.world.addresses = dict.fromkeys(urls, "192.0.2.1")
    assert await stage.worker().run_once(stage.loop.wall_s(), asyncio.Event())
    assert stage.world.most_under_way == 3
    assert sorted(assess.url for assess in stage.world.looks) == sorted(urls)


@in_virtual_time
async def test_unexpected_error_in_a_probe_is_not_measured_and_stops_no_other() -> None:
    urls = urls_of(20)
    stage = Stage(*urls)
    stage.world.fails.add(urls[3])
    assert await stage.worker().run_once(stage.loop.wall_s(), asyncio.Event())
    (seen,) = stage.ledger.observations(urls[3])
    assert seen.result is ResultClass.NOT_MEASURED
    assert seen.inconclusive_reason is InconclusiveReason.PROBER_FAULT
    assert "defect" in reason(seen)
    assert len(stage.seen()) == 20


@in_virtual_time
async def test_endless_probe_is_cancelled() -> None:
    urls = urls_of(20)
    stage = Stage(*urls)
    stage.world.hangs.add(urls[3])
    began_s = stage.loop.time()
    assert await stage.worker().run_once(stage.loop.wall_s(), asyncio.Event())
    assert stage.loop.time() - began_s == pytest.approx(3 * 20 + 10, abs=3)
    (seen,) = stage.ledger.observations(urls[3])
    assert seen.inconclusive_reason is InconclusiveReason.PROBER_FAULT
    assert "defect" not in reason(seen)


@in_virtual_time
async def test_hanging_target_does_not_delay_the_end_of_a_worker() -> None:
    stage = Stage(*urls_of(20))
    stage.world.hangs.update(urls_of(20))
    async with stage.watching():
        await asyncio.sleep(INTERVAL_S - 10)
        asked_s = stage.loop.time()
    assert stage.loop.time() - asked_s <= GRACE_SECONDS + 1
    assert stage.world.under_way == 0
    assert stage.ledger.workers == {}


@in_virtual_time
async def test_unexpected_error_of_the_worker_ends_the_worker_with_the_reason() -> None:
    stage = Stage(*urls_of(20))

    async def claim(*_: Any) -> Granted:
        raise ZeroDivisionError

    stage.ledger.claim = claim  # type: ignore[method-assign,assignment]  # a ledger with a defect
    with pytest.raises(ZeroDivisionError):
        await stage.worker().run(asyncio.Event())


@in_virtual_time
async def test_a_census_ends_if_another_worker_holds_shards_and_probes_nothing() -> None:
    stage = Stage(*urls_of(50))

    async def hold() -> None:
        held: dict[int, int] = {}
        while True:
            granted = await stage.ledger.claim("idle", 300.0, held)
            held = {claim.shard: claim.fencing_token for claim in granted.claims}
            await asyncio.sleep(240)

    holding = asyncio.create_task(hold())
    await asyncio.sleep(1)
    begin_s = stage.loop.time()
    with pytest.MonkeyPatch.context() as patched:
        # A shorter limit, since the test takes too long with a whole day even in virtual time.
        patched.setattr("lifesign.prober.worker.main_loop.MAX_STALL_SECONDS", 3_600.0)
        async with asyncio.timeout(3 * 3_600):
            assert not await stage.worker().run_once(stage.loop.wall_s(), asyncio.Event())
    assert 3_600 < stage.loop.time() - begin_s < 2 * 3_600
    assert 0 < len({look.url for look in stage.world.looks}) < 50
    holding.cancel()
