"""How is a request counted whose failure stands inside HTTP 200? (protocol.md section 2; B11)"""

import gzip
import json
from typing import Any

import pytest
from tests.support.scripted import (
    EVENTS,
    JSON,
    PATHSEND,
    PLAIN,
    RECEIVE,
    ZEROCOPY,
    Server,
    Step,
    call,
    chunk,
    final,
    http_scope,
    play,
    request,
    start,
)

HEALTH_LIMIT = 32_768
FAULT = b'{"jsonrpc":"2.0","id":1,"error":{"code":-32603,"message":"model down"}}'
RESULT = b'{"jsonrpc":"2.0","id":1,"result":{}}'
FAILED = b'{"jsonrpc":"2.0","id":1,"result":{"task":{"status":{"state":"TASK_STATE_FAILED"}}}}'
FAILED_REST = b'{"task":{"status":{"state":"TASK_STATE_FAILED"}}}'


def error(code: int) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 1, "error": {"code": code, "message": "no"}}).encode()


def event(data: bytes, name: bytes = b"") -> bytes:
    return (b"event: %s\r\n" % name if name else b"") + b"data: %s\r\n\r\n" % data


def working(text: str = "...") -> bytes:
    update = {"artifactUpdate": {"artifact": {"parts": [{"text": text}]}}}
    return event(json.dumps({"jsonrpc": "2.0", "id": 1, "result": update}).encode())


async def answered(
    body: bytes | list[bytes],
    headers: dict[str, str],
    *,
    asked: Any = None,
    status: int = 200,
    scope: Any = None,
    **settings: Any,
) -> str:
    """Count one answer whose body comes in one message, or in several with an empty last one."""
    bodies: list[Step] = [final(body)] if isinstance(body, bytes) else [*map(chunk, body), final()]
    steps: list[Step] = [RECEIVE, start(status, headers), *bodies]
    played = await play(steps, server=Server(asked or call()), scope=scope, **settings)
    assert played.error is None
    return played.outcome


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        (-32700, "no_operation"),
        (-32600, "no_operation"),
        (-32601, "no_operation"),
        (-32602, "caller_fault"),
        (-32001, "caller_fault"),
        (-32005, "caller_fault"),
        (-32007, "caller_fault"),
        (-32009, "caller_fault"),
        (-32603, "server_fault"),
        (-32006, "server_fault"),
        (-32000, "server_fault"),
        (1, "server_fault"),
    ],
)
async def test_a_json_rpc_error_counts_by_its_code_in_json_and_in_events(code: int, outcome: str) -> None:
    body = error(code)
    assert await answered(body, JSON) == outcome
    assert await answered([body[:10], body[10:]], JSON) == outcome
    assert await answered(event(body), EVENTS) == outcome
    assert await answered([working(), event(body)], EVENTS) == outcome


@pytest.mark.parametrize(
    "headers",
    [
        {"content-type": "application/json"},
        {"content-type": "application/json; charset=utf-8"},
        {"content-type": "Application/JSON"},
        {"content-type": "application/a2a+json"},
        {"x-first": "1", "content-type": "application/json"},
        {"content-type": "application/json", "content-encoding": "identity"},
        {"Content-Type": "application/json"},
    ],
)
async def test_json_is_recognised_in_every_spelling(headers: dict[str, str]) -> None:
    """The last is Django's, which writes the names of headers as people do, not as ASGI asks for."""
    assert await answered(FAULT, headers) == "server_fault"


@pytest.mark.parametrize("name", ["Content-Encoding", "content-encoding"])
@pytest.mark.parametrize("encoding", ["gzip", "br", "zstd", "GZIP"])
async def test_what_the_app_compressed_is_a_response_that_was_not_inspected(name: str, encoding: str) -> None:
    assert await answered(gzip.compress(FAULT), JSON | {name: encoding}) == "uninspected"
    assert await answered([gzip.compress(event(FAULT))], EVENTS | {name: encoding}) == "uninspected"


@pytest.mark.parametrize("method", ["SendMessage", "message/send", "tasks/send"])
async def test_a_failed_task_in_the_answer_to_a_send_is_an_error(method: str) -> None:
    assert await answered(FAILED, JSON, asked=call(method)) == "task_failed"
    assert await answered([working(), event(FAILED)], EVENTS, asked=call(method)) == "task_failed"


@pytest.mark.parametrize(
    "method", ["GetTask", "tasks/get", "ListTasks", "SubscribeToTask", "tasks/resubscribe"]
)
async def test_a_failed_task_in_the_answer_to_a_poll_is_a_good_answer(method: str) -> None:
    assert await answered(FAILED, JSON, asked=call(method)) == "answered"
    assert await answered([event(FAILED)], EVENTS, asked=call(method)) == "answered"


@pytest.mark.parametrize(
    ("method", "path", "outcome"),
    [
        ("POST", "/v1/message:send", "task_failed"),
        ("POST", "/v1/message:stream", "task_failed"),
        ("GET", "/v1/tasks/7", "answered"),
        ("GET", "/v1/tasks", "answered"),
        ("POST", "/v1/tasks/7:subscribe", "answered"),
    ],
)
async def test_the_rest_binding_tells_sends_from_polls_by_the_path(
    method: str, path: str, outcome: str
) -> None:
    scope = http_scope(path, method)
    asked = request(b'{"message":{}}')
    assert await answered(FAILED_REST, JSON, asked=asked, scope=scope) == outcome


async def test_a_call_in_many_messages_is_read_as_one() -> None:
    body = call("GetTask")["body"]
    parts = [request(body[at : at + 1], more_body=True) for at in range(len(body))]
    steps: list[Step] = [*[RECEIVE for _ in parts], RECEIVE, start(headers=JSON), final(FAILED)]
    assert (await play(steps, server=Server(*parts, request()))).outcome == "answered"


async def test_a_failed_task_is_the_agents_where_the_call_was_too_long_to_be_kept() -> None:
    long = call("GetTask", params="x" * HEALTH_LIMIT)
    assert await answered(FAILED, JSON, asked=long) == "task_failed"


@pytest.mark.parametrize(
    "body",
    [
        RESULT,
        b'{"jsonrpc":"2.0","id":1,"result":{"error":{"code":-32603}}}',
        b'{"jsonrpc":"2.0","id":1,"result":{"text":"\\"error\\": -32603"}}',
        b'{"error":"what an app of its own calls so"}',
        b"[]",
        b'"error"',
        b"null",
    ],
)
async def test_an_error_is_looked_for_at_the_top_of_json_rpc_only(body: bytes) -> None:
    assert await answered(body, JSON) == "answered"


@pytest.mark.parametrize("headers", [PLAIN, {"content-type": "text/html"}, {}])
async def test_what_claims_to_be_no_json_is_not_read(headers: dict[str, str]) -> None:
    assert await answered(FAULT, headers) == "answered"
    assert await answered([FAULT], headers) == "answered"


@pytest.mark.parametrize("data", [b"", b"boom", b"{}", b'{"error":"boom"}', FAULT])
async def test_an_error_event_is_an_error_whatever_it_says(data: bytes) -> None:
    if data:
        assert await answered([working(), event(data, b"error")], EVENTS) == "server_fault"
    assert await answered([working(), event(data or b"x", b"error")], EVENTS) == "server_fault"


@pytest.mark.parametrize("count", [0, 1, 14, 15, 16, 17, 100])
@pytest.mark.parametrize("last", [FAILED, FAULT])
async def test_the_last_event_of_a_stream_decides_however_long_it_is(count: int, last: bytes) -> None:
    outcome = "task_failed" if last is FAILED else "server_fault"
    assert await answered([*[working()] * count, event(last)], EVENTS) == outcome
    # All in one message, and with the last event in the final one.
    assert await answered(working() * count + event(last), EVENTS) == outcome
    steps: list[Step] = [start(headers=EVENTS), *[chunk(working())] * count, final(event(last))]
    assert (await play(steps)).outcome == outcome


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64])
async def test_events_may_be_split_anywhere(size: int) -> None:
    stream = working() + event(FAILED)
    parts = [stream[at : at + size] for at in range(0, len(stream), size)]
    # Of more messages than are kept only the last are known: never is it a wrong class.
    expected = {"task_failed"} if len(parts) < 16 else {"task_failed", "uninspected"}
    assert await answered(parts, EVENTS) in expected


async def test_a_long_good_stream_is_a_response() -> None:
    assert await answered([working()] * 500, EVENTS) == "answered"
    assert await answered([working("x" * 40_000)] * 3, EVENTS) == "uninspected"
    assert await answered([working("x" * 40_000), event(FAILED)], EVENTS) == "task_failed"


@pytest.mark.parametrize("limit", [36, 1000])
async def test_an_answer_is_looked_into_up_to_the_limit(limit: int) -> None:
    head = b'{"jsonrpc":"2.0","error":{"code":1}'
    fits = head + b" " * (limit - len(head) - 1) + b"}"
    for parts in (1, 2, 5):
        for body, outcome in [(fits, "server_fault"), (b" " + fits, "uninspected")]:
            cut = -(-len(body) // parts)
            pieces = [body[at : at + cut] for at in range(0, len(body), cut)]
            assert await answered(pieces, JSON, max_inspected_bytes=limit) == outcome
    assert await answered(fits, JSON, max_inspected_bytes=limit) == "server_fault"
    assert await answered(b" " + fits, JSON, max_inspected_bytes=limit) == "uninspected"


@pytest.mark.parametrize("headers", [JSON, EVENTS])
async def test_nothing_is_looked_into_if_switched_off(headers: dict[str, str]) -> None:
    body = event(FAULT) if headers is EVENTS else FAULT
    assert await answered(body, headers, max_inspected_bytes=0) == "answered"
    assert await answered([body], headers, max_inspected_bytes=0) == "answered"
    assert await answered(b"no json", headers, max_inspected_bytes=0) == "answered"
    assert await answered(body, headers, status=500, max_inspected_bytes=0) == "server_fault"


async def test_what_is_nested_too_deeply_was_not_inspected() -> None:
    deep = b"[" * 15_000 + b"]" * 15_000
    assert await answered(deep, JSON) == "uninspected"
    assert await answered([event(deep)], EVENTS) == "uninspected"


@pytest.mark.parametrize("body", [b"", b"<html>", b'{"jsonrpc":"2.0"', b"\xff\xfe", b"{}{}"])
async def test_an_answer_to_a_json_rpc_call_must_be_what_it_claims(body: bytes) -> None:
    assert await answered(body, JSON) == "malformed"
    assert await answered([body], JSON) == "malformed"
    if body:
        assert await answered([event(body)], EVENTS) == "malformed"


@pytest.mark.parametrize(
    "asked", [request(), request(b"text"), request(b'{"a":1}'), request(b'{"jsonrpc":"2.0","method":"m"}')]
)
async def test_who_makes_no_json_rpc_call_may_get_anything(asked: Any) -> None:
    assert await answered(b"<html>", JSON, asked=asked) == "answered"
    assert await answered(b"", JSON, asked=asked) == "answered"
    assert await answered([event(b"[DONE]")], EVENTS, asked=asked) == "answered"


@pytest.mark.parametrize("status", [202, 204])
async def test_a_status_without_a_body_needs_none(status: int) -> None:
    assert await answered(b"", JSON, status=status) == "answered"


@pytest.mark.parametrize("headers", [JSON, EVENTS])
@pytest.mark.parametrize("message", [PATHSEND, ZEROCOPY])
async def test_what_the_server_takes_from_a_file_was_not_inspected(
    headers: dict[str, str], message: dict[str, Any]
) -> None:
    """What could not be seen is a response, and never malformed."""
    steps: list[Step] = [RECEIVE, start(headers=headers), message]
    played = await play(steps, server=Server(call()))
    assert played.outcome in {"answered", "uninspected"}


async def test_an_app_may_use_its_message_again_for_the_next_chunk() -> None:
    """The server has taken each when `send` returns."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send(start(headers=JSON))
        message = chunk()
        for part in (FAULT[:20], FAULT[20:], b""):
            message["body"] = part
            message["more_body"] = bool(part)
            await send(message)

    assert (await play(app, server=Server(call()))).outcome == "server_fault"


@pytest.mark.parametrize("body", [memoryview(FAULT), bytearray(FAULT)])
async def test_a_body_may_be_any_bytes(body: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Starlette takes a memoryview for an answer."""
    assert (await play([start(headers=JSON), final(body)])).outcome == "server_fault"
    assert not caplog.records
