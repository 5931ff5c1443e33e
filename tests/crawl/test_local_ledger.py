"""A ledger on a database of one's own, without a server."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime

import pytest
from sqlalchemy import text
from tests.support.databases import WoundClock
from tests.support.memory_ledger import batch_of

from lifesign.crawl.local_ledger import LocalLedger
from lifesign.crawl.local_registry import LocalDirectories, LocalRegistry
from lifesign.domain.access.permissions import Role
from lifesign.domain.models.directories import ImportPageRequest, ImportState
from lifesign.domain.observation.probe_memory import ProbeMemory
from lifesign.domain.observation.results import LayerResult, Observation, ResultClass
from lifesign.domain.targets.target import (
    SHARDS,
    StatedKind,
    host_of,
    shard_of,
    target_id,
)
from lifesign.prober.network.clock import Clock
from lifesign.prober.registry_exchange.ledger import (
    LedgerUnreachable,
    ProbeReport,
    ReportAnswer,
    ShardClaim,
    TargetEntry,
)
from lifesign.storage.agents import agent_rows
from lifesign.storage.engine.transaction import Database
from lifesign.storage.errors import StoreUnavailable

URLS = ["https://a.example/", "https://b.example/", "https://c.example/x"]
TTL_S = 60.0


async def imported(database: Database, urls: list[str]) -> None:
    """Let a directory list these."""
    directories = LocalDirectories(LocalRegistry(database, Role.ADMIN))
    body = ImportPageRequest(urls=urls, allow_shrink=True)
    import_id = f"import-{'-'.join(map(host_of, urls)) or 'none'}"
    await directories.put_page("a-list", import_id, 1, body)
    done = await directories.apply("a-list", import_id, pages=1)
    while done.is_under_way:
        done = await directories.apply("a-list", import_id, pages=1)
    assert done.state is ImportState.APPLIED


def report_on(url: str, result: ResultClass, at_s: float) -> ProbeReport:
    observation = Observation(
        target_url=url,
        observed_at=datetime.fromtimestamp(at_s, UTC),
        discovery=LayerResult(result=result),
    )
    memory = ProbeMemory(probed_at_s=at_s, result=result)
    return ProbeReport(subject_id=target_id(url), observation=observation, memory=memory)


@pytest.mark.both_databases
async def test_kind_of_a_listed_target_is_known_to_its_prober(database: Database) -> None:
    directories = LocalDirectories(LocalRegistry(database, Role.ADMIN))
    await directories.put_page("dir", "one", 1, ImportPageRequest(urls=URLS[:1], kind=StatedKind.MCP))
    await directories.put_page("dir", "one", 2, ImportPageRequest(urls=URLS[1:2]))
    done = await directories.apply("dir", "one", pages=2)
    while done.is_under_way:
        done = await directories.apply("dir", "one", pages=2)
    ledger = LocalLedger(database)
    claims = (await ledger.claim("worker-1", TTL_S, {})).claims
    entries = await all_entries(ledger, claims)
    assert [entries[url].kind for url in URLS[:2]] == [StatedKind.MCP, None]


async def all_entries(ledger: LocalLedger, claims: Sequence[ShardClaim]) -> dict[str, TargetEntry]:
    entries: dict[str, TargetEntry] = {}
    changed = await ledger.changed({claim.shard: 0 for claim in claims})
    for shard in changed:
        page = await ledger.targets(shard, None)
        entries |= {entry.url: entry for entry in page.entries}
    return entries


async def test_only_worker_gets_all_shards_and_targets(database: Database) -> None:
    await imported(database, URLS)
    ledger = LocalLedger(database, Clock(boot_s=lambda: 1000.0))
    claims = (await ledger.claim("worker-1", TTL_S, {})).claims
    assert len(claims) == SHARDS
    assert {claim.expires_at_s for claim in claims} == {1000.0 + TTL_S}
    assert sorted(await all_entries(ledger, claims)) == URLS
    assert await ledger.unprobed(0.0) == 3


@pytest.mark.parametrize("stored", ["{", '{"failures_in_row": -1}', '{"of_another_version": 1}'])
async def test_target_with_unreadable_memory_restarts_without_delaying_others(
    database: Database, caplog: pytest.LogCaptureFixture, stored: str
) -> None:
    await imported(database, URLS)
    ledger = LocalLedger(database)
    claims = (await ledger.claim("worker-1", TTL_S, {})).claims
    by_shard = {claim.shard: claim for claim in claims}
    caplog.clear()
    for url in URLS[:2]:
        report = report_on(url, ResultClass.REFUSED, 1.0)
        await ledger.report([batch_of(by_shard[shard_of(host_of(url))], [report])], 300.0)
    spoilt = text("UPDATE probe_results SET memory = :stored WHERE target = 1")
    await database.write(lambda transaction: transaction.connection.execute(spoilt, {"stored": stored}))
    entries = await all_entries(ledger, claims)
    assert sorted(entries) == URLS
    (message,) = caplog.messages
    (anew,) = [url for url in URLS if target_id(url) in message]
    assert entries[anew].memory == ProbeMemory()
    assert sum(entry.memory != ProbeMemory() for entry in entries.values()) == 1


async def test_a_target_comes_with_its_confirmation(database: Database) -> None:
    await imported(database, URLS)
    ledger = LocalLedger(database)
    claims = (await ledger.claim("worker-1", TTL_S, {})).claims
    confirm = text("UPDATE targets SET confirmed_at_s = 50.0 WHERE url = :url")
    await database.write(lambda transaction: transaction.connection.execute(confirm, {"url": URLS[0]}))
    confirmed = {url: entry.confirmed_at_s for url, entry in (await all_entries(ledger, claims)).items()}
    assert confirmed == {URLS[0]: 50.0, URLS[1]: None, URLS[2]: None}


@pytest.mark.both_databases
async def test_reported_results_are_stored_and_assessed(database: Database, clock: WoundClock) -> None:
    await imported(database, URLS)
    ledger = LocalLedger(database)
    claims = {claim.shard: claim for claim in (await ledger.claim("worker-1", TTL_S, {})).claims}
    results = {URLS[0]: ResultClass.OK, URLS[1]: ResultClass.REFUSED}
    began_s = clock.now_s()
    batches = [
        batch_of(claims[shard_of(host_of(url))], [report_on(url, result, began_s)])
        for url, result in results.items()
    ]
    assert list((await ledger.report(batches, 300.0)).lost) == []
    entries = await all_entries(ledger, [*claims.values()])
    assert {url: entry.memory.result for url, entry in entries.items()} == {**results, URLS[2]: None}
    assert await ledger.unprobed(began_s) == 1
    # The one that lives is an agent by now, and the other is none.
    found = await database.read(
        lambda transaction: agent_rows.find_named(transaction, [target_id(url) for url in URLS])
    )
    assert [agent.agent_id for agent in found] == [target_id(URLS[0])]


async def test_results_of_a_lost_shard_are_refused(database: Database, clock: WoundClock) -> None:
    await imported(database, URLS)
    slow = LocalLedger(database)
    claims = {claim.shard: claim for claim in (await slow.claim("slow", TTL_S, {})).claims}
    clock.advance(TTL_S + 1)
    await LocalLedger(database).claim("quick", TTL_S, {})
    batch = batch_of(claims[shard_of("a.example")], [report_on(URLS[0], ResultClass.OK, clock.now_s())])
    assert list((await slow.report([batch], 300.0)).lost) == [shard_of("a.example")]
    assert await slow.unprobed(0.0) == 3


@pytest.mark.both_databases
async def test_only_shards_that_have_changed_are_read_again(database: Database) -> None:
    await imported(database, URLS)
    ledger = LocalLedger(database)
    claims = (await ledger.claim("worker-1", TTL_S, {})).claims
    versions = {claim.shard: (await ledger.targets(claim.shard, None)).version for claim in claims[:1]}
    everywhere = {claim.shard: versions[claims[0].shard] for claim in claims}
    assert list(await ledger.changed(everywhere)) == []
    await imported(database, [*URLS[:2], "https://new.example/"])
    changed = set(await ledger.changed(everywhere))
    assert changed == {shard_of("c.example"), shard_of("new.example")}
    page = await ledger.targets(shard_of("c.example"), versions[claims[0].shard])
    assert (list(page.entries), list(page.gone)) == ([], [target_id(URLS[2])])
    assert await ledger.changed({}) == []


async def test_shards_claimed_together_are_distinguished(database: Database) -> None:
    await imported(database, URLS)
    ledger = LocalLedger(database)
    first = (await ledger.targets(shard_of("a.example"), None)).version
    await imported(database, [*URLS[1:], "https://new.example/"])
    whole = [shard_of(host) for host in ("a.example", "b.example", "new.example")]
    changes = [shard_of(host) for host in ("a.example", "c.example")]
    asked = [*((shard, None) for shard in whole), *((shard, first) for shard in changes)]
    pages = await asyncio.gather(*(ledger.targets(*one) for one in asked))
    urls = [[entry.url for entry in page.entries] for page in pages]
    assert urls == [[], ["https://b.example/"], ["https://new.example/"], [], []]
    assert [list(page.gone) for page in pages] == [[], [], [], [target_id(URLS[0])], []]
    assert {page.version for page in pages} == {pages[0].version}


async def test_empty_report_writes_nothing(database: Database) -> None:
    assert await LocalLedger(database).report([], 300.0) == ReportAnswer()


@pytest.mark.both_databases
async def test_shards_of_a_leaving_worker_go_to_others(database: Database) -> None:
    first, second = LocalLedger(database), LocalLedger(database)
    await first.claim("first", TTL_S, {})
    await first.leave("first")
    assert len((await second.claim("second", TTL_S, {})).claims) == SHARDS


async def test_unreachable_database_is_an_unreachable_ledger(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: object) -> None:
        raise StoreUnavailable("disk full")

    ledger = LocalLedger(database)
    monkeypatch.setattr(database, "write", away)
    monkeypatch.setattr(database, "read", away)
    for asked in (
        ledger.claim("worker-1", TTL_S, {}),
        ledger.targets(0, None),
        ledger.changed({0: 0}),
        ledger.unprobed(0.0),
        ledger.leave("worker-1"),
    ):
        with pytest.raises(LedgerUnreachable, match="disk full"):
            await asked
