"""GET requests for models: public addresses and allowed networks only."""

import asyncio

import pytest
from tests.support.hostile_server import as_json, serving
from tests.support.named_hosts import named_hosts
from yarl import URL

from lifesign.domain.net.allowed_addresses import read_networks
from lifesign.domain.observation.results import ResultClass
from lifesign.http_client.bounded_get import Ask
from lifesign.mcp.vetted_get import vetted_get


def ask(token: str | None = None) -> Ask:
    return Ask(max_bytes=1_000, deadline_s=asyncio.get_running_loop().time() + 10, token=token)


async def test_only_allowed_networks_are_contacted() -> None:
    async with serving({"/": as_json({})}) as server, vetted_get(read_networks(["127.0.0.1/32"])) as get:
        taken = await get(URL(server.url), ask("secret"))
        refused = await get(URL(f"http://127.0.0.2:{server.port}"), ask())
        large = await get(URL(server.url), Ask(max_bytes=1, deadline_s=ask().deadline_s))
    assert (taken.result, taken.body) == (ResultClass.OK, b"{}")
    assert server.asked("/")["user-agent"].startswith("lifesign/")
    assert refused.result is ResultClass.BLOCKED_ADDRESS
    assert large.result is ResultClass.TOO_LARGE


async def test_token_is_sent_only_to_its_resource() -> None:
    async with serving({"/": as_json({})}) as server, vetted_get(read_networks(["127.0.0.1/32"])) as get:
        await get(URL(server.url), ask("secret"))
    assert server.asked("/")["authorization"] == "Bearer secret"


async def test_name_that_resolves_differently_later_is_checked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    named_hosts(monkeypatch)({"agent.example": [["127.0.0.1"], ["10.0.0.5"]]})
    async with (
        serving({"/": as_json({})}) as server,
        vetted_get(read_networks(["127.0.0.1/32"])) as get,
    ):
        answer = await get(URL(f"http://agent.example:{server.port}"), ask())
        refused = await get(URL(f"http://agent.example:{server.port}"), ask())
    assert answer.result is ResultClass.OK
    assert refused.result is ResultClass.BLOCKED_ADDRESS
    assert len(server.heads) == 1


async def test_private_addresses_of_a_name_are_shown_only_in_the_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    named_hosts(monkeypatch)({"db.internal.example": [["10.1.2.3"]]})
    async with vetted_get(()) as get:
        answer = await get(URL("http://db.internal.example"), ask())
        literal = await get(URL("http://10.1.2.3"), ask())
    assert answer.result is ResultClass.BLOCKED_ADDRESS
    assert "10.1.2.3" not in answer.reason
    assert "'db.internal.example'" in caplog.text
    assert "10.1.2.3" in caplog.text
    # The caller wrote this address.
    assert "10.1.2.3 is private (RFC 1918)" in literal.reason
