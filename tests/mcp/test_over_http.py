import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx2
import pytest
from mcp.shared.exceptions import MCPError
from tests.support.agent_check import card, document
from tests.support.hostile_server import CARD_PATH, HEALTH_PATH, as_json, serving
from tests.support.mcp_process import HttpServer, by_http, http_server, settings
from tests.support.registry_server import ADMIN_KEY, RegistryServer
from tests.support.servers import PATIENCE_SECONDS

from lifesign.client import RegistryClient
from lifesign.errors import InvalidValue
from lifesign.mcp.authentication import MAX_BODY_BYTES
from lifesign.mcp.listen_address import ListenAddress

LIST = b'{"jsonrpc": "2.0", "id": 1, "method": "tools/list"}'


@pytest.fixture(scope="module")
def server(registry: RegistryServer) -> Iterator[HttpServer]:
    """One for all tests of this file: it keeps nothing from one request to the next."""
    with http_server(["--allow-network", "127.0.0.0/8"], settings(registry.url, ADMIN_KEY)) as started:
        yield started


async def post(
    server: HttpServer, headers: Mapping[str, str] = MappingProxyType({}), body: bytes = LIST
) -> httpx2.Response:
    fields = {
        "Authorization": f"Bearer {server.token}",
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        **headers,
    }
    async with httpx2.AsyncClient(timeout=PATIENCE_SECONDS, trust_env=False) as http:
        return await http.post(server.url, content=body, headers=fields)


async def test_http_client_with_the_token_calls_each_tool(
    registry: RegistryServer, server: HttpServer
) -> None:
    async with RegistryClient(registry.url, key=ADMIN_KEY) as known:
        await known.agents.register("worker", role_id="team-1", capabilities=["billing"])
    replies = {CARD_PATH: as_json(card()), HEALTH_PATH: as_json(document())}
    async with serving(replies) as agent, by_http(server, server.token) as model:
        send_heartbeat: Any = await model.call_tool("heartbeat", {"agentId": "worker", "teamName": "team-1"})
        found: Any = await model.call_tool("find_agents", {"capabilities": ["billing"]})
        checked: Any = await model.call_tool("check_agent", {"url": agent.url})
    assert send_heartbeat.structured_content["success"]
    assert [agent["agent_id"] for agent in found.structured_content["agents"]] == ["worker"]
    assert checked.structured_content["decision"]["action"] == "proceed"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Host": "evil.example"}, 421),
        ({"Host": "127.0.0.1.evil.example:8441"}, 421),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://localhost.evil.example"}, 403),
        ({"Origin": "http://localhost:3000"}, 200),
        ({"Origin": "https://localhost"}, 200),
        ({"Content-Type": "text/plain"}, 400),
    ],
)
async def test_requests_of_foreign_hosts_and_origins_are_refused(
    server: HttpServer, headers: dict[str, str], status: int
) -> None:
    answer = await post(server, headers)
    assert answer.status_code == status
    assert status == 200 or answer.json()["error"]["message"]


@pytest.mark.parametrize("mode", ["auto", "legacy"])
@pytest.mark.parametrize(
    ("token", "headers", "text"),
    [
        ("wrong", {}, "requires its token"),
        (None, {"Host": "evil.example"}, "Invalid Host header"),
        (None, {"Origin": "https://evil.example"}, "Invalid Origin header"),
    ],
)
async def test_official_client_gets_the_reason_of_a_refusal(
    server: HttpServer, token: str | None, headers: dict[str, str], text: str, mode: str
) -> None:
    with pytest.RaisesGroup(pytest.RaisesExc(MCPError, match=text), flatten_subgroups=True):
        async with by_http(server, token or server.token, mode=mode, **headers) as model:
            await model.list_tools()


async def test_a_body_is_bounded(server: HttpServer) -> None:
    assert (await post(server, body=b" " * (MAX_BODY_BYTES + 1))).status_code == 413


async def test_malformed_call_is_refused_without_a_traceback(server: HttpServer) -> None:
    response = await post(server, body=b"{")
    assert response.status_code == 400
    assert "Traceback" not in response.text


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_the_server_without_printing_keys(
    registry: RegistryServer, tmp_path: Path, number: int
) -> None:
    token = tmp_path / "token"
    token.write_text("t" * 30 + "\n")
    options = ["--token-file", str(token)]
    with http_server(options, settings(registry.url, ADMIN_KEY)) as server:
        server.process.send_signal(number)
        assert server.process.wait(PATIENCE_SECONDS) == 0
        assert server.process.stderr is not None
        output, errors = server.output.read(), server.process.stderr.read().decode()
    assert output == b""
    assert "t" * 30 not in errors
    assert ADMIN_KEY not in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("place", "hosts", "is_local"),
    [
        (ListenAddress(), ["127.0.0.1", "localhost", "[::1]"], True),
        (ListenAddress(host="localhost"), ["localhost", "127.0.0.1", "[::1]"], True),
        (ListenAddress(host="::1"), ["[::1]", "127.0.0.1", "localhost"], True),
        (ListenAddress(host="10.0.0.5"), ["10.0.0.5", "127.0.0.1", "localhost", "[::1]"], False),
        (
            ListenAddress(host="::", names=["mcp.example"]),
            ["mcp.example", "127.0.0.1", "localhost", "[::1]"],
            False,
        ),
    ],
)  # fmt: skip
def test_listen_address_gives_its_accepted_host_names(
    place: ListenAddress, hosts: list[str], *, is_local: bool
) -> None:
    assert (place.accepted_hosts(), place.is_local) == (hosts, is_local)


def test_server_on_all_addresses_needs_a_host_name() -> None:
    with pytest.raises(InvalidValue, match=" ::") as refused:
        ListenAddress(host="::").accepted_hosts()
    assert refused.value.name == "--allow-host"
