import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.agent_check import card, document
from tests.support.hostile_server import (
    CARD_PATH,
    HEALTH_PATH,
    answer,
    as_json,
    raw,
    redirect,
    serving,
)
from tests.support.probing import (
    SHORT_SECONDS,
    Played,
    always,
    definition,
    entry,
    layer,
    probing,
    results,
    see,
)
from tests.support.virtual_loop import with_sockets_in_virtual_time
from yarl import URL

from lifesign.domain.observation.probe_memory import ProbeMemory
from lifesign.domain.observation.results import MAX_REASON_CHARS, Observation, ResultClass
from lifesign.domain.probing.cadence import without_card_reading
from lifesign.prober.network.fetched import Fetched
from lifesign.prober.network.host_limiter import AddressBusy
from lifesign.prober.network.request import Request
from lifesign.prober.probe.session import MAX_TIMEOUTS, REQUESTS_IN_TIME, ProbeSession, not_measured
from lifesign.prober.probe.steps import Prober

IMPATIENT: dict[str, Any] = {
    "timeouts": {"first_byte_seconds": SHORT_SECONDS, "total_seconds": SHORT_SECONDS}
}
AT_S = 1_790_000_000.0
KNOWN = ProbeMemory(
    probed_at_s=AT_S - 300,
    result=ResultClass.OK,
    card_read_at_s=AT_S - 300,
    card_url="https://agent.example/.well-known/agent-card.json",
    interface_url="https://agent.example/rpc",
    health_url="https://agent.example/.well-known/agent-health",
)


async def played(
    memory: ProbeMemory | None = None, url: str = "https://agent.example/", **answers: Any
) -> tuple[Observation, Played]:
    """Return the result of a probe of a target that answers so at URLs with a certain word."""
    witness = Played(**answers)
    prober = Prober(witness, definition())
    report = await prober.probe(entry(url, memory), AT_S)
    return report.observation, witness


# ── targets that are not probed ──


@pytest.mark.parametrize(
    "result",
    ["refused", "dns_failure", "tls_failure", "blocked_address", "timeout", "rate_limited", "internal"],
)
async def test_unreachable_or_rate_limited_target_gets_one_request(result: str) -> None:
    failing = always(ResultClass(result), is_reached=result == "rate_limited")
    observation, witness = await played(agent=failing)
    assert results(observation) == {"discovery": result}
    assert len(witness.requests) == 1
    known, witness = await played(KNOWN, agent=failing)
    assert results(known) == {"transport": result}
    assert len(witness.requests) == 1


async def test_known_silent_agent_gets_at_most_two_requests() -> None:
    observation, witness = await played(KNOWN, agent=always(ResultClass.TIMEOUT))
    assert results(observation) == {"transport": "timeout", "readiness": "timeout"}
    assert len(witness.requests) == MAX_TIMEOUTS


@pytest.mark.parametrize("result", sorted(set(ResultClass) - {ResultClass.OK}))
async def test_other_origin_is_requested_only_with_its_card(result: ResultClass) -> None:
    memory = KNOWN.model_copy(
        update={
            "interface_url": "https://other.example/rpc",
            "health_url": "https://other.example/.well-known/agent-health",
        }
    )
    up = always(ResultClass.HTTP_ERROR, status=405)
    body = json.dumps(card(url="https://other.example/rpc")).encode()
    served = always(ResultClass.OK, status=200, content_type="application/json", body=body)
    observation, _ = await played(memory, agent=served, other=up)
    assert (layer(observation.discovery).result, layer(observation.transport).result) == (
        ResultClass.OK,
        ResultClass.OK,
    )
    # Another agent's interface answers without an end.
    observation, witness = await played(memory, agent=always(result, is_reached=False), other=up)
    assert {request.url.host for request in witness.requests} == {"agent.example"}
    assert not observation.is_liveness_signal
    assert observation.is_measured_failure == layer(observation.discovery).has_failed
    if observation.transport is not None:
        assert observation.transport.result is ResultClass.NOT_MEASURED
        assert "https://other.example" in observation.transport.reason


async def test_last_url_of_a_redirect_is_the_unreachable_one() -> None:
    elsewhere = URL("https://gone.example/card.json")
    gone = Fetched(url=elsewhere, result=ResultClass.REFUSED, reason="", is_reached=False)
    observation, witness = await played(card=lambda _: gone)
    assert results(observation) == {"discovery": "refused", "readiness": "not_an_agent"}
    assert witness.paths == [CARD_PATH, HEALTH_PATH]


@pytest.mark.parametrize(
    ("place", "result"),
    [
        ("http://10.255.255.1/card.json", "blocked_address"),
        ("file:///card.json", "redirect_refused"),
        (CARD_PATH, "redirect_refused"),
        ("http://127.0.0.2:1/card.json", "redirect_refused"),
        ("/closed/card.json", "redirect_refused"),
    ],
    ids=["a private address", "no http", "a circle", "who opted out", "closed by robots.txt"],
)
async def test_card_at_a_refused_redirect_is_not_dead(place: str, result: str) -> None:
    rules = answer(200, b"User-agent: *\nDisallow: /closed/\n", Content_Type="text/plain")
    left_alone: dict[str, Any] = {"opt_out": {"hosts": ["127.0.0.2"], "robots_txt": True}}
    replies = {"/robots.txt": rules, CARD_PATH: redirect(place)}
    async with serving(replies) as server, probing(**left_alone) as probes:
        observation = await probes.see(server.url)
    assert results(observation) == {"discovery": result, "readiness": "not_an_agent"}
    assert observation.result == result
    assert not observation.is_measured_failure
    assert (probes.memory.failures_in_row, probes.memory.result) == (0, None)


async def test_internal_fault_ends_the_requests_of_a_probe() -> None:
    observation, witness = await played(KNOWN, agent=always(ResultClass.INTERNAL))
    assert results(observation) == {"transport": "internal"}
    assert len(witness.requests) == 1
    assert not observation.is_measured_failure


async def test_opted_out_origin_gets_no_request_by_card_or_redirect() -> None:
    left_alone: dict[str, Any] = {"opt_out": {"hosts": ["127.0.0.2"], "robots_txt": False}}
    replies = {"/rpc": answer(405), CARD_PATH: as_json(card())}
    async with serving(replies) as server, probing(**left_alone) as probes:
        other = server.url.replace("127.0.0.1", "127.0.0.2")
        server.replies[CARD_PATH] = as_json(card(url=other + "/rpc"))
        observation = await probes.see(server.url)
        assert results(observation) == {
            "discovery": "ok", "transport": "not_measured", "readiness": "not_an_agent",
        }  # fmt: skip
        assert layer(observation.transport).reason == "opted out: 127.0.0.2"
        server.replies[CARD_PATH] = redirect(other + CARD_PATH)
        probes.memory = ProbeMemory()
        assert results(await probes.see(server.url))["discovery"] == "redirect_refused"
        assert set(server.paths) == {CARD_PATH, HEALTH_PATH}
        assert not (await see(other, **left_alone)).is_measured_failure


async def test_opted_out_target_is_not_probed_until_the_list_allows_it(
    tmp_path: Path,
) -> None:
    async with serving({}) as server:
        server.replies[CARD_PATH] = as_json(card(url=server.url + "/agent"))
        # Though its card stands elsewhere on the host, what the list names is the target.
        place = server.url.removeprefix("http://") + "/agent"
        (tmp_path / "opted-out.txt").write_text(place)
        left_alone: dict[str, Any] = {"opt_out": {"files": [str(tmp_path / "opted-out.txt")]}}
        async with probing(**left_alone) as probes:
            observation = await probes.see(server.url + "/agent")
            memory = probes.memory
        result = layer(observation.discovery)
        assert (result.result.value, result.reason) == ("not_measured", f"opted out: {place}")
        assert (server.paths, memory.is_opted_out, memory.is_excluded) == ([], True, True)
        async with probing() as probes:
            probes.memory = memory
            assert results(await probes.see(server.url + "/agent"))["discovery"] == "ok"
            assert not probes.memory.is_excluded


# ── time ──


@with_sockets_in_virtual_time
async def test_probe_ends_after_three_request_timeouts() -> None:
    async def late(writer: asyncio.StreamWriter, head: str) -> None:
        """Answer before the time of one request is up, so that nothing counts as silent."""
        await asyncio.sleep(0.8 * SHORT_SECONDS)
        await as_json({})(writer, head)

    loop = asyncio.get_running_loop()
    paths = [f"/{number}" for number in range(8)]
    async with (
        serving(dict.fromkeys([CARD_PATH, *paths], late)) as server,
        probing(**IMPATIENT, ask={"paths": paths, "health": False}) as probes,
    ):
        began_s = loop.time()
        observation = await probes.see(server.url)
        took_s = loop.time() - began_s
    assert took_s == pytest.approx(3 * SHORT_SECONDS, abs=0.001)
    assert [found.result.value for found in (observation.paths or {}).values()] == ["ok", "ok", "timeout"]


async def test_layer_without_remaining_time_is_not_measured() -> None:
    loop = asyncio.get_running_loop()
    visit = ProbeSession(Played(), definition(**IMPATIENT), None, entry("https://agent.example/"), AT_S)
    assert visit.may_ask(URL("https://agent.example/"))
    visit.deadline_s = loop.time()
    assert visit.is_late
    assert await visit.ask(URL("https://agent.example/"), max_bytes=1) is None


@with_sockets_in_virtual_time
async def test_request_ends_with_its_probe_at_the_latest() -> None:
    loop = asyncio.get_running_loop()
    witness = Played()
    visit = ProbeSession(
        witness, definition(timeouts={"total_seconds": 10}), None, entry("https://a.example/"), AT_S
    )
    await visit.ask(URL("https://a.example/1"), max_bytes=1)
    visit.deadline_s = loop.time() + 5
    await visit.ask(URL("https://a.example/2"), max_bytes=1)
    first, second = (request.deadline_s - loop.time() for request in witness.requests)
    assert (first, second) == (REQUESTS_IN_TIME * 10, 5)


async def test_observation_time_is_the_start_of_the_probe_plus_elapsed_time() -> None:
    observation, _ = await played()
    assert 0 <= observation.observed_at.timestamp() - AT_S < 60


# ── a busy address ──


def busy(_: Request) -> Fetched:
    raise AddressBusy("192.0.2.1")


async def test_busy_address_defers_a_probe_that_has_sent_nothing() -> None:
    with pytest.raises(AddressBusy):
        await played(agent=busy)
    # After that time the result is kept.
    observation, _ = await played(KNOWN, rpc=always(ResultClass.HTTP_ERROR, status=405), agent=busy)
    assert results(observation) == {"transport": "ok"}


# ── facts recorded during a probe ──


async def test_longest_requested_delay_is_kept() -> None:
    for first, second in (("60", "7200"), ("7200", "60")):
        replies = {
            CARD_PATH: answer(503, Retry_After=first),
            HEALTH_PATH: answer(503, Retry_After=second),
        }
        async with serving(replies) as server, probing(ask={"transport": False}) as probes:
            report = await probes.report(server.url, at_s=AT_S)
        assert report.memory.not_before_s is not None
        assert 7200 <= report.memory.not_before_s - AT_S < 7260
        assert report.requests == 2


async def test_unusual_statuses_and_reasons_of_a_peer_are_valid_in_an_observation() -> None:
    observation, _ = await played(agent=always(ResultClass.HTTP_ERROR, status=999))
    assert layer(observation.discovery).status_code is None
    long = Fetched(
        url=URL("https://a.example"), result=ResultClass.HTTP_ERROR, reason="ü\ud800" * 1000, status=500
    )
    observation, _ = await played(agent=lambda _: long)
    assert len(layer(observation.discovery).reason) == MAX_REASON_CHARS
    Observation.model_validate_json(observation.model_dump_json())


async def test_a_raw_answer_of_any_status_is_an_observation() -> None:
    for status in (199, 299, 399, 499, 599, 600, 999):
        async with serving(
            {CARD_PATH: raw(b"HTTP/1.1 %d X\r\nContent-Length: 0\r\n\r\n" % status)}
        ) as server:
            observation = await see(server.url, ask={"transport": False, "health": False})
        assert not observation.is_liveness_signal


async def test_phases_and_duration_are_reported() -> None:
    replies = {CARD_PATH: as_json(card()), HEALTH_PATH: as_json(document())}
    async with serving(replies) as server:
        observation = await see(server.url, ask={"transport": False})
    for found in (layer(observation.discovery), layer(observation.readiness)):
        assert found.status_code == 200
        assert found.latency_ms is not None
        assert found.phases is not None
        assert found.phases.first_byte_ms is not None
        assert found.phases.last_byte_ms is not None
    phases = layer(observation.discovery).phases
    assert phases is not None
    assert phases.connect_ms is not None


async def test_busy_interface_is_not_reported_after_the_card_was_read() -> None:
    body = json.dumps(card(url="https://other.example/rpc")).encode()
    served = always(ResultClass.OK, status=200, content_type="application/json", body=body)
    observation, witness = await played(card=served, rpc=busy)
    assert results(observation) == {"discovery": "ok", "readiness": "not_an_agent"}
    assert "/rpc" in witness.paths


async def test_later_requests_are_those_after_the_one_of_a_layer() -> None:
    visit = ProbeSession(Played(), definition(), None, entry("https://agent.example"), AT_S)
    asked = [await visit.ask(URL(f"https://agent.example/{path}"), max_bytes=0) for path in "abc"]
    first, second, third = [each for each in asked if each is not None]
    layers = [visit.layer(first), visit.layer(second), visit.layer(replace(third, body=b"a changed copy"))]
    changed = visit.changed(layers[0], ResultClass.TIMEOUT, "")
    later = [[each.fetched for each in visit.exchanges_after(layer)] for layer in [*layers, changed]]
    assert later == [[second, third], [third], [], [second, third]]
    assert visit.exchanges_after(not_measured("no request")) == []


async def test_result_that_is_read_from_no_request_may_be_changed() -> None:
    visit = ProbeSession(Played(), definition(), None, entry("https://agent.example"), AT_S)
    before = not_measured("robots.txt forbids it")
    after = visit.changed(before, ResultClass.NOT_AN_AGENT, "canary")
    assert (after.result, after.reason) == (ResultClass.NOT_AN_AGENT, "canary")
    assert visit.fetched_for(after) is None


@pytest.mark.parametrize(("status", "result"), [(401, "gated"), (404, "not_measured")])
async def test_interface_of_a_card_that_another_prober_read_gets_neither_credential_nor_message(
    status: int, result: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "secret-of-a")
    async with serving({CARD_PATH: answer(503), "/rpc": answer(status)}) as server:
        credential = {"name": "a", "origin": server.url, "bearer": {"env": "SECRET"}}
        ask = {"message": {"text": "hi"}}
        async with probing(credentials=[credential], ask=ask) as probes:
            probes.memory = without_card_reading(
                ProbeMemory(interface_url=f"{server.url}/rpc", card_read_at_s=1.0)
            )
            observation = await probes.see(server.url)
            assert server.asked("/rpc")
            assert not any("secret-of-a" in head for head in server.heads)
            assert not any(head.startswith("POST") for head in server.heads)
            server.replies[CARD_PATH] = as_json(card(url=f"{server.url}/rpc"))
            await probes.see(server.url)
    assert (layer(observation.transport).result, observation.message) == (result, None)
    assert any(head.startswith("POST") and "secret-of-a" in head for head in server.heads)
