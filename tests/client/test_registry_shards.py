"""Requests of a prober to a registry."""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.support.hostile_server import accepting, as_json, serving
from tests.support.registry_server import KEYS, RegistryServer
from tests.support.reporting import report

from lifesign import boot_clock
from lifesign.client import RegistryClient, registry_shards
from lifesign.client.registry_errors import InvalidAnswer, NotPermitted, RegistryError
from lifesign.domain.access.permissions import Role
from lifesign.domain.models.observation_batch import ReportOutcome
from lifesign.domain.observation.probe_memory import ProbeMemory
from lifesign.domain.observation.results import LayerResult, Observation, ResultClass
from lifesign.domain.targets.target import (
    SHARDS,
    host_of,
    shard_of,
    target_id,
)
from lifesign.errors import InvalidValue

URLS = [f"https://agent.example/{number}" for number in range(5)]
SHARD = shard_of(host_of(URLS[0]))


@pytest.fixture
async def prober(registry: RegistryServer) -> AsyncIterator[RegistryClient]:
    """A client with a prober's key."""
    async with RegistryClient(registry.url, key=KEYS[Role.PROBER]) as client:
        yield client


def refused(url: str) -> Observation:
    return Observation(
        target_url=url,
        observed_at=datetime.now(UTC),
        discovery=LayerResult(result=ResultClass.REFUSED, reason="port closed"),
    )


async def test_shards_are_claimed_renewed_and_released(prober: RegistryClient) -> None:
    before_s = boot_clock.now_s()
    claimed = await prober.shards.claim("a", held={}, ttl_seconds=60)
    assert before_s + 60 <= claimed.deadline_s <= boot_clock.now_s() + 60
    assert (claimed.grant.workers, claimed.grant.share) == (1, SHARDS)
    tokens = {shard.shard: shard.fencing_token for shard in claimed.grant.shards}
    assert set(tokens) == set(range(SHARDS))
    again = await prober.shards.claim("a", held=tokens)
    assert {shard.shard: shard.fencing_token for shard in again.grant.shards} == tokens
    (living,) = (await prober.shards.show()).probers
    assert living.holder == "key:key_prober/a"
    await prober.shards.leave("a")
    await prober.shards.leave("a")
    assert (await prober.shards.show()).probers == []


async def test_shards_are_reserved_for_companions(prober: RegistryClient) -> None:
    first = await prober.shards.claim("one", held={}, companions=1)
    second = await prober.shards.claim("two", held={}, companions=1)
    assert [len(each.grant.shards) for each in (first, second)] == [SHARDS // 2] * 2
    for worker in ("one", "two"):
        await prober.shards.leave(worker)


async def test_a_shard_is_read_a_page_at_a_time(
    prober: RegistryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_shards, "PAGE", 2)
    await prober.directories.put("dir", URLS)
    whole = await prober.shards.targets(SHARD)
    assert [target.subject_id for target in sorted(whole.targets, key=lambda target: target.url)] == [
        target_id(url) for url in URLS
    ]
    assert {target.memory for target in whole.targets} == {None}
    await prober.directories.put("dir", URLS[:4])
    changed = await prober.shards.targets(SHARD, after_version=whole.version)
    assert (changed.targets, changed.gone) == ([], [target_id(URLS[4])])
    shown = await prober.shards.show(changed_after=whole.version)
    assert shown.changed == {str(SHARD): shown.version}
    monkeypatch.setattr(registry_shards, "MAX_PAGES", 1)
    with pytest.raises(InvalidAnswer, match="more than 1 pages"):
        await prober.shards.targets(SHARD)


async def test_results_are_reported_with_probe_memories(prober: RegistryClient) -> None:
    await prober.directories.put("dir", URLS[:2])
    began_at = datetime.now(UTC)
    claimed = await prober.shards.claim("a", held={})
    tokens = {shard.shard: shard.fencing_token for shard in claimed.grant.shards}
    memory = ProbeMemory(probed_at_s=1.25, result=ResultClass.REFUSED, failures_in_row=2)
    seen = [refused(url) for url in URLS[:2]]
    answer = await report(prober, *seen, memories=[memory, None], tokens={SHARD: tokens[SHARD]})
    assert answer.counts == {ReportOutcome.NO_LIVENESS_SIGNAL_YET: 2}
    assert answer.lost == []
    memories = {target.url: target.memory for target in (await prober.shards.targets(SHARD)).targets}
    assert memories == {URLS[0]: memory, URLS[1]: None}
    assert (await prober.shards.show(unprobed_since=began_at)).unprobed == 0
    later = await report(prober, refused(URLS[0]), tokens={SHARD: tokens[SHARD] + 1})
    assert (later.lost, later.counts) == ([SHARD], {ReportOutcome.SHARD_LOST: 1})


async def test_unsendable_claims_are_not_sent(prober: RegistryClient, registry: RegistryServer) -> None:
    with pytest.raises(InvalidValue, match="worker"):
        await prober.shards.claim("a/b", held={})
    with pytest.raises(InvalidValue, match="held"):
        await prober.shards.claim("a", held={SHARDS: 1})
    with pytest.raises(InvalidValue, match="observations"):
        await report(prober, tokens={SHARD: 1})
    async with RegistryClient(registry.url, key=KEYS[Role.READER]) as reader:
        with pytest.raises(NotPermitted):
            await reader.shards.claim("a", held={})


async def test_invalid_shard_is_refused() -> None:
    page = {"targets": [{"subject_id": 7}], "gone": [], "version": 1}
    path = f"/api/v1/shards/7/targets?limit={registry_shards.PAGE}"
    async with serving({path: as_json(page)}) as server, RegistryClient(server.url, key="k") as client:
        with pytest.raises(InvalidAnswer, match=r"^HTTP 200: "):
            await client.shards.targets(7)


async def test_page_that_does_not_arrive_is_requested_in_smaller_parts() -> None:
    page = {"targets": [], "gone": [], "version": 1}
    path = f"/api/v1/shards/7/targets?limit={registry_shards.PAGE // 2}"
    async with serving({path: as_json(page)}) as server, RegistryClient(server.url, key="k") as client:
        with pytest.raises(RegistryError):
            await client.shards.targets(7)
        assert (await client.shards.targets(7)).version == 1
        # The page was not full, so it shows nothing about a larger one.
        assert (await client.shards.targets(7)).version == 1


async def test_claim_carries_witnesses_and_returns_the_registry_time() -> None:
    bodies: list[dict[str, Any]] = []

    async def registry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        body = await _read_body(reader)
        bodies.append(body)
        if len(bodies) == 1:
            # The first try is lost on the way.
            return
        grant = {
            "shards": [],
            "workers": 1,
            "share": SHARDS,
            "clock_offset_s": 3_600.0,
            "silent_classes": ["public_ipv4"],
            "confirmed_classes": {"public_ipv6": "2026-07-01T12:00:00Z"},
            "witnesses": [{"url": "https://a.example/", "network_class": "public_ipv6"}],
            "reason": "reaches_less",
        }
        _write_json(writer, grant)

    walls = iter([1_000_000.0, 1_000_005.0])
    async with accepting(registry) as port, plain_client(port) as client:
        client.shards._wall_s = lambda: next(walls)
        claimed = await client.shards.claim(
            "w",
            held={},
            reached_classes=["public_ipv4"],
            wanted_witnesses={"public_ipv6": 2},
            interval_s=60.0,
        )
    # It is sent with each try.
    assert [body["sent_at"] for body in bodies] == ["1970-01-12T13:46:40.000Z", "1970-01-12T13:46:45.000Z"]
    assert bodies[1]["reached_classes"] == ["public_ipv4"]
    assert bodies[1]["wanted_witnesses"] == {"public_ipv6": 2}
    assert bodies[1]["interval_s"] == 60.0
    assert claimed.registry_now_s == 1_000_005.0 - 3_600.0
    assert claimed.grant.witnesses[0].network_class == "public_ipv6"
    assert claimed.grant.reason == "reaches_less"


async def test_ages_of_results_are_updated_for_each_retry() -> None:
    bodies: list[dict[str, Any]] = []

    async def registry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        bodies.append(await _read_body(reader))
        if len(bodies) > 1:
            answer: dict[str, Any] = {
                "results": [],
                "counts": {},
                "lost": [],
                "silent_classes": [],
                "confirmed_classes": {},
            }
            _write_json(writer, answer)

    ages = iter([[1.0], [1.0], [2.5], [4.0]])
    async with accepting(registry) as port, plain_client(port) as client:
        await client.shards.report(
            [refused(URLS[0])],
            tokens={SHARD: 7},
            ages_s=lambda: next(ages),
            numbers=[3],
            interval_s=10.0,
        )
    first, second = bodies
    assert (first["ages_s"], second["ages_s"]) == ([1.0], [2.5])
    assert (second["numbers"], second["interval_s"]) == ([3], 10.0)
    assert "sent_at" in second


def plain_client(port: int) -> RegistryClient:
    return RegistryClient(f"http://127.0.0.1:{port}", key="k", allow_plain_http=True)


async def _read_body(reader: asyncio.StreamReader) -> dict[str, Any]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    length = int(head.partition("content-length:")[2].split("\r\n")[0])
    body: dict[str, Any] = json.loads(await reader.readexactly(length))
    return body


def _write_json(writer: asyncio.StreamWriter, value: object) -> None:
    body = json.dumps(value).encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    writer.close()
