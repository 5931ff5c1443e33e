import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from tests.support.misbehaving_tools import http_misbehaving, tool_answer
from tests.support.servers import PATIENCE_SECONDS

from lifesign.adapter.tools import server_body
from lifesign.adapter.tools.server_body import MAX_WAIT_CHARS, BoundedBodies
from lifesign.adapter.tools.server_line import SERVER_ERROR, TOO_LONG, UNREADABLE

WHOLE = tool_answer(7, "long", {"bytes": 5_000})


async def post_call(max_bytes: int, **asked: Any) -> httpx2.Response:
    with http_misbehaving() as url:
        bodies = BoundedBodies(httpx2.AsyncHTTPTransport(trust_env=False), max_bytes, "acme")
        async with httpx2.AsyncClient(transport=bodies, trust_env=False, timeout=PATIENCE_SECONDS) as http:
            return await http.post(url, json={"method": "tools/call", **asked})


@pytest.mark.parametrize(("spare_bytes", "code"), [(0, None), (1, None), (-1, TOO_LONG)])
async def test_body_is_returned_completely_or_fails(spare_bytes: int, code: int | None) -> None:
    params = {"name": "long", "arguments": {"bytes": 5_000}}
    answer = await post_call(len(WHOLE) + spare_bytes, id=7, params=params)
    if code is None:
        assert answer.content == WHOLE
    else:
        assert (answer.json()["id"], answer.json()["error"]["code"]) == (7, code)


@pytest.mark.parametrize("media_type", ["application/json", "text/event-stream"])
async def test_half_of_a_surrogate_pair_becomes_the_replacement_character(media_type: str) -> None:
    def answer(_request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(
            200, headers={"content-type": media_type}, stream=_InParts(rb'data: "\ud83d"', 3)
        )

    async with httpx2.AsyncClient(transport=BoundedBodies(httpx2.MockTransport(answer), 100, "acme")) as http:
        answered = await http.post("http://tools.example/", json={"method": "tools/call", "id": 1})
    assert answered.content == rb'data: "\ufffd"'


@pytest.mark.parametrize(
    ("media_type", "wait", "words"),
    [
        ("application/json", "30", "HTTP 429 (Retry-After: 30)"),
        ("text/html", "30", "HTTP 429 (Retry-After: 30)"),
        ("text/event-stream", "30", "HTTP 429 (Retry-After: 30)"),
        ("text/html", "3" * (MAX_WAIT_CHARS + 1), "HTTP 429"),
    ],
)
async def test_refusal_without_a_json_rpc_error_names_status_and_wait(
    media_type: str, wait: str, words: str
) -> None:
    def answer(_request: httpx2.Request) -> httpx2.Response:
        headers = {"content-type": media_type, "retry-after": wait}
        return httpx2.Response(429, headers=headers, stream=_InParts(b"{}", 3))

    bodies = BoundedBodies(httpx2.MockTransport(answer), 100, "acme")
    async with httpx2.AsyncClient(transport=bodies) as http:
        answered = await http.post("http://tools.example/", json={"method": "tools/call", "id": 1})
    assert answered.status_code == 429
    assert answered.json()["error"]["message"] == words


async def test_redirected_call_is_sent_again() -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        if request.url.path == "/mcp":
            return httpx2.Response(307, headers={"location": "/mcp/"}, stream=_InParts(b"", 1))
        call = json.loads(request.content)["id"]
        headers = {"content-type": "application/json"}
        return httpx2.Response(200, headers=headers, stream=_InParts(answer_to(call), 3))

    bodies = BoundedBodies(httpx2.MockTransport(answer), 100, "acme")
    async with httpx2.AsyncClient(transport=bodies, follow_redirects=True) as http:
        answered = await http.post("http://tools.example/mcp", json={"method": "tools/call", "id": 7})
    assert (answered.status_code, answered.content) == (200, answer_to(7))


async def test_compressed_body_is_not_decompressed() -> None:
    answer = await post_call(1_000_000, id=8, params={"name": "packed"})
    assert (answer.json()["id"], answer.json()["error"]["code"]) == (8, UNREADABLE)


async def test_endless_answer_to_a_notification_is_replaced_by_status_202() -> None:
    answer = await post_call(1_000, params={"name": "endless"})
    assert (answer.status_code, answer.content) == (202, b"")


async def test_answers_to_a_servers_requests_are_dropped_while_it_leaves_many_of_them_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_body, "MAX_UNANSWERED", 2)
    may_end, are_waiting, asked = asyncio.Event(), asyncio.Event(), []

    async def answer(request: httpx2.Request) -> httpx2.Response:
        asked.append(request)
        if len(asked) == 2:
            are_waiting.set()
        await may_end.wait()
        return httpx2.Response(202, stream=_InParts(b"", 1))

    bodies = BoundedBodies(httpx2.MockTransport(answer), 100, "acme")
    async with httpx2.AsyncClient(transport=bodies) as http, asyncio.TaskGroup() as group:
        url, pong = "http://tools.example/", {"jsonrpc": "2.0", "id": "p", "result": {}}
        for _ in range(2):
            group.create_task(http.post(url, json=pong))
        await are_waiting.wait()
        assert (await http.post(url, json=pong)).status_code == 202
        assert len(asked) == 2
        may_end.set()
        await http.post(url, json={"jsonrpc": "2.0", "method": "notifications/initialized"})
    assert len(asked) == 3


@pytest.mark.parametrize("message", [{"method": "notifications/cancelled"}, {"id": "p", "result": {}}])
async def test_call_does_not_wait_until_a_message_without_an_answer_is_taken(message: dict[str, Any]) -> None:
    asked, has_begun, has_ended = [], asyncio.Event(), asyncio.Event()

    async def answer(request: httpx2.Request) -> httpx2.Response:
        asked.append(json.loads(request.content))
        if asked[-1] == message:
            has_begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                has_ended.set()
        return httpx2.Response(202, stream=_InParts(b"", 1))

    bodies = BoundedBodies(httpx2.MockTransport(answer), 100, "acme")
    async with asyncio.timeout(PATIENCE_SECONDS), httpx2.AsyncClient(transport=bodies) as http:
        url, started = "http://tools.example/", {"method": "notifications/initialized"}
        assert (await http.post(url, json=message)).status_code == 202
        await has_begun.wait()
        await http.post(url, json=started)
        assert asked == [message, started]
    # The message ends with the connection.
    assert has_ended.is_set()


@pytest.mark.parametrize(
    ("location", "is_followed"), [("/mcp/", True), ("http://other.example/mcp/", False), ("http://[", False)]
)
async def test_message_without_an_answer_is_redirected_within_its_origin(
    location: str, *, is_followed: bool
) -> None:
    message, got, has_come = {"id": "p", "result": {}}, [], asyncio.Event()

    def answer(request: httpx2.Request) -> httpx2.Response:
        got.append((str(request.url), json.loads(request.content), request.headers["x-key"]))
        if len(got) == 1 + is_followed:
            has_come.set()
        headers = {"location": location} if len(got) == 1 else {}
        return httpx2.Response(307 if len(got) == 1 else 202, headers=headers, stream=_InParts(b"", 1))

    bodies = BoundedBodies(httpx2.MockTransport(answer), 100, "acme")
    async with asyncio.timeout(PATIENCE_SECONDS), httpx2.AsyncClient(transport=bodies) as http:
        await http.post("http://tools.example/mcp", json=message, headers={"x-key": "k"})
        await has_come.wait()
        await asyncio.sleep(0)
    places = ["http://tools.example/mcp", "http://tools.example/mcp/"][: 1 + is_followed]
    assert got == [(place, message, "k") for place in places]


async def test_unreachable_server_does_not_fail_a_message_without_an_answer() -> None:
    def fail(_request: httpx2.Request) -> httpx2.Response:
        raise httpx2.ConnectError("refused")

    async with httpx2.AsyncClient(transport=BoundedBodies(httpx2.MockTransport(fail), 100, "acme")) as http:
        cancelled = {"method": "notifications/cancelled"}
        assert (await http.post("http://tools.example/", json=cancelled)).status_code == 202
        await asyncio.sleep(0)


async def test_end_of_a_session_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_body, "END_SECONDS", 0.05)

    async def hang(_request: httpx2.Request) -> httpx2.Response:
        await asyncio.Event().wait()
        raise AssertionError

    bodies = BoundedBodies(httpx2.MockTransport(hang), 100, "acme")
    async with asyncio.timeout(PATIENCE_SECONDS), httpx2.AsyncClient(transport=bodies, timeout=None) as http:
        assert (await http.delete("http://tools.example/")).status_code == 504


class _InParts(httpx2.AsyncByteStream):
    def __init__(self, body: bytes, part_bytes: int) -> None:
        self._parts = [body[at : at + part_bytes] for at in range(0, len(body), part_bytes)]

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for part in self._parts:
            yield part


async def events_of(body: bytes, part_bytes: int) -> bytes:
    def answer(_request: httpx2.Request) -> httpx2.Response:
        headers = {"content-type": "text/event-stream"}
        return httpx2.Response(200, headers=headers, stream=_InParts(body, part_bytes))

    bodies = BoundedBodies(httpx2.MockTransport(answer), 10_000, "acme")
    async with httpx2.AsyncClient(transport=bodies) as http:
        answered = await http.post("http://tools.example/", json={"method": "tools/call", "id": 1})
        return answered.content


def as_lines(events: bytes) -> bytes:
    return events.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


@pytest.mark.parametrize("part_bytes", [1, 2, 3, 5, 10_000])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
async def test_events_are_unchanged_except_errors_with_the_code_of_a_closed_connection(
    end: str, part_bytes: int
) -> None:
    lines = [": ping", "", "id: 1", "event: message", 'data: {"a":', 'data: "error"}', "", "data: x", "", ""]
    before = end.join(lines).encode()
    assert await events_of(before, part_bytes) == before
    harmless, like_none = [
        json.dumps({"jsonrpc": "2.0", "id": 1, "error": {"code": code, "message": "no"}}).encode()
        for code in (-32603, -32000)
    ]
    for error, code in ((harmless, -32603), (like_none, SERVER_ERROR)):
        event = end.join(["id: 2", f"data: {error.decode()}", "", ""]).encode()
        went = as_lines(await events_of(before + event + before, part_bytes))
        assert went.startswith(as_lines(before))
        assert went.endswith(as_lines(before))
        fields = went.removeprefix(as_lines(before)).split(b"\n\n")[0].splitlines()
        assert fields[0] == b"id: 2"
        assert json.loads(fields[1].removeprefix(b"data: "))["error"]["code"] == code


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
async def test_retry_of_less_than_a_second_is_omitted(end: str) -> None:
    def event(retry: str) -> bytes:
        return f"id: 1{end}{retry}data: x{end}{end}".encode()

    for short in ("0", "999", "0000999"):
        assert await events_of(event(f"retry: {short}{end}"), 10_000) == event("")
    long = event(f"retry: 1000{end}")
    assert await events_of(long, 10_000) == long


def answer_to(call: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": call, "result": {}}).encode()


async def answers(
    asked: list[tuple[str, dict[str, Any]]], bodies: list[bytes], media_type: str = "text/event-stream"
) -> list[bytes]:
    """Return what is passed on of these bodies, one for each request: its method and id, or its headers."""
    left = iter(bodies)

    def answer(_request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, headers={"content-type": media_type}, stream=_InParts(next(left), 7))

    url, found = "http://tools.example/", []
    transport = BoundedBodies(httpx2.MockTransport(answer), 10_000, "acme")
    async with httpx2.AsyncClient(transport=transport) as http:
        for method, given in asked:
            if method == "GET":
                found.append((await http.get(url, headers=given)).content)
            else:
                found.append((await http.post(url, json={"method": method, **given})).content)
    return found


@pytest.mark.parametrize("method", ["tools/call", "tools/list"])
@pytest.mark.parametrize("media_type", ["application/json", "text/event-stream"])
@pytest.mark.parametrize(
    ("named", "is_own"), [(7, True), ("7", True), (8, False), (None, False), ("x", False)]
)
async def test_answer_that_names_another_request_becomes_an_error(
    method: str, media_type: str, named: Any, *, is_own: bool
) -> None:
    body = answer_to(named)
    if media_type == "text/event-stream":
        body = b"event: message\ndata: " + body + b"\n\n"
    (found,) = await answers([(method, {"id": 7})], [body], media_type)
    if is_own:
        assert found == body
    else:
        error = json.loads(found.rpartition(b"data: ")[2])
        assert (error["id"], error["error"]["code"]) == (7, UNREADABLE)


async def test_stream_of_a_get_request_answers_only_the_call_whose_stream_it_continues() -> None:
    begun = b"id: a-1\ndata:\n\nid: a-2\ndata:\n\n"
    ping = b'data: {"jsonrpc": "2.0", "id": 7, "method": "ping"}\n\n'
    own, other = (b"data: " + answer_to(call) + b"\n\n" for call in (7, 8))
    first, alone, unknown, continued, wrong = await answers(
        [
            ("tools/call", {"id": 7}),
            ("GET", {}),
            ("GET", {"last-event-id": "a-1"}),
            ("GET", {"last-event-id": "a-2"}),
            ("GET", {"last-event-id": "a-2"}),
        ],
        [begun, ping + own + ping, own, own, other],
    )
    assert (first, alone, unknown, continued) == (begun, ping + ping, b"", own)
    assert json.loads(wrong.partition(b"data: ")[2])["error"]["code"] == UNREADABLE


async def test_number_of_interrupted_streams_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_body, "MAX_INTERRUPTED", 1)
    asked = [("tools/call", {"id": call}) for call in (1, 2)]
    streams = [f"id: {call}\ndata:\n\n".encode() for call in (1, 2)]
    results = [b"data: " + answer_to(call) + b"\n\n" for call in (1, 2)]
    continued = [("GET", {"last-event-id": str(call)}) for call in (1, 2)]
    found = await answers([*asked, *continued], [*streams, *results])
    assert found == [*streams, b"", results[1]]
