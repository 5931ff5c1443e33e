"""What is answered to one message of the agent's MCP client? Held against the SDK's own rules."""

import asyncio
import json
import logging
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from mcp.shared.inbound import InboundLadderRejection, classify_inbound_request, encode_header_value
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    PROTOCOL_VERSION_META_KEY,
    UNSUPPORTED_PROTOCOL_VERSION,
    CallToolRequestParams,
    CallToolResult,
    Implementation,
    ListToolsResult,
    TextContent,
    Tool,
)
from mcp_types.methods import validate_server_result
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, LATEST_HANDSHAKE_VERSION, MODERN_PROTOCOL_VERSIONS

from agent_health.adapter.proxy_answers import NoSuchTool, ProxyAnswers, Reply, envelope_fault

MODERN = MODERN_PROTOCOL_VERSIONS[-1]
DEEP = b"[" * 20_000 + b"]" * 20_000
ASKED_TO_SHAKE = {"capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}


class Echo:
    """Tools that are there: one, which says what it was called with."""

    async def list(self) -> ListToolsResult:
        return ListToolsResult(tools=[Tool(name="echo", input_schema={"type": "object"})])

    async def call(self, asked: CallToolRequestParams) -> CallToolResult:
        if asked.name == "broken":
            raise RuntimeError("a secret")
        if asked.name != "echo":
            raise NoSuchTool("there is only echo")
        said = TextContent(type="text", text="said")
        arguments = asked.arguments or {}
        content = arguments.get("all", {"said": arguments, "none": None})
        return CallToolResult(content=[said], structured_content=content)


ANSWERS = ProxyAnswers(Echo(), Implementation(name="tools", version="1"), "Say it.")


def reply_to(body: bytes, headers: dict[str, str] | None = None) -> Reply:
    return asyncio.run(ANSWERS.reply(body, headers or {}))


def handshake(method: str, params: Any = None, **headers: str) -> dict[str, Any]:
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params or {}}).encode()
    reply = reply_to(body, headers)
    assert reply.status == 200
    answer: dict[str, Any] = json.loads(reply.body)
    assert (answer["jsonrpc"], answer["id"]) == ("2.0", 1)
    return answer


def modern(method: str, params: Any = None, version: str = MODERN, **headers: str) -> tuple[int, Any]:
    meta = {PROTOCOL_VERSION_META_KEY: version, CLIENT_CAPABILITIES_META_KEY: {}}
    said = {"_meta": meta, **(params or {})}
    body = json.dumps({"jsonrpc": "2.0", "id": "a", "method": method, "params": said}).encode()
    fields = {"mcp-protocol-version": version, "mcp-method": method, **headers}
    if "name" in said:
        fields.setdefault("mcp-name", encode_header_value(said["name"]))
    reply = reply_to(body, fields)
    return reply.status, json.loads(reply.body)


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        *((version, version) for version in HANDSHAKE_PROTOCOL_VERSIONS),
        ("1999-01-01", LATEST_HANDSHAKE_VERSION),
    ],
)
def test_a_handshake_is_taken_in_the_version_that_both_know(wanted: str, told: str) -> None:
    result = handshake("initialize", {"protocolVersion": wanted, **ASKED_TO_SHAKE})["result"]
    assert result["protocolVersion"] == told
    assert result["instructions"] == "Say it."
    validate_server_result("initialize", told, result)


@pytest.mark.parametrize("version", HANDSHAKE_PROTOCOL_VERSIONS)
def test_what_is_told_after_a_handshake_is_what_its_version_knows(version: str) -> None:
    fields = {"mcp-protocol-version": version}
    assert handshake("ping", **fields)["result"] == {}
    listed = handshake("tools/list", **fields)["result"]
    assert listed == {"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]}
    validate_server_result("tools/list", version, listed)
    called = handshake("tools/call", {"name": "echo", "arguments": {"word": "hé"}}, **fields)["result"]
    assert called["structuredContent"] == {"said": {"word": "hé"}, "none": None}
    validate_server_result("tools/call", version, called)


def test_what_is_told_without_a_handshake_is_what_the_newest_version_asks_for() -> None:
    for method, params in (
        ("server/discover", {}),
        ("tools/list", {}),
        ("tools/call", {"name": "echo", "arguments": {}}),
    ):
        status, answer = modern(method, params)
        assert (status, answer["id"]) == (200, "a")
        assert "io.modelcontextprotocol/serverInfo" in answer["result"]["_meta"]
        validate_server_result(method, MODERN, answer["result"])


def test_content_that_is_no_object_is_told_to_those_who_know_of_such() -> None:
    params = {"name": "echo", "arguments": {"all": [1, 2]}}
    called = handshake("tools/call", params)["result"]
    assert called["content"][0]["text"] == "said"
    assert "structuredContent" not in called
    validate_server_result("tools/call", LATEST_HANDSHAKE_VERSION, called)
    assert modern("tools/call", params)[1]["result"]["structuredContent"] == [1, 2]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", PARSE_ERROR),
        (b"{", PARSE_ERROR),
        (b"\xff", PARSE_ERROR),
        (DEEP, PARSE_ERROR),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {"a": NaN}}', PARSE_ERROR),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {"a": [1e400]}}', PARSE_ERROR),
        (b"7", INVALID_REQUEST),
        (b'[{"jsonrpc": "2.0", "id": 1, "method": "ping"}]', INVALID_REQUEST),
        (b'{"jsonrpc": "2.0", "id": 1, "result": {}}', INVALID_REQUEST),
        (b'{"jsonrpc": "2.0", "id": 1.5, "method": "ping"}', INVALID_REQUEST),
        (b'{"jsonrpc": "2.0", "id": null, "method": "ping"}', INVALID_REQUEST),
        (b'{"jsonrpc": "1.0", "id": 1, "method": "ping"}', INVALID_REQUEST),
        (b'{"jsonrpc": "2.0", "method": 7}', INVALID_REQUEST),
    ],
)
def test_what_is_no_message_is_told_so(body: bytes, code: int) -> None:
    reply = reply_to(body)
    answer = json.loads(reply.body)
    assert (reply.status, answer["id"], answer["error"]["code"]) == (400, None, code)


def test_a_notification_is_taken_and_changes_nothing() -> None:
    said = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
    assert reply_to(json.dumps(said).encode()) == Reply(202)


@pytest.mark.parametrize(
    ("method", "params", "code"),
    [
        ("tools/call", {"name": "absent"}, INVALID_PARAMS),
        ("tools/call", {}, INVALID_PARAMS),
        ("tools/call", {"name": "echo", "arguments": []}, INVALID_PARAMS),
        ("tools/call", {"name": "broken"}, INTERNAL_ERROR),
        ("prompts/list", {}, METHOD_NOT_FOUND),
    ],
)
def test_what_cannot_be_answered_is_an_error_in_either_age(
    method: str, params: dict[str, Any], code: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    error = handshake(method, params)["error"]
    assert error["code"] == code
    assert "a secret" not in str(error)
    status, answer = modern(method, params)
    assert answer["error"] == error
    assert status == {INTERNAL_ERROR: 200, METHOD_NOT_FOUND: 404}.get(code, 400)


def test_neither_age_has_the_methods_of_the_other() -> None:
    assert handshake("server/discover")["error"]["code"] == METHOD_NOT_FOUND
    for method in ("initialize", "ping"):
        assert modern(method)[0] == 404


def test_a_version_that_nobody_knows_is_refused_with_those_that_are_known() -> None:
    status, answer = modern("tools/list", version="2099-01-01")
    assert (status, answer["error"]["code"]) == (400, UNSUPPORTED_PROTOCOL_VERSION)
    assert {MODERN, LATEST_HANDSHAKE_VERSION} < set(answer["error"]["data"]["supported"])


def test_a_fault_of_ours_stands_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    handshake("tools/call", {"name": "broken"})
    assert "tools/call failed" in caplog.text


encoded = "=?base64?w6k=?="
names = st.sampled_from(["echo", "é", encoded, 7, None])
values = st.sampled_from([MODERN, "2099-01-01", "tools/call", "tools/list", "echo", encoded, "=?base64?%?="])
keys: dict[str, st.SearchStrategy[Any]] = {
    PROTOCOL_VERSION_META_KEY: values | st.just(7),
    CLIENT_CAPABILITIES_META_KEY: st.just({}),
}
repeats = dict.fromkeys(["mcp-protocol-version", "mcp-method", "mcp-name"], values)


@given(
    method=st.sampled_from(["tools/call", "tools/list", "x"]),
    params=st.fixed_dictionaries({}, optional={"name": names}),
    meta=st.none() | st.fixed_dictionaries({}, optional=keys),
    headers=st.fixed_dictionaries({}, optional=repeats),
)
@example(
    method="tools/call",
    params={"name": "é"},
    meta={PROTOCOL_VERSION_META_KEY: MODERN, CLIENT_CAPABILITIES_META_KEY: {}},
    headers={"mcp-protocol-version": MODERN, "mcp-method": "tools/call", "mcp-name": "=?base64?w6k=?="},
)
def test_an_envelope_is_judged_as_the_sdk_does(
    method: str, params: dict[str, Any], meta: dict[str, Any] | None, headers: dict[str, str]
) -> None:
    said = {**params, **({} if meta is None else {"_meta": meta})}
    verdict = classify_inbound_request({"method": method, "params": said}, headers=headers)
    fault = envelope_fault(method, said, headers)
    expected = verdict.code if isinstance(verdict, InboundLadderRejection) else None
    assert (None if fault is None else fault.code) == expected


@given(st.binary(max_size=200), st.dictionaries(st.just("mcp-protocol-version"), st.text()))
def test_whatever_comes_is_answered(body: bytes, headers: dict[str, str]) -> None:
    reply = reply_to(body, headers)
    assert reply.status in {200, 202, 400, 404}
    assert (reply.status == 202) == (reply.body == b"")
