"""A ledger on a registry far away."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from aioresponses import aioresponses
from sqlalchemy import text
from tests.support.memory_ledger import batch_of
from tests.support.mocked_responses import MockedResponse
from tests.support.registry_server import KEYS, RegistryServer, registry_server

from lifesign.client import RegistryClient
from lifesign.client.registry_errors import RegistryRefusal, Unprocessable
from lifesign.domain.access.permissions import Role
from lifesign.domain.lifecycle.verdict import DecidingEvidence
from lifesign.domain.models.agents import HeartbeatConfig
from lifesign.domain.observation.probe_memory import ProbeMemory
from lifesign.domain.observation.results import LayerResult, Observation, ResultClass
from lifesign.domain.parsing.bounded_json import marks_of
from lifesign.domain.published_interface.published import InterfaceKind, bounded_interface
from lifesign.domain.targets.target import (
    SHARDS,
    host_of,
    shard_of,
    target_id,
)
from lifesign.prober.registry_exchange import registry_ledger
from lifesign.prober.registry_exchange.ledger import (
    Ledger,
    LedgerRefused,
    LedgerUnreachable,
    ProbeReport,
    ShardClaim,
)
from lifesign.prober.registry_exchange.registry_ledger import RegistryLedger
from lifesign.storage.engine.transaction import Transaction

URLS = [f"https://agent.example/{number}" for number in range(4)]
OTHER = "https://other.example/"
SHARD = shard_of(host_of(URLS[0]))
THERE = shard_of(host_of(OTHER))


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[RegistryServer]:
    with registry_server(tmp_path) as server:
        yield server


@pytest.fixture
async def client(registry: RegistryServer) -> AsyncIterator[RegistryClient]:
    async with RegistryClient(registry.url, key=KEYS[Role.PROBER]) as client:
        yield client


@pytest.fixture
def ledger(client: RegistryClient) -> RegistryLedger:
    return RegistryLedger(client)


def reported(url: str, failures: int = 1) -> ProbeReport:
    seen = Observation(
        target_url=url,
        observed_at=datetime.now(UTC),
        discovery=LayerResult(result=ResultClass.REFUSED),
    )
    memory = ProbeMemory(probed_at_s=1.0, failures_in_row=failures)
    return ProbeReport(subject_id=target_id(url), observation=seen, memory=memory)


async def claims(
    ledger: Ledger, worker: str = "w", held: dict[int, int] | None = None
) -> dict[int, ShardClaim]:
    granted = await ledger.claim(worker, 60.0, held or {})
    return {claim.shard: claim for claim in granted.claims}


async def test_registry_ledger_claims_renews_and_releases_shards(ledger: Ledger) -> None:
    held = await claims(ledger)
    assert len(held) == SHARDS
    tokens = {shard: claim.fencing_token for shard, claim in held.items()}
    kept = await claims(ledger, held=tokens)
    assert {shard: claim.fencing_token for shard, claim in kept.items()} == tokens
    assert kept[0].expires_at_s >= held[0].expires_at_s
    await ledger.leave("w")
    assert await claims(ledger, "heir") != {}


async def test_registry_ledger_knows_the_living_workers_of_its_last_request(
    ledger: RegistryLedger,
) -> None:
    await claims(ledger)
    await ledger.changed({SHARD: 0})
    assert len(ledger.living_workers or ()) == 1


async def test_targets_have_their_memory_and_changes_are_reported(
    ledger: RegistryLedger, client: RegistryClient
) -> None:
    assert await ledger.changed({SHARD: 0}) == []
    await client.directories.put("dir", [*URLS, OTHER])
    assert await ledger.changed({SHARD: 0, THERE: 0, (SHARD + 1) % SHARDS: 0}) == [SHARD, THERE]
    page = await ledger.targets(SHARD, None)
    assert sorted(entry.url for entry in page.entries) == URLS
    assert {entry.memory for entry in page.entries} == {ProbeMemory()}
    assert await ledger.changed({SHARD: page.version, THERE: 0}) == [THERE]
    held = await claims(ledger)
    batches = [
        batch_of(held[SHARD], [reported(url) for url in URLS]),
        batch_of(held[THERE], [reported(OTHER)]),
    ]
    began_s = datetime.now(UTC).timestamp() - 60
    assert await ledger.unprobed(began_s) == 5
    assert (await ledger.report(batches, 300.0)).lost == set()
    assert (await ledger.report(batches, 300.0)).lost == set()
    assert await ledger.unprobed(began_s) == 0
    assert await ledger.changed({SHARD: page.version}) == []
    await client.directories.put("dir", [*URLS[:3], OTHER])
    assert await ledger.changed({SHARD: page.version, THERE: page.version}) == [SHARD]
    after = await ledger.targets(SHARD, page.version)
    assert (after.entries, after.gone) == ([], [target_id(URLS[3])])
    again = await ledger.targets(SHARD, None)
    assert {entry.memory.failures_in_row for entry in again.entries} == {1}


async def test_a_registered_agent_comes_with_its_thresholds(
    ledger: RegistryLedger, registry: RegistryServer
) -> None:
    thresholds = HeartbeatConfig(interval_seconds=20, unhealthy_after_seconds=60, dead_after_seconds=240)
    async with RegistryClient(registry.url, key=KEYS[Role.ADMIN]) as admin:
        await admin.agents.register(
            "own", card_url=URLS[0], monitoring=DecidingEvidence.PROBE, heartbeat_config=thresholds
        )
    page = await ledger.targets(SHARD, None)
    assert [(entry.subject_id, entry.thresholds_s) for entry in page.entries] == [("own", (60.0, 240.0))]


async def test_restored_registry_reports_changes_from_then_on(
    ledger: RegistryLedger, client: RegistryClient, registry: RegistryServer
) -> None:
    for number in range(3):
        await client.directories.put("dir", [*URLS, f"https://agent-{number}.example/"])
    version = (await ledger.targets(SHARD, None)).version
    assert await ledger.changed({SHARD: version}) == []

    def go_back(transaction: Transaction) -> None:
        transaction.connection.execute(text("UPDATE target_log SET version = 1"))
        transaction.connection.execute(text("UPDATE targets SET version = 1"))

    await asyncio.to_thread(registry.write, go_back)
    # It remembered the last reading, which must be repeated.
    assert await ledger.changed({SHARD: version, THERE: 0}) == [SHARD]
    version = (await ledger.targets(SHARD, None)).version
    assert await ledger.changed({SHARD: version}) == []
    await client.directories.put("dir", URLS[:3])
    assert await ledger.changed({SHARD: version}) == [SHARD]


async def test_lost_shard_is_reported_and_others_are_taken(
    ledger: RegistryLedger, client: RegistryClient
) -> None:
    await client.directories.put("dir", [*URLS, OTHER])
    held = await claims(ledger)
    newer = await claims(ledger, held={SHARD: held[SHARD].fencing_token})
    assert newer[THERE].fencing_token > held[THERE].fencing_token
    batches = [
        batch_of(held[SHARD], [reported(URLS[0])]),
        batch_of(held[THERE], [reported(OTHER)]),
    ]
    assert (await ledger.report(batches, 300.0)).lost == {THERE}
    found = {entry.url: entry.memory for entry in (await ledger.targets(SHARD, None)).entries}
    assert found[URLS[0]].failures_in_row == 1
    (untouched,) = (await ledger.targets(THERE, None)).entries
    assert untouched.memory == ProbeMemory()


async def test_results_above_the_batch_limit_are_sent_in_parts(
    ledger: RegistryLedger, client: RegistryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lifesign.prober.registry_exchange.registry_ledger.MAX_OBSERVATIONS", 3)
    await client.directories.put("dir", [*URLS, OTHER])
    held = await claims(ledger)
    batches = [
        batch_of(held[SHARD], [reported(url, 7) for url in URLS]),
        batch_of(held[THERE], [reported(OTHER, 7)]),
    ]
    assert (await ledger.report(batches, 300.0)).lost == set()
    entries = [*(await ledger.targets(SHARD, None)).entries, *(await ledger.targets(THERE, None)).entries]
    assert [entry.memory.failures_in_row for entry in entries] == [7] * 5


@pytest.mark.parametrize(
    ("name", "size"),
    [("MAX_INTERFACES_BYTES", len), ("MAX_INTERFACES_MARKS", lambda text: marks_of(text.encode()))],
)
async def test_interfaces_are_sent_with_their_results_in_limited_parts(
    ledger: RegistryLedger,
    client: RegistryClient,
    registry: RegistryServer,
    name: str,
    size: Callable[[str], int],
) -> None:
    await client.directories.put("dir", URLS)
    held = await claims(ledger)
    large = {f"s{number}": {"description": "d" * 250} for number in range(100)}
    interfaces = [bounded_interface(InterfaceKind.AGENT_CARD, {"name": url, "skills": large}) for url in URLS]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry_ledger, name, 2 * size(interfaces[0].text))
        batch = batch_of(held[SHARD], [reported(url) for url in URLS])
        portions = registry_ledger._portions([replace(batch, interfaces=interfaces)])
        assert [len(part.interfaces) for portion in portions for part in portion] == [2, 2]
        await ledger.report([replace(batch, interfaces=interfaces)], 300.0)
    kept: set[str] = set()
    await asyncio.to_thread(
        registry.write,
        lambda transaction: kept.update(
            transaction.connection.scalars(text("SELECT body FROM interface_versions"))
        ),
    )
    assert kept == {interface.text for interface in interfaces}


async def test_unreachable_registry_is_an_unreachable_ledger() -> None:
    claim = ShardClaim(shard=SHARD, fencing_token=1, expires_at_s=0.0)
    # No server listens at port 1.
    async with RegistryClient("http://127.0.0.1:1", key="k", timeout_seconds=0.05) as client:
        ledger = RegistryLedger(client)
        for question in (
            ledger.claim("w", 60.0, {}),
            ledger.targets(SHARD, None),
            ledger.changed({SHARD: 0}),
            ledger.unprobed(0.0),
            ledger.leave("w"),
            ledger.report([batch_of(claim, [reported(URLS[0])])], 300.0),
        ):
            with pytest.raises(LedgerUnreachable):
                await question


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (401, "some_code", LedgerRefused),
        (403, "some_code", LedgerRefused),
        (409, "some_code", LedgerRefused),
        (404, "some_code", LedgerUnreachable),
        (500, "some_code", LedgerUnreachable),
        (422, "some_code", Unprocessable),
        # Of a proxy:
        (400, None, LedgerUnreachable),
        (415, None, LedgerUnreachable),
        (422, None, LedgerUnreachable),
        (413, None, RegistryRefusal),
    ],
)
async def test_permanent_refusal_is_no_outage(
    status: int, code: str | None, expected: type[Exception]
) -> None:
    url = "https://registry.example"
    claim = ShardClaim(shard=SHARD, fencing_token=1, expires_at_s=0.0)
    with aioresponses() as mock:
        refusal: dict[str, Any] = {} if code is None else {"error": {"code": code, "message": "no"}}
        mock.post(
            f"{url}/api/v1/observations",
            status=status,
            payload=refusal,
            repeat=True,
            response_class=MockedResponse,
        )
        async with RegistryClient(url, key="k") as client:
            batch = batch_of(claim, [reported(URLS[0])])
            with pytest.raises(expected) as caught:
                await RegistryLedger(client).report([batch], 300.0)
    assert isinstance(caught.value, RegistryRefusal) == issubclass(expected, RegistryRefusal)


async def test_registry_is_not_asked_about_no_shards() -> None:
    async with RegistryClient("http://127.0.0.1:1", allow_plain_http=True) as client:
        assert await RegistryLedger(client).changed({}) == []


@pytest.mark.parametrize(
    ("sizes", "portions"),
    [([], []), ([2], [[2]]), ([2, 1], [[2], [1]]), ([1, 3], [[1, 1], [2]]), ([5], [[2], [2], [1]])],
)
def test_results_are_reported_in_portions(
    monkeypatch: pytest.MonkeyPatch, sizes: list[int], portions: list[list[int]]
) -> None:
    monkeypatch.setattr(registry_ledger, "MAX_OBSERVATIONS", 2)
    claim = ShardClaim(shard=SHARD, fencing_token=1, expires_at_s=1.0)
    batches = [batch_of(claim, [reported(URLS[0])] * size) for size in sizes]
    found = [[len(batch.reports) for batch in some] for some in registry_ledger._portions(batches)]
    assert found == portions
