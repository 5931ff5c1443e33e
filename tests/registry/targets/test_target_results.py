import json
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text
from tests.support.databases import WoundClock
from tests.support.directory_api import claim, feed, put
from tests.support.fleet import count_by_status
from tests.support.registry_api import RegistryApi

from lifesign.domain.access.permissions import Role
from lifesign.domain.models.base import moment
from lifesign.domain.targets.target import (
    SHARDS,
    host_of,
    shard_of,
    target_id,
)
from lifesign.registry.probing.accept_observations import MAX_LOGGED_REFUSALS
from lifesign.storage.engine.transaction import Transaction

HOST = "agent.example"
SHARD = shard_of(HOST)
URLS = [f"https://{HOST}/{number}" for number in range(3)]
OTHER = "https://other.example/"


def probe(clock: WoundClock, url: str = URLS[0], result: str = "refused", **members: Any) -> dict[str, Any]:
    observed = {"observed_at": moment(clock.at_s).isoformat(), "discovery": {"result": result}}
    return {"target_url": url, **observed, **members}


async def report(api: RegistryApi, *observations: dict[str, Any], **members: Any) -> dict[str, Any]:
    answer = await api.report(*observations, **members)
    assert answer.status == 200, answer.body
    return dict(answer.json())


async def outcomes(api: RegistryApi, *observations: dict[str, Any], **members: Any) -> list[str]:
    return [result["outcome"] for result in (await report(api, *observations, **members))["results"]]


async def rows(api: RegistryApi, query: str) -> list[tuple[Any, ...]]:
    def read(transaction: Transaction) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in transaction.connection.execute(text(query))]

    return await api.database.read(read)


async def results(api: RegistryApi) -> list[tuple[Any, ...]]:
    query = """
        SELECT url, result, result_since_s, observed_at_s FROM probe_results
        JOIN targets ON targets.id = probe_results.target ORDER BY url
    """
    return await rows(api, query)


async def changes(api: RegistryApi) -> list[tuple[Any, ...]]:
    return await rows(api, "SELECT layer, previous, result, evidence FROM result_changes ORDER BY id")


async def sums(api: RegistryApi, directory: int = 0) -> dict[tuple[str, str], int]:
    query = "SELECT directory, layer, result, sum(count) FROM result_sums GROUP BY 1, 2, 3"
    found = await rows(api, query)
    return {(layer, result): int(count) for of, layer, result, count in found if of == directory}


async def test_last_result_is_stored_with_its_first_time(api: RegistryApi, clock: WoundClock) -> None:
    await put(api, "dir", "one", URLS)
    began_s = clock.at_s
    for result in ("refused", "refused"):
        assert await outcomes(api, probe(clock, result=result)) == ["no_liveness_signal_yet"]
        clock.advance(300)
    (found,) = await results(api)
    assert found == (URLS[0], "refused", began_s, began_s + 300)
    await outcomes(api, probe(clock, result="timeout"))
    assert (await results(api))[0][1:3] == ("timeout", began_s + 600)


async def test_known_card_counts_although_it_was_not_read_again(api: RegistryApi, clock: WoundClock) -> None:
    await put(api, "dir", "one", URLS)
    unseen, gated = {"result": "not_an_agent"}, {"result": "gated"}
    known = []
    for members in (
        {"discovery": {"result": "ok"}, "transport": gated, "readiness": unseen},
        {"discovery": None, "transport": gated, "readiness": unseen},
        {"discovery": {"result": "http_error"}, "transport": gated},
        {"discovery": None, "transport": gated},
        {"discovery": None, "transport": {"result": "refused"}},
    ):
        await outcomes(api, probe(clock, **members))
        known.append((await results(api))[0][1:3])
        clock.advance(300)
    began_s = clock.at_s - 1500
    assert known == [
        ("ok", began_s), ("ok", began_s),
        ("gated", began_s + 600), ("gated", began_s + 600),
        ("refused", began_s + 1200),
    ]  # fmt: skip


async def test_unknown_or_former_target_stores_nothing(api: RegistryApi, clock: WoundClock) -> None:
    assert await outcomes(api, probe(clock)) == ["unknown"]
    await put(api, "dir", "one", URLS)
    await put(api, "dir", "two", URLS[1:])
    assert await outcomes(api, probe(clock, transport={"result": "ok"})) == ["ignored"]
    assert (await results(api), await sums(api)) == ([], {})
    assert await count_by_status(api.database) == {}


async def test_repeated_observation_counts_once_and_a_late_one_is_ignored(
    api: RegistryApi, clock: WoundClock
) -> None:
    await put(api, "dir", "one", URLS)
    early, now = probe(clock, result="timeout"), probe(clock)
    expected = ["no_liveness_signal_yet", "ignored", "ignored"]
    memories = [{}, None, {"failures_in_row": 7}]
    assert await outcomes(api, now, now, early, memories=memories, numbers=[7, 7, 6]) == expected
    assert await outcomes(api, now, numbers=[7]) == ["ignored"]
    assert await sums(api) == {("overall", "refused"): 1, ("discovery", "refused"): 1}
    assert (await results(api))[0][1] == "refused"


async def test_first_successful_probe_is_no_change(api: RegistryApi, clock: WoundClock) -> None:
    await put(api, "dir", "one", URLS)
    seen = []
    for result in ("not_measured", "internal", "refused", "not_measured", "ok"):
        await outcomes(api, probe(clock, result=result))
        seen.append((await results(api))[0][1])
        clock.advance(300)
    assert seen == ["not_measured", "internal", "refused", "refused", "ok"]
    found = [change[:3] for change in await changes(api)]
    assert found == [("overall", "refused", "ok"), ("discovery", "refused", "ok")]


async def test_unmeasured_probe_changes_no_result(api: RegistryApi, clock: WoundClock) -> None:
    await put(api, "dir", "one", URLS)
    nothing = {"target_url": URLS[1], "observed_at": moment(clock.at_s).isoformat()}
    await outcomes(api, probe(clock), nothing)
    clock.advance(300)
    for unseen in ("not_measured", "internal"):
        await outcomes(api, probe(clock, result=unseen), memories=[{"failures_in_row": 1}])
        clock.advance(1)
    found = await results(api)
    assert [(url, result) for url, result, *_ in found] == [(URLS[0], "refused"), (URLS[1], None)]
    assert found[0][3] == clock.at_s - 1
    assert await changes(api) == []
    assert await sums(api) == {
        ("overall", "refused"): 1,
        ("overall", "not_measured"): 2,
        ("overall", "internal"): 1,
        ("discovery", "refused"): 1,
        ("discovery", "not_measured"): 1,
        ("discovery", "internal"): 1,
    }
    memory = next(t["memory"] for t in (await feed(api, SHARD))["targets"] if t["url"] == URLS[0])
    assert memory == {"failures_in_row": 1}


async def test_changes_of_target_and_layer_results_are_stored_with_evidence(
    api: RegistryApi, clock: WoundClock
) -> None:
    await put(api, "dir", "one", URLS)
    seen = "a" * 64
    for discovery, transport in (("ok", "ok"), ("ok", "timeout"), ("ok", "timeout"), ("refused", None)):
        layer = {"result": discovery, "evidence": seen}
        members: Any = {} if transport is None else {"transport": {"result": transport}}
        await report(api, probe(clock, discovery=layer, **members))
        clock.advance(300)
    assert await changes(api) == [
        ("transport", "ok", "timeout", None),
        ("overall", "ok", "refused", seen),
        ("discovery", "ok", "refused", seen),
    ]


async def test_results_are_summed_by_the_hour_and_for_each_directory(
    api: RegistryApi, clock: WoundClock
) -> None:
    clock.at_s = 1_763_640_000.0
    await put(api, "one", "a", URLS[:2])
    await put(api, "two", "a", URLS[1:])
    for result in ("ok", "timeout"):
        layer = {"result": result, "latency_ms": 250.0} if result == "ok" else {"result": result}
        await report(api, *(probe(clock, url, discovery=layer) for url in URLS))
        clock.advance(3600)
    first = {("overall", "ok"): 3, ("discovery", "ok"): 3}
    second = {("overall", "timeout"): 3, ("discovery", "timeout"): 3}
    assert await sums(api) == first | second
    assert await sums(api, 1) == dict.fromkeys(first | second, 2)
    hours = await rows(
        api,
        """
        SELECT hour, layer, result, bucket, count FROM result_sums WHERE directory = 0 ORDER BY hour, layer
        """,
    )
    hour = 1_763_640_000 // 3600
    assert hours == [
        (hour, "discovery", "ok", 32, 3),
        (hour, "overall", "ok", -1, 3),
        (hour + 1, "discovery", "timeout", -1, 3),
        (hour + 1, "overall", "timeout", -1, 3),
    ]


async def test_later_token_of_a_shard_restarts_the_numbers(api: RegistryApi, clock: WoundClock) -> None:
    await put(api, "dir", "one", URLS)
    first = (await claim(api, "a"))[SHARD]
    assert await outcomes(api, probe(clock), numbers=[9]) == ["no_liveness_signal_yet"]
    second = (await claim(api, "a"))[SHARD]
    assert second > first
    clock.advance(1)
    assert await outcomes(api, probe(clock), probe(clock), numbers=[1, 1]) == [
        "no_liveness_signal_yet",
        "ignored",
    ]


async def test_result_of_a_prober_with_a_fast_clock_counts_in_the_registrys_hour(
    api: RegistryApi, clock: WoundClock
) -> None:
    clock.at_s = 3600.0 * 1_000 - 1
    await put(api, "dir", "one", URLS)
    await report(api, probe(clock, observed_at=moment(clock.at_s + 7_200).isoformat()))
    assert [row[0] for row in await rows(api, "SELECT DISTINCT hour FROM result_sums")] == [999]


async def test_a_shards_results_count_with_its_token_and_others_are_left_out(
    api: RegistryApi, clock: WoundClock
) -> None:
    await put(api, "dir", "one", [*URLS, OTHER])
    there = shard_of(host_of(OTHER))
    tokens = await claim(api)
    body = {"shard": SHARD, "fencing_token": tokens[SHARD]}
    found = await outcomes(api, probe(clock), probe(clock, OTHER), probe(clock, "https://x.example/"), **body)
    assert found == ["no_liveness_signal_yet", "not_in_shard", "unknown"]
    clock.advance(1)
    both = {"tokens": {str(SHARD): tokens[SHARD], str(there): tokens[there]}}
    alive = probe(clock, OTHER, transport={"result": "ok"})
    assert await outcomes(api, probe(clock), alive, **both) == ["no_liveness_signal_yet", "accepted"]


async def test_only_lost_shards_are_refused(api: RegistryApi, clock: WoundClock) -> None:
    await put(api, "dir", "one", [*URLS, OTHER])
    there = shard_of(host_of(OTHER))
    early = await claim(api, "a")
    known = {shard: token for shard, token in early.items() if shard != there}
    late = await claim(api, "a", known)
    body = {"tokens": {str(SHARD): early[SHARD], str(there): early[there]}}
    answer = await report(api, probe(clock), probe(clock, OTHER), **body)
    assert [result["outcome"] for result in answer["results"]] == ["no_liveness_signal_yet", "shard_lost"]
    assert answer["lost"] == [there]
    (event,) = await api.events(type="fenced_write_rejected")
    assert event["payload"]["resource"] == f"shard:{there}"
    assert event["payload"]["current_token"] == late[there]
    clock.advance(61)
    answer = await report(api, probe(clock), **body)
    assert (answer["lost"], answer["counts"]) == (sorted([SHARD, there]), {"shard_lost": 1})
    assert len(await results(api)) == 1


async def test_a_batch_with_stale_tokens_of_all_shards_leaves_few_events(
    api: RegistryApi, clock: WoundClock
) -> None:
    await put(api, "dir", "one", URLS)
    tokens = {str(shard): 1 for shard in range(SHARDS)}
    answer = await report(api, probe(clock), tokens=tokens)
    assert len(answer["lost"]) == SHARDS
    assert len(await api.events(type="fenced_write_rejected")) == MAX_LOGGED_REFUSALS


async def test_a_stale_token_of_one_shard_refuses_its_batch_with_its_memories(
    api: RegistryApi, clock: WoundClock
) -> None:
    await put(api, "dir", "one", URLS)
    token = (await claim(api, "a"))[SHARD]
    await claim(api, "a")
    answer = await api.report(probe(clock), memories=[{}], shard=SHARD, fencing_token=token)
    assert (answer.status, answer.json()["error"]["code"]) == (412, "stale_token")
    assert (await results(api), await sums(api)) == ([], {})


async def test_another_key_cannot_report_with_a_copied_token(api: RegistryApi, clock: WoundClock) -> None:
    await put(api, "dir", "one", URLS)
    token = (await claim(api, "a"))[SHARD]
    answer = await api.report(probe(clock), shard=SHARD, fencing_token=token, key=Role.ADMIN)
    assert (answer.status, answer.json()["error"]["code"]) == (403, "not_holder")


async def test_probes_of_a_registered_agent_are_stored_by_its_id(api: RegistryApi, clock: WoundClock) -> None:
    await api.register("one", monitoring="probe", card_url=URLS[0])
    token = (await claim(api))[SHARD]
    clock.advance(1)
    seen = probe(clock, transport={"result": "ok"})
    del seen["target_url"]
    body = {"shard": SHARD, "fencing_token": token, "memories": [{"result": "ok"}]}
    assert await outcomes(api, {**seen, "agent_id": "one"}, **body) == ["accepted"]
    assert (await results(api))[0][1] == "ok"
    assert (await api.record("one"))["observed"]["transport"]["result"] == "ok"


@pytest.mark.both_databases
async def test_target_reported_by_id_gets_a_record(api: RegistryApi, clock: WoundClock) -> None:
    await put(api, "dir", "one", URLS)
    clock.advance(1)
    seen = {**probe(clock, transport={"result": "ok"}), "agent_id": target_id(URLS[0])}
    del seen["target_url"]
    assert await outcomes(api, seen) == ["accepted"]
    assert (await api.record(target_id(URLS[0])))["target_url"] == URLS[0]


async def test_registered_agent_on_a_list_is_not_alive_forever(api: RegistryApi, clock: WoundClock) -> None:
    await api.register("billing-1", card_url=URLS[0], monitoring="probe")
    its_own = {"target_url": None, "agent_id": "billing-1"}
    clock.advance(1)
    await report(api, probe(clock, result="ok") | its_own, memories=[{"result": "ok"}])
    reason = f"opted out: {HOST}"
    clock.advance(300)
    layer = {"result": "not_measured", "reason": reason}
    kept_out = probe(clock) | its_own | {"discovery": layer}
    await report(api, kept_out, memories=[{"result": "ok", "is_opted_out": True}])
    target = (await api.ask("GET", "/api/v1/targets/billing-1")).json()
    assert (target["result"], target["why"]) == ("not_measured", reason)
    assert (await api.record("billing-1"))["observed"]["inconclusive"]["reason"] == reason


async def test_target_that_closes_its_robots_txt_is_not_alive_forever_in_a_census(
    api: RegistryApi, clock: WoundClock
) -> None:
    await put(api, "dir", "one", URLS[:1])
    agent = target_id(URLS[0])
    await report(api, probe(clock, result="ok"), memories=[{"result": "ok"}])
    assert "inconclusive" not in (await api.record(agent))["observed"]
    clock.advance(60)
    closed_at = moment(clock.at_s)

    def shut_out() -> dict[str, Any]:
        layer = {"result": "not_measured", "reason": "robots.txt"}
        return probe(clock) | {"discovery": layer}

    # A faulty prober contributes nothing; an excluded one states that it will not know.
    await report(api, shut_out(), memories=[{"result": "ok"}])
    assert (await results(api))[0][1] == "ok"
    for _ in range(2):
        clock.advance(86_400)
        await report(api, shut_out(), memories=[{"result": "ok", "is_disallowed_by_robots": True}])
    answer = await api.ask("GET", f"/api/v1/targets/{agent}")
    shown = answer.json()
    assert (shown["result"], shown["why"]) == ("not_measured", "robots.txt")
    assert [(change["previous"], change["result"]) for change in shown["changes"]] == [("ok", "not_measured")]
    counted = (await api.ask("GET", "/api/v1/census")).json()["targets"]
    assert counted == [{"result": "not_measured", "count": 1}]
    record = await api.record(agent)
    assert record["status"] == "active"
    inconclusive = record["observed"]["inconclusive"]
    assert inconclusive["reason"] == "robots.txt"
    assert datetime.fromisoformat(inconclusive["since"]) == closed_at + timedelta(days=1)
    clock.advance(60)
    await report(api, probe(clock, result="ok"), memories=[{"result": "ok"}])
    assert (await results(api))[0][1] == "ok"
    assert "inconclusive" not in (await api.record(agent))["observed"]


async def test_protocol_of_any_card_can_be_counted(api: RegistryApi, clock: WoundClock) -> None:
    await put(api, "dir", "one", URLS)
    result = "0.3\u0000\n" + "x" * 59
    await report(api, probe(clock), memories=[{"protocol_version": result}])
    (found,) = await rows(api, "SELECT protocol_version, memory FROM probe_results")
    assert found[0] == "0.3\ufffd\ufffd" + "x" * 59
    assert json.loads(found[1]) == {"protocol_version": result}


@pytest.mark.parametrize(
    "wrong",
    [
        {"memories": []},
        {"memories": [{}, {}]},
        {"memories": [{"failures": 1}]},
        {"tokens": {}},
        {"tokens": {"1024": 1}},
        {"tokens": {"1": 1}, "shard": 1, "fencing_token": 1},
    ],
)
async def test_invalid_batch_is_refused(api: RegistryApi, clock: WoundClock, wrong: dict[str, Any]) -> None:
    body = {
        "observations": [probe(clock)],
        "tokens": {"1": 1},
        "ages_s": [0],
        "numbers": [1],
        "interval_s": 9e3,
    }
    assert (await api.ask("POST", "/api/v1/observations", body | wrong, key=Role.PROBER)).status == 422
