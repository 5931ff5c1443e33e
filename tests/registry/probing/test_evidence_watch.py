"""The evidence watch: mass silence, old evidence, and what an operator confirms."""

from datetime import datetime
from itertools import count
from typing import Any

import pytest
from tests.support.asgi_client import Answer
from tests.support.databases import WoundClock
from tests.support.directory_api import claim
from tests.support.metrics import Scraped
from tests.support.registry_api import RegistryApi

from lifesign.domain.access.permissions import Role
from lifesign.domain.models.base import moment
from lifesign.domain.targets.target import host_of, shard_of
from lifesign.registry.probing.manage_monitor import MAX_CONFIRMED_CLASSES

MONITOR = "/api/v1/monitor"
CLASS = "10.1.0.0/16"
CARD = "https://agent-{}.example/.well-known/agent-card.json"


def result(clock: WoundClock, number: int, outcome: str = "ok", **members: Any) -> dict[str, Any]:
    """Return the result of a probe just now of an agent with an address of its own."""
    return {
        "agent_id": f"agent-{number}",
        "observed_at": moment(clock.at_s).isoformat(),
        "transport": {"result": outcome},
        "network_class": CLASS,
        "address": f"10.1.0.{number}",
        **members,
    }


def unwitnessed(clock: WoundClock, number: int) -> dict[str, Any]:
    return result(clock, number, "not_measured", inconclusive_reason="no_witness")


async def report(api: RegistryApi, *observations: dict[str, Any]) -> dict[str, Any]:
    """Report what probes saw, and return the answer."""
    answer = await api.report(*observations)
    assert answer.status == 200, answer.body
    return dict(answer.json())


async def fleet(api: RegistryApi, size: int) -> None:
    """Register agents that are probed, and let all of them answer once."""
    for number in range(size):
        await api.register(f"agent-{number}", monitoring="probe", card_url=CARD.format(number))
    await report(api, *(result(api.clock, number) for number in range(size)))


async def shown(api: RegistryApi) -> dict[str, Any]:
    return dict((await api.ask("GET", MONITOR)).json())


async def confirm(api: RegistryApi, members: dict[str, str], key: Role = Role.ADMIN) -> Answer:
    return await api.ask("POST", f"{MONITOR}/confirm", members, key=key)


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
        "agents": 2, "no_prober": 1, "no_witness": 1, "prober_slow": 0, "since": lost["since"],
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


@pytest.mark.both_databases
async def test_an_operator_confirms_a_class(api: RegistryApi, clock: WoundClock) -> None:
    await fleet(api, 1)
    clock.advance(60)
    done = await confirm(api, {"network_class": CLASS})
    at = done.json()["confirmed_at"]
    assert (done.status, done.json()) == (200, {"network_class": CLASS, "confirmed_at": at})
    assert (await shown(api))["confirmed_classes"] == {CLASS: at}
    assert (await report(api, result(clock, 0)))["confirmed_classes"] == {CLASS: at}
    clock.advance(60)
    later = (await confirm(api, {"network_class": CLASS})).json()["confirmed_at"]
    assert (await shown(api))["confirmed_classes"] == {CLASS: later}
    events = await api.events(type="monitor.confirmed")
    assert [(event["actor"], event["payload"]) for event in events] == [
        ("key:key_admin_", {"network_class": CLASS})
    ] * 2


async def test_an_operator_confirms_one_agent(api: RegistryApi) -> None:
    await fleet(api, 2)
    before = (await api.ask("GET", "/api/v1/shards", key=Role.PROBER)).json()["version"]
    done = await confirm(api, {"agent_id": "agent-1"})
    at = done.json()["confirmed_at"]
    shard = (await api.ask("GET", "/api/v1/targets/agent-1")).json()["shard"]
    changes = await api.ask("GET", f"/api/v1/shards/{shard}/targets?after_version={before}", key=Role.PROBER)
    fed = changes.json()["targets"]
    [target] = fed
    assert target["subject_id"] == "agent-1"
    assert datetime.fromisoformat(target["confirmed_at"]) == datetime.fromisoformat(at)
    [event] = await api.events(type="monitor.confirmed", agent_id="agent-1")
    assert (event["actor"], event["payload"]) == ("key:key_admin_", {"agent_id": "agent-1"})


@pytest.mark.both_databases
@pytest.mark.parametrize(
    ("members", "status", "code"),
    [
        ({}, 422, "invalid_request"),
        ({"network_class": CLASS, "agent_id": "agent-0"}, 422, "invalid_request"),
        ({"network_class": "public_ipv4"}, 404, "network_class_not_found"),
        ({"agent_id": "nobody"}, 404, "target_not_found"),
    ],
)
async def test_empty_confirmation_is_refused(
    api: RegistryApi, members: dict[str, str], status: int, code: str
) -> None:
    await fleet(api, 1)
    refused = await confirm(api, members)
    assert (refused.status, refused.json()["error"]["code"]) == (status, code)
    if code == "network_class_not_found":
        assert refused.json()["error"]["details"]["classes"] == CLASS, "existing classes"
    assert await api.events(type="monitor.confirmed") == []


@pytest.mark.parametrize("role", [role for role in Role if role not in {Role.ADMIN, Role.AGENT}])
async def test_only_an_admin_confirms(api: RegistryApi, role: Role) -> None:
    await fleet(api, 1)
    assert (await confirm(api, {"network_class": CLASS}, role)).status == 403


async def test_only_the_latest_confirmed_classes_are_kept(api: RegistryApi, clock: WoundClock) -> None:
    count = MAX_CONFIRMED_CLASSES + 1
    await fleet(api, 1)
    for number in range(count):
        clock.advance(1)
        await report(api, result(clock, 0, network_class=f"10.{number}.0.0/16"))
        assert (await confirm(api, {"network_class": f"10.{number}.0.0/16"})).status == 200
    classes = (await shown(api))["confirmed_classes"]
    assert len(classes) == MAX_CONFIRMED_CLASSES
    assert "10.0.0.0/16" not in classes
