from typing import Any

import pytest
from sqlalchemy import text
from tests.support.databases import WoundClock
from tests.support.directory_api import SHARDS, feed, put
from tests.support.registry_api import RegistryApi

from lifesign.domain.access.permissions import Role
from lifesign.domain.models.base import moment
from lifesign.domain.targets.target import shard_of, target_id

HOST = "agent.example"
SHARD = shard_of(HOST)
URLS = [f"https://{HOST}/{number}" for number in range(7)]


def ids(urls: list[str]) -> set[str]:
    return {target_id(url) for url in urls}


async def report(api: RegistryApi, clock: WoundClock, url: str, memory: dict[str, Any]) -> None:
    clock.advance(1)
    seen = {
        "target_url": url,
        "observed_at": moment(clock.at_s).isoformat(),
        "discovery": {"result": "refused"},
    }
    answer = await api.report(seen, memories=[memory])
    assert answer.json()["counts"] == {"no_liveness_signal_yet": 1}


async def test_shard_lists_targets_with_the_memory_of_their_last_probe(
    api: RegistryApi, clock: WoundClock
) -> None:
    await put(api, "dir", "one", URLS[:2])
    memory = {"probed_at_s": 1.5, "result": "refused", "failures_in_row": 3}
    await report(api, clock, URLS[0], memory)
    whole = await feed(api, SHARD)
    first, second = sorted(whole["targets"], key=lambda target: str(target["url"]))
    assert first == {
        "subject_id": target_id(URLS[0]),
        "url": URLS[0],
        "version": whole["version"],
        "memory": memory,
    }
    assert second == {"subject_id": target_id(URLS[1]), "url": URLS[1], "version": whole["version"]}
    assert whole["gone"] == []


async def test_card_read_by_another_key_is_read_again(api: RegistryApi, clock: WoundClock) -> None:
    await put(api, "dir", "one", URLS[:1])
    memory = {
        "card_url": URLS[0],
        "card_etag": 'W/"\\u0000"',
        "card_digest": "0" * 64,
        "interface_url": "https://invented.example/",
        "card_read_at_s": 1.5,
        "health_url": f"https://{HOST}/of-another-agent/health",
    }
    seen = {
        "target_url": URLS[0],
        "network_class": "public_ipv4",
        "address": "192.0.2.1",
        "discovery": {"result": "ok"},
    }
    found = {**seen, "observed_at": moment(clock.at_s).isoformat()}
    answer = await api.report(found, memories=[memory])
    assert answer.json()["counts"] == {"accepted": 1}
    (target,) = (await feed(api, SHARD))["targets"]
    assert target["memory"].keys() >= memory.keys()
    answer = await api.ask("GET", f"{SHARDS}/{SHARD}/targets", key=Role.ADMIN)
    (target,) = answer.json()["targets"]
    read = {"card_etag", "card_digest", "card_read_at_s", "health_url"}
    assert memory.keys() - target["memory"].keys() == read


@pytest.mark.both_databases
@pytest.mark.parametrize(
    "written_with",
    [
        {"discovery": {"result": "not_measured"}, "inconclusive_reason": "asked_to_wait"},
        {"discovery": {"result": "refused"}},
        {"discovery": {"result": "ok"}},
    ],
)
async def test_waits_that_another_key_wrote_for_a_living_agent_are_forgotten(
    api: RegistryApi, clock: WoundClock, written_with: dict[str, Any]
) -> None:
    """The holder of a stolen key says that a target wants no probes, or has failed for long."""
    await put(api, "dir", "one", URLS[:1])
    subject = {"target_url": URLS[0]}
    alive = {"discovery": {"result": "ok"}, "network_class": "public_ipv4", "address": "192.0.2.1"}
    body = {"role": "prober", "name": "other"}
    created = (await api.ask("POST", "/api/v1/keys", body)).json()

    async def written(seen: dict[str, Any], memory: dict[str, Any]) -> None:
        clock.advance(1)
        observed_at = moment(clock.at_s).isoformat()
        await api.report(subject | {"observed_at": observed_at} | seen, memories=[memory])

    async def fed(key: str | Role) -> dict[str, Any]:
        answer = await api.ask("GET", f"{SHARDS}/{SHARD}/targets", key=key)
        (target,) = answer.json()["targets"]
        return dict(target["memory"])

    await written(alive, {"alive_at_s": 1.5})
    await api.database.write(
        lambda transaction: transaction.connection.execute(
            text("UPDATE liveness SET prober_key = :key"), {"key": f"key:{created['key_id']}"}
        )
    )
    waits = {
        "failures_in_row": 1000,
        "not_before_s": clock.at_s + 86_400,
        "slowdowns": 9,
        "is_disallowed_by_robots": True,
        "robots_read_at_s": clock.at_s,
    }
    await written(written_with, {"alive_at_s": 1.5, "card_etag": "e", "card_digest": "0" * 64} | waits)
    assert (await fed(Role.PROBER)).items() >= waits.items()
    assert (await fed(created["key"])).keys() == {"alive_at_s"}


async def test_waits_of_a_target_without_an_agent_end_with_the_key_that_wrote_them(
    api: RegistryApi, clock: WoundClock
) -> None:
    await put(api, "dir", "one", URLS[:1])
    observed_at = moment(clock.at_s).isoformat()
    seen = {"target_url": URLS[0], "observed_at": observed_at, "network_class": "public_ipv4"}
    await api.report(seen | {"discovery": {"result": "ok"}, "address": "192.0.2.1"}, memories=[{}])
    killed = text("UPDATE agents SET status = 'dead'")
    await api.database.write(lambda transaction: transaction.connection.execute(killed))
    clock.advance(1)
    observed_at = moment(clock.at_s).isoformat()
    waits = {"failures_in_row": 60, "not_before_s": clock.at_s + 86_400}
    seen |= {"observed_at": observed_at}
    await api.report(seen | {"discovery": {"result": "refused"}}, memories=[waits])
    body = {"role": "prober", "name": "other"}
    other = (await api.ask("POST", "/api/v1/keys", body)).json()["key"]

    async def fed() -> dict[str, Any]:
        answer = await api.ask("GET", f"{SHARDS}/{SHARD}/targets", key=other)
        (target,) = answer.json()["targets"]
        return dict(target.get("memory", {}))

    assert (await fed()).items() >= waits.items()
    revoked = await api.ask("DELETE", "/api/v1/keys/key_prober_")
    assert revoked.status in {200, 204}
    assert not (await fed()).keys() & waits.keys()


async def test_unreadable_probe_memory_is_omitted_from_the_feed(
    api: RegistryApi, clock: WoundClock, caplog: pytest.LogCaptureFixture
) -> None:
    await put(api, "dir", "one", URLS[:2])
    await report(api, clock, URLS[0], {"failures_in_row": 1})
    spoilt = text("UPDATE probe_results SET memory = '{}1'")
    await api.database.write(lambda transaction: transaction.connection.execute(spoilt))
    whole = await feed(api, SHARD)
    assert [target.get("memory") for target in whole["targets"]] == [None, None]
    answer = await api.ask("GET", f"/api/v1/targets/{target_id(URLS[0])}", key=Role.READER)
    assert (answer.status, answer.json().get("memory")) == (200, None)
    assert all(f"probe history of {target_id(URLS[0])} is invalid" in message for message in caplog.messages)


async def test_implausible_memory_is_not_sent_to_the_next_prober(api: RegistryApi, clock: WoundClock) -> None:
    await put(api, "dir", "one", URLS[:1])
    invented = {"robots_read_at_s": 1.7e308, "probed_at_s": -1e20, "card_url": "http://[::1"}
    await report(api, clock, URLS[0], {"failures_in_row": 1, "is_disallowed_by_robots": True, **invented})
    (target,) = (await feed(api, SHARD))["targets"]
    assert target["memory"] == {"failures_in_row": 1, "is_disallowed_by_robots": True}


async def test_thresholds_of_a_registered_agent_are_sent_to_its_prober(api: RegistryApi) -> None:
    thresholds = {"interval_seconds": 20, "unhealthy_after_seconds": 60, "dead_after_seconds": 240}
    registered = {"agent_id": "own", "monitoring": "probe", "heartbeat_config": thresholds}
    await put(api, "dir", "one", URLS[:1])
    version = (await feed(api, SHARD))["version"]
    answer = await api.ask("POST", "/api/v1/agents", {**registered, "card_url": URLS[1]}, key=Role.ADMIN)
    assert answer.status == 201
    for page in (await feed(api, SHARD), await feed(api, SHARD, version)):
        sent = {target["subject_id"]: target.get("thresholds_s") for target in page["targets"]}
        assert sent.pop("own") == [60.0, 240.0]
        # An agent that a directory lists has the defaults of probing.
        assert set(sent.values()) <= {None}


@pytest.mark.both_databases
async def test_kind_that_a_directory_states_is_sent_to_the_prober(api: RegistryApi) -> None:
    await put(api, "dir", "one", URLS[:2])
    unknown = await feed(api, SHARD)
    assert all("kind" not in target for target in unknown["targets"])
    await put(api, "servers", "two", URLS[1:3], kind="mcp")
    changes = await feed(api, SHARD, unknown["version"])
    assert {target["url"] for target in changes["targets"]} == set(URLS[1:3])
    # A list without a kind means A2A agents.
    assert await kinds(api) == [None, "disputed", "mcp"]
    await put(api, "plain", "three", URLS[1:3])
    await put(api, "agents", "four", URLS[:1], kind="a2a")
    assert await kinds(api) == ["a2a", "disputed", "disputed"]


async def kinds(api: RegistryApi) -> list[str | None]:
    """Return the kinds that the prober gets, by URL."""
    targets = (await feed(api, SHARD))["targets"]
    return [target.get("kind") for target in sorted(targets, key=lambda target: str(target["url"]))]


async def test_confirmation_of_a_target_is_sent_to_its_prober(api: RegistryApi) -> None:
    await put(api, "dir", "one", URLS[:2])
    confirm = text("UPDATE targets SET confirmed_at_s = 50.0 WHERE url = :url")
    await api.database.write(lambda transaction: transaction.connection.execute(confirm, {"url": URLS[0]}))
    whole = await feed(api, SHARD)
    sent = {target["url"]: target.get("confirmed_at") for target in whole["targets"]}
    assert sent == {URLS[0]: "1970-01-01T00:00:50Z", URLS[1]: None}


async def test_report_of_a_prober_is_no_change_for_its_feed(api: RegistryApi, clock: WoundClock) -> None:
    await put(api, "dir", "one", URLS[:2])
    version = (await feed(api, SHARD))["version"]
    await report(api, clock, URLS[0], {"failures_in_row": 1})
    assert await feed(api, SHARD, version) == {"targets": [], "gone": [], "version": version}


@pytest.mark.parametrize("limit", [1, 2, 3, 7])
async def test_feed_pages_contain_each_target_once(api: RegistryApi, limit: int) -> None:
    await put(api, "dir", "one", URLS[:3])
    await put(api, "dir", "two", URLS)
    assert {target["url"] for target in (await feed(api, SHARD, limit=limit))["targets"]} == set(URLS)
    changed = await feed(api, SHARD, 1, limit=limit)
    assert {target["url"] for target in changed["targets"]} == set(URLS[3:])


async def test_change_during_paging_is_delivered_as_a_change(api: RegistryApi) -> None:
    await put(api, "dir", "one", URLS[:4])
    path = f"{SHARDS}/{SHARD}/targets?limit=2"
    first = (await api.ask("GET", path)).json()
    await put(api, "dir", "two", [*URLS[:3], URLS[6]])
    second = (await api.ask("GET", f"{path}&cursor={first['cursor']}")).json()
    assert second["version"] == first["version"]
    assert "cursor" not in second
    known = {target["subject_id"] for page in (first, second) for target in page["targets"]}
    changed = await feed(api, SHARD, first["version"])
    known |= {target["subject_id"] for target in changed["targets"]}
    assert known - set(changed["gone"]) == ids([*URLS[:3], URLS[6]])


async def test_an_agent_that_registers_to_be_probed_is_a_target(api: RegistryApi) -> None:
    await api.register("one", monitoring="probe", card_url="https://AGENT.example:443/card.json")
    await api.register("two", monitoring="both", card_url=URLS[1])
    await api.register("three", card_url=URLS[2])
    found = {target["subject_id"]: target["url"] for target in (await feed(api, SHARD))["targets"]}
    assert found == {"one": f"https://{HOST}/card.json", "two": URLS[1]}


@pytest.mark.both_databases
async def test_moved_card_url_replaces_the_former_target(api: RegistryApi, clock: WoundClock) -> None:
    await api.register("one", monitoring="probe", card_url=URLS[0])
    seen = {
        "agent_id": "one",
        "observed_at": moment(clock.at_s).isoformat(),
        "transport": {"result": "ok"},
    }
    answer = await api.report(seen, memories=[{"failures_in_row": 1}])
    assert answer.json()["counts"] == {"accepted": 1}
    version = (await feed(api, SHARD))["version"]
    there = "https://elsewhere.example/card.json"
    await api.ask("PATCH", "/api/v1/agents/one", {"card_url": there}, headers={"If-Match": "*"})
    assert (await feed(api, SHARD, version))["gone"] == ["one"]
    assert (await feed(api, SHARD))["targets"] == []
    (moved,) = (await feed(api, shard_of("elsewhere.example")))["targets"]
    # The memory belonged to the other place; the agent is alive all the same.
    assert (moved["url"], moved["memory"]) == (there, {"alive_at_s": clock.at_s})
    newest = (await api.ask("GET", f"{SHARDS}?changed_after={version}")).json()["changed"]
    assert set(newest) == {str(SHARD), str(shard_of("elsewhere.example"))}
    await api.ask("PATCH", "/api/v1/agents/one", {"card_url": URLS[0]}, headers={"If-Match": "*"})
    changed = await feed(api, SHARD, version)
    assert ([target["subject_id"] for target in changed["targets"]], changed["gone"]) == (["one"], [])


async def test_feed_states_when_a_registered_agent_was_last_alive(
    api: RegistryApi, clock: WoundClock
) -> None:
    registered_at_s = clock.at_s
    await api.register("one", monitoring="probe", card_url=URLS[0])

    async def alive_at_s() -> float | None:
        (target,) = (await feed(api, SHARD))["targets"]
        at_s: float | None = target.get("memory", {}).get("alive_at_s")
        return at_s

    async def see(result: str, memory: dict[str, Any]) -> None:
        clock.advance(300)
        seen = {
            "agent_id": "one",
            "observed_at": moment(clock.at_s).isoformat(),
            "discovery": {"result": result},
        }
        answer = await api.report(seen, memories=[memory])
        assert answer.json()["counts"] == {"accepted": 1}

    # It never answered a prober.
    assert await alive_at_s() == registered_at_s
    await see("ok", {"alive_at_s": 5.0})
    # It is active since it registered, whatever a prober remembers.
    assert await alive_at_s() == registered_at_s
    await see("ok", {"alive_at_s": clock.at_s})
    assert await alive_at_s() == clock.at_s - 300
    # A prober that forgets it, and a memory that cannot be read.
    await see("ok", {"failures_in_row": 1})
    assert await alive_at_s() == clock.at_s
    spoilt = text("UPDATE probe_results SET memory = '{}1'")
    await api.database.write(lambda transaction: transaction.connection.execute(spoilt))
    assert await alive_at_s() == clock.at_s
    for _ in range(20):
        await see("refused", {})
        await api.sweep()
    assert (await api.record("one"))["status"] == "dead"
    assert await alive_at_s() is None


async def test_failure_of_an_alive_listed_agent_needs_a_witness(api: RegistryApi, clock: WoundClock) -> None:
    await put(api, "dir", "one", URLS[:2])
    for url, result in zip(URLS, ("ok", "refused"), strict=False):
        seen = {
            "target_url": url,
            "observed_at": moment(clock.at_s).isoformat(),
            "discovery": {"result": result},
        }
        await api.report(seen, memories=[{"failures_in_row": 1}])
    members = {target["url"]: target["memory"] for target in (await feed(api, SHARD))["targets"]}
    alive, never = {"alive_at_s": clock.at_s}, {"failures_in_row": 1}
    assert members == {URLS[0]: alive, URLS[1]: never}


async def test_thresholds_that_change_are_sent_to_the_prober(api: RegistryApi) -> None:
    await api.register("one", monitoring="probe", card_url=URLS[0])
    version = (await feed(api, SHARD))["version"]
    config = {"interval_seconds": 300, "unhealthy_after_seconds": 14_400, "dead_after_seconds": 86_400}
    changed = {"heartbeat_config": config}
    await api.ask("PATCH", "/api/v1/agents/one", changed, headers={"If-Match": "*"})
    (target,) = (await feed(api, SHARD, version))["targets"]
    assert target["thresholds_s"] == [14_400, 86_400]
    version = (await feed(api, SHARD))["version"]
    await api.ask("PATCH", "/api/v1/agents/one", {"name": "other"}, headers={"If-Match": "*"})
    assert (await feed(api, SHARD, version))["targets"] == []


async def test_deregistered_agent_is_a_target_only_after_a_new_registration(
    api: RegistryApi,
) -> None:
    record = {"monitoring": "probe", "card_url": URLS[0]}
    await api.register("one", **record)
    version = (await feed(api, SHARD))["version"]
    await api.ask("DELETE", "/api/v1/agents/one")
    changed = await feed(api, SHARD, version)
    assert (changed["targets"], changed["gone"]) == ([], ["one"])
    await api.register("one", **record)
    assert [target["subject_id"] for target in (await feed(api, SHARD))["targets"]] == ["one"]
    await api.register("one", supersede=True, **record)
    assert [target["subject_id"] for target in (await feed(api, SHARD))["targets"]] == ["one"]
    await api.register("one", supersede=True, monitoring="heartbeat")
    assert (await feed(api, SHARD))["targets"] == []


async def test_an_agent_that_cannot_be_probed_is_refused(api: RegistryApi) -> None:
    body = {"agent_id": "one", "monitoring": "probe", "card_url": "https://a..example/"}
    answer = await api.ask("POST", "/api/v1/agents", body)
    assert (answer.status, answer.json()["error"]["details"]["faults"][0]["pointer"]) == (422, "/card_url")
    assert (await api.ask("POST", "/api/v1/agents", {**body, "monitoring": "heartbeat"})).status == 201


async def test_an_erased_agent_is_no_target(api: RegistryApi) -> None:
    await api.register("one", monitoring="probe", card_url=URLS[0])
    assert (await api.ask("DELETE", "/api/v1/agents/one/record")).status == 200
    assert (await feed(api, SHARD))["targets"] == []


@pytest.mark.parametrize("path", ["1024/targets", "-1/targets", "x/targets", "9999999999/targets"])
async def test_invalid_shard_is_refused(api: RegistryApi, path: str) -> None:
    assert (await api.ask("GET", f"{SHARDS}/{path}")).status == 422


@pytest.mark.parametrize("query", ["after_version=-1", "limit=0", "limit=5001", "cursor=x", "after=1"])
async def test_invalid_query_is_refused(api: RegistryApi, query: str) -> None:
    assert (await api.ask("GET", f"{SHARDS}/{SHARD}/targets?{query}")).status == 422


@pytest.mark.parametrize("path", ["/api/v1/shards", f"{SHARDS}/{SHARD}/targets", "/api/v1/directories"])
async def test_agent_key_cannot_read_the_target_feed(api: RegistryApi, path: str) -> None:
    key = (await api.register("one"))["agent_key"]
    assert (await api.ask("GET", path, key=key)).status == 403


@pytest.mark.both_databases
async def test_agent_that_registers_again_is_probed_at_once_and_needs_a_witness(
    api: RegistryApi, clock: WoundClock
) -> None:
    """Neither the back-off of its former incarnation nor a confirmation about that is left."""
    await api.register("one", monitoring="probe", card_url=URLS[0])
    died_at_s = clock.at_s
    clock.advance(300)
    seen = {
        "agent_id": "one",
        "observed_at": moment(clock.at_s).isoformat(),
        "discovery": {"result": "refused"},
    }
    memory = {"probed_at_s": clock.at_s, "failures_in_row": 60, "slowdowns": 3, "alive_at_s": died_at_s}
    memory |= {"silence_s": 18_000, "doublings": 12, "not_before_s": clock.at_s + 86_400}
    await api.report(seen, memories=[{**memory, "card_url": URLS[0]}])
    confirmed = await api.ask("POST", "/api/v1/monitor/confirm", {"agent_id": "one"})
    assert confirmed.status == 200
    clock.advance(3_600)
    registered_at_s = clock.at_s
    await api.register("one", monitoring="probe", card_url=URLS[0], supersede=True)
    (target,) = (await feed(api, SHARD))["targets"]
    assert target["memory"] == {
        "probed_at_s": memory["probed_at_s"],
        "card_url": URLS[0],
        "alive_at_s": registered_at_s,
    }
    assert "confirmed_at" not in target
    assert target["recheck_at"] == target["entered_at"]
