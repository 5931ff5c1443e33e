import json
import logging
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.agent_check import card, document
from tests.support.cards import CARDS, DATA, corpus
from tests.support.hostile_server import (
    CARD_PATH,
    HEALTH_PATH,
    OLD_CARD_PATH,
    HostileServer,
    answer,
    as_json,
    raw,
    serving,
)
from tests.support.probing import (
    Bodies,
    Played,
    always,
    definition,
    entry,
    fetched_as,
    fetching,
    layer,
    probing,
    results,
    see,
)
from tests.support.properties import examples
from yarl import URL

from lifesign.crawl.directory_import import opt_outs_of
from lifesign.domain.observation.probe_memory import ProbeMemory
from lifesign.domain.observation.results import InconclusiveReason, Observation, ResultClass
from lifesign.prober.network.fetch import Fetcher
from lifesign.prober.network.fetched import Fetched
from lifesign.prober.network.host_limiter import AddressBusy
from lifesign.prober.network.request import Request
from lifesign.prober.probe.steps import Prober
from lifesign.prober.registry_exchange.ledger import TargetEntry

AT_S = 1_790_000_000.0
EXPECTED = Path(__file__).parents[2] / "card_expectations.json"


class Elsewhere:
    """Sends requests for one server to it; requests for other hosts get prepared answers and are stored."""

    def __init__(self, fetcher: Fetcher, server: HostileServer) -> None:
        self._fetcher = fetcher
        self._server = server
        self.asked: list[URL] = []

    async def fetch(self, request: Request) -> Fetched:
        if request.url.port == self._server.port:
            return await self._fetcher.fetch(request)
        self.asked.append(request.url)
        return fetched_as(request, ResultClass.HTTP_ERROR, status=405)


# ── real cards ──


async def test_each_captured_card_leads_to_its_interface() -> None:
    expectations = json.loads(EXPECTED.read_text())
    expected: dict[str, Any] = {}
    for name, known in expectations.items():
        discovery = {"not_a_card": "not_an_agent", "not_json": "invalid_document"}.get(known["kind"], "ok")
        transport = "ok" if known["first_host"] else "not_measured" if discovery == "ok" else None
        expected[name] = (discovery, transport, known["first_host"])
    # Nothing but a line break: there is no document that could be invalid.
    expected["prassanna-ravishankar+a2a-registry__agents_nexara.json"] = ("not_an_agent", None, None)
    # Its first interface is a command on its owner's machine.
    expected["druide67+asiai__docs_.well-known_agent-card.json"] = ("ok", "ok", "127.0.0.1")
    found: dict[str, Any] = {}
    wanted = definition(ask={"health": False})
    files = corpus()
    async with serving({}) as server, fetching(wanted) as fetcher:
        for name, path in files.items():
            server.replies[CARD_PATH] = answer(200, path.read_bytes(), Content_Type="application/json")
            elsewhere = Elsewhere(fetcher, server)
            report = await Prober(elsewhere, wanted).probe(entry(server.url), AT_S)
            seen = report.observation
            transport = None if seen.transport is None else seen.transport.result.value
            host = elsewhere.asked[0].host if elsewhere.asked else None
            found[name] = (layer(seen.discovery).result.value, transport, host)
            assert ProbeMemory.from_json(report.memory.to_json()) == report.memory
    assert found == expected


@pytest.mark.parametrize(
    ("sdk", "places", "version"),
    [
        ("", {CARD_PATH: "01-card", OLD_CARD_PATH: "04-card-legacy-path", "/": "06-get-root"}, "1.0"),
        ("a2a-sdk-0.3.26/", {CARD_PATH: "01-card", OLD_CARD_PATH: "04-card-legacy-path"}, "0.3.0"),
    ],
)
async def test_captured_documents_are_read_correctly(sdk: str, places: dict[str, str], version: str) -> None:
    folder = DATA / "captures"
    if not folder.is_dir():
        pytest.skip(f"NOT COMPARED with real answers: {folder} is absent")
    replies = {
        path: raw((folder / f"{sdk}{case}.response.http").read_bytes()) for path, case in places.items()
    }
    wanted = definition()
    async with serving(replies) as server, fetching(wanted) as fetcher:
        elsewhere = Elsewhere(fetcher, server)
        prober = Prober(elsewhere, wanted)
        report = await prober.probe(entry(server.url), AT_S)
        assert results(report.observation)["discovery"] == "ok"
        assert len(elsewhere.asked) == 1, "requests to the former address of the interface"
        assert report.memory.protocol_version == version
        # The older line sends no entity tag.
        assert (report.memory.card_etag is None) == bool(sdk)
        if report.memory.card_etag is not None:
            server.replies[CARD_PATH] = raw((folder / "02-card-304.response.http").read_bytes())
            again = TargetEntry(subject_id="tgt_x", url=server.url + "/", memory=report.memory)
            later = await prober.probe(again, AT_S + 172_800)
            assert (
                results(later.observation)["discovery"],
                layer(later.observation.discovery).status_code,
            ) == (
                "ok",
                304,
            )


@pytest.mark.parametrize("generation", CARDS)
async def test_interface_of_each_card_version_is_requested(generation: str) -> None:
    wanted = definition(ask={"health": False})
    async with serving({CARD_PATH: as_json(CARDS[generation])}) as server, fetching(wanted) as fetcher:
        elsewhere = Elsewhere(fetcher, server)
        report = await Prober(elsewhere, wanted).probe(entry(server.url), AT_S)
    assert results(report.observation) == {"discovery": "ok", "transport": "ok"}
    assert elsewhere.asked == [URL("https://sums.test/a2a")]
    assert (report.memory.protocol_version or "").startswith(generation)


# ── whole agents ──


async def test_healthy_agent_is_observed_in_all_layers_with_few_requests() -> None:
    async with serving({"/rpc": answer(405), HEALTH_PATH: as_json(document())}) as server:
        server.replies[CARD_PATH] = as_json(card(url=server.url + "/rpc"))
        observation = await see(server.url)
        assert results(observation) == {"discovery": "ok", "transport": "ok", "readiness": "ok"}
        assert server.paths == [CARD_PATH, "/rpc", HEALTH_PATH]
        for head in server.heads:
            assert head.startswith("GET ")
            assert "lifesign-prober/" in head
            assert "(+mailto:tests@agent.example)" in head
            assert not {"cookie:", "authorization:"} & set(head.lower().split())


async def test_gated_agent_is_alive_without_a_failed_layer() -> None:
    replies = {"/rpc": answer(401), HEALTH_PATH: answer(403)}
    async with serving(replies) as server:
        server.replies[CARD_PATH] = as_json(card(url=server.url + "/rpc"))
        observation = await see(server.url)
    assert results(observation) == {"discovery": "ok", "transport": "gated", "readiness": "gated"}
    assert observation.is_liveness_signal
    assert observation.result is ResultClass.OK


async def test_gated_card_is_the_only_result() -> None:
    async with serving({CARD_PATH: answer(401), HEALTH_PATH: answer(401)}) as server:
        observation = await see(server.url)
    assert results(observation) == {"discovery": "gated", "readiness": "gated"}
    assert not observation.is_liveness_signal
    assert not observation.is_measured_failure


async def test_site_without_an_agent_gets_requests_for_two_cards_and_one_document() -> None:
    async with serving({}) as server:
        observation = await see(server.url)
        assert server.paths == [CARD_PATH, OLD_CARD_PATH, HEALTH_PATH]
    assert results(observation) == {"discovery": "not_an_agent", "readiness": "not_an_agent"}
    assert observation.is_measured_failure


async def test_only_configured_layers_are_requested() -> None:
    async with serving({HEALTH_PATH: as_json(document())}) as server:
        server.replies[CARD_PATH] = as_json(card(url=server.url + "/rpc"))
        health = {"card": False, "transport": False}
        assert results(await see(server.url, ask=health)) == {"readiness": "ok"}
        assert server.paths == [HEALTH_PATH]


async def test_additional_paths_are_reported_and_do_not_decide() -> None:
    replies = {"/ping": answer(200, b"ok"), "/live": answer(500), "/a" + CARD_PATH: as_json(card())}
    async with serving(replies) as server:
        asked = {"transport": False, "health": False, "paths": ["/ping", "/live", "/none?x=1"]}
        observation = await see(server.url + "/a", ask=asked)
    assert observation.paths is not None
    classes = {path: found.result.value for path, found in observation.paths.items()}
    assert classes == {"/ping": "ok", "/live": "http_error", "/none?x=1": "not_an_agent"}
    assert results(observation) == {"discovery": "ok"}


# ── the report ──


async def test_observation_refers_to_a_target_by_url_and_to_an_agent_by_id() -> None:
    async with serving({CARD_PATH: as_json(card())}) as server, probing() as probes:
        target = await probes.report(server.url)
        assert (target.observation.agent_id, target.observation.target_url) == (None, server.url + "/")
        for name in ("agent_1", "tgt_mine"):
            agent = await probes.report(server.url, subject_id=name)
            assert (agent.subject_id, agent.observation.agent_id) == (name, name)
            assert agent.observation.target_url is None


async def test_result_and_failures_of_a_probe_are_remembered() -> None:
    async with serving({CARD_PATH: as_json(card(url="https://{x}/"))}) as server, probing() as probes:
        await probes.see(server.url, at_s=AT_S)
        memory = probes.memory
        assert (memory.probed_at_s, memory.result, memory.failures_in_row) == (AT_S, ResultClass.OK, 0)
        server.replies[CARD_PATH] = answer(500)
        for failures in (1, 2):
            await probes.see(server.url, at_s=AT_S + failures * 300)
            assert probes.memory.failures_in_row == failures
        assert probes.memory.result is ResultClass.HTTP_ERROR
        assert probes.memory.card_url == server.url + CARD_PATH, "the card may return at this URL"


async def test_expiry_of_the_certificate_is_recorded() -> None:
    ends_at = datetime(2027, 1, 2, 3, 4, 5, tzinfo=UTC)
    witness = Played(agent=always(ResultClass.HTTP_ERROR, status=500, certificate_expires_at=ends_at))
    report = await Prober(witness, definition()).probe(entry("https://agent.example"), AT_S)
    assert report.observation.certificate_expires_at == ends_at


async def test_internal_error_in_a_layer_does_not_prevent_other_layers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def defect(_: Request) -> Fetched:
        raise RuntimeError("hunter2")

    target = entry("https://agent.example", ProbeMemory(health_url="https://agent.example/health"))
    prober = Prober(Played(agent=defect), definition())
    with caplog.at_level(logging.ERROR, "lifesign"):
        report = await prober.probe(target, AT_S)
    assert results(report.observation) == {"discovery": "internal"}
    assert layer(report.observation.discovery).reason.endswith(": RuntimeError")
    assert not report.observation.is_measured_failure
    assert report.memory == target.memory.model_copy(update={"probed_at_s": AT_S})
    assert target.subject_id in caplog.text
    # Partly understood content is not remembered.
    body = json.dumps(card(url="https://other.example/rpc")).encode()
    served = always(ResultClass.OK, status=200, content_type="application/json", body=body)
    report = await Prober(Played(card=served, rpc=defect), definition()).probe(target, AT_S)
    assert results(report.observation) == {"discovery": "internal"}
    assert report.memory.interface_url is None


@pytest.mark.parametrize(("canaries", "unreached"), [([], ()), (["http://10.1.0.9/"], ("transport",))])
async def test_interface_at_another_address_is_unreached_if_its_class_has_canaries(
    canaries: list[str], unreached: tuple[str, ...]
) -> None:
    network = "10.1.0.0/16"
    wanted = definition(networks={"allow": [network]}, canaries={network: canaries} if canaries else {})
    about = {"status": 200, "content_type": "application/json", "address": ip_address("10.1.0.1")}
    body = json.dumps(card(url="https://rpc.example/rpc")).encode()
    played = Played(
        card=always(ResultClass.OK, body=body, **about),
        rpc=always(ResultClass.TIMEOUT, address=ip_address("10.1.0.2")),
        health=always(ResultClass.NOT_AN_AGENT, **(about | {"status": 404})),
    )
    report = await Prober(played, wanted).probe(entry("https://agent.example"), AT_S)
    assert report.contact.unreached_layers == unreached


async def test_router_that_demands_a_login_for_all_names_is_no_agent() -> None:
    """Nor is its address remembered; the next probe reads the card, as the agent may have moved."""
    network, router, body = (
        "10.1.0.0/16",
        ip_address("10.1.0.1"),
        json.dumps(card(url="http://a.example/rpc")),
    )
    prober_definition = definition(networks={"allow": [network]})
    good = {"status": 200, "content_type": "application/json", "address": ip_address("93.184.216.34")}
    served = always(ResultClass.OK, body=body.encode(), **good)
    played = Played(card=served, rpc=always(ResultClass.HTTP_ERROR, **(good | {"status": 405})))
    first = await Prober(played, prober_definition).probe(entry("http://a.example"), AT_S)
    assert first.observation.is_liveness_signal
    refused = always(ResultClass.GATED, status=401, address=router)
    target = entry("http://a.example", memory=first.memory)
    played = Played(card=refused, rpc=refused, health=refused)
    report = await Prober(played, prober_definition).probe(target, AT_S + 300)
    observation = report.observation
    assert not observation.is_liveness_signal
    assert (observation.result, observation.inconclusive_reason) == (
        ResultClass.NOT_MEASURED, InconclusiveReason.NO_WITNESS,
    )  # fmt: skip
    assert (report.memory.network_class, report.memory.address) == ("public_ipv4", "93.184.216.34")
    assert report.memory.interface_address == "93.184.216.34"
    assert report.memory.card_read_at_s is None
    assert report.memory.alive_at_s == first.memory.alive_at_s


MESSAGE_ONLY = {"transport": False, "health": False, "message": {"text": "Are you there?"}}


@pytest.mark.parametrize("canaries", [[], ["http://10.1.0.9/"]])
@pytest.mark.parametrize(("is_answered", "unreached"), [(True, ()), (False, ("message",))])
async def test_failed_message_counts_if_its_host_answers_a_later_request(
    canaries: list[str], unreached: tuple[str, ...], *, is_answered: bool
) -> None:
    """The answer of the card comes from before the failure, and shows nothing about the network then."""
    network = "10.1.0.0/16"
    wanted = definition(
        networks={"allow": [network]}, canaries={network: canaries} if canaries else {}, ask=MESSAGE_ONLY
    )
    about = {"content_type": "application/json", "address": ip_address("10.1.0.1")}
    body = json.dumps(card(url="https://agent.example/rpc")).encode()

    def rpc(request: Request) -> Fetched:
        if request.method == "GET" and is_answered:
            return fetched_as(request, ResultClass.HTTP_ERROR, status=405, **about)
        return fetched_as(request, ResultClass.TIMEOUT, **about)

    played = Played(card=always(ResultClass.OK, status=200, body=body, **about), rpc=rpc)
    report = await Prober(played, wanted).probe(entry("https://agent.example"), AT_S)
    assert layer(report.observation.message).result is ResultClass.TIMEOUT
    assert report.contact.unreached_layers == unreached
    assert [request.method for request in played.requests] == ["GET", "POST", "GET"]


async def test_second_probe_uses_no_open_connection() -> None:
    """With a new connection, addresses that could not be reached are tried again."""
    for is_repeat in (False, True):
        played = Played()
        await Prober(played, definition()).probe(entry("https://agent.example", is_repeat=is_repeat), AT_S)
        assert {request.needs_new_connection for request in played.requests} == {is_repeat}


def busy(_: Request) -> Fetched:
    raise AddressBusy("192.0.2.1")


async def test_busy_address_is_not_measured_after_its_robots_txt_was_read() -> None:
    url = "https://agent.example/mcp"
    wanted = definition(targets=[{"url": url, "kind": "mcp"}], opt_out={"robots_txt": True})
    report = await Prober(Played(mcp=busy), wanted).probe(entry(url), AT_S)
    assert results(report.observation) == {"discovery": "not_measured"}


async def test_probe_that_could_ask_for_nothing_is_inconclusive() -> None:
    asked = {"card": False, "transport": False}
    wanted = definition(ask=asked, opt_out={"robots_txt": True})
    report = await Prober(Played(health=busy), wanted).probe(entry("https://agent.example"), AT_S)
    assert results(report.observation) == {}
    assert report.observation.inconclusive_reason is InconclusiveReason.NOT_PROBED


async def test_registered_agent_is_probed_before_the_end_of_a_long_requested_wait() -> None:
    failing = Played(agent=always(ResultClass.HTTP_ERROR, status=503, retry_after_seconds=86_400))
    prober = Prober(failing, definition())
    waits_s = []
    for thresholds_s in (None, (600.0, 1_800.0)):
        report = await prober.probe(entry("https://agent.example", thresholds_s=thresholds_s), AT_S)
        assert report.memory.not_before_s is not None
        waits_s.append(report.memory.not_before_s)
    assert waits_s[1] < waits_s[0]


@pytest.mark.parametrize("is_repeat", [True, False])
async def test_repeated_probe_looks_up_the_hosts_of_the_target_again(*, is_repeat: bool) -> None:
    names: list[tuple[str, float | None]] = []

    async def look_up_again(*name: Any) -> None:
        names.append(name)

    memory = ProbeMemory(interface_url="https://rpc.example/rpc", health_url="https://agent.example/health")
    prober = Prober(Played(), definition(), look_up_again=look_up_again)
    target = entry("https://agent.example", memory, is_repeat=is_repeat, name_failed_at_s=7.0)
    await prober.probe(target, AT_S)
    assert names == ([("agent.example", 7.0), ("rpc.example", 7.0)] if is_repeat else [])


async def test_target_that_has_opted_out_gets_no_request() -> None:
    wanted = definition(opt_out={"hosts": ["agent.example"], "robots_txt": False})
    witness = Played()
    prober = Prober(witness, wanted, opt_outs=opt_outs_of(wanted))
    report = await prober.probe(entry("https://agent.example"), AT_S)
    assert witness.requests == []
    assert report.observation.inconclusive_reason is InconclusiveReason.NOT_ALLOWED
    assert report.memory.is_opted_out
    # Afterwards it is probed like any other.
    report = await Prober(witness, definition()).probe(entry("https://agent.example", report.memory), AT_S)
    assert (report.observation.inconclusive_reason, report.memory.is_opted_out) == (None, False)


# ── arbitrary answers ──

# Errors of a fetcher; the rest is classified by the answer.
RESULTS = st.sampled_from(
    sorted(set(ResultClass) - {ResultClass.STALE_DOCUMENT, ResultClass.INVALID_DOCUMENT})
)
TEXTS = st.text(max_size=30) | st.sampled_from(["\ud800", "x" * 3000])
BODIES = st.sampled_from([
    b"", b"<html>", b"{", b"[]",
    json.dumps(card()).encode(), json.dumps(card(url="https://other.example/" + "ü" * 900)).encode(),
    json.dumps(card(supportedInterfaces=[{"url": "https://a.test", "protocolBinding": "y" * 99}])).encode(),
    json.dumps({**document(), "timestamp": "2026-09-21T14:13:20Z"}).encode(),
    json.dumps({**document(), "timestamp": "9999-12-31T23:59:59Z", "agent_id": "x" * 2048}).encode(),
    b'{"jsonrpc": "2.0", "error": {"code": -32601}}',
])  # fmt: skip
ANSWERS: st.SearchStrategy[dict[str, Any]] = st.builds(
    dict,
    result=RESULTS,
    status=st.none() | st.integers(100, 999),
    reason=TEXTS,
    body=BODIES,
    content_type=st.sampled_from(["application/json", "text/html", ""]),
    etag=st.none() | st.sampled_from(['"1"', "W/", '"' + "x" * 510 + '"']),
    is_unchanged=st.booleans(),
    is_reached=st.booleans(),
    allow=st.sampled_from(["", "POST"]),
    max_age_seconds=st.none() | st.integers(0, 10**9 - 1),
    retry_after_seconds=st.none() | st.integers(0, 10**9 - 1),
    served_at=st.none() | st.datetimes(timezones=st.just(UTC)),
    status_links=st.lists(TEXTS | st.just("/health"), max_size=2).map(tuple),
    latency_ms=st.floats(0, 1e6),
)
MEMORIES = st.sampled_from([
    ProbeMemory(),
    ProbeMemory(
        probed_at_s=AT_S - 300, result=ResultClass.OK, card_read_at_s=AT_S - 300, card_etag='"1"',
        card_url="https://agent.example" + CARD_PATH, interface_url="https://agent.example/rpc",
        interface_binding="HTTP+JSON", health_url="https://agent.example" + HEALTH_PATH,
    ),
])  # fmt: skip


class Chance:
    """Draws answers; repeats the last one."""

    def __init__(self, answers: list[dict[str, Any]]) -> None:
        self._answers = answers
        self.requests = 0

    async def fetch(self, request: Request) -> Fetched:
        self.requests += 1
        drawn = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        return Fetched(url=request.url, **drawn)


@given(st.lists(ANSWERS, min_size=1, max_size=12), MEMORIES, st.booleans())
@settings(max_examples=examples(200))
async def test_any_answer_gives_an_observation_and_a_memory(
    answers: list[dict[str, Any]],
    memory: ProbeMemory,
    is_followed: bool,  # noqa: FBT001 - drawn
) -> None:
    asked = {"message": {"text": "hi"}, "paths": ["/ping"]}
    wanted = definition(ask=asked, opt_out={"robots_txt": is_followed})
    chance = Chance(answers)
    report = await Prober(chance, wanted, Bodies()).probe(entry("https://agent.example/a/", memory), AT_S)
    observation = report.observation
    assert Observation.model_validate_json(observation.model_dump_json()) == observation
    text = report.memory.to_json()
    assert ProbeMemory.from_json(text) == report.memory
    assert len(text.encode()) <= 16_384
    assert chance.requests == report.requests <= 20
    # A request may be drawn that ends in a defect; the rest of the probe has none.
    assert observation.discovery is None or "defect" not in observation.discovery.reason
