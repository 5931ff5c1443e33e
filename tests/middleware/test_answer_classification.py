import asyncio
import gc
import gzip
import json
import tracemalloc
from typing import Any

import pytest
from tests.support.scripted import (
    CANCELLED,
    DISCONNECT,
    EVENTS,
    JSON,
    PATHSEND,
    PLAIN,
    RECEIVE,
    TRAILERS,
    ZEROCOPY,
    Server,
    Step,
    Tolerantly,
    answered,
    call,
    chunk,
    event,
    final,
    http_scope,
    play,
    request,
    start,
    working,
)

from lifesign.middleware.body import KEPT
from lifesign.middleware.exchange import RequestExchange

MEBIBYTE = 1 << 20
FAULT = b'{"jsonrpc":"2.0","id":1,"error":{"code":-32603,"message":"model down"}}'
RESULT = b'{"jsonrpc":"2.0","id":1,"result":{"message":{"parts":[]}}}'
FAILED = b'{"jsonrpc":"2.0","id":1,"result":{"task":{"status":{"state":"TASK_STATE_FAILED"}}}}'
FAILED_REST = b'{"task":{"status":{"state":"TASK_STATE_FAILED"}}}'


def error(code: int) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 1, "error": {"code": code, "message": "no"}}).encode()


async def test_response_headers_given_as_an_iterator_are_read_and_sent() -> None:
    pairs = [(b"content-type", b"application/json"), (b"x-a", b"1")]
    for body in ([final(FAULT)], [chunk(FAULT[:5]), final(FAULT[5:])]):
        for headers in (iter(pairs), (pair for pair in pairs), dict(pairs).items()):
            begin = {"type": "http.response.start", "status": 200, "headers": headers}
            played = await play([RECEIVE, begin, *body], server=Server(call()))
            assert played.outcome == "server_fault"
            assert list(played.server.sent[0]["headers"]) == pairs


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
        {"content-type": "application/json", "content-encoding": " Identity "},
        {"Content-Type": "application/json"},
    ],
)
async def test_json_content_type_is_recognised_in_each_spelling(headers: dict[str, str]) -> None:
    """The last is Django's, which writes the names of headers as people do, not as ASGI asks for."""
    assert await answered(FAULT, headers) == "server_fault"


@pytest.mark.parametrize("name", ["Content-Encoding", "content-encoding"])
@pytest.mark.parametrize("encoding", ["gzip", "br", "zstd", "GZIP"])
async def test_compressed_answer_is_not_inspected(name: str, encoding: str) -> None:
    assert await answered(gzip.compress(FAULT), JSON | {name: encoding}) == "not_inspected"
    assert await answered([gzip.compress(event(FAULT))], EVENTS | {name: encoding}) == "not_inspected"


async def test_error_that_is_sent_byte_by_byte_counts() -> None:
    for body, headers in ((FAULT, JSON), (event(FAULT), EVENTS)):
        assert await answered([body[at : at + 1] for at in range(len(body))], headers) == "server_fault"


@pytest.mark.parametrize("count", [1, 16, 17, 100])
async def test_error_counts_for_any_number_of_later_events(count: int) -> None:
    for heartbeat in (b": ping\r\n\r\n", working(), event(RESULT)):
        assert await answered([working(), event(FAULT), *[heartbeat] * count], EVENTS) == "server_fault"


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
async def test_only_top_level_errors_of_json_rpc_count(body: bytes) -> None:
    assert await answered(body, JSON, asked=request(b"{}")) == "answered"


NO_ANSWERS = [
    b"null", b"0", b'"ok"', b"{}", b"[]", b"[null]", b'{"ok":true}', b'{"result":{}}',
    b'{"id":1,"error":{"code":-32603}}', b'[{"id":1,"error":{"code":-32603}}]',
    b'{"jsonrpc":"2.0","id":1}', b'{"jsonrpc":"2.0","id":1,"error":null}', b'[{"jsonrpc":"2.0","id":1}]',
    b'{"jsonrpc":"2.0","method":"ping"}',
]  # fmt: skip


@pytest.mark.parametrize("body", NO_ANSWERS)
async def test_answer_to_a_json_rpc_call_must_be_json_rpc(body: bytes) -> None:
    long = call(params={"text": "x" * 5000})
    batch = request(b"[" + call()["body"] + b"]")
    for asked in (call(), call("GetTask"), long, batch):
        assert await answered(body, JSON, asked=asked) == "malformed"
        assert await answered([body[:1], body[1:]], JSON, asked=asked) == "malformed"
    assert await answered(body, JSON, status=202) == "malformed"


@pytest.mark.parametrize("data", [b"null", b"{}", b"[]", b'{"ok":true}', b'{"jsonrpc":"2.0","id":1}'])
async def test_stream_that_answers_a_json_rpc_call_must_have_json_rpc(data: bytes) -> None:
    assert await answered([event(data)], EVENTS) == "malformed"
    assert await answered(event(data) * 2, EVENTS) == "malformed"
    assert await answered([event(b'{"a":"%s"}' % (b"x" * MEBIBYTE)), event(b"{}")], EVENTS) == "not_inspected"
    if b"jsonrpc" not in data:
        assert await answered([event(data)], EVENTS, asked=request(b"{}")) == "answered"


@pytest.mark.parametrize("headers", [PLAIN, {"content-type": "text/html"}, {}])
async def test_other_content_types_are_not_read(headers: dict[str, str]) -> None:
    for asked in (request(), request(b"{}"), request(b'{"jsonrpc":"2.0","method":"m"}')):
        assert await answered(FAULT, headers, asked=asked) == "answered"
        assert await answered([FAULT], headers, asked=asked) == "answered"
    for scope in (http_scope("/v1/tasks/7:cancel"), http_scope(method="GET")):
        assert await answered(FAULT, headers, scope=scope) == "answered"


OTHER_TYPES = [
    {}, PLAIN, {"content-type": "text/html"}, {"content-type": "application/json-rpc"},
    {"content-type": "application/x-ndjson"}, {"content-type": "application/json-seq"},
    {"content-type": "text/plain", "Content-Type": "application/json"},
    {"content-type": "application/json", "Content-Type": "text/plain"},
    {"content-range": "bytes 0-9/400"}, JSON | {"content-range": "x"},
]  # fmt: skip


@pytest.mark.parametrize("headers", OTHER_TYPES)
async def test_answer_to_a_call_is_read_as_json_for_any_content_type(headers: dict[str, str]) -> None:
    long = call(params={"text": "x" * 5000})
    for asked in (call(), long):
        for body, outcome in ((FAULT, "server_fault"), (FAILED, "task_failed"), (RESULT, "answered")):
            assert await answered(body, headers, asked=asked) == outcome
            assert await answered([body[:9], body[9:]], headers, asked=asked) == outcome
        assert await answered(b"{}", headers, asked=asked) == "malformed"
    sending: dict[str, Any] = {"scope": http_scope("/v1/message:send"), "asked": request(b'{"message":{}}')}
    assert await answered(FAILED_REST, headers, **sending) == "task_failed"


@pytest.mark.parametrize("body", [b"", b"<h1>down</h1>", FAULT + b"\n" + FAULT, event(FAULT), b"{"])
@pytest.mark.parametrize("headers", [{}, PLAIN, {"content-type": "application/x-ndjson"}])
async def test_answer_to_a_call_with_another_content_and_type_is_not_inspected(
    body: bytes, headers: dict[str, str]
) -> None:
    for scope in (http_scope(), http_scope("/v1/message:send")):
        assert await answered(body, headers, scope=scope) == "not_inspected"
        assert await answered([body], headers, scope=scope) == "not_inspected"
    assert await answered(body, headers, max_inspected_bytes=0) == "answered"


@pytest.mark.parametrize("status", [200, 201, 202, 204])
async def test_empty_answer_to_a_call_is_malformed_or_not_inspected(status: int) -> None:
    sending: dict[str, Any] = {"scope": http_scope("/v1/message:send"), "asked": request(b'{"message":{}}')}
    for headers in ({}, PLAIN, JSON):
        outcome = "malformed" if status == 200 and headers is JSON else "not_inspected"
        assert await answered(b"", headers, status=status) == outcome
        assert await answered(b"", headers, status=status, **sending) == outcome
        assert await answered(b"", headers, status=status, asked=request(b"{}")) == "answered"
        notification = request(b'{"jsonrpc":"2.0","method":"m"}')
        assert await answered(b"", headers, status=status, asked=notification) == "answered"


async def test_body_of_a_204_is_no_answer_to_a_call() -> None:
    for body in (RESULT, [RESULT[:9], RESULT[9:]]):
        assert await answered(body, JSON, status=204) == "not_inspected"


async def test_answer_to_a_deletion_may_lack_its_result() -> None:
    """As a2a-sdk 0.3.26 sends it, and 1.3 in A2A 0.3."""
    body = b'{"id":1,"jsonrpc":"2.0"}'
    for method, outcome in (("tasks/pushNotificationConfig/delete", "answered"), ("tasks/get", "malformed")):
        assert await answered(body, JSON, asked=call(method)) == outcome
        assert await answered([body[:9], body[9:]], JSON, asked=call(method)) == outcome


async def test_empty_result_beside_unparsed_events_is_not_malformed() -> None:
    empty = event(b'{"jsonrpc":"2.0","id":1,"result":{}}')
    assert await answered([empty, event(RESULT) * 6000], EVENTS) == "answered"
    assert await answered([empty, event(RESULT[:-1] + b"x" * MEBIBYTE)], EVENTS) == "not_inspected"


@pytest.mark.parametrize("data", [b"", b"boom", b"{}", b'{"error":"boom"}', FAULT])
async def test_any_error_event_is_an_error(data: bytes) -> None:
    if data:
        assert await answered([working(), event(data, b"error")], EVENTS) == "server_fault"
    assert await answered([working(), event(data or b"x", b"error")], EVENTS) == "server_fault"


@pytest.mark.parametrize("count", [0, 1, 14, 15, 16, 17, 100])
@pytest.mark.parametrize("last", [FAILED, FAULT])
async def test_last_event_of_a_stream_decides_for_any_length(count: int, last: bytes) -> None:
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
    assert await answered(parts, EVENTS) == "task_failed"


async def test_long_valid_stream_counts_as_answered() -> None:
    assert await answered([working()] * 500, EVENTS) == "answered"
    assert await answered([working("x" * 40_000)] * 50, EVENTS) == "answered"
    assert await answered([working("x" * MEBIBYTE), working()], EVENTS) == "not_inspected"
    assert await answered([working("x" * MEBIBYTE), event(FAILED)], EVENTS) == "task_failed"


@pytest.mark.parametrize("spec_version", ["2.3", "2.4"])
@pytest.mark.parametrize("last", [FAULT, FAILED])
async def test_failure_counts_although_earlier_events_are_skipped(spec_version: str, last: bytes) -> None:
    """Servers of one version send each message through another way."""
    scope = http_scope(asgi={"version": "3.0", "spec_version": spec_version})
    outcome = "task_failed" if last is FAILED else "server_fault"
    for pieces in (
        [*[working()] * 20, event(last), *[b": ping\r\n\r\n"] * 3],
        [*[working()] * 20, working() + event(last)],
        [*[working()] * 20, working()[:50], working()[50:] + event(last)],
        [working()] * 20 + [event(last)[at : at + 9] for at in range(0, len(event(last)), 9)],
    ):
        assert await answered(pieces, EVENTS, scope=scope) == outcome
    assert await answered([working()] * 20, EVENTS, scope=scope) == "answered"


@pytest.mark.parametrize("spec_version", ["2.3", "2.4"])
async def test_carriage_return_in_an_event_of_a_known_shape_hides_no_error(spec_version: str) -> None:
    update = b'data: {"jsonrpc":"2.0","id":1,"result":{"artifact":{"parts":[{"text":"x"}]}}}\n\n'
    error = b'data: {"jsonrpc":"2.0","id":1,"error":{"code":-32603,"data":{"a":[{}]}}}\n\n'
    scope = http_scope(asgi={"version": "3.0", "spec_version": spec_version})
    hidden = [update[:-2] + b"\r\r" + error, update[:-2] + b"\r\revent: error\r" + error]
    for piece in hidden:
        assert await answered([update, update, piece, update], EVENTS, scope=scope) == "server_fault"
        assert await answered([update, piece], EVENTS, scope=scope) == "server_fault"


@pytest.mark.parametrize("last", [FAULT, FAILED, RESULT])
async def test_failure_in_a_stream_counts_although_the_caller_disconnects(last: bytes) -> None:
    """Clients leave once they have read the requested answer."""
    steps: list[Step] = [
        RECEIVE, start(headers=EVENTS), chunk(working()), chunk(event(last)), RECEIVE, final(),
    ]  # fmt: skip
    server = Server(call(), DISCONNECT)
    played = await play(steps, server=server)
    assert played.outcome == (
        "task_failed" if last is FAILED else "server_fault" if last is FAULT else "abandoned"
    )
    polled = await play(steps, server=Server(call("SubscribeToTask"), DISCONNECT))
    assert polled.outcome == ("server_fault" if last is FAULT else "abandoned")


@pytest.mark.parametrize("limit", [36, 1000])
async def test_answer_is_inspected_up_to_the_limit(limit: int) -> None:
    head = b'{"jsonrpc":"2.0","error":{"code":1}'
    fits = head + b" " * (limit - len(head) - 1) + b"}"
    for parts in (1, 2, 5):
        for body, outcome in [(fits, "server_fault"), (b" " + fits, "not_inspected")]:
            cut = -(-len(body) // parts)
            pieces = [body[at : at + cut] for at in range(0, len(body), cut)]
            assert await answered(pieces, JSON, max_inspected_bytes=limit) == outcome
    assert await answered(fits, JSON, max_inspected_bytes=limit) == "server_fault"
    assert await answered(b" " + fits, JSON, max_inspected_bytes=limit) == "not_inspected"


@pytest.mark.parametrize("headers", [JSON, EVENTS])
async def test_no_answer_is_inspected_if_switched_off(headers: dict[str, str]) -> None:
    body = event(FAULT) if headers is EVENTS else FAULT
    assert await answered(body, headers, max_inspected_bytes=0) == "answered"
    assert await answered([body], headers, max_inspected_bytes=0) == "answered"
    assert await answered(b"no json", headers, max_inspected_bytes=0) == "answered"
    assert await answered(body, headers, status=500, max_inspected_bytes=0) == "server_fault"


async def test_deeply_nested_answer_is_not_inspected() -> None:
    deep = b"[" * 15_000 + b"]" * 15_000
    assert await answered(deep, JSON) == "not_inspected"
    assert await answered([event(deep)], EVENTS) == "not_inspected"


@pytest.mark.parametrize("body", [b"", b"<html>", b'{"jsonrpc":"2.0"', b"\xff\xfe", b"{}{}"])
async def test_answer_to_a_json_rpc_call_must_match_its_content_type(body: bytes) -> None:
    assert await answered(body, JSON) == "malformed"
    assert await answered([body], JSON) == "malformed"
    if body:
        assert await answered([event(body)], EVENTS) == "malformed"


@pytest.mark.parametrize("count", [3, 12_000])
async def test_stream_of_a_call_with_other_data_is_malformed_for_any_chunk_size(count: int) -> None:
    text = event(b"Internal Server Error") * count
    assert await answered([event(RESULT) + text], EVENTS) == "malformed"
    assert await answered([text], EVENTS) == "malformed"
    assert await answered([text], EVENTS, asked=request(b"{}")) == "answered"


async def test_error_event_that_repeats_the_method_counts() -> None:
    echoed = b'{"jsonrpc":"2.0","id":1,"method":"SendMessage","error":{"code":-32603}}'
    assert await answered([event(echoed)], EVENTS) == "server_fault"
    assert await answered(event(RESULT) + event(echoed), EVENTS) == "server_fault"
    mcp = http_scope(headers=[(b"mcp-protocol-version", b"2025-06-18")])
    assert await answered([event(echoed)], EVENTS, scope=mcp) == "tool_error"


PING = b": ping\r\n\r\n"


@pytest.mark.parametrize("body", [b"", PING, [b""], [PING], [PING, PING], [b"data: {}\n"]])
async def test_event_stream_without_an_event_answers_no_call(body: bytes | list[bytes]) -> None:
    sending: dict[str, Any] = {"scope": http_scope("/agent/message:stream"), "asked": request(b"{}")}
    assert await answered(body, EVENTS) == "malformed"
    assert await answered(body, EVENTS, **sending) == "malformed"
    # Streams, notifications and other methods need no event.
    assert await answered(body, EVENTS, asked=request(), scope=http_scope(method="GET")) == "answered"
    assert await answered(body, EVENTS, asked=request(b'{"jsonrpc":"2.0","method":"m"}')) == "answered"
    assert await answered(body, EVENTS, status=202) == "answered"


async def test_stream_that_can_be_resumed_begins_with_empty_data() -> None:
    """MCP 2025-11-25: the server may then close the stream, and answer on another one."""
    priming = b"id: 1\r\nretry: 1000\r\ndata: \r\n\r\n"
    assert await answered([priming, event(RESULT)], EVENTS) == "answered"
    assert await answered([priming, event(FAULT)], EVENTS) == "server_fault"
    assert await answered([priming], EVENTS, asked=call("tools/call")) == "not_inspected"


@pytest.mark.parametrize("method", ["SendMessage", "SendStreamingMessage", "message/stream"])
@pytest.mark.parametrize("empty", [b"data:\n\n", b"id: 1\ndata: \n\n" * 3])
async def test_stream_of_events_without_data_answers_no_send(method: str, empty: bytes) -> None:
    assert await answered([empty], EVENTS, asked=call(method)) == "malformed"
    assert await answered([empty, event(RESULT)], EVENTS, asked=call(method)) == "answered"
    assert await answered([empty], EVENTS, asked=call("m")) == "answered"


@pytest.mark.parametrize("encoding", ["gzip", "br"])
async def test_json_that_claims_to_be_compressed_is_not_inspected(encoding: str) -> None:
    """An app that forwards an upstream answer may unpack the body and keep its header: no client reads it."""
    headers = JSON | {"content-encoding": encoding}
    for body in (RESULT, b'{"jsonrpc":"2.0","id":1,"result":{"content":[]}}', b"{}"):
        assert await answered(body, headers) == "not_inspected"
        assert await answered([body[:9], body[9:]], headers) == "not_inspected"


async def test_disconnect_before_the_first_event_is_not_malformed() -> None:
    steps: list[Step] = [RECEIVE, start(headers=EVENTS), chunk(PING), RECEIVE]
    assert (await play(steps, server=Server(call(), DISCONNECT))).outcome == "abandoned"


@pytest.mark.parametrize(
    "asked", [request(), request(b"text"), request(b'{"a":1}'), request(b'{"jsonrpc":"2.0","method":"m"}')]
)
async def test_declared_json_must_be_json(asked: Any) -> None:
    assert await answered(b"<html>", JSON, asked=asked) == "malformed"
    assert await answered([b"<ht", b"ml>"], JSON, asked=asked) == "malformed"
    # Nothing is not something else; and an event stream is JSON where it is JSON-RPC only.
    assert await answered(b"", JSON, asked=asked) == "answered"
    assert await answered([event(b'{"choices":[]}'), event(b"[DONE]")], EVENTS, asked=asked) == "answered"
    assert await answered([event(RESULT), event(b"[DONE]")], EVENTS, asked=asked) == "malformed"


@pytest.mark.parametrize("status", [200, 206])
@pytest.mark.parametrize("headers", [JSON, EVENTS])
@pytest.mark.parametrize("part", [b'{"a"', b"data: {\n\n", b""])
async def test_partial_content_of_a_get_counts_by_its_status(
    status: int, headers: dict[str, str], part: bytes
) -> None:
    """Any caller can ask for a part, by `Range`, of what a GET returns."""
    ranged = headers | ({"Content-Range": "bytes 0-9/400"} if status == 200 else {})
    getting: dict[str, Any] = {"scope": http_scope(method="GET"), "asked": request()}
    assert await answered(part, ranged, status=status, **getting) == "answered"
    assert await answered([part[:3], part[3:]], ranged, status=status, **getting) == "answered"
    leaving: list[Step] = [RECEIVE, start(status, ranged), chunk(part), RECEIVE]
    played = await play(leaving, server=Server(request(), DISCONNECT), scope=http_scope(method="GET"))
    assert played.outcome == "abandoned"


@pytest.mark.parametrize("status", [200, 206])
async def test_content_range_of_a_post_does_not_prevent_inspection(status: int) -> None:
    ranged = JSON | {"Content-Range": "bytes 0-9/400"}
    for body in (FAULT, event(FAULT)):
        headers = ranged if body is FAULT else ranged | EVENTS
        assert await answered(body, headers, status=status) == "server_fault"
        assert await answered([body[:3], body[3:]], headers, status=status) == "server_fault"


@pytest.mark.parametrize("headers", [JSON, EVENTS])
@pytest.mark.parametrize("message", [PATHSEND, ZEROCOPY])
async def test_answer_from_a_file_is_not_inspected(headers: dict[str, str], message: dict[str, Any]) -> None:
    """An unreadable body is neither good nor malformed."""
    steps: list[Step] = [RECEIVE, start(headers=headers), message]
    played = await play(steps, server=Server(call()))
    assert played.outcome == "not_inspected"
    plain = await play([RECEIVE, start(), message], server=Server(request(b"{}")))
    assert plain.outcome == "answered"


@pytest.mark.parametrize("body", [FAULT, FAILED])
async def test_answer_with_trailers_is_inspected(body: bytes) -> None:
    steps: list[Step] = [RECEIVE, start(headers=JSON, trailers=True), final(body), TRAILERS]
    played = await play(steps, server=Server(call()))
    assert played.outcome == ("task_failed" if body is FAILED else "server_fault")


async def test_answer_with_more_brackets_than_the_limit_was_not_inspected() -> None:
    body = json.dumps({"jsonrpc": "2.0", "error": {"code": -32603, "data": [[]] * 10_000}}).encode()
    assert await answered(body, JSON) == "not_inspected"
    assert await answered([body[:100], body[100:]], JSON) == "not_inspected"
    assert await answered([event(body)], EVENTS) == "not_inspected"


@pytest.mark.parametrize("size", [MEBIBYTE, MEBIBYTE + 1])
async def test_a_mebibyte_is_inspected_by_default(size: int) -> None:
    head = b'{"jsonrpc":"2.0","error":{"code":1,"data":"'
    body = head + b"x" * (size - len(head) - 3) + b'"}}'
    assert len(body) == size
    outcome = "server_fault" if size == MEBIBYTE else "not_inspected"
    assert await answered(body, JSON) == outcome
    assert await answered([body[:1000], body[1000:]], JSON) == outcome


async def test_large_request_body_is_released_before_the_answer_ends() -> None:
    """The server's message is passed to the app; parts that the app drops are released."""
    held: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send(start(headers=JSON))
        await send(chunk(b'{"jsonrpc"'))
        held.append(tracemalloc.get_traced_memory()[0])
        await send(final(b':"2.0","result":1}'))

    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        server = Server(request(b"x" * 16 * MEBIBYTE))
        assert (await play(app, server=server)).outcome == "answered"
    finally:
        tracemalloc.stop()
    assert held[0] - before < 2 * MEBIBYTE


@pytest.mark.parametrize("headers", [JSON, EVENTS, PLAIN])
@pytest.mark.parametrize("begun", [[], [chunk(b'{"a":')]])
async def test_background_task_keeps_no_inspected_bytes(headers: dict[str, str], begun: list[Step]) -> None:
    held: list[object] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        for message in [start(headers=headers), *begun, final(b"1}")]:
            await send(message)
        (exchange,) = [
            one for one in gc.get_objects() if type(one) is RequestExchange and one._scope is scope
        ]
        held.extend([exchange._last, exchange._request, KEPT.held])

    await play(app, server=Server(call()))
    assert held == [None, None, 0]


@pytest.mark.parametrize("headers", [JSON, EVENTS])
async def test_no_body_bytes_are_held_after_a_request(headers: dict[str, str]) -> None:
    begun: list[Step] = [RECEIVE, start(headers=headers), chunk(b'data: {"a":')]
    scripts: list[list[Step]] = [
        [*begun, final(b"1}\n\n")],
        begun,
        [*begun, ValueError()],
        [*begun, asyncio.CancelledError()],
        [*begun, CANCELLED],
        [*begun, Tolerantly(chunk(b"1")), OSError()],
        [*begun, chunk(b"x" * MEBIBYTE), final()],
        [RECEIVE, 31.0, start(headers=headers), chunk(b'{"a":'), chunk(b"1"), final(b"}")],
    ]
    for steps in scripts:
        await play(steps, server=Server(call()))
        assert KEPT.held == 0


async def test_app_may_reuse_a_message_object_for_the_next_chunk() -> None:
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
async def test_any_response_body_is_classified_without_an_exception(
    body: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Starlette takes a memoryview for an answer."""
    assert (await play([start(headers=JSON), final(body)])).outcome == "server_fault"
    assert not caplog.records
