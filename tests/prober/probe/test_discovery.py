import asyncio
import json
from typing import Any

import pytest
from tests.support.agent_check import card, document
from tests.support.hostile_server import (
    CARD_PATH,
    HEALTH_PATH,
    OLD_CARD_PATH,
    Reply,
    answer,
    as_json,
    gated,
    raw,
    redirect,
    serving,
    silence,
)
from tests.support.probing import SHORT_SECONDS, Bodies, layer, probing, results, see
from tests.support.virtual_loop import with_sockets_in_virtual_time

from lifesign.client.candidate_urls import ANOTHERS_CARD
from lifesign.domain.a2a.announcement import announce_health
from lifesign.domain.observation.probe_memory import ProbeMemory
from lifesign.domain.observation.results import Observation, ResultClass
from lifesign.prober.probe.session import ALTERED

CARD_ONLY: dict[str, Any] = {"ask": {"card": True, "transport": False, "health": False}}
IMPATIENT: dict[str, Any] = {"timeouts": {"first_byte_seconds": SHORT_SECONDS, "total_seconds": 1}}
OK, NOT_AN_AGENT = ResultClass.OK, ResultClass.NOT_AN_AGENT


async def found(replies: dict[str, Reply], path: str = "/", **settings: Any) -> tuple[Observation, list[str]]:
    """Return the result of a probe of the card alone, and its requests."""
    async with serving(replies) as server:
        return await see(server.url + path, **(CARD_ONLY | settings)), server.paths


# ── location of the card ──


async def test_card_at_the_well_known_path_needs_one_request() -> None:
    observation, paths = await found({CARD_PATH: as_json(card())})
    assert results(observation) == {"discovery": "ok"}
    assert paths == [CARD_PATH]


async def test_invalid_card_is_a_card_with_findings() -> None:
    observation, _ = await found({CARD_PATH: as_json(card() | {"name": 5, "skills": "x"})})
    seen = layer(observation.discovery)
    assert seen.result is OK
    assert seen.reason.startswith("read leniently: /name: ")
    assert seen.reason.endswith(", and 1 more")
    observation, _ = await found({CARD_PATH: as_json(card())})
    assert layer(observation.discovery).reason == ""


async def test_card_at_the_path_of_older_agents_is_found() -> None:
    observation, paths = await found({OLD_CARD_PATH: as_json(card())})
    assert layer(observation.discovery).result is OK
    assert paths == [CARD_PATH, OLD_CARD_PATH]


@pytest.mark.parametrize("path", ["/a/card.json", "/a" + CARD_PATH, "/a/", "/a/b.json"])
async def test_card_below_the_path_of_a_target_belongs_to_that_target(path: str) -> None:
    own = path if path.endswith(".json") else "/a" + CARD_PATH
    observation, paths = await found({own: as_json(card()), CARD_PATH: as_json(card())}, path)
    assert layer(observation.discovery).result is OK
    assert paths == [own]


@pytest.mark.parametrize("path", ["/card?id=7", "/agents/7", "/Card.JSON", "/card.json;v=1", "/?agent=7"])
async def test_card_is_found_at_the_given_url_whatever_its_path(path: str) -> None:
    async with serving({path: as_json(card())}) as server, probing(**CARD_ONLY) as probes:
        for requests in ({3, 4}, {1}):
            before = len(server.paths)
            assert layer((await probes.see(server.url + path)).discovery).result is OK
            assert len(server.paths) - before in requests


@pytest.mark.parametrize("status", [401, 405, 503])
async def test_given_url_without_a_card_does_not_decide(status: int) -> None:
    observation, paths = await found({"/rpc": answer(status)}, "/rpc")
    assert results(observation) == {"discovery": "not_an_agent"}
    assert "/rpc" in paths


async def test_given_url_that_is_an_event_stream_delays_nothing() -> None:
    async def stream(writer: asyncio.StreamWriter, head: str) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: x\n\n")
        await silence(writer, head)

    observation, paths = await found({"/sse": stream}, "/sse")
    assert results(observation) == {"discovery": "not_an_agent"}
    assert paths[-1] == OLD_CARD_PATH


@pytest.mark.parametrize("named", ["{}/rpc", "{}/rpc/v1", "http://127.0.0.1:1/rpc/"])
async def test_card_at_the_root_counts_for_the_url_that_it_contains(named: str) -> None:
    async with serving({}) as server, probing(**CARD_ONLY) as probes:
        server.replies[CARD_PATH] = as_json(card(url=named.format(server.url)))
        for _ in range(2):
            assert layer((await probes.see(server.url + "/rpc")).discovery).result is OK
    assert server.paths[:4] == ["/rpc" + CARD_PATH, "/rpc" + OLD_CARD_PATH, "/rpc", CARD_PATH]
    assert probes.memory.card_url == server.url + CARD_PATH


@pytest.mark.parametrize("named", ["{}", "{}/other", "{}/rpc2", "http://elsewhere.example/rpc", "http://["])
async def test_the_card_of_another_agent_at_the_origins_root_is_no_liveness_signal(named: str) -> None:
    async with serving({HEALTH_PATH: as_json(document())}) as server, probing() as probes:
        server.replies[CARD_PATH] = as_json(card(url=named.format(server.url)))
        for _ in range(2):
            observation = await probes.see(server.url + "/rpc")
            assert layer(observation.discovery).result is NOT_AN_AGENT
            assert layer(observation.discovery).reason == ANOTHERS_CARD
            assert not observation.is_liveness_signal
            assert observation.document is None
    assert HEALTH_PATH not in server.paths


async def test_root_card_of_another_agent_gives_a_target_no_liveness() -> None:
    async with serving({CARD_PATH: as_json(card()), HEALTH_PATH: as_json(document())}) as server:
        own = {
            "/rpc": answer(405),
            "/rpc" + CARD_PATH: as_json(card(url=server.url + "/rpc")),
            "/rpc" + HEALTH_PATH: as_json(document()),
        }
        server.replies |= own
        async with probing() as probes:
            assert (await probes.see(server.url + "/rpc")).is_liveness_signal
            for path in own:
                del server.replies[path]
            seen = [await probes.see(server.url + "/rpc") for _ in range(3)]
    assert not any(observation.is_liveness_signal for observation in seen[1:])


async def test_a_registrys_record_is_a_card() -> None:
    observation, _ = await found({CARD_PATH: as_json(card(wellKnownURI="https://a.example/card.json"))})
    assert layer(observation.discovery).result is OK


# ── other content instead of a card ──


@pytest.mark.parametrize(
    ("reply", "expected", "why"),
    [
        (answer(404), "not_an_agent", "HTTP 404"),
        (answer(410), "not_an_agent", "HTTP 410"),
        (answer(204), "not_an_agent", "HTTP 204"),
        (answer(200, b"<!doctype html>", Content_Type="text/html"), "not_an_agent", "HTML"),
        (as_json({"status": "UP"}), "not_an_agent", "of a card: name, url"),
        (as_json([]), "not_an_agent", "expected an object"),
        (answer(200, b'{"name": ', Content_Type="application/json"), "invalid_document", "not JSON"),
        (answer(200, b"{\xff}", Content_Type="application/json"), "invalid_document", "UTF-8"),
        (answer(401), "gated", "HTTP 401"),
        (answer(402), "gated", "HTTP 402"),
        (answer(403), "gated", "HTTP 403"),
        (answer(429), "rate_limited", "HTTP 429"),
        (answer(500), "http_error", "HTTP 500"),
        (answer(503), "http_error", "HTTP 503"),
        (as_json(card(description="x" * 5000)), "too_large", "4096"),
        (redirect("ftp://a.example/"), "redirect_refused", "not an http(s) URL"),
        (redirect("http://a:b@127.0.0.1/"), "redirect_refused", "credentials"),
        (raw(b"SSH-2.0-OpenSSH_9.2\r\n"), "http_error", ""),
    ],
)
async def test_content_in_place_of_a_card_is_classified_with_a_reason(
    reply: Reply, expected: str, why: str
) -> None:
    observation, _ = await found({CARD_PATH: reply}, limits={"max_card_bytes": 4096})
    discovery = layer(observation.discovery)
    assert (discovery.result.value, why in discovery.reason) == (expected, True), discovery.reason
    assert not observation.is_liveness_signal


async def test_gated_or_failing_card_is_not_requested_at_another_path() -> None:
    for status in (401, 429, 500):
        _, paths = await found({CARD_PATH: answer(status), OLD_CARD_PATH: as_json(card())})
        assert paths == [CARD_PATH]


async def test_first_answer_counts_if_neither_place_has_a_card() -> None:
    page = answer(200, b"<!doctype html>", Content_Type="text/html")
    observation, paths = await found({CARD_PATH: page, OLD_CARD_PATH: answer(404)})
    assert "HTML" in layer(observation.discovery).reason
    assert paths == [CARD_PATH, OLD_CARD_PATH]


@with_sockets_in_virtual_time
async def test_timeout_at_one_card_path_skips_the_other() -> None:
    observation, paths = await found({CARD_PATH: silence}, **IMPATIENT)
    assert layer(observation.discovery).result is ResultClass.TIMEOUT
    assert paths == [CARD_PATH]


# ── probe memory ──


async def test_unchanged_card_is_requested_with_its_etag_and_not_read_again() -> None:
    replies = {CARD_PATH: as_json(card(url="https://a.example/rpc"), ETag='W/"7"')}
    async with serving(replies) as server, probing(**CARD_ONLY) as probes:
        first = await probes.see(server.url)
        assert first.card_etag == 'W/"7"'
        before = probes.memory
        assert before.card_url == server.url + CARD_PATH
        assert before.interface_url == "https://a.example/rpc"
        server.replies[CARD_PATH] = answer(304, ETag='W/"7"')
        again = await probes.see(server.url)
        assert server.asked(CARD_PATH)["if-none-match"] == 'W/"7"'
    assert (layer(again.discovery).result, layer(again.discovery).status_code) == (OK, 304)
    assert again.card_etag == 'W/"7"'
    after = probes.memory
    assert after.card_read_at_s is not None
    assert before.card_read_at_s is not None
    assert after.card_read_at_s > before.card_read_at_s
    assert (after.card_digest, after.interface_url) == (before.card_digest, before.interface_url)


async def test_status_304_without_a_conditional_request_is_no_card() -> None:
    observation, _ = await found({CARD_PATH: answer(304)})
    assert layer(observation.discovery).result is ResultClass.HTTP_ERROR


@pytest.mark.parametrize("etag", ['W/7"', '"a\nb"', '"' + "x" * 511 + '"', "*", '"ü"'])
async def test_invalid_entity_tag_is_neither_stored_nor_sent(etag: str) -> None:
    replies = {CARD_PATH: as_json(card(), ETag=etag.replace("\n", "\x0b"))}
    async with serving(replies) as server, probing(**CARD_ONLY) as probes:
        assert (await probes.see(server.url)).card_etag is None
        await probes.see(server.url)
        assert "if-none-match" not in server.asked(CARD_PATH)
    assert probes.memory.card_etag is None


async def test_changed_card_is_read_again() -> None:
    async with serving({}) as server, probing(**CARD_ONLY) as probes:
        server.replies[CARD_PATH] = as_json(card(url=server.url + "/old", protocolVersion="0.3.0"))
        await probes.see(server.url)
        assert probes.memory.protocol_version == "0.3.0"
        place = {"url": server.url + "/new", "protocolBinding": "HTTP+JSON", "protocolVersion": "1.0"}
        server.replies[CARD_PATH] = as_json(card(supportedInterfaces=[place | {"tenant": "t-1"}]))
        await probes.see(server.url)
    memory = probes.memory
    assert memory.interface_url == server.url + "/new"
    assert (memory.interface_binding, memory.protocol_version) == ("HTTP+JSON", "1.0")
    assert memory.interface_tenant == "t-1"


async def test_address_of_an_interface_is_remembered_until_the_card_names_another() -> None:
    async with serving({"/old": answer(405)}) as server, probing() as probes:
        server.replies[CARD_PATH] = as_json(card(url=server.url + "/old"))
        await probes.see(server.url)
        assert probes.memory.interface_address == "127.0.0.1"
        server.replies[CARD_PATH] = as_json(card(url=server.url + "/old", name="renamed"))
        del server.replies["/old"]
        await probes.see(server.url)
        assert probes.memory.interface_address == "127.0.0.1"
        server.replies[CARD_PATH] = as_json(card(url=server.url + "/new"))
        await probes.see(server.url)
        assert probes.memory.interface_address is None


async def test_card_at_its_new_path_is_found() -> None:
    async with serving({OLD_CARD_PATH: as_json(card())}) as server, probing(**CARD_ONLY) as probes:
        await probes.see(server.url)
        del server.replies[OLD_CARD_PATH]
        server.replies[CARD_PATH] = as_json(card(name="moved"))
        server.heads.clear()
        assert layer((await probes.see(server.url)).discovery).result is OK
        assert server.paths == [OLD_CARD_PATH, CARD_PATH]
    assert probes.memory.card_url == server.url + CARD_PATH


async def test_card_url_on_another_origin_from_a_stored_memory_is_not_requested() -> None:
    replies = {CARD_PATH: as_json(card())}
    async with serving(replies) as elsewhere, serving({}) as server, probing(**CARD_ONLY) as probes:
        probes.memory = ProbeMemory(card_url=elsewhere.url + CARD_PATH)
        assert not (await probes.see(server.url)).is_liveness_signal
    assert (elsewhere.paths, server.paths) == ([], [CARD_PATH, OLD_CARD_PATH])


async def test_card_of_another_agent_of_the_host_from_a_stored_memory_is_not_requested() -> None:
    another = f"/another{CARD_PATH}"
    async with serving({another: as_json(card())}) as server, probing(**CARD_ONLY) as probes:
        probes.memory = ProbeMemory(card_url=server.url + another)
        assert not (await probes.see(server.url)).is_liveness_signal
    assert server.paths == [CARD_PATH, OLD_CARD_PATH]


async def test_redirected_card_is_read_and_the_requested_url_is_stored() -> None:
    async with serving({"/real": as_json(card(url="/rpc"), ETag='"1"')}) as elsewhere:
        replies = {CARD_PATH: redirect(elsewhere.url + "/real")}
        async with serving(replies) as server, probing(**CARD_ONLY) as probes:
            assert layer((await probes.see(server.url)).discovery).result is OK
            assert probes.memory.card_url == server.url + CARD_PATH
            assert probes.memory.card_redirect == elsewhere.url + "/real"
            # With the card at its own path, nothing of the redirect is left.
            server.replies[CARD_PATH] = as_json(card(url="/rpc"))
            await probes.see(server.url)
            assert "card_redirect" not in probes.memory.model_dump(exclude_none=True)


async def test_registration_in_a_card_is_stored_until_the_card_omits_it() -> None:
    named = announce_health(card(), registry="https://registry.example", agent_id="agent-1")
    async with serving({CARD_PATH: as_json(named, ETag='"1"')}) as server, probing(**CARD_ONLY) as probes:

        def remembered() -> tuple[str | None, str | None]:
            return probes.memory.link_registry, probes.memory.link_agent_id

        await probes.see(server.url)
        assert remembered() == ("https://registry.example", "agent-1")
        server.replies[CARD_PATH] = answer(304, ETag='"1"')
        await probes.see(server.url)
        assert remembered() == ("https://registry.example", "agent-1")
        server.replies[CARD_PATH] = as_json(announce_health(card()))
        await probes.see(server.url)
        assert remembered() == (None, None)


async def test_changed_link_header_of_an_unchanged_card_updates_the_health_url() -> None:
    body = json.dumps(card()).encode()
    async with serving({}) as server, probing(**CARD_ONLY) as probes:
        for place in ("/one", "/one", "/two"):
            server.replies[CARD_PATH] = answer(
                200, body, Content_Type="application/json", Link=f'<{place}>; rel="status"'
            )
            await probes.see(server.url)
            assert probes.memory.health_url == server.url + place


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ({"url": "https://a.example/ü"}, "https://a.example/%C3%BC"),
        ({"url": "https://a.example/rpc#part"}, "https://a.example/rpc"),
        ({"url": "https://a.example/" + "ü" * 1000}, None),
        ({"url": "https://{tenant}.example/"}, None),
        ({"url": "not a URL"}, None),
        ({"url": "https://a.example/", "preferredTransport": "GRPC"}, None),
    ],
)
async def test_interface_url_is_stored_as_requested_or_not_at_all(
    members: dict[str, str], expected: str | None
) -> None:
    async with serving({CARD_PATH: as_json(card(**members))}) as server, probing(**CARD_ONLY) as probes:
        assert layer((await probes.see(server.url)).discovery).result is OK
    assert probes.memory.interface_url == expected


async def test_unknown_values_of_a_card_are_shortened() -> None:
    long = {"preferredTransport": "x" * 5000, "protocolVersion": "y" * 5000}
    async with serving({CARD_PATH: as_json(card(**long))}) as server, probing(**CARD_ONLY) as probes:
        await probes.see(server.url)
    assert len(probes.memory.interface_binding or "") == 64
    assert len(probes.memory.protocol_version or "") == 64


async def test_version_of_a_card_is_searched_for_secrets_without_invisible_characters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LAB_TOKEN", "canary-of-ours")
    version = "\u200e".join("canary-of-ours")
    async with serving({CARD_PATH: gated(as_json(card(protocolVersion=version)))}) as server:
        credentials = [{"name": "lab", "origin": server.url, "bearer": {"env": "LAB_TOKEN"}}]
        async with probing(credentials=credentials, **CARD_ONLY) as probes:
            await probes.see(server.url)
    assert probes.memory.protocol_version is None
    assert probes.memory.card_read_at_s is None


@pytest.mark.parametrize(
    ("secret", "members", "link"),
    [
        ("canary-of-ours", {"url": "https://\uff43anary-of-ours.example/rpc"}, ""),
        ("canary-of-ours", {"url": "https://\u24d2anary-of-ours.example/rpc"}, ""),
        ("canary/of-ours", {"url": "/rpc/canary/x/../of-ours"}, ""),
        ("canary/of-ours", {"url": "/rpc/canary/./of-ours"}, ""),
        ("canary/of-ours", {"healthUrl": "/health/canary/x/../of-ours"}, ""),
        ("canary/of-ours", {}, "/health/canary/./of-ours"),
    ],
)
async def test_secret_that_shows_once_a_url_is_parsed_is_neither_stored_nor_requested(
    secret: str, members: dict[str, str], link: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAB_TOKEN", secret)
    async with serving({}) as server:
        places = {name: server.url + url if url[0] == "/" else url for name, url in members.items()}
        headers = {"Link": f'<{link}>; rel="status"'} if link else {}
        server.replies[CARD_PATH] = as_json(card(**places), **headers)
        credentials = [{"name": "lab", "origin": server.url, "bearer": {"env": "LAB_TOKEN"}}]
        async with probing(credentials=credentials) as probes:
            observation = await probes.see(server.url)
            known = probes.memory
        asked = " ".join(server.paths)
    altered = observation.transport if "url" in members else observation.readiness
    assert (layer(altered).result, layer(altered).reason) == (ResultClass.NOT_MEASURED, ALTERED)
    assert secret not in asked + observation.model_dump_json() + known.to_json()


async def test_invalid_url_in_a_link_or_redirect_is_ignored() -> None:
    linked = as_json(card(url="http://[::1]@"), Link='<http://[::1]@>; rel="status"')
    observation, _ = await found({CARD_PATH: linked})
    assert layer(observation.discovery).result is OK
    observation, _ = await found({CARD_PATH: redirect("http://[::1]@")})
    assert layer(observation.discovery).result is ResultClass.REDIRECT_REFUSED


# ── evidence ──


async def test_valid_and_malformed_cards_are_stored_as_evidence_and_html_is_not() -> None:
    bodies = Bodies()
    good, broken = json.dumps(card()).encode(), b'{"name": '
    async with serving({}) as server, probing(bodies, **CARD_ONLY) as probes:
        for body, content_type in (
            (good, "application/json"),
            (broken, "application/json"),
            (b"<p>", "text/html"),
        ):
            server.replies[CARD_PATH] = answer(200, body, Content_Type=content_type)
            discovery = layer((await probes.see(server.url)).discovery)
            kept = None if discovery.evidence is None else bodies.kept[discovery.evidence]
            assert kept == (body if content_type == "application/json" else None)


async def test_unchanged_card_refers_to_its_stored_evidence() -> None:
    bodies = Bodies()
    replies = {CARD_PATH: as_json(card(), ETag='"1"')}
    async with serving(replies) as server, probing(bodies, **CARD_ONLY) as probes:
        first = layer((await probes.see(server.url)).discovery).evidence
        assert layer((await probes.see(server.url)).discovery).evidence == first
        server.replies[CARD_PATH] = answer(304)
        assert layer((await probes.see(server.url)).discovery).evidence == first
    async with serving(replies) as server, probing(**CARD_ONLY) as unkept:
        await unkept.see(server.url)
        server.replies[CARD_PATH] = answer(304)
        assert layer((await unkept.see(server.url)).discovery).evidence is None


# ── health documents below the card's prefix ──


async def test_health_is_requested_below_the_prefix_of_the_card_first() -> None:
    replies = {"/a" + CARD_PATH: as_json(card())}
    async with serving(replies) as server, probing(**CARD_ONLY) as probes:
        await probes.see(server.url + "/a/")
    assert probes.memory.health_url == server.url + "/a" + HEALTH_PATH
