import json
from collections.abc import AsyncIterator, Mapping
from types import MappingProxyType

import httpx2
import pytest
from mcp.server import Server
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    PARSE_ERROR,
    PROTOCOL_VERSION_META_KEY,
)
from tests.support.servers import PATIENCE_SECONDS
from tests.support.tool_proxies import connected

from lifesign.adapter.tools.proxy_app import ConcurrentMessageLimit
from lifesign.adapter.tools.proxy_context import ToolProxyContext
from lifesign.adapter.tools.tool_proxy import OpenProxy, open_tool_proxy
from lifesign.client import RegistryClient
from lifesign.client.registry_tasks import HeldRun
from lifesign.mcp.answer import ERROR_KEY
from lifesign.mcp.authentication import MAX_BODY_BYTES
from lifesign.mcp.http_app import app_of

LIST = b'{"jsonrpc": "2.0", "id": 1, "method": "tools/list"}'
NOBODY = HeldRun(task_id=f"task_{'0' * 26}", run_id=f"run_{'0' * 26}", fencing_token=1)


@pytest.fixture
async def proxy() -> AsyncIterator[OpenProxy]:
    """Tools of a run; no request reaches its registry."""
    async with RegistryClient("http://127.0.0.1:9") as client:
        held = ToolProxyContext(
            registry=client, run=NOBODY, is_held=lambda: True, ended=lambda _: None, budget_gone=lambda: None
        )
        async with open_tool_proxy(held, None) as opened:
            yield opened


@pytest.mark.parametrize("mode", ["legacy", "auto", "2026-07-28"])
async def test_clients_of_both_mcp_versions_are_served(proxy: OpenProxy, mode: str) -> None:
    async with connected(proxy, mode=mode) as client:
        assert "report_progress" in {tool.name for tool in (await client.list_tools()).tools}
        with pytest.raises(MCPError, match=r"'é'.*report_progress, ") as missing:
            await client.call_tool("é", {})
    assert missing.value.code == INVALID_PARAMS


async def test_unacceptable_request_is_refused(proxy: OpenProxy) -> None:
    cases: list[tuple[Mapping[str, str], bytes, int]] = [
        ({}, LIST, 200),
        ({"Accept": "application/*;q=0.5"}, LIST, 200),
        ({"Host": "localhost"}, LIST, 200),
        ({"Origin": "http://localhost:3000"}, LIST, 200),
        ({"Content-Type": "text/plain"}, LIST, 400),
        ({"Accept": "text/event-stream"}, LIST, 406),
        ({"Accept": ""}, LIST, 406),
        ({"Host": "127.0.0.1.evil.example:80"}, LIST, 421),
        ({"Host": "evil.example, localhost"}, LIST, 421),
        ({"Origin": "null"}, LIST, 403),
        ({"Origin": "http://localhost.evil.example"}, LIST, 403),
        ({}, b" " * (MAX_BODY_BYTES + 1), 413),
        ({}, b"{", 400),
    ]
    async with httpx2.AsyncClient(timeout=PATIENCE_SECONDS, trust_env=False) as http:
        for headers, body, status in cases:
            answer = await post(http, proxy, headers, body)
            assert answer.status_code == status, (headers, answer.text)
            assert "Traceback" not in answer.text
            assert status == 200 or answer.json()["error"]["message"]


async def test_request_after_the_end_of_the_run_gets_the_reason(proxy: OpenProxy) -> None:
    limit = ConcurrentMessageLimit(app_of(Server("never"), ["127.0.0.1"]), most_at_once=1)
    limit.end()
    transport = httpx2.ASGITransport(app=limit)
    async with httpx2.AsyncClient(transport=transport) as http:
        answer = await post(http, proxy)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, INTERNAL_ERROR)


@pytest.mark.parametrize("value", ["NaN", "1e400"])
@pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28"])
async def test_arguments_that_json_cannot_hold_are_refused(
    proxy: OpenProxy, value: str, version: str
) -> None:
    meta = {PROTOCOL_VERSION_META_KEY: version, CLIENT_CAPABILITIES_META_KEY: {}}
    params = f'{{"name": "fetch", "arguments": {{"a": {value}}}, "_meta": {json.dumps(meta)}}}'
    body = f'{{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {params}}}'
    headers = {"Mcp-Protocol-Version": version, "Mcp-Method": "tools/call", "Mcp-Name": "fetch"}
    async with httpx2.AsyncClient(timeout=PATIENCE_SECONDS, trust_env=False) as http:
        answer = await post(http, proxy, headers, body.encode())
    if answer.status_code == 200:
        result = answer.json()["result"]
        assert (result["isError"], result["_meta"][ERROR_KEY]) == (True, "invalid_argument")
    else:
        # The SDK has refused it already.
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, PARSE_ERROR)


async def post(
    http: httpx2.AsyncClient,
    proxy: OpenProxy,
    headers: Mapping[str, str] = MappingProxyType({}),
    body: bytes = LIST,
) -> httpx2.Response:
    fields = {
        "Authorization": f"Bearer {proxy.run_token}",
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        **headers,
    }
    return await http.post(proxy.url, content=body, headers=fields)
