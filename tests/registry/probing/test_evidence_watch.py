"""The evidence watch: mass silence, old evidence, and what an operator confirms."""

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
from tests.support.databases import WoundClock
from tests.support.directory_api import claim
from tests.support.metrics import Scraped
from tests.support.probed_fleet import CARD, CLASS, fleet, report, result, unwitnessed
from tests.support.registry_api import RegistryApi

from lifesign.domain.access.permissions import Role
from lifesign.domain.models.base import moment
from lifesign.domain.targets.target import host_of, shard_of

MONITOR = "/api/v1/monitor"


async def shown(api: RegistryApi) -> dict[str, Any]:
    return dict((await api.ask("GET", MONITOR)).json())


async def test_simultaneous_silence_of_most_addresses_of_a_class_is_mass_silence(
    api: RegistryApi, clock: WoundClock
) -> None:
    await fleet(api, 12)
    clock.advance(300)
    await report(api, *(unwitnessed(clock, number) for number in range(5)))
    await api.sweep()
    assert (await shown(api))["silent_classes"] == {}
    assert (await report(api, unwitnessed(clock, 5)))["silent_classes"] == []
    clock.advance(15)
    await api.sweep()
    assert (await shown(api))["silent_classes"] == {CLASS: api.time_text().replace("Z", ".000Z")}
    answer = await report(api, *(result(clock, number) for number in range(6)))
    assert answer["silent_classes"] == [CLASS]
    claim = await api.ask("POST", "/api/v1/shards/claim", {"worker": "w", "ttl_seconds": 60}, key=Role.PROBER)
    assert claim.json()["silent_classes"] == [CLASS]
    clock.advance(15)
    await api.sweep()
    assert (await report(api, result(clock, 0)))["silent_classes"] == []


@pytest.mark.both_databases
async def test_addresses_that_are_probed_every_hour_fall_silent_within_an_hour(
    api: RegistryApi, clock: WoundClock
) -> None:
    async def probe_all(probe: Callable[[WoundClock, int], dict[str, Any]]) -> None:
        for number in range(12):
            await claim(api, interval_s=3_600.0)
            await report(api, probe(clock, number))
            clock.advance(300)

    await fleet(api, 12)
    await probe_all(result)
    await probe_all(unwitnessed)
    await claim(api, interval_s=3_600.0)
    await api.sweep()
    assert list((await shown(api))["silent_classes"]) == [CLASS]


async def test_one_key_makes_no_class_silent_for_another(api: RegistryApi, clock: WoundClock) -> None:
    made = await api.ask("POST", "/api/v1/keys", {"name": "hostile", "role": "prober"}, key=Role.ADMIN)
    assert made.status == 201, made.body
    keys: dict[str, str | Role] = {"honest": Role.PROBER, "hostile": made.json()["key"]}
    for number in range(40):
        await api.register(f"agent-{number}", monitoring="probe", card_url=CARD.format(number))
    shards = [shard_of(host_of(CARD.format(number))) for number in range(40)]
    held: dict[str, dict[int, int]] = {name: {} for name in keys}
    numbers = count(1_000)

    async def claim(name: str) -> list[str]:
        """Claim shards for the worker of a key, and return the silent classes of the answer."""
        body = {"worker": name, "ttl_seconds": 300, "held": {str(s): t for s, t in held[name].items()}}
        answer = (await api.ask("POST", "/api/v1/shards/claim", body, key=keys[name])).json()
        held[name] = {shard["shard"]: shard["fencing_token"] for shard in answer["shards"]}
        messages: list[str] = answer["silent_classes"]
        return messages

    async def report_all(name: str, outcome: str = "ok", **members: Any) -> None:
        """Report the same of all agents in the shards of a worker, each from an address of its own."""
        own = [number for number in range(40) if shards[number] in held[name]]
        answer = await api.report(
            *(result(clock, number, outcome, **members) for number in own),
            key=keys[name],
            tokens={str(shard): token for shard, token in held[name].items()},
            numbers=[next(numbers) for _ in own],
        )
        assert answer.json()["counts"] == {"accepted": len(own)}

    for _ in range(2):
        for name in keys:
            await claim(name)
    for outcome, members in (("ok", {}), ("not_measured", {"inconclusive_reason": "no_witness"})):
        clock.advance(140)
        for name in keys:
            await claim(name)
        clock.advance(140)
        await report_all("honest")
        await report_all("hostile", outcome, **members)
    await api.sweep()
    assert list((await shown(api))["silent_classes"]) == [CLASS]
    assert [await claim(name) for name in keys] == [[], [CLASS]]


async def test_silence_is_counted_only_once_in_watch_seconds(api: RegistryApi, clock: WoundClock) -> None:
    await fleet(api, 3)
    await api.sweep()
    await report(api, *(unwitnessed(clock, number) for number in range(3)))
    clock.advance(14)
    await api.sweep()
    assert (await shown(api))["silent_classes"] == {}
    clock.advance(1)
    await api.sweep()
    assert list((await shown(api))["silent_classes"]) == [CLASS]


@pytest.mark.both_databases
async def test_old_evidence_is_reported_as_lost_and_later_as_restored(
    api: RegistryApi, clock: WoundClock
) -> None:
    await fleet(api, 2)
    clock.advance(901)
    await report(api, unwitnessed(clock, 0))
    await api.sweep()
    lost = (await shown(api))["lost_evidence"]
    assert lost == {
        "agents": 2,
        "reasons": {"no_prober": 1, "no_witness": 1},
        "since": moment(clock.at_s).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "is_reported": False,
    }
    clock.advance(299)
    await api.sweep()
    assert await api.events(type="monitor.evidence_lost") == []
    clock.advance(15)
    await api.sweep()
    await api.sweep()
    [event] = await api.events(type="monitor.evidence_lost")
    assert event["payload"] == {
        "agents": 2, "no_prober": 1, "no_witness": 1, "prober_slow": 0, "prober_clock": 0, "prober_fault": 0,
        "not_probed": 0, "no_credential": 0, "since": lost["since"],
    }  # fmt: skip
    assert (await shown(api))["lost_evidence"]["is_reported"] is True
    await report(api, result(clock, 0), result(clock, 1))
    clock.advance(15)
    await api.sweep()
    [event] = await api.events(type="monitor.evidence_restored")
    assert (event["payload"]["agents"], event["payload"]["since"]) == (0, lost["since"])
    assert "lost_evidence" not in await shown(api)
    statuses = [(await api.record(f"agent-{number}"))["status"] for number in range(2)]
    assert statuses == ["active", "active"]


async def test_agents_that_are_no_longer_probed_lose_no_evidence(api: RegistryApi, clock: WoundClock) -> None:
    await fleet(api, 2)
    for number in range(2):
        assert (await api.ask("DELETE", f"/api/v1/agents/agent-{number}")).status in {200, 204}
    await api.register("agent-1", monitoring="heartbeat")
    clock.advance(901)
    await api.sweep()
    assert "lost_evidence" not in await shown(api)


@pytest.mark.both_databases
async def test_targets_allowed_only_by_another_prober_are_reported(
    api: RegistryApi, clock: WoundClock
) -> None:
    """The second prober took all shards, and its networks.allow has another network."""
    holder, other = "key:key_prober_/{}".format, "10.2.0.0/16"
    await claim(api, "second")
    await fleet(api, 2)
    clock.advance(901)
    assert await claim(api, "second", reached_classes=[other])
    assert await claim(api, "first", reached_classes=[CLASS]) == {}
    blocked = {"network_class": None, "address": None}
    await report(api, *(result(clock, number, "blocked_address", **blocked) for number in range(2)))
    await api.sweep()
    assert (await shown(api))["disallowed_targets"] == [
        {"holder": holder("second"), "network_class": CLASS, "targets": 2, "reached_by": holder("first")}
    ]
    clock.advance(15)
    assert await claim(api, "second", reached_classes=[other, CLASS])
    await api.sweep()
    assert (await shown(api))["disallowed_targets"] == []


@pytest.mark.both_databases
async def test_key_that_reports_mostly_failures_of_alive_agents_is_reported(
    api: RegistryApi, clock: WoundClock
) -> None:
    await fleet(api, 24)
    await api.sweep()
    clock.advance(300)
    failed = [result(clock, number, "timeout") for number in range(16)]
    await report(api, *failed, *(result(clock, number) for number in range(16, 24)))
    await api.sweep()
    [event] = await api.events(type="prober.failures_high")
    assert event["payload"] == {"key_id": "key_prober_", "results": 24, "failed": 16}
    clock.advance(300)
    await report(api, *(result(clock, number) for number in range(24)))
    await api.sweep()
    [event] = await api.events(type="prober.failures_normal")
    assert event["payload"] == {"key_id": "key_prober_", "results": 24, "failed": 0}


@pytest.mark.both_databases
async def test_metrics_contain_old_evidence_silent_classes_and_failure_ratio_per_key(
    api: RegistryApi, clock: WoundClock
) -> None:
    await fleet(api, 3)
    clock.advance(901)
    await report(api, *(unwitnessed(clock, number) for number in range(3)))
    await api.sweep()
    scraped = Scraped((await api.ask("GET", "/metrics", key=Role.READER)).body.decode())
    prefix = "lifesign_registry_"
    assert scraped.value(f"{prefix}old_evidence_agents", reason="no_witness") == 3
    assert scraped.value(f"{prefix}old_evidence_agents", reason="no_prober") == 0
    assert scraped.value(f"{prefix}evidence_lost") == 0
    assert scraped.value(f"{prefix}silent_network_classes") == 1
    shards = {
        (await api.ask("GET", f"/api/v1/targets/agent-{number}")).json()["shard"] for number in range(3)
    }
    assert scraped.value(f"{prefix}prober_shards", key="key_prober_") == len(shards)
    assert scraped.value(f"{prefix}prober_results_total", key="key_prober_", result="inconclusive") == 3
