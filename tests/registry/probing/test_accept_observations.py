import asyncio
from typing import Any

import pytest
from tests.support.asgi_client import Answer
from tests.support.assertions import asserted
from tests.support.databases import WoundClock
from tests.support.directory_api import put
from tests.support.fleet import count_by_status
from tests.support.registry_api import AGENTS, RegistryApi

from lifesign.domain.access.permissions import Role
from lifesign.domain.lifecycle.network_silence import ClassCounts
from lifesign.domain.models.base import moment, moment_text
from lifesign.domain.observation.evidence_age import Evidence
from lifesign.domain.targets.target import shard_of, target_id
from lifesign.storage.agents import agent_rows
from lifesign.storage.engine.transaction import Database
from lifesign.storage.probing import liveness

OBSERVATIONS = "/api/v1/observations"
CARD = "https://agent.example/.well-known/agent-card.json"


def observed(clock: WoundClock, **members: Any) -> dict[str, Any]:
    """Return the result of a probe just now: an answering interface by default."""
    observation = {"observed_at": moment(clock.at_s).isoformat(), "transport": {"result": "ok"}, **members}
    if "target_url" not in members:
        observation.setdefault("agent_id", "agent-1")
    return observation


def failure(clock: WoundClock, **members: Any) -> dict[str, Any]:
    return observed(clock, transport={"result": "timeout"}, **members)


def document(clock: WoundClock, status: str, **members: Any) -> dict[str, Any]:
    stated = {"status": status, "timestamp": moment(clock.at_s).isoformat(), "max_age_s": 60}
    return observed(clock, readiness={"result": "ok"}, document=stated, **members)


def batch(*observations: dict[str, Any]) -> dict[str, Any]:
    """Return a batch of a shard without a holder."""
    many = len(observations)
    return {
        "observations": list(observations),
        "ages_s": [0] * many,
        "numbers": list(range(1, many + 1)),
        "interval_s": 300,
        "tokens": {"1": 1},
    }


async def report(api: RegistryApi, *observations: dict[str, Any], **members: Any) -> Answer:
    return await api.report(*observations, **members)


async def outcomes(api: RegistryApi, *observations: dict[str, Any], **members: Any) -> list[str]:
    answer = await report(api, *observations, **members)
    assert answer.status == 200, answer.body
    return [result["outcome"] for result in answer.json()["results"]]


async def _status(api: RegistryApi, agent_id: str = "agent-1") -> str:
    return str((await api.record(agent_id))["status"])


async def test_probe_results_of_a_heartbeat_agent_do_not_decide(api: RegistryApi, clock: WoundClock) -> None:
    await api.register("agent-1", monitoring="both", card_url=CARD)
    clock.advance(1)
    for _ in range(5):
        assert await outcomes(api, failure(clock)) == ["accepted"]
        clock.advance(10)
    await api.sweep()
    record = await api.record("agent-1")
    assert record["status"] == "active"
    assert record["observed"]["failures_in_row"] == 5
    assert record["is_unreachable"] is True


async def test_measured_failures_make_no_unknown_health_healthy(api: RegistryApi, clock: WoundClock) -> None:
    """The prober is absent for longer than three intervals, then the agent fails and a witness answers."""
    await register_probed(api)
    stated = {"status": "healthy", "timestamp": moment(clock.at_s).isoformat(), "max_age_s": 7200}
    assert await outcomes(api, observed(clock, readiness={"result": "ok"}, document=stated)) == ["accepted"]
    clock.advance(1000)
    shown = (await api.ask("GET", AGENTS)).json()["agents"][0]
    assert (shown["health"], shown["unknown_reason"]) == ("unknown", "no_prober")
    for failures in range(1, 4):
        assert await outcomes(api, failure(clock)) == ["accepted"]
        shown = (await api.ask("GET", AGENTS)).json()["agents"][0]
        assert (shown["health"], shown["unknown_reason"]) == ("unknown", "document_ended")
        assert shown.get("failing_probes") == (failures if failures > 1 else None)
        assert (await api.record("agent-1")).get("failing_probes") == shown.get("failing_probes")
        found = (await api.ask("GET", f"{AGENTS}?health=healthy")).json()
        assert found["agents"] == []
        clock.advance(300)


@pytest.mark.both_databases
async def test_agent_with_a_card_and_a_failing_interface_is_marked_in_lists(
    api: RegistryApi, clock: WoundClock
) -> None:
    """The server still serves the card, which is a liveness signal; the interface is gone."""
    await register_probed(api)
    card_alone = {"discovery": {"result": "ok"}, "transport": {"result": "refused"}}

    async def shown() -> tuple[Any, ...]:
        listed = (await api.ask("GET", AGENTS)).json()["agents"][0]
        record = await api.record("agent-1")
        assert listed.get("is_unreachable", False) is record["is_unreachable"]
        return record["status"], record["health"], record["is_unreachable"]

    assert await outcomes(api, observed(clock, **card_alone)) == ["accepted"]
    assert await shown() == ("active", "unknown", True)
    for _ in range(4):
        assert await shown() == ("active", "unknown", True)
        clock.advance(300)
        # A new card names no interface.
        missing = {"result": "not_measured"}
        await outcomes(api, observed(clock, **card_alone | {"transport": missing}))
    assert await shown() == ("active", "unknown", False)


async def test_repeated_or_late_observation_is_ignored(api: RegistryApi, clock: WoundClock) -> None:
    await register_probed(api)
    some = [observed(clock), observed(clock), observed(clock)]
    assert await outcomes(api, *some, numbers=[2, 1, 2]) == ["accepted", "ignored", "ignored"]
    assert await outcomes(api, *some, numbers=[2, 3, 4]) == ["ignored", "accepted", "accepted"]
    counts = (await report(api, observed(clock, agent_id="nobody"))).json()["counts"]
    assert counts == {"unknown": 1}


async def test_observation_of_an_agent_that_is_no_target_is_unknown(
    api: RegistryApi, clock: WoundClock
) -> None:
    await api.register("agent-1")
    assert await outcomes(api, observed(clock)) == ["unknown"]
    assert "observed" not in await api.record("agent-1")


@pytest.mark.parametrize("offset_s", [-3600, -600, 600, 3600])
async def test_wrong_clock_of_a_prober_does_not_change_results(
    api: RegistryApi, clock: WoundClock, offset_s: float
) -> None:
    """Its wall clock is wrong by minutes or an hour; its results come with their ages."""
    await register_probed(api)
    assert await outcomes(api, observed(clock)) == ["accepted"]
    began_s = clock.at_s
    for _ in range(12):
        clock.advance(300)
        wrong = moment(clock.at_s + offset_s).isoformat()
        assert await outcomes(api, failure(clock, observed_at=wrong), ages_s=[0]) == ["accepted"]
        await api.sweep()
        passed_s = clock.at_s - began_s
        assert await _status(api) == ("active" if passed_s <= 900 else "unhealthy")
    clock.advance(300)
    await outcomes(api, failure(clock, observed_at=moment(clock.at_s + offset_s).isoformat()), ages_s=[0])
    await api.sweep()
    assert await _status(api) == "dead"


async def test_age_of_a_result_is_limited_by_the_grant_of_its_shard(
    api: RegistryApi, clock: WoundClock
) -> None:
    await register_probed(api)
    await api.register("agent-2", monitoring="probe", card_url=f"{CARD}?2")
    await outcomes(api, observed(clock))
    granted_s = clock.at_s
    clock.advance(1_000)
    # The first result of a target has no earlier one that limits its age.
    assert await outcomes(api, observed(clock, agent_id="agent-2"), ages_s=[86_400]) == ["accepted"]
    assert (await api.record("agent-2"))["observed"]["last_observed_at"] == moment_text(granted_s)
    for age_s, at_s in ((10, granted_s + 990), (900, granted_s + 990), (5, granted_s + 995)):
        await outcomes(api, observed(clock), ages_s=[age_s])
        shown = (await api.record("agent-1"))["observed"]
        assert shown["last_observed_at"] == moment_text(at_s)
    clock.advance(1_000)
    await outcomes(api, observed(clock), ages_s=[86_400])
    assert (await api.record("agent-1"))["observed"]["last_observed_at"] == moment_text(granted_s + 995)


@pytest.mark.both_databases
async def test_evidence_is_stored_with_the_observation(api: RegistryApi, clock: WoundClock) -> None:
    await register_probed(api)
    await outcomes(api, document(clock, "healthy"))
    read_s = clock.at_s
    clock.advance(300)
    unseen = {"transport": {"result": "not_measured"}, "inconclusive_reason": "no_witness"}
    await outcomes(api, observed(clock, **unseen), interval_s=600)
    agent = await api.database.read(lambda transaction: agent_rows.find(transaction, "agent-1"))
    assert agent is not None
    assert agent.evidence == Evidence(
        at_s=read_s,
        until_s=read_s + 900,
        results_until_s=clock.at_s + 1800,
        inconclusive_reason="no_witness",
        health_until_s=read_s + 900,
    )


@pytest.mark.parametrize("missing", ["ages_s", "numbers", "interval_s", "tokens"])
async def test_a_batch_needs_ages_numbers_interval_and_tokens(
    api: RegistryApi, clock: WoundClock, missing: str
) -> None:
    body = batch(observed(clock))
    del body[missing]
    answer = await api.ask("POST", OBSERVATIONS, body, key=Role.PROBER)
    assert answer.status == 422


async def test_a_target_gets_a_record_at_its_first_liveness_signal(
    api: RegistryApi, clock: WoundClock
) -> None:
    await put(api, "directory", "first", [CARD])
    silent = failure(clock, target_url=CARD)
    assert await outcomes(api, silent) == ["no_liveness_signal_yet"]
    assert await count_by_status(api.database) == {}
    clock.advance(1)
    alive = document(clock, "degraded", target_url=CARD, reported_agent_id="its-own-name")
    answer = (await report(api, alive)).json()
    agent_id = answer["results"][0]["agent_id"]
    assert agent_id == target_id(CARD)
    assert agent_id.startswith("tgt_")
    assert len(agent_id) == 36
    record = await api.record(agent_id)
    assert (record["status"], record["health"], record["monitoring"]) == ("active", "degraded", "probe")
    assert (record["target_url"], record.get("card_url")) == (CARD, None)
    assert record["observed"]["reported_agent_id"] == "its-own-name"
    assert record["heartbeat_config"]["unhealthy_after_seconds"] == 900
    assert await api.lifecycle(agent_id) == [("registering", "active", "registered")]
    clock.advance(1)
    assert await outcomes(api, observed(clock, target_url=CARD)) == ["accepted"]
    assert await count_by_status(api.database) == {"active": 1}


@pytest.mark.both_databases
async def test_discovered_agent_has_the_card_url_of_its_last_observation(
    api: RegistryApi, clock: WoundClock
) -> None:
    found = target_id(CARD)
    await put(api, "directory", "first", [CARD])

    async def place_after(**body: Any) -> str | None:
        clock.advance(1)
        await report(api, observed(clock, target_url=CARD), **body)
        (listed,) = (await api.ask("GET", "/api/v1/agents")).json()["agents"]
        record = await api.record(found)
        assert {listed["target_url"], record["target_url"]} == {CARD}
        assert listed.get("card_url") == record.get("card_url")
        return record.get("card_url")

    first, later = (f"https://agent.example/{path}" for path in ("agent-card.json", "agent.json"))
    assert await place_after(memories=[{"card_url": first}]) == first
    assert await place_after() == first
    assert await place_after(memories=[{"card_url": later}]) == later
    version = (await api.record(found))["version"]
    # A result with an unprintable URL has no place.
    assert await place_after(memories=[{"card_url": "https://user:secret@agent.example/"}]) is None
    assert await place_after(memories=[{"card_url": first}]) == first
    assert (await api.record(found))["version"] == version
    renamed = await api.ask("PATCH", f"/api/v1/agents/{found}", {"name": "x"}, headers={"If-Match": "*"})
    assert renamed.status == 200


async def test_found_agent_without_a_card_cannot_be_registered(api: RegistryApi, clock: WoundClock) -> None:
    found = f"/api/v1/agents/{target_id(CARD)}"
    await put(api, "directory", "first", [CARD])
    await report(api, observed(clock, target_url=CARD), memories=[{}])
    anyhow = {"If-Match": "*"}
    assert (await api.ask("PATCH", found, {"name": "x"}, headers=anyhow)).status == 200
    assert (await api.ask("PATCH", found, {"card_url": None}, headers=anyhow)).status == 422
    own = {"monitoring": "probe", "card_url": "https://agent.example/own.json", "supersede": True}
    refused = await api.ask("POST", "/api/v1/agents", {"agent_id": target_id(CARD), **own})
    assert refused.status == 422
    assert (await api.record(target_id(CARD)))["target_url"] == CARD


async def test_rediscovered_target_keeps_its_declared_override(api: RegistryApi, clock: WoundClock) -> None:
    await put(api, "directory", "first", [CARD])
    await outcomes(api, observed(clock, target_url=CARD))
    path = f"{AGENTS}/{target_id(CARD)}"
    wrong = {"status": "unhealthy", "seconds": 3600, "reason": "wrong answers"}
    assert (await api.ask("PUT", f"{path}/override", wrong)).status == 200
    await put(api, "directory", "second", ["https://other.example/"], allow_shrink=True)
    assert (await api.record(target_id(CARD)))["status"] == "deregistered"
    await put(api, "directory", "third", [CARD])
    clock.advance(60)
    assert await outcomes(api, observed(clock, target_url=CARD)) == ["accepted"]
    record = await api.record(target_id(CARD))
    assert (record["status"], record["reason"], record["incarnation"]) == (
        "unhealthy",
        "operator_override",
        2,
    )


@pytest.mark.both_databases
async def test_two_probers_that_find_a_target_at_once_find_one_agent(
    api: RegistryApi, clock: WoundClock
) -> None:
    urls = [f"{CARD}?{number}" for number in (1, 2)]
    await put(api, "directory", "first", urls)
    await outcomes(api, failure(clock, target_url=urls[0]))
    batches = [(urls[0], 7), (urls[0], 7), (urls[0], 7), (urls[1], 7)]
    found = [outcomes(api, observed(clock, target_url=url), numbers=[number]) for url, number in batches]
    results = await asyncio.gather(*found)
    assert sorted(results) == [["accepted"], ["accepted"], ["ignored"], ["ignored"]]
    assert await count_by_status(api.database) == {"active": 2}


async def register_probed(api: RegistryApi) -> None:
    await api.register("agent-1", monitoring="probe", card_url=CARD)


async def test_probed_agent_becomes_unhealthy_dead_and_rediscovered(
    api: RegistryApi, clock: WoundClock
) -> None:
    await register_probed(api)
    await outcomes(api, observed(clock))
    for _ in range(3):
        clock.advance(300)
        await outcomes(api, failure(clock))
        await api.sweep()
    clock.advance(10_000)
    await api.sweep()
    assert await _status(api) == "active", "a probed agent changed its status without a result"
    await outcomes(api, failure(clock))
    await api.sweep()
    assert await _status(api) == "unhealthy"
    for _ in range(8):
        clock.advance(300)
        await outcomes(api, failure(clock))
        await api.sweep()
    assert await _status(api) == "dead"
    clock.advance(300)
    await outcomes(api, observed(clock))
    assert await _status(api) == "dead"
    clock.advance(30)
    await outcomes(api, observed(clock))
    record = await api.record("agent-1")
    assert (record["status"], record["incarnation"]) == ("active", 2)
    assert [step[1:] for step in (await api.lifecycle("agent-1"))[1:]] == [
        ("unhealthy", "probe_failures"),
        ("dead", "probe_failures"),
        ("active", "probe_rediscovered"),
    ]


@pytest.mark.both_databases
async def test_failures_at_a_former_url_do_not_count_against_a_corrected_one(
    api: RegistryApi, clock: WoundClock
) -> None:
    record = await api.register("agent-1", monitoring="probe", card_url=CARD)
    await outcomes(api, observed(clock))
    for _ in range(3):
        clock.advance(300)
        await outcomes(api, failure(clock))
        await api.sweep()
    assert await _status(api) == "active"
    corrected = {"card_url": "https://moved.example/.well-known/agent-card.json"}
    answer = await api.ask("PATCH", f"{AGENTS}/agent-1", corrected, headers={"if-match": record["etag"]})
    assert answer.status == 200
    statuses = []
    for _ in range(5):
        clock.advance(300)
        await outcomes(api, failure(clock))
        await api.sweep()
        statuses.append(await _status(api))
    assert statuses == ["active"] * 3 + ["unhealthy"] * 2


async def test_a_registered_agent_that_is_probed_needs_no_heartbeat(
    api: RegistryApi, clock: WoundClock
) -> None:
    await register_probed(api)
    clock.advance(10_000)
    await api.sweep()
    assert await _status(api) == "active"


async def test_an_unhealthy_probed_agent_recovers_with_a_liveness_signal(
    api: RegistryApi, clock: WoundClock
) -> None:
    await register_probed(api)
    await outcomes(api, observed(clock))
    for _ in range(4):
        clock.advance(300)
        await outcomes(api, failure(clock))
    await api.sweep()
    assert await _status(api) == "unhealthy"
    await outcomes(api, observed(clock))
    assert (await api.lifecycle("agent-1"))[-1] == ("unhealthy", "active", "probe_recovered")


@pytest.mark.parametrize("monitoring", ["probe", "both"])
async def test_two_unhealthy_documents_make_unhealthy_and_one_other_makes_active(
    api: RegistryApi, clock: WoundClock, monitoring: str
) -> None:
    await api.register("agent-1", monitoring=monitoring, card_url=CARD)
    await outcomes(api, document(clock, "unhealthy"))
    assert await _status(api) == "active"
    clock.advance(60)
    await outcomes(api, document(clock, "unhealthy"))
    assert await _status(api) == "unhealthy"
    clock.advance(20)
    await outcomes(api, document(clock, "degraded"))
    assert (await api.record("agent-1"))["health"] == "degraded"
    assert [step[1:] for step in (await api.lifecycle("agent-1"))[1:]] == [
        ("unhealthy", "health_reported_unhealthy"),
        ("active", "health_recovered"),
    ]
    changes = await api.events(type="agent.health_changed")
    assert [change["payload"]["new_health"] for change in changes] == ["unhealthy", "degraded"]


async def test_an_agent_whose_next_version_has_no_document_does_not_stay_unhealthy(
    api: RegistryApi, clock: WoundClock
) -> None:
    await register_probed(api)
    for _ in range(2):
        await outcomes(api, document(clock, "unhealthy"))
        clock.advance(300)
    assert await _status(api) == "unhealthy"
    steps = 0
    while await _status(api) == "unhealthy" and steps < 10:
        steps += 1
        missing = {"result": "not_an_agent", "status_code": 404}
        await outcomes(api, observed(clock, readiness=missing))
        clock.advance(300)
    # The last document counts for 900 s.
    assert steps == 4
    assert (await api.lifecycle("agent-1"))[-1] == ("unhealthy", "active", "health_recovered")


@pytest.mark.both_databases
@pytest.mark.parametrize("monitoring", ["probe", "both"])
async def test_wrong_answers_make_an_agent_unhealthy_until_a_probe_passes(
    api: RegistryApi, clock: WoundClock, monitoring: str
) -> None:
    await api.register("agent-1", monitoring=monitoring, card_url=CARD)
    steps = []
    for result in ("assertion_failed", "assertion_failed", "not_measured", "ok"):
        clock.advance(20)
        given = asserted(result).model_dump(mode="json", exclude_none=True)
        await outcomes(api, {**document(clock, "healthy"), "assertions": [given]})
        record = await api.record("agent-1")
        shown = "assertion_failed" if result == "not_measured" else result
        assert [each["result"] for each in record["observed"]["assertions"]] == [shown]
        steps.append((record["status"], record["reason"], record["health"]))
    wrong = ("unhealthy", "assertion_failed", "unhealthy")
    assert steps == [
        ("active", "registered", "healthy"), wrong, wrong, ("active", "assertions_passed", "healthy"),
    ]  # fmt: skip


async def test_slow_answers_degrade_an_agent_that_stays_active(api: RegistryApi, clock: WoundClock) -> None:
    await api.register("agent-1", monitoring="probe", card_url=CARD)
    found = []
    for result in ("assertion_failed", "assertion_failed", "ok"):
        clock.advance(20)
        given = asserted(result, "latency_below").model_dump(mode="json", exclude_none=True)
        await outcomes(api, {**document(clock, "healthy"), "assertions": [given]})
        record = await api.record("agent-1")
        found.append((record["status"], record["health"]))
    assert found == [("active", "healthy"), ("active", "degraded"), ("active", "healthy")]


async def test_report_of_healthy_is_refuted_by_failed_interactions(
    api: RegistryApi, clock: WoundClock
) -> None:
    await register_probed(api)
    for _ in range(10):
        clock.advance(30)
        await outcomes(api, {**document(clock, "healthy"), "transport": {"result": "refused"}})
    assert (await api.lifecycle("agent-1"))[-1][1:] == ("unhealthy", "observed_contradicts_report")
    for _ in range(10):
        clock.advance(30)
        await outcomes(api, document(clock, "healthy"))
    assert (await api.lifecycle("agent-1"))[-1][1:] == ("active", "probe_recovered")


async def test_stale_health_becomes_unknown_without_an_event(api: RegistryApi, clock: WoundClock) -> None:
    await api.register("agent-1", monitoring="probe", card_url=CARD)
    await outcomes(api, document(clock, "healthy"))
    assert (await api.record("agent-1"))["health"] == "healthy"
    clock.advance(900.1)
    assert (await api.record("agent-1"))["health"] == "unknown"
    (listed,) = (await api.ask("GET", AGENTS)).json()["agents"]
    assert listed["health"] == "unknown"
    await api.sweep()
    assert len(await api.events(type="agent.health_changed")) == 1


async def test_a_probed_agent_that_died_has_no_health(api: RegistryApi, clock: WoundClock) -> None:
    """Its last document is younger than 900 s, because its thresholds are shorter."""
    own = {"interval_seconds": 30, "unhealthy_after_seconds": 60, "dead_after_seconds": 120}
    await api.register("agent-1", monitoring="probe", card_url=CARD, heartbeat_config=own)
    await outcomes(api, document(clock, "healthy"))
    for _ in range(5):
        clock.advance(30)
        await outcomes(api, failure(clock), interval_s=30)
    await api.sweep()
    record = await api.record("agent-1")
    assert (record["status"], record["health"]) == ("dead", "unknown")
    changes = await api.events(type="agent.health_changed")
    assert [change["payload"]["new_health"] for change in changes] == ["healthy", "unknown"]


async def test_dead_agent_with_a_short_threshold_is_expected_as_rarely_as_it_is_probed(
    api: RegistryApi, clock: WoundClock
) -> None:
    own = {"interval_seconds": 30, "unhealthy_after_seconds": 60, "dead_after_seconds": 120}
    await api.register("agent-1", monitoring="probe", card_url=CARD, heartbeat_config=own)
    await outcomes(api, document(clock, "healthy"))
    clock.advance(300)
    known = [{"failures_in_row": 6, "silence_s": 1_800, "doublings": 3, "alive_at_s": clock.at_s - 300}]
    await outcomes(api, failure(clock), memories=known)
    clock.advance(1000)
    assert (await api.record("agent-1"))["unknown_reason"] != "no_prober"


async def test_simultaneous_probe_failures_of_many_agents_are_suspended(
    api: RegistryApi, clock: WoundClock
) -> None:
    urls = [f"https://agent.example/{number}" for number in range(30)]
    await put(api, "directory", "first", urls)
    for _ in range(2):
        await outcomes(api, *(observed(clock, target_url=url) for url in urls))
        clock.advance(300)
    for _ in range(4):
        clock.advance(300)
        await outcomes(api, *(failure(clock, target_url=url) for url in urls))
    await api.sweep()
    assert await count_by_status(api.database) == {"active": 30}
    assert len(await api.events(type="monitor.suspended")) == 1


@pytest.mark.both_databases
async def test_answering_address_is_expected_to_answer_until_dead_or_removed(
    api: RegistryApi, clock: WoundClock
) -> None:
    where = {"network_class": "10.0.0.0/8", "address": "10.0.0.1"}
    urls = [f"https://agent.example/{number}" for number in range(3)]
    await put(api, "directory", "first", urls)

    async def counted() -> ClassCounts | None:
        counts = await api.database.read(lambda transaction: liveness.counts(transaction, 0.0))
        of_class = counts.get("10.0.0.0/8")
        return None if of_class is None else of_class.popitem()[1]

    await outcomes(api, *(observed(clock, target_url=url, **where) for url in urls[:2]))
    assert await counted() == ClassCounts(addresses=1, silent_s=())
    unseen = {"transport": {"result": "not_measured"}, "inconclusive_reason": "no_witness"}
    answered_s = clock.at_s
    clock.advance(300)
    await outcomes(
        api, observed(clock, target_url=urls[0], **unseen), failure(clock, target_url=urls[1], **where)
    )
    assert await counted() == ClassCounts(addresses=1, silent_s=(answered_s,))
    slow = {"transport": {"result": "not_measured"}, "inconclusive_reason": "prober_slow"}
    await outcomes(
        api, observed(clock, target_url=urls[0], **where), failure(clock, target_url=urls[2], **where)
    )
    await outcomes(api, observed(clock, target_url=urls[0], **slow))
    assert await counted() == ClassCounts(addresses=1, silent_s=()), "a slow target was counted as silent"
    await put(api, "directory", "second", urls[1:])
    assert await counted() == ClassCounts(addresses=1, silent_s=(answered_s,))
    for _ in range(12):
        clock.advance(300)
        await outcomes(api, failure(clock, target_url=urls[1]))
    await api.sweep()
    assert await _status(api, target_id(urls[1])) == "dead"
    assert await counted() is None


async def test_results_of_a_deregistered_agent_are_ignored(api: RegistryApi, clock: WoundClock) -> None:
    await register_probed(api)
    assert await outcomes(api, observed(clock)) == ["accepted"]
    await api.ask("DELETE", "/api/v1/agents/agent-1")
    assert await outcomes(api, observed(clock)) == ["ignored"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"network_class": "a\0b"},
        {"network_class": ""},
        {"network_class": "made up"},
        {"address": "192.0.2.1\0"},
        {"address": "\u202e"},
        {"address": "x"},
    ],
)
async def test_invalid_class_or_address_is_refused(
    api: RegistryApi, clock: WoundClock, wrong: dict[str, str]
) -> None:
    await register_probed(api)
    named = {"network_class": "public_ipv4", "address": "192.0.2.1"}
    refused = await report(api, observed(clock, **named | wrong))
    assert (refused.status, refused.json()["error"]["code"]) == (422, "invalid_request")
    assert await outcomes(api, observed(clock, **named)) == ["accepted"]


SHARD = shard_of("agent.example")


async def _shard(api: RegistryApi, ttl_seconds: float = 60) -> int:
    return await api.lease_shard(SHARD, holder="key:key_prober_/w", ttl_seconds=ttl_seconds)


@pytest.mark.both_databases
async def test_a_shards_results_count_with_its_token_and_a_stale_one_refuses_all_of_them(
    api: RegistryApi, clock: WoundClock
) -> None:
    await register_probed(api)
    token = await _shard(api)
    assert await outcomes(api, observed(clock), shard=SHARD, fencing_token=token) == ["accepted"]
    clock.advance(61)
    late = await report(api, observed(clock), shard=SHARD, fencing_token=token)
    assert (late.status, late.json()["error"]["code"]) == (412, "lease_ended")
    newer = await _shard(api)
    clock.advance(1)
    new_target = observed(clock, target_url=CARD)
    stale = await report(api, observed(clock), new_target, shard=SHARD, fencing_token=token)
    assert (stale.status, stale.json()["error"]["code"]) == (412, "stale_token")
    assert "observed" in await api.record("agent-1")
    assert await count_by_status(api.database) == {"active": 1}
    assert len(await api.events(type="fenced_write_rejected")) == 2
    assert await outcomes(api, observed(clock), shard=SHARD, fencing_token=newer) == ["accepted"]
    never = await report(api, observed(clock), shard=SHARD + 1, fencing_token=newer)
    assert (never.status, never.json()["error"]["code"]) == (412, "token_not_issued")


@pytest.mark.parametrize("role", [Role.READER, Role.ENROLL, Role.COORDINATOR])
async def test_only_probers_report(api: RegistryApi, clock: WoundClock, role: Role) -> None:
    assert (await api.ask("POST", OBSERVATIONS, batch(observed(clock)), key=role)).status == 403


@pytest.mark.parametrize(
    "wrong",
    [
        {"observations": []},
        {"observations": [{}] * 1001},
        {"observations": [{"agent_id": "a"}]},
        {"observations": [], "prober": "me"},
        {"shard": 7},
        {"shard": 7, "fencing_token": 1},
        {"numbers": [0]},
        {"numbers": [1, 2]},
        {"ages_s": [-1]},
        {"ages_s": [86_401]},
        {"interval_s": 9},
        {"interval_s": 86_401},
    ],
)
async def test_invalid_batch_is_refused(api: RegistryApi, clock: WoundClock, wrong: dict[str, Any]) -> None:
    body = batch(observed(clock)) | wrong
    assert (await api.ask("POST", OBSERVATIONS, body, key=Role.PROBER)).status == 422


async def test_a_thousand_observations_are_one_batch(
    api: RegistryApi, clock: WoundClock, database: Database
) -> None:
    urls = [f"https://agent.example/{number}" for number in range(1000)]
    await put(api, "directory", "first", urls)
    found = [observed(clock, target_url=url) for url in urls]
    assert await outcomes(api, *found) == ["accepted"] * 1000
    assert await count_by_status(database) == {"active": 1000}


async def test_result_of_a_former_url_or_incarnation_is_ignored(api: RegistryApi, clock: WoundClock) -> None:
    await register_probed(api)
    clock.advance(60)
    began_s = clock.at_s
    here = {"card_url": "https://agent.example/moved.json"}
    await api.ask("PATCH", "/api/v1/agents/agent-1", here, headers={"If-Match": "*"})
    clock.advance(5)
    old = {"probed_at_s": began_s - 1, "card_url": "https://agent.example/old.json"}
    assert await outcomes(api, observed(clock), memories=[old]) == ["ignored"]
    assert await outcomes(api, observed(clock, observed_at=moment(began_s - 1).isoformat())) == ["ignored"]
    assert await outcomes(api, observed(clock), memories=[{"probed_at_s": began_s + 1}]) == ["accepted"]
    # After the clock was set back, the next move seems to be in the future.
    here = {"card_url": "https://agent.example/again.json"}
    assert (await api.ask("PATCH", "/api/v1/agents/agent-1", here, headers={"If-Match": "*"})).status == 200
    clock.advance(-0.5)
    assert await outcomes(api, observed(clock)) == ["accepted"]
