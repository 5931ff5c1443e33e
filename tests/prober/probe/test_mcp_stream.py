"""MCP servers of 2024-11-05, on real sockets."""

from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from mcp.server.mcpserver import MCPServer
from mcp.types import ToolAnnotations
from tests.prober.probe.test_mcp_server import DAY_S
from tests.support.mcp_stream_server import Answer, StreamServer, old, streaming
from tests.support.probing import SHORT_SECONDS, layer, probing, results
from tests.support.uvicorn_thread import served
from tests.support.virtual_loop import with_sockets_in_virtual_time

from lifesign.domain.mcp.conversation import Generation
from lifesign.domain.observation.login import METADATA_PATH
from lifesign.domain.observation.probe_memory import ProbeMemory
from lifesign.domain.observation.results import Observation, ResultClass
from lifesign.prober.probe.mcp_server import RETRY_DISCOVERY_SECONDS
from lifesign.prober.probe.mcp_stream import MAX_STREAM_BYTES

ASK: dict[str, Any] = {"health": False, "tools": True}


async def probe_once(serving: StreamServer, **settings: Any) -> Observation:
    target = {"url": serving.url, "kind": "mcp", "ask": ASK}
    async with probing(targets=[target], **settings) as probes:
        return await probes.see(serving.url)


@with_sockets_in_virtual_time
async def test_assertions_check_the_answer_in_the_stream() -> None:
    def called(message: dict[str, Any]) -> dict[str, Any] | None:
        if message["method"] != "tools/call":
            return old(message)
        return {"jsonrpc": "2.0", "id": message["id"], "result": {"content": []}}

    checks = [
        {"of": "card", "pointer": "/serverInfo/name", "equals": "old"},
        {"of": "card", "text_contains": "serverInfo"},
        {"of": "card", "status": 202},
        {"of": "tool", "latency_below": "500ms"},
        {"of": "tool", "latency_below": "1s"},
    ]
    async with streaming(called) as serving:
        serving.delay_s = 0.5
        ask = ASK | {"call": {"tool": "a", "allow_side_effects": True}}
        target = {"url": serving.url, "kind": "mcp", "ask": ask, "assertions": checks}
        async with probing(targets=[target]) as probes:
            seen = await probes.see(serving.url)
    assert [each.result for each in seen.assertions or ()] == ["ok", "ok", "ok", "assertion_failed", "ok"]


CONVERSATION = ["GET", "initialize", "notifications/initialized", "ping", "tools/list"]


async def test_server_that_answers_in_an_event_stream_is_measured_within_the_bound_of_requests() -> None:
    async with streaming(old) as serving:
        observation = await probe_once(serving)
    assert serving.asked == ["/sse server/discover", "/sse initialize", *CONVERSATION]
    assert len(serving.asked) <= 9
    assert results(observation) == {"discovery": "ok", "transport": "ok"}
    assert layer(observation.discovery).reason == "MCP 2024-11-05: old"
    assert layer(observation.tools).reason == "1 tool"


async def test_event_stream_transport_is_stored_for_a_day_and_redetected_after_a_failure() -> None:
    async with streaming(old) as serving:
        target = {"url": serving.url, "kind": "mcp", "ask": ASK}
        async with probing(targets=[target]) as probes:
            await probes.see(serving.url, at_s=DAY_S)
            assert probes.memory.mcp_generation is Generation.EVENT_STREAM
            serving.asked.clear()
            report = await probes.report(serving.url, at_s=DAY_S + 60)
            assert serving.asked == CONVERSATION
            assert report.requests == len(CONVERSATION)
            serving.asked.clear()
            await probes.see(serving.url, at_s=DAY_S + 60 + RETRY_DISCOVERY_SECONDS)
            assert serving.asked[0] == "/sse server/discover"
            serving.asked.clear()
            serving.endpoint = "https://other.example/messages"
            failed = await probes.see(serving.url, at_s=DAY_S + 120 + RETRY_DISCOVERY_SECONDS)
    assert serving.asked[:2] == ["GET", "/sse server/discover"]
    assert failed.is_measured_failure


@pytest.mark.parametrize("generation", list(Generation))
async def test_known_mcp_server_that_is_gone_is_a_failure(generation: Generation) -> None:
    async with streaming(old) as serving:
        url = serving.url
    async with probing(targets=[{"url": url, "kind": "mcp", "ask": ASK}]) as probes:
        probes.memory = ProbeMemory(mcp_generation=generation, mcp_generation_at_s=DAY_S)
        observation = await probes.see(url, at_s=DAY_S + 60)
    assert results(observation) == {"discovery": "refused"}


@pytest.mark.parametrize(
    "endpoint",
    [
        "https://other.example/messages",
        "http://127.0.0.1:1/messages",
        "//other.example/messages",
        "http://user:secret@127.0.0.1/messages",
        "ftp://127.0.0.1/",
        "x" * 5_000,
    ],
)
async def test_endpoint_on_another_origin_gets_no_request(endpoint: str) -> None:
    async with streaming(old, endpoint) as serving:
        observation = await probe_once(serving)
    assert "initialize" not in serving.asked
    assert results(observation) == {"discovery": "invalid_document"}


async def test_stream_without_an_endpoint_event_times_out() -> None:
    async with streaming(old, "") as serving:
        observation = await probe_once(
            serving, timeouts={"first_byte_seconds": 1, "total_seconds": SHORT_SECONDS}
        )
    assert observation.is_measured_failure


async def test_endless_stream_is_bounded_in_bytes() -> None:
    async with streaming(old, "", first=b"data: x\n\n" * (MAX_STREAM_BYTES // 9 + 1)) as serving:
        observation = await probe_once(serving)
    assert results(observation) == {"discovery": "too_large"}


@pytest.mark.parametrize(
    "expected",
    [
        lambda _: None,
        lambda message: {"jsonrpc": "2.0", "id": str(message.get("id")), "result": {}},
        lambda message: [{"jsonrpc": "2.0", "id": message.get("id", 0) + 1, "result": {}}] * 10_000,
    ],
)
async def test_stream_without_an_answer_times_out(expected: Answer) -> None:
    async with streaming(expected) as serving:
        observation = await probe_once(
            serving, timeouts={"first_byte_seconds": 1, "total_seconds": SHORT_SECONDS}
        )
    assert results(observation) == {"discovery": "timeout"}


async def test_server_on_the_python_sdk_over_http_with_sse() -> None:
    called: list[str] = []
    server = MCPServer("tools")

    @server.tool(annotations=ToolAnnotations(read_only_hint=True))
    def search(q: str) -> str:
        called.append(q)
        return f"result for {q}"

    with served(lambda _: server.sse_app()) as origin:
        url = f"{origin}/sse"
        ask = ASK | {"call": {"tool": "search", "arguments": {"q": "x"}}}
        check = {"of": "tool", "text_contains": "result for x"}
        target = {"url": url, "kind": "mcp", "ask": ask, "assertions": [check]}
        async with probing(targets=[target]) as probes:
            observation = await probes.see(url)
            assert probes.memory.mcp_generation is Generation.EVENT_STREAM
    assert called == ["x"]
    assert layer(observation.message).result is ResultClass.OK
    assert [each.result for each in observation.assertions or ()] == ["ok"]


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        (b"data: %s\n\n", "ok"),
        (b"event:message\r\nid: 1\r\nretry: 5\r\n: note\r\ndata:%s\r\n\r\n", "ok"),
        (b"event: other\ndata: {}\n\nevent: message\ndata: %s\n\n", "ok"),
        (b"event: endpoint\ndata: https://other.example/\n\ndata: %s\n\n", "ok"),
        (b"event: other\ndata: %s\n\n", "timeout"),
        (b"event: endpoint\ndata: %s\n\n", "timeout"),
        (b"event: error\ndata: %s\n\n", "timeout"),
    ],
)
async def test_only_an_event_of_the_default_name_is_an_answer(form: bytes, expected: str) -> None:
    async with streaming(old) as serving:
        serving.wrap = form.__mod__
        limits = {"first_byte_seconds": 1, "total_seconds": SHORT_SECONDS}
        observation = await probe_once(serving, **({} if expected == "ok" else {"timeouts": limits}))
    assert layer(observation.discovery).result == expected


async def test_endpoint_that_repeats_the_key_is_requested_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAM_KEY", "key-0123456789")
    async with streaming(old, "/messages?key=key-0123456789") as serving:
        origin = serving.url.removesuffix("/sse")
        api_key = {"value": {"env": "STREAM_KEY"}, "place": "query", "name": "key"}
        credential = {"name": "acme", "origin": origin, "api_key": api_key}
        target = {"url": serving.url, "kind": "mcp", "ask": ASK}
        async with probing(targets=[target], credentials=[credential]) as probes:
            report = await probes.report(serving.url)
        posts = [request for request in probes.witness.requests if request.url.path == "/messages"]
        # Its name may lead to a public address by now.
        assert posts
        assert all(request.has_secret for request in posts)
        assert serving.queries[-1].startswith("key=key-0123456789")
    assert results(report.observation) == {"discovery": "ok", "transport": "ok"}
    assert report.contact.answered is not None
    # It would be requested again as a witness.
    for shown in (report.observation.model_dump_json(), report.contact.answered.url):
        assert "key-0123456789" not in shown


@pytest.mark.parametrize("path", [None, "/sse"])
@pytest.mark.parametrize("encode", [str, quote, lambda text: b64encode(text.encode()).decode()])
async def test_a_secret_in_an_event_is_removed_before_the_event_is_read(
    tmp_path: Path, encode: Callable[[str], str], path: str | None
) -> None:
    secret = "canary/" + "s3cr3t+" * 40
    (tmp_path / "token").touch(mode=0o600)
    (tmp_path / "token").write_text(secret)

    def echoing(message: dict[str, Any]) -> dict[str, Any] | None:
        reply = old(message)
        if reply is not None and message["method"] == "tools/list":
            # Longer than any name that is stored.
            reply["result"]["tools"] = [{"name": f"a{encode(secret)}", "description": encode(secret)}]
        if reply is not None and message["method"] == "initialize":
            reply["result"]["serverInfo"]["name"] = encode(secret)
        return reply

    async with streaming(echoing, "/sse/messages") as serving:
        origin = serving.url.removesuffix("/sse")
        place = {"path": path} if path else {}
        bearer = {"file": str(tmp_path / "token")}
        credential = {"name": "acme", "origin": origin, **place, "bearer": bearer}
        target = {"url": serving.url, "kind": "mcp", "ask": ASK}
        async with probing(targets=[target], credentials=[credential]) as probes:
            report = await probes.report(serving.url)
    assert "REMOVED-SECRET" in layer(report.observation.discovery).reason
    assert report.interface is None
    for shown in (report.observation.model_dump_json(), report.memory.to_json()):
        assert encode(secret)[8:16] not in shown


async def test_stream_is_not_compared_with_the_secret_of_an_endpoint_that_it_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server of the stream could otherwise guess a secret that it never receives."""
    monkeypatch.setenv("STREAM_KEY", "key-0123456789")

    def guessing(message: dict[str, Any]) -> dict[str, Any] | None:
        reply = old(message)
        if reply is not None and message["method"] == "initialize":
            reply["result"]["serverInfo"]["name"] = "key-0123456789"
        return reply

    async with streaming(guessing, "/sse/messages") as serving:
        origin, key = serving.url.removesuffix("/sse"), {"env": "STREAM_KEY"}
        credential = {"name": "acme", "origin": origin, "path": "/sse/messages", "bearer": key}
        observation = await probe_once(serving, credentials=[credential])
        assert not any("key-0123456789" in head for head in serving.heads)
    assert layer(observation.discovery).reason == "MCP 2024-11-05: key-0123456789"


async def test_endpoint_that_repeats_the_key_of_another_path_gets_no_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("STREAM_KEY", "key-0123456789")
    async with streaming(old, "/other/messages?key=key-0123456789") as serving:
        api_key = {"value": {"env": "STREAM_KEY"}, "place": "query", "name": "key"}
        origin = serving.url.removesuffix("/sse")
        credential = {"name": "acme", "origin": origin, "path": "/sse", "api_key": api_key}
        observation = await probe_once(serving, credentials=[credential])
    assert not any("/other" in head for head in serving.heads)
    assert results(observation) == {"discovery": "not_measured"}
    assert "contains a secret" in layer(observation.discovery).reason


async def test_key_in_the_path_of_the_endpoint_is_not_sent_with_a_request_for_metadata(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("STREAM_KEY", "key-0123456789")
    async with streaming(old, "/key-0123456789/messages") as serving:
        serving.status = "401 Unauthorized\r\nWWW-Authenticate: Bearer"
        origin = serving.url.removesuffix("/sse")
        credential = {"name": "acme", "origin": origin, "bearer": {"env": "STREAM_KEY"}}
        await probe_once(serving, credentials=[credential])
    metadata = [head.split(" ")[1] for head in serving.heads if METADATA_PATH in head]
    assert metadata == [METADATA_PATH]


async def test_endpoint_with_a_credential_that_the_stream_lacks_is_gated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("STREAM_KEY", "key-0123456789")
    async with streaming(old, "/sse/messages") as serving:
        serving.status = "401 Unauthorized"
        origin, key = serving.url.removesuffix("/sse"), {"env": "STREAM_KEY"}
        credential = {"name": "acme", "origin": origin, "path": "/sse/messages", "bearer": key}
        observation = await probe_once(serving, credentials=[credential])
    assert results(observation) == {"discovery": "gated", "transport": "gated"}
    assert "credential acme" in layer(observation.discovery).reason
