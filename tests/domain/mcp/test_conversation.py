import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.properties import examples

from lifesign.domain.mcp.conversation import (
    CURRENT_VERSION,
    EVENT_STREAM,
    FIRST_ID,
    HANDSHAKE_VERSION,
    MAX_CODE,
    MAX_EVENTS,
    NO_REPLY,
    Generation,
    McpReply,
    McpSession,
    discover_request,
    initialize_request,
    initialized_notification,
    initialized_version,
    is_discovered,
    may_be_older,
    offered_version,
    ping_request,
    read_reply,
    server_name,
    usable_session,
)

JSON = "application/json"
DISCOVERED = {"supportedVersions": [CURRENT_VERSION], "capabilities": {}}


def answer(**members: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": FIRST_ID, **members}).encode()


def event(data: bytes) -> bytes:
    return b"event: message\ndata: " + data + b"\n\n"


def refusal(code: int, data: object = None) -> McpReply:
    return McpReply(code=code, error_data=data)


def test_requests_name_method_version_and_client() -> None:
    sent = discover_request()
    assert sent.headers["Mcp-Method"] == "server/discover"
    assert sent.headers["MCP-Protocol-Version"] == CURRENT_VERSION
    call = json.loads(sent.body)
    assert call["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] == CURRENT_VERSION
    assert call["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"] == {}
    assert json.loads(initialize_request().body)["params"]["protocolVersion"] == HANDSHAKE_VERSION
    assert "MCP-Protocol-Version" not in initialize_request().headers


def test_session_is_sent_only_if_there_is_one() -> None:
    with_id = McpSession(Generation.HANDSHAKE, "2025-06-18", "abc")
    without = McpSession(Generation.HANDSHAKE, "2025-06-18")
    assert initialized_notification(with_id).headers["Mcp-Session-Id"] == "abc"
    assert "id" not in json.loads(initialized_notification(without).body)
    assert "Mcp-Session-Id" not in ping_request(without, request_id=2).headers
    assert ping_request(without, request_id=2).headers["MCP-Protocol-Version"] == "2025-06-18"


def test_requests_of_a_handshake_have_no_meta_and_their_own_ids() -> None:
    sent = ping_request(McpSession(Generation.HANDSHAKE, "2025-06-18"), request_id=7)
    assert json.loads(sent.body) == {"jsonrpc": "2.0", "id": 7, "method": "ping"}
    assert sent.request_id == 7
    assert read_reply(JSON, answer(result={}), 7) == NO_REPLY


@pytest.mark.parametrize("code", ["x", 1.5, True, None, MAX_CODE, -(10**4000)])
def test_unusable_code_of_an_error_is_zero(code: object) -> None:
    assert read_reply(JSON, answer(error={"code": code})).code == 0


@pytest.mark.parametrize("content_type", [JSON, EVENT_STREAM])
def test_reply_is_read_from_json_and_from_events(content_type: str) -> None:
    body = answer(result=DISCOVERED)
    body = body if content_type == JSON else event(b'{"jsonrpc":"2.0","method":"x"}') + event(body)
    assert read_reply(content_type, body).result == DISCOVERED


@pytest.mark.parametrize(
    "message",
    [
        {"id": str(FIRST_ID), "result": {}},
        {"id": float(FIRST_ID), "result": {}},
        {"id": True, "result": {}},
        {"id": None, "result": {}},
        {"id": FIRST_ID + 1, "result": {}},
        {"id": FIRST_ID, "method": "ping", "result": {}},
        {"id": FIRST_ID, "result": []},
        {"id": FIRST_ID},
        {"id": FIRST_ID, "jsonrpc": "1.0", "result": {}},
    ],
)
def test_other_messages_are_no_reply(message: dict[str, Any]) -> None:
    assert read_reply(JSON, json.dumps({"jsonrpc": "2.0", **message}).encode()) == NO_REPLY


def test_reply_is_found_in_a_batch() -> None:
    batch = [{"jsonrpc": "2.0", "id": number, "result": {"n": number}} for number in range(5)]
    assert read_reply(JSON, json.dumps(batch).encode()).result == {"n": FIRST_ID}
    others = [{"jsonrpc": "2.0", "id": -1, "result": {}}] * 10_000
    assert read_reply(JSON, json.dumps(others).encode()) == NO_REPLY


def test_reply_behind_too_many_notifications_is_not_read() -> None:
    note = event(b'{"jsonrpc":"2.0","method":"notifications/message"}')
    last = event(answer(result={}))
    assert read_reply(EVENT_STREAM, note * (MAX_EVENTS - 1) + last).is_answer
    assert read_reply(EVENT_STREAM, note * MAX_EVENTS + last) == NO_REPLY


@given(st.sampled_from([JSON, EVENT_STREAM, "text/html", ""]), st.binary(max_size=400))
@settings(max_examples=examples(200))
def test_any_reply_bytes_are_read_without_an_exception(content_type: str, body: bytes) -> None:
    read_reply(content_type, body)
    read_reply(content_type, event(body))


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=12), inner, max_size=3),
    max_leaves=8,
)
_NAMES = ("supportedVersions", "protocolVersion", "capabilities", "serverInfo", "_meta", "code", "data")


@given(st.dictionaries(st.sampled_from(_NAMES), _VALUES), st.sampled_from(["result", "error"]))
@settings(max_examples=examples(200))
def test_any_reply_value_is_read_without_an_exception(members: dict[str, Any], kind: str) -> None:
    reply = read_reply(JSON, answer(**{kind: members}))
    is_discovered(reply)
    version = initialized_version(reply)
    assert version is None or version.isascii()
    offered_version(reply)
    assert len(server_name(reply)) <= 200


@pytest.mark.parametrize(
    ("result", "is_valid"),
    [
        (DISCOVERED, True),
        ({"supportedVersions": []}, False),
        ({"supportedVersions": [1]}, False),
        ({"supportedVersions": "x"}, False),
        ({}, False),
    ],
)
def test_discovery_names_a_version(result: dict[str, Any], *, is_valid: bool) -> None:
    assert is_discovered(McpReply(result=result)) == is_valid


@pytest.mark.parametrize("version", ["", "x" * 33, "2025\n06", "2025-06-18é", 20250618, None])
def test_unusable_version_of_a_handshake_is_refused(version: object) -> None:
    assert initialized_version(McpReply(result={"protocolVersion": version, "capabilities": {}})) is None


def test_valid_handshake_gives_its_version() -> None:
    result = {"protocolVersion": "2025-06-18", "capabilities": {}}
    assert initialized_version(McpReply(result=result)) == "2025-06-18"
    assert initialized_version(McpReply(result={"protocolVersion": "2025-06-18"})) is None


@pytest.mark.parametrize(
    ("data", "version"),
    [
        ({"supported": ["2026-07-28", "2027-01-01"]}, "2027-01-01"),
        ({"supported": ["2025-11-25"]}, None),
        ({"supported": ["zzzz-zz-zz", 7, None]}, None),
        ({"supported": "2027-01-01"}, None),
        (None, None),
    ],
)
def test_refused_version_is_replaced_by_one_that_is_offered(data: object, version: str | None) -> None:
    assert offered_version(refusal(-32022, data)) == version
    assert offered_version(refusal(-32601, data)) is None


@pytest.mark.parametrize(
    ("status", "body", "reply", "is_older"),
    [
        (200, b"{}", refusal(-32601), True),
        (200, b"{}", McpReply(result={"other": 1}), True),
        (200, b"<html>", NO_REPLY, True),
        (400, b"", NO_REPLY, True),
        (404, b"", NO_REPLY, True),
        (405, b"", NO_REPLY, True),
        (406, b"", NO_REPLY, True),
        (415, b"", NO_REPLY, True),
        (500, b"oops", NO_REPLY, True),
        (500, b"", NO_REPLY, False),
        (401, b"x", NO_REPLY, False),
        (403, b"x", NO_REPLY, False),
        (429, b"x", NO_REPLY, False),
        (400, b"x", refusal(-32020), False),
        (400, b"x", refusal(-32021), False),
        (400, b"x", refusal(-32022), False),
        (200, b"x", McpReply(result=DISCOVERED), False),
    ],
)
def test_older_mcp_server_is_suspected_by_status_body_and_error_code(
    status: int, body: bytes, reply: McpReply, *, is_older: bool
) -> None:
    assert may_be_older(status, body, reply) == is_older


def test_name_of_a_server_is_printable_and_bounded() -> None:
    info = {"name": "n" * 1_000, "version": "1\x1b[31m\n"}
    name = server_name(McpReply(result={"serverInfo": info}))
    assert name.isprintable()
    assert len(name) < 100
    meta = {"_meta": {"io.modelcontextprotocol/serverInfo": {"name": "a", "version": "2"}}}
    assert server_name(McpReply(result=meta)) == "a 2"
    assert server_name(NO_REPLY) == ""


@pytest.mark.parametrize(
    ("given_id", "usable"), [("abc", "abc"), ("", None), ("a b", None), ("x" * 513, None), ("é", None)]
)
def test_unusable_mcp_session_id_is_ignored(given_id: str, usable: str | None) -> None:
    assert usable_session(given_id) == usable
