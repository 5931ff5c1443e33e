"""Reading of published interfaces in probes, with cards from a real server."""

import json
from typing import Any

import pytest
from tests.prober.probe.test_mcp_tools import serving_tools
from tests.support.agent_check import card
from tests.support.hostile_server import CARD_PATH, answer, as_json, gated, serving
from tests.support.mcp_answers import rpc
from tests.support.message_server import Got, Says, agent
from tests.support.probing import Probes, probing

from lifesign.domain.published_interface.card_interface import card_interface
from lifesign.domain.published_interface.published import Interface

CARD_ONLY: dict[str, Any] = {"ask": {"card": True, "transport": False, "health": False}}


async def read(probes: Probes, url: str) -> tuple[Interface | None, int]:
    """Probe; return the interface that is reported, and how many readings in a row found another one."""
    report = await probes.report(url)
    return report.interface, probes.memory.interface_changes


async def test_a_card_is_reported_when_it_is_new_and_when_it_changes() -> None:
    async with serving({CARD_PATH: as_json(card())}) as server, probing(**CARD_ONLY) as probes:
        interface, changes = await read(probes, server.url)
        assert interface is not None
        assert interface.digest == card_interface(card()).digest == probes.memory.interface_digest
        assert changes == 0
        assert await read(probes, server.url) == (None, 0)
        server.replies[CARD_PATH] = as_json(card(name="Another"))
        interface, changes = await read(probes, server.url)
        assert interface is not None
        assert (interface.form["name"], changes) == ("Another", 1)
        assert await read(probes, server.url) == (None, 0)


async def test_other_signature_or_order_of_a_card_is_no_change() -> None:
    async with serving({CARD_PATH: as_json(card())}) as server, probing(**CARD_ONLY) as probes:
        await probes.see(server.url)
        digest = probes.memory.card_digest
        server.replies[CARD_PATH] = as_json(dict(reversed(card(signatures=[{"protected": "x"}]).items())))
        assert await read(probes, server.url) == (None, 0)
        assert probes.memory.card_digest != digest


async def test_status_304_resets_the_count_of_interface_changes() -> None:
    async with serving({}) as server, probing(**CARD_ONLY) as probes:
        for number in range(3):
            server.replies[CARD_PATH] = as_json(card(name=f"N{number}"), ETag='"t"')
            _, changes = await read(probes, server.url)
            assert changes == number
        server.replies[CARD_PATH] = answer(304, ETag='"t"')
        assert await read(probes, server.url) == (None, 0)


async def test_document_without_a_card_has_no_interface() -> None:
    async with serving({CARD_PATH: as_json({"a": 1})}) as server, probing(**CARD_ONLY) as probes:
        assert await read(probes, server.url) == (None, 0)
    assert probes.memory.interface_digest is None


@pytest.mark.parametrize("mark", ["", "\ufe0f"])
async def test_a_card_with_a_secret_is_no_interface(monkeypatch: pytest.MonkeyPatch, mark: str) -> None:
    secret = "canary-0123456789"
    monkeypatch.setenv("DRIFT_TOKEN", secret)
    sent = mark.join(secret)
    escaped = json.dumps(card(name=f"echo {sent}")).replace("canary", "c\\u0061nary").encode()
    reply = gated(answer(200, escaped, Content_Type="application/json"))
    async with serving({CARD_PATH: reply}) as server:
        credentials = [{"name": "lab", "origin": server.url, "bearer": {"env": "DRIFT_TOKEN"}}]
        async with probing(**CARD_ONLY, credentials=credentials) as probes:
            interface, _ = await read(probes, server.url)
    assert interface is None
    assert probes.memory.interface_digest is None


async def test_a_card_that_becomes_a_secret_in_lower_case_is_no_interface(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DRIFT_TOKEN", "k0123456789")
    schemes = {"a": {"type": "http", "scheme": "\N{KELVIN SIGN}0123456789"}}
    async with serving({CARD_PATH: as_json(card(securitySchemes=schemes))}) as server:
        credentials = [{"name": "lab", "origin": server.url, "bearer": {"env": "DRIFT_TOKEN"}}]
        async with probing(**CARD_ONLY, credentials=credentials) as probes:
            interface, _ = await read(probes, server.url)
    assert interface is None
    assert "k0123456789" not in probes.memory.to_json()


TOOLS_ONLY: dict[str, Any] = {"health": False, "tools": True}


async def test_tools_of_a_server_are_reported_when_they_change() -> None:
    tools: list[dict[str, Any]] = [{"name": "search", "description": "Finds."}, {"name": "add"}]
    listed = serving_tools(lambda got: rpc(got, result={"tools": tools}))
    async with agent(listed, {}) as server:
        url = f"{server.url}/mcp"
        async with probing(targets=[{"url": url, "kind": "mcp", "ask": TOOLS_ONLY}]) as probes:
            interface, _ = await read(probes, url)
            assert interface is not None
            assert interface.form["tools"]["search"] == {"description": "Finds."}
            assert await read(probes, url) == (None, 0)
            tools.reverse()
            assert await read(probes, url) == (None, 0)
            tools.pop()
            interface, changes = await read(probes, url)
            assert interface is not None
            assert (interface.form["tools"].keys(), changes) == ({"add"}, 1)
            assert await read(probes, url) == (None, 0)


async def test_incomplete_tool_list_is_no_interface() -> None:
    listed = serving_tools(lambda got: rpc(got, result={"tools": [{"name": "a"}], "nextCursor": "again"}))
    async with agent(listed, {}) as server:
        url = f"{server.url}/mcp"
        async with probing(targets=[{"url": url, "kind": "mcp", "ask": TOOLS_ONLY}]) as probes:
            assert await read(probes, url) == (None, 0)


def behind_login(url: str, provider: str) -> dict[str, Any]:
    """Return the definition of an MCP server that needs tokens of a provider."""
    client = {"client_id": "l", "client_secret": {"env": "DRIFT_CLIENT"}}
    oauth2 = {"token_url": f"{provider}/token", **client}
    return {
        "targets": [{"url": url, "kind": "mcp", "ask": TOOLS_ONLY}],
        "credentials": [{"name": "acme", "origin": url.removesuffix("/mcp"), "oauth2": oauth2}],
    }


async def test_tools_that_are_listed_without_a_token_are_no_interface(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DRIFT_CLIENT", "client-canary")
    tokens = as_json({"access_token": "access-canary-0000", "token_type": "Bearer", "expires_in": 10})

    def listed(got: Got) -> Says:
        names = ["public", "private"] if "authorization" in got.headers else ["public"]
        return rpc(got, result={"tools": [{"name": name} for name in names]})

    async with agent(serving_tools(listed), {}) as server, serving({"/token": tokens}) as provider:
        url = f"{server.url}/mcp"
        async with probing(**behind_login(url, provider.url)) as probes:
            interface, _ = await read(probes, url)
            assert interface is not None
            assert interface.form["tools"].keys() == {"public", "private"}
            token = probes.credentials.named("acme").tokens
            assert token is not None
            token._ends_at_s = 0.0
            provider.replies["/token"] = answer(503)
            assert await read(probes, url) == (None, 0)


async def test_token_that_is_a_word_of_the_tools_is_no_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRIFT_CLIENT", "client-canary")
    listed = serving_tools(lambda got: rpc(got, result={"tools": [{"name": "plan-routes-by-train"}]}))
    tokens = as_json({"access_token": "access-canary-0000", "token_type": "Bearer", "expires_in": 10})
    async with agent(listed, {}) as server, serving({"/token": tokens}) as provider:
        url = f"{server.url}/mcp"
        async with probing(**behind_login(url, provider.url)) as probes:
            assert (await read(probes, url))[0] is not None
            token = probes.credentials.named("acme").tokens
            assert token is not None
            token._ends_at_s = 0.0
            word = {"access_token": "plan-routes-by-train", "token_type": "Bearer"}
            provider.replies["/token"] = as_json(word)
            assert await read(probes, url) == (None, 0)


async def test_secret_that_the_form_of_an_interface_would_show_is_not_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DIGITS", "1234567890123456")

    def listed(got: Got) -> Says:
        schema = {"type": "object", "properties": {"n": {"default": "NUMBER"}}}
        says = rpc(got, result={"tools": [{"name": "plan", "inputSchema": schema}]})
        return Says(json.dumps(says.body).replace('"NUMBER"', "1.234567890123456E15").encode())

    async with agent(serving_tools(listed), {}) as server:
        url = f"{server.url}/mcp"
        credential = {"name": "acme", "origin": server.url, "bearer": {"env": "DIGITS"}}
        targets = [{"url": url, "kind": "mcp", "ask": TOOLS_ONLY}]
        async with probing(targets=targets, credentials=[credential]) as probes:
            interface, _ = await read(probes, url)
            assert interface is None
