import asyncio
from typing import Any

import pytest
from tests.support.agent_check import card, document
from tests.support.hostile_server import (
    CARD_PATH,
    HEALTH_PATH,
    HostileServer,
    Reply,
    answer,
    as_json,
    endless_body,
    raw,
    redirect,
    serving,
    silence,
)
from tests.support.probing import Probes, layer, probing, results, see
from tests.support.virtual_loop import with_sockets_in_virtual_time

from lifesign.domain.observation.results import Observation, ResultClass

RPC = "/rpc"
WITHOUT_HEALTH: dict[str, Any] = {"ask": {"health": False}}
OK, NOT_AN_AGENT = ResultClass.OK, ResultClass.NOT_AN_AGENT
PAGE = answer(200, b"<!doctype html><p>For sale", Content_Type="text/html")


def by_method(**replies: Reply) -> Reply:
    async def reply(writer: object, head: str) -> None:
        await replies[head.partition(" ")[0]](writer, head)  # type: ignore[arg-type]

    return reply


async def probe_interface(reply: Reply, **members: Any) -> tuple[Observation, HostileServer]:
    """Return the result of a probe of an agent whose interface answers so."""
    async with serving({RPC: reply}) as server:
        server.replies[CARD_PATH] = as_json(card(**({"url": server.url + RPC} | members)))
        return await see(server.url, **WITHOUT_HEALTH), server


# ── answers of the interface ──


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (200, "ok"), (204, "ok"), (400, "ok"), (405, "ok"), (406, "ok"), (415, "ok"), (426, "ok"),
        (501, "ok"),
        (401, "gated"), (402, "gated"), (403, "gated"), (407, "gated"),
        (404, "not_an_agent"), (410, "not_an_agent"), (429, "rate_limited"),
        (500, "http_error"), (503, "http_error"), (418, "http_error"),
    ],
)  # fmt: skip
async def test_refused_get_distinguishes_agent_from_plain_server(status: int, expected: str) -> None:
    observation, server = await probe_interface(answer(status))
    transport = layer(observation.transport)
    assert (transport.result.value, transport.status_code) == (expected, status)
    assert {head.partition(" ")[0] for head in server.heads} <= {"GET", "OPTIONS"}


async def stream(writer: asyncio.StreamWriter, _head: str) -> None:
    """Begin a stream of events, and send none."""
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
    await writer.drain()
    await asyncio.Event().wait()


@with_sockets_in_virtual_time
async def test_open_stream_without_data_counts_as_an_answer() -> None:
    transport = layer((await probe_interface(stream))[0].transport)
    assert (transport.result, transport.status_code) == (OK, 200)


async def test_page_of_any_size_at_the_interface_counts_as_an_answer() -> None:
    assert layer((await probe_interface(PAGE))[0].transport).result is OK
    large = answer(200, b"<p>" * 100_000, Content_Type="text/html")
    assert layer((await probe_interface(large))[0].transport).result is OK
    assert layer((await probe_interface(endless_body))[0].transport).result is OK


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (silence, "timeout"),
        (raw(b""), "http_error"),
        (redirect("http://192.0.2.1/"), "redirect_refused"),
        (redirect(RPC), "redirect_refused"),
    ],
)
@with_sockets_in_virtual_time
async def test_invalid_answer_is_classified(reply: Reply, expected: str) -> None:
    assert layer((await probe_interface(reply))[0].transport).result.value == expected


async def test_a_redirect_within_the_origin_leads_to_the_answer() -> None:
    async with serving({RPC: redirect("/there"), "/there": answer(405)}) as server:
        server.replies[CARD_PATH] = as_json(card(url=server.url + RPC))
        assert layer((await see(server.url)).transport).status_code == 405


async def test_interface_that_refuses_get_is_checked_for_post() -> None:
    taking = by_method(GET=answer(404), OPTIONS=answer(200, b"POST", Allow="POST"))
    transport = layer((await probe_interface(taking))[0].transport)
    assert (transport.result, transport.reason) == (OK, "HTTP 404, but POST is allowed")
    # Permissions for pages of other origins hold at every path of such servers.
    anywhere = by_method(GET=answer(404), OPTIONS=answer(204, Access_Control_Allow_Methods="POST"))
    assert layer((await probe_interface(anywhere))[0].transport).result is NOT_AN_AGENT


# ── choice of the interface ──


async def test_interface_on_another_host_is_requested_there() -> None:
    async with serving({RPC: answer(405)}) as interface, serving({}) as server:
        server.replies[CARD_PATH] = as_json(card(url=interface.url + RPC))
        observation = await see(server.url)
        assert layer(observation.transport).result is OK
        assert interface.paths == [RPC]


@pytest.mark.parametrize("url", ["http://169.254.169.254/latest", "http://10.0.0.1/rpc", "http://[::1]/"])
async def test_an_interface_at_a_private_address_is_not_contacted(url: str) -> None:
    observation, _ = await probe_interface(answer(405), url=url)
    assert layer(observation.transport).result is ResultClass.BLOCKED_ADDRESS
    assert layer(observation.discovery).result is OK


@pytest.mark.parametrize(
    "members",
    [
        {"url": "https://agent.example/grpc", "preferredTransport": "GRPC"},
        {"url": "https://{tenant}.agent.example/"},
        {"url": ""},
    ],
)
async def test_card_without_usable_interface_differs_from_a_failing_one(
    members: dict[str, str],
) -> None:
    observation, server = await probe_interface(answer(405), **members)
    transport = layer(observation.transport)
    assert transport.result is ResultClass.NOT_MEASURED
    assert "no interface" in transport.reason
    assert observation.is_liveness_signal
    assert server.paths == [CARD_PATH]


async def test_first_json_interface_is_requested_and_grpc_is_skipped() -> None:
    async with serving({RPC: answer(405)}) as server:
        places = [("GRPC", "/g"), ("WEBSOCKET", "/w"), ("HTTP+JSON", RPC), ("JSONRPC", "/other")]
        interfaces = [
            {"url": server.url + path, "protocolBinding": binding, "protocolVersion": "1.0"}
            for binding, path in places
        ]
        server.replies[CARD_PATH] = as_json(card(supportedInterfaces=interfaces))
        assert layer((await see(server.url)).transport).result is OK
        assert RPC in server.paths
        assert not {"/g", "/w", "/other"} & set(server.paths)


# ── without a card ──


async def known(probes: Probes, server: HostileServer) -> None:
    """Probe an agent once, so that its card is known and not requested again."""
    server.replies[CARD_PATH] = as_json(card(url=server.url + RPC), ETag='"1"')
    server.replies[RPC] = answer(405)
    await probes.see(server.url)
    server.heads.clear()


async def test_known_interface_is_requested_without_the_card() -> None:
    async with serving({}) as server, probing(**WITHOUT_HEALTH) as probes:
        await known(probes, server)
        assert results(await probes.see(server.url)) == {"transport": "ok"}
        assert server.paths == [RPC]


@pytest.mark.parametrize("has_document", [False, True])
@pytest.mark.parametrize(
    "former", [answer(404), answer(503), redirect("https://elsewhere.example/rpc")], ids=["404", "503", "302"]
)
async def test_failed_interface_is_checked_against_a_new_card(former: Reply, *, has_document: bool) -> None:
    documents = {HEALTH_PATH: as_json(document())} if has_document else {}
    async with (
        serving({"/new": answer(401), **documents}) as server,
        probing(ask={"health": has_document}) as probes,
    ):
        await known(probes, server)
        server.replies[RPC] = former
        server.replies[CARD_PATH] = as_json(card(url=server.url + "/new"))
        observation = await probes.see(server.url)
        assert results(observation) == {"discovery": "ok", "transport": "gated"} | (
            {"readiness": "ok"} if has_document else {}
        )
        assert layer(observation.transport).status_code == 401
        assert server.paths[-2:] == [CARD_PATH, "/new"]


async def test_after_a_failed_message_the_next_one_goes_to_the_interface_of_a_new_card() -> None:
    reply = {"jsonrpc": "2.0", "id": 1, "result": {"role": "agent", "messageId": "m", "parts": []}}
    replies = {"/new": by_method(GET=answer(405), POST=as_json(reply)), HEALTH_PATH: as_json(document())}
    async with serving(replies) as server, probing(ask={"message": {"text": "hello"}}) as probes:
        await known(probes, server)
        server.replies[RPC] = by_method(GET=answer(405), POST=answer(500))
        server.replies[CARD_PATH] = as_json(card(url=server.url + "/new"))
        assert results(await probes.see(server.url))["message"] == "http_error"
        assert results(await probes.see(server.url))["message"] == "ok"


async def test_interface_of_another_agent_is_no_liveness_signal() -> None:
    async with serving({RPC: answer(405)}) as another, probing(**WITHOUT_HEALTH) as probes:
        async with serving({CARD_PATH: as_json(card(url=another.url + RPC), ETag='"1"')}) as server:
            url = server.url
            assert results(await probes.see(url)) == {"discovery": "ok", "transport": "ok"}
            again = await probes.see(url)
            assert results(again) == {"discovery": "ok", "transport": "ok"}, "the card was not requested"
        gone = await probes.see(url)
        assert results(gone) == {"discovery": "refused", "transport": "not_measured"}
        assert gone.is_measured_failure
        assert another.paths == [RPC, RPC]


async def test_failing_interface_of_a_served_card_is_reported() -> None:
    async with serving({}) as server, probing(**WITHOUT_HEALTH) as probes:
        await known(probes, server)
        server.replies[RPC] = answer(503)
        observation = await probes.see(server.url)
        assert results(observation) == {"discovery": "ok", "transport": "http_error"}
        assert observation.is_liveness_signal


async def test_page_at_an_interface_url_counts_only_if_the_card_still_lists_that_url() -> None:
    async with serving({}) as server, probing(**WITHOUT_HEALTH) as probes:
        await known(probes, server)
        server.replies[RPC] = PAGE
        assert results(await probes.see(server.url)) == {"discovery": "ok", "transport": "ok"}
        # The domain has another owner now.
        server.replies[CARD_PATH] = PAGE
        gone = await probes.see(server.url)
        assert results(gone) == {"discovery": "not_an_agent", "transport": "not_an_agent"}
        assert gone.is_measured_failure
        again = await probes.see(server.url)
        assert results(again) == {"discovery": "not_an_agent"}, "the former interface was probed"


async def test_while_the_cards_server_fails_the_known_interface_still_counts() -> None:
    async with serving({}) as server, probing(**WITHOUT_HEALTH) as probes:
        await known(probes, server)
        server.replies[CARD_PATH] = answer(500)
        day_s = 86_400.0
        assert probes.memory.card_read_at_s is not None
        observation = await probes.see(server.url, at_s=probes.memory.card_read_at_s + 2 * day_s)
        assert results(observation) == {"discovery": "http_error", "transport": "ok"}
        assert observation.is_liveness_signal
