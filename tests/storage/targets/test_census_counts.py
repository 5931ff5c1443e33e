from datetime import UTC, datetime
from functools import partial

import pytest
from sqlalchemy import update
from tests.support.databases import WoundClock
from tests.support.memory_ledger import batch_of

from lifesign.crawl.local_ledger import LocalLedger
from lifesign.crawl.local_registry import LocalDirectories, LocalRegistry
from lifesign.domain.access.permissions import Role
from lifesign.domain.models.census import Deadlines
from lifesign.domain.models.directories import ImportPageRequest
from lifesign.domain.observation.evidence_age import UnknownReason
from lifesign.domain.observation.probe_memory import ProbeMemory
from lifesign.domain.observation.results import LayerResult, Observation, ResultClass
from lifesign.domain.targets.target import (
    TargetKind,
    host_of,
    shard_of,
    target_id,
)
from lifesign.prober.registry_exchange.ledger import ProbeReport
from lifesign.storage.engine.table_definitions import census_runs, probe_results, targets
from lifesign.storage.engine.transaction import Database, Transaction
from lifesign.storage.probing.result_history import SECONDS_PER_HOUR, SumRow
from lifesign.storage.targets import census_counts

LISTS = {
    "first": ["https://a.example/", "https://a.example/2", "https://b.example/", "https://c.example/"],
    "second": ["https://c.example/", "https://d.example/"],
}
SEEN = {
    "https://a.example/": (ResultClass.OK, "1.0"),
    "https://a.example/2": (ResultClass.OK, "1.0"),
    "https://b.example/": (ResultClass.REFUSED, "0.3.0"),
    "https://c.example/": (ResultClass.GATED, None),
}


@pytest.fixture
async def counted(database: Database, clock: WoundClock) -> Database:
    """A database of five targets in two directories, four of which were probed."""
    lists = LocalDirectories(LocalRegistry(database, Role.ADMIN))
    for name, urls in LISTS.items():
        await lists.put_page(name, "import", 1, ImportPageRequest(urls=urls))
        while (await lists.apply(name, "import", pages=1)).is_under_way:
            pass
    await probe(database, clock)
    return database


async def probe(database: Database, clock: WoundClock) -> None:
    """Take in a probe of each target that is ever probed here."""
    ledger = LocalLedger(database)
    claims = {claim.shard: claim for claim in (await ledger.claim("worker-1", 60.0, {})).claims}
    now = datetime.fromtimestamp(clock.now_s(), UTC)
    for number, (url, (result, version)) in enumerate(SEEN.items(), 1):
        report = ProbeReport(
            subject_id=target_id(url),
            observation=Observation(
                target_url=url, observed_at=now, discovery=LayerResult(result=result, latency_ms=20.0)
            ),
            memory=ProbeMemory(probed_at_s=clock.now_s(), result=result, protocol_version=version),
        )
        await ledger.report([batch_of(claims[shard_of(host_of(url))], [report], first=number)], 300.0)


async def test_hosts_are_counted_with_results_and_versions_of_alive_targets(counted: Database) -> None:
    found = await counted.read(
        lambda transaction: sorted(census_counts.hosts(transaction, ["ok", "gated"]), key=str)
    )
    assert found == [
        ("a.example", "ok", "1.0", 2),
        ("b.example", "refused", None, 1),
        ("c.example", "gated", None, 1),
        ("d.example", None, None, 1),
    ]


async def test_a_target_counts_in_each_directory_that_lists_it(counted: Database) -> None:
    found = await counted.read(census_counts.directories)
    assert sorted(found, key=str) == [
        ("first", "gated", 1),
        ("first", "ok", 2),
        ("first", "refused", 1),
        ("second", "gated", 1),
        ("second", None, 1),
    ]


async def test_every_target_has_one_result_or_was_never_probed(counted: Database) -> None:
    assert await counted.read(census_counts.results) == {"ok": 2, "refused": 1, "gated": 1, None: 1}


async def test_targets_are_counted_by_stated_kind_else_by_observed_kind(counted: Database) -> None:
    def change(transaction: Transaction) -> None:
        stated = update(targets).where(targets.c.url == "https://a.example/").values(kind="mcp")
        transaction.connection.execute(stated)
        gated = update(probe_results).where(probe_results.c.result == "gated")
        transaction.connection.execute(gated.values(observed='{"observed_at_s":1.0,"kind":"mcp"}'))

    await counted.write(change)
    found = await counted.read(census_counts.kinds)
    assert sorted(found, key=str) == sorted(
        [
            (TargetKind.A2A, None, 1),
            (TargetKind.A2A, "ok", 1),
            (TargetKind.A2A, "refused", 1),
            (TargetKind.MCP, "gated", 1),
            (TargetKind.MCP, "ok", 1),
        ],
        key=str,
    )
    # A disputed kind is that of the last probe.
    disputed = update(targets).where(targets.c.url == "https://c.example/").values(kind="disputed")
    await counted.write(lambda transaction: transaction.connection.execute(disputed))
    assert sorted(await counted.read(census_counts.kinds), key=str) == sorted(found, key=str)
    shown = await counted.read(lambda transaction: census_counts.shown(transaction, ["ok", "gated"]))
    assert {(kind, layers[0], count) for kind, layers, count in shown} == {
        (TargetKind.A2A, "ok", 1),
        (TargetKind.MCP, "ok", 1),
        (TargetKind.MCP, "gated", 1),
    }


async def test_alive_targets_are_counted_by_kind_and_layer_results(counted: Database) -> None:
    found = await counted.read(lambda transaction: census_counts.shown(transaction, ["ok", "gated"]))
    assert sorted(found) == [
        (TargetKind.A2A, ["gated", "", "", ""], 1),
        (TargetKind.A2A, ["ok", "", "", ""], 2),
    ]


async def test_agents_are_counted_by_reported_health(counted: Database) -> None:
    assert await counted.read(census_counts.health) == {"unknown": 2}


async def test_former_target_is_not_counted(counted: Database) -> None:
    lists = LocalDirectories(LocalRegistry(counted, Role.ADMIN))
    await lists.put_page("first", "next", 1, ImportPageRequest(urls=[], allow_shrink=True))
    while (await lists.apply("first", "next", pages=1)).is_under_way:
        pass
    assert await counted.read(census_counts.results) == {"gated": 1, None: 1}
    assert await counted.read(lambda transaction: len(list(census_counts.hosts(transaction, ["ok"])))) == 2
    assert {name for name, *_ in await counted.read(census_counts.directories)} == {"second"}


async def end(database: Database, run_id: str, since_s: float) -> None:
    counts = await database.read(partial(census_counts.results_since, since_s=since_s))
    await database.write(partial(census_counts.end_run, run_id=run_id, counts=counts))


async def test_deadlines_of_a_pass_are_kept_until_replaced(database: Database) -> None:
    deadlines = Deadlines(connect_seconds=5.0, first_byte_seconds=7.5, total_seconds=7.5)
    begin = partial(census_counts.begin_run, name="census")
    begun = await database.write(partial(begin, run_id="one", deadlines=deadlines))
    assert begun.deadlines == deadlines
    assert await database.read(partial(census_counts.find_run, run_id="one")) == begun
    assert (await database.write(partial(begin, run_id="two"))).deadlines is None
    await database.write(partial(census_counts.forget_deadlines, run_id="one"))
    found = await database.read(partial(census_counts.runs, name="census", limit=10))
    assert [run.deadlines for run in found] == [None, None]


async def test_names_of_unread_lists_are_replaced_by_the_last_report(database: Database) -> None:
    await database.write(partial(census_counts.begin_run, run_id="one", name="census"))
    for names in (["b", "a"], ["a"], []):
        await database.write(partial(census_counts.note_not_read, run_id="one", names=names))
        run = await database.read(partial(census_counts.find_run, run_id="one"))
        assert run is not None
        assert run.not_read == tuple(names)


async def test_pass_is_open_until_its_end_and_stores_its_outcome(
    counted: Database, clock: WoundClock
) -> None:
    run = await counted.write(lambda transaction: census_counts.begin_run(transaction, "run-1", "census"))
    assert (run.began_at_s, run.ended_at_s, run.counts) == (clock.now_s(), None, {})
    since_s = clock.now_s()
    assert await counted.read(lambda tx: census_counts.runs(tx, "census", 10)) == [run]
    assert await counted.read(lambda tx: census_counts.runs(tx, "other", 10)) == []
    clock.advance(30)
    await end(counted, "run-1", since_s)
    clock.advance(30)
    # Ended twice, it has ended the first time.
    await end(counted, "run-1", since_s)
    # An ended pass is not dropped.
    await counted.write(lambda transaction: census_counts.drop_run(transaction, "run-1"))
    (ended,) = await counted.read(lambda tx: census_counts.runs(tx, "census", 10))
    assert ended.ended_at_s == since_s + 30
    assert ended.counts == {"ok": 2, "refused": 1, "gated": 1, None: 1}


async def test_two_passes_within_an_hour_have_separate_sums(counted: Database, clock: WoundClock) -> None:
    probed = [
        ("discovery", "gated", 18, 1),
        ("discovery", "ok", 18, 2),
        ("discovery", "refused", 18, 1),
        ("overall", "gated", -1, 1),
        ("overall", "ok", -1, 2),
        ("overall", "refused", -1, 1),
    ]

    async def sums(run_id: str) -> list[SumRow] | None:
        return await counted.read(partial(census_counts.run_sums, run_id=run_id))

    await counted.write(partial(census_counts.begin_run, run_id="one", name="census"))
    # Earlier content is not its own.
    assert await sums("one") == []
    clock.advance(1)
    await probe(counted, clock)
    assert await sums("one") == probed
    await end(counted, "one", clock.now_s())
    await counted.write(partial(census_counts.begin_run, run_id="two", name="census"))
    # A pass may go on over the end of its hour.
    for seconds in (1, SECONDS_PER_HOUR):
        clock.advance(seconds)
        await probe(counted, clock)
    await end(counted, "two", clock.now_s())
    clock.advance(1)
    await probe(counted, clock)
    assert await sums("one") == probed
    assert await sums("two") == [(*row[:3], 2 * row[3]) for row in probed]
    assert await sums("three") is None


async def test_pass_of_an_earlier_version_has_no_sums(database: Database, clock: WoundClock) -> None:
    await database.write(partial(census_counts.begin_run, run_id="old", name="census"))
    await database.write(lambda tx: tx.connection.execute(update(census_runs).values(sums=None)))
    for _ in range(2):
        assert await database.read(partial(census_counts.run_sums, run_id="old")) is None
        await end(database, "old", clock.now_s())


async def test_pass_without_probes_can_be_dropped(database: Database) -> None:
    await database.write(lambda transaction: census_counts.begin_run(transaction, "run-1", "census"))
    await database.write(lambda transaction: census_counts.drop_run(transaction, "run-1"))
    assert await database.read(lambda tx: census_counts.runs(tx, "census", 10)) == []


async def test_latest_passes_are_listed_first(database: Database, clock: WoundClock) -> None:
    for number in range(3):
        name = "census" if number else "other"
        await database.write(partial(census_counts.begin_run, run_id=f"run-{number}", name=name))
        clock.advance(1)
    latest = await database.read(lambda tx: census_counts.runs(tx, None, 2))
    assert [run.run_id for run in latest] == ["run-2", "run-1"]
    named = await database.read(lambda tx: census_counts.runs(tx, "census", 10))
    assert [run.run_id for run in named] == ["run-2", "run-1"]


async def test_result_without_a_newer_one_counts_as_not_measured_after_three_intervals(
    counted: Database, clock: WoundClock
) -> None:
    measured_at_s = clock.now_s()
    clock.advance(901)
    assert await counted.read(census_counts.results) == {"not_measured": 4, None: 1}
    found = await counted.read(census_counts.evidence)
    assert found.old == {UnknownReason.NO_PROBER: 4}
    assert found.newest_at_s == measured_at_s
    hosts = await counted.read(lambda transaction: list(census_counts.hosts(transaction, ["ok", "gated"])))
    assert {(result, version) for _, result, version, _ in hosts} == {("not_measured", None), (None, None)}
    directories = await counted.read(census_counts.directories)
    assert {result for _, result, _ in directories} == {"not_measured", None}
    assert await counted.read(lambda transaction: census_counts.shown(transaction, ["ok", "gated"])) == []


async def test_reason_of_an_old_result_is_that_of_the_last_probe(
    counted: Database, clock: WoundClock
) -> None:
    clock.advance(901)

    def note_results(transaction: Transaction) -> None:
        changed = {"results_until_s": transaction.now_s + 900, "inconclusive_reason": "no_witness"}
        transaction.connection.execute(update(probe_results).values(changed))

    await counted.write(note_results)
    assert (await counted.read(census_counts.evidence)).old == {UnknownReason.NO_WITNESS: 4}


async def test_result_of_a_pass_never_ages_and_a_later_one_does(counted: Database, clock: WoundClock) -> None:
    ended_s = clock.now_s()
    clock.advance(901)
    results = partial(census_counts.results, pass_ended_s=ended_s)
    assert await counted.read(results) == {"ok": 2, "refused": 1, "gated": 1, None: 1}
    assert (await counted.read(partial(census_counts.evidence, pass_ended_s=ended_s))).old == {}
    earlier = partial(census_counts.results, pass_ended_s=ended_s - 1)
    assert await counted.read(earlier) == {"not_measured": 4, None: 1}
