import json
from typing import Any

import pytest
from tests.support.scripted import (
    EVENTS,
    JSON,
    RECEIVE,
    Server,
    Step,
    answered,
    call,
    event,
    final,
    http_scope,
    play,
    request,
    start,
    working,
)

KIB = 1024
MEBIBYTE = 1 << 20
FAULT = b'{"jsonrpc":"2.0","id":1,"error":{"code":-32603,"message":"model down"}}'
RESULT = b'{"jsonrpc":"2.0","id":1,"result":{"message":{"parts":[]}}}'
FAILED = b'{"jsonrpc":"2.0","id":1,"result":{"task":{"status":{"state":"TASK_STATE_FAILED"}}}}'
FAILED_REST = b'{"task":{"status":{"state":"TASK_STATE_FAILED"}}}'


@pytest.mark.parametrize("method", ["SendMessage", "message/send", "tasks/send"])
async def test_a_failed_task_in_the_answer_to_a_send_is_an_error(method: str) -> None:
    assert await answered(FAILED, JSON, asked=call(method)) == "task_failed"
    assert await answered([working(), event(FAILED)], EVENTS, asked=call(method)) == "task_failed"


@pytest.mark.parametrize(
    "method", ["GetTask", "tasks/get", "ListTasks", "SubscribeToTask", "tasks/resubscribe"]
)
async def test_failed_task_in_a_poll_answer_counts_as_answered(method: str) -> None:
    assert await answered(FAILED, JSON, asked=call(method)) == "answered"
    assert await answered([event(FAILED)], EVENTS, asked=call(method)) == "answered"


@pytest.mark.parametrize("end", ["}", ',"method":"GetTask","a":{}}'])
async def test_failed_task_after_a_call_of_unknown_method_is_not_inspected(end: str) -> None:
    text = '{"jsonrpc":"2.0","id":1,"method":"\\u0047etTask","params":{"tenant":"%s"}' % ("x" * 3000)
    asked = request((text + end).encode())
    for body, outcome in ((FAILED, "not_inspected"), (FAULT, "server_fault"), (RESULT, "answered")):
        assert await answered(body, JSON, asked=asked) == outcome
        assert await answered([body[:9], body[9:]], JSON, asked=asked) == outcome
        assert await answered([event(body)], EVENTS, asked=asked) == outcome


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
async def test_rest_binding_separates_sends_from_polls_by_path(method: str, path: str, outcome: str) -> None:
    scope = http_scope(path, method)
    asked = request(b'{"message":{}}')
    bare = b'{"kind":"task","id":"7","contextId":"1","status":{"state":"failed"}}'
    for body in (FAILED_REST, bare):
        assert await answered(body, JSON, asked=asked, scope=scope) == outcome


async def test_call_of_unknown_method_is_no_poll_on_any_path() -> None:
    long = b'{"params":{"text":"%s"},"method":"SendMessage","jsonrpc":"2.0","id":1,"more":{}}' % (b"y" * 2000)
    for scope in (http_scope("/tasks/rpc"), http_scope("/tasks/rpc", "GET"), http_scope("/")):
        assert await answered(FAILED, JSON, asked=request(long), scope=scope) == "not_inspected"
        nameless = request(b'{"jsonrpc":"2.0","id":1}')
        assert await answered(FAILED, JSON, asked=nameless, scope=scope) == "task_failed"


async def test_call_in_many_asgi_messages_is_read_as_one() -> None:
    body = call("GetTask")["body"]
    parts = [request(body[at : at + 1], more_body=True) for at in range(len(body))]
    steps: list[Step] = [*[RECEIVE for _ in parts], RECEIVE, start(headers=JSON), final(FAILED)]
    assert (await play(steps, server=Server(*parts, request()))).outcome == "answered"


@pytest.mark.parametrize("length", [10, 1000, 40 * KIB, 2 * MEBIBYTE])
async def test_poll_is_recognised_for_any_length_of_the_call(length: int) -> None:
    assert await answered(FAILED, JSON, asked=call("GetTask", params="x" * length)) == "answered"
    assert await answered(FAILED, JSON, asked=call("SendMessage", params="x" * length)) == "task_failed"


@pytest.mark.parametrize("length", [10, 2000])
async def test_repeated_method_of_poll_and_send_still_counts_a_failed_task(length: int) -> None:
    text = b"x" * length
    whole = (
        b'{"jsonrpc":"2.0","id":1,"method":"tasks/get","params":{"x":"%s"},"method":"message/send"}' % text
    )
    assert await answered(FAILED, JSON, asked=request(whole)) == "task_failed"


@pytest.mark.parametrize("length", [10, 1000, 40 * KIB, 2 * MEBIBYTE])
async def test_failed_task_counts_for_any_length_of_the_callers_message(length: int) -> None:
    """SDKs repeat the message in the answer's `history`."""
    text = "x" * min(length, MEBIBYTE - KIB)
    task = {"status": {"state": "TASK_STATE_FAILED"}, "history": [{"parts": [{"text": text}]}]}
    failed = json.dumps({"jsonrpc": "2.0", "id": 1, "result": {"task": task}}).encode()
    fault = json.dumps({"jsonrpc": "2.0", "error": {"code": -32603, "data": text}}).encode()
    asked = call("SendMessage", params="x" * length)
    for body, outcome in ((failed, "task_failed"), (fault, "server_fault"), (failed[:-1], "malformed")):
        assert await answered(body, JSON, asked=asked) == outcome
        assert await answered([body[: 40 * KIB], body[40 * KIB :]], JSON, asked=asked) == outcome
        assert await answered(event(body), EVENTS, asked=asked) == outcome
        assert await answered([working(), event(body), *[b": ping\n\n"] * 20], EVENTS, asked=asked) == outcome


@pytest.mark.parametrize("body", [b"null", b"{}", b"[]", b'{"ok":true}'])
async def test_other_json_is_a_good_answer_to_requests_that_are_no_json_rpc_call(body: bytes) -> None:
    notification = request(b'{"jsonrpc":"2.0","method":"m"}')
    answer = request(b'{"jsonrpc":"2.0","id":1,"result":{"action":"accept"}}')
    for asked in (request(), request(b"{}"), notification, answer, request(b'{"id":1,"method":"m"}')):
        assert await answered(body, JSON, asked=asked) == "answered"
    # A caller may send anything to any path.
    for scope in (http_scope("/v1/tasks/7:cancel"), http_scope("/v1/message:send", "GET")):
        assert await answered(body, JSON, scope=scope) == "answered"


@pytest.mark.parametrize("asked", [request(b'{"message":{}}'), request(), call()])
async def test_rest_send_answer_without_a_task_or_message_is_malformed(asked: Any) -> None:
    scope = http_scope("/v1/message:send")
    for body in (b"{}", b"null", b"[]", b'{"error":{"code":500}}', b'{"message":"down"}', b'{"task":null}'):
        assert await answered(body, JSON, asked=asked, scope=scope) == "malformed"
        assert await answered([body[:1], body[1:]], JSON, asked=asked, scope=scope) == "malformed"
    bare = (b'{"kind":"message","parts":[]}', b'{"kind":"task","status":{"state":"completed"}}')
    for body in (b'{"message":{"parts":[]}}', b'{"task":{"status":{"state":"TASK_STATE_WORKING"}}}', *bare):
        assert await answered(body, JSON, asked=asked, scope=scope) == "answered"
        assert await answered([body[:1], body[1:]], JSON, asked=asked, scope=scope) == "answered"
        if b"jsonrpc" in asked["body"]:
            assert await answered(body, JSON, asked=asked) == "malformed"


@pytest.mark.parametrize("result", [b"null", b"{}", b"[]", b'"ok"', b"true"])
async def test_empty_result_of_a_send_is_malformed(result: bytes) -> None:
    empty = b'{"jsonrpc":"2.0","id":1,"result":%s}' % result
    for method in ("SendMessage", "message/send", "tasks/send", "SendStreamingMessage", "message/stream"):
        for asked in (call(method), call(method, params={"text": "x" * 5000})):
            assert await answered(empty, JSON, asked=asked) == "malformed"
            assert await answered([empty[:9], empty[9:]], JSON, asked=asked) == "malformed"
            assert await answered([event(empty)], EVENTS, asked=asked) == "malformed"
            assert await answered([event(empty), event(RESULT)], EVENTS, asked=asked) == "answered"
            assert await answered([event(RESULT), event(empty)], EVENTS, asked=asked) == "answered"
            assert (
                await answered([working(), event(FAILED), event(empty)], EVENTS, asked=asked) == "task_failed"
            )
    for asked in (
        call("DeleteTaskPushNotificationConfig"),
        call("tasks/pushNotificationConfig/delete"),
        call("m"),
    ):
        assert await answered(empty, JSON, asked=asked) == "answered"
        assert await answered([event(empty)], EVENTS, asked=asked) == "answered"
