import asyncio
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from starlette.background import BackgroundTask
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from tests.support.hand_clock import HandClock
from tests.support.scripted import (
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
    chunk,
    final,
    http_scope,
    outcomes,
    play,
    request,
    start,
)

from lifesign import AgentHealthMiddleware
from lifesign.middleware.exchange import Receive, Scope, Send

JSON_7 = JSON | {"content-length": "7"}


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (200, "answered"),
        (201, "answered"),
        (204, "answered"),
        (206, "answered"),
        (301, "answered"),
        (304, "answered"),
        (307, "answered"),
        (400, "caller_fault"),
        (401, "not_admitted"),
        (402, "not_admitted"),
        (403, "not_admitted"),
        (404, "no_operation"),
        (405, "no_operation"),
        (407, "not_admitted"),
        (408, "caller_fault"),
        (409, "caller_fault"),
        (410, "caller_fault"),
        (413, "caller_fault"),
        (415, "caller_fault"),
        (422, "caller_fault"),
        (429, "rate_limited"),
        (500, "server_fault"),
        (502, "server_fault"),
        (503, "server_fault"),
        (504, "server_fault"),
    ],
)
async def test_a_status_is_counted_in_its_class(status: int, outcome: str) -> None:
    for headers, method in product([PLAIN, JSON, {}], ["GET", "POST", "PUT", "DELETE"]):
        played = await play([start(status, headers), final(b'{"a":1}')], scope=http_scope(method=method))
        assert played.outcome == outcome, (headers, method)


@pytest.mark.parametrize(
    ("status", "counting", "sides"),
    [
        (200, "literal", (1, 0)),
        (200, "interactions", (1, 0)),
        (200, "server_faults", (1, 0)),
        (401, "literal", (0, 1)),
        (401, "interactions", (0, 0)),
        (401, "server_faults", (0, 0)),
        (404, "literal", (0, 1)),
        (404, "interactions", (0, 0)),
        (404, "server_faults", (0, 0)),
        (422, "literal", (0, 1)),
        (422, "interactions", (0, 1)),
        (422, "server_faults", (0, 0)),
        (429, "literal", (0, 1)),
        (429, "interactions", (0, 1)),
        (429, "server_faults", (0, 0)),
        (500, "literal", (0, 1)),
        (500, "interactions", (0, 1)),
        (500, "server_faults", (0, 1)),
    ],
)
async def test_counting_profile_decides_how_a_status_counts(
    status: int, counting: str, sides: tuple[int, int]
) -> None:
    played = await play([start(status), final(b"x")], counting=counting)
    calibration = played.middleware.health.document().calibration
    assert calibration is not None
    responses, errors = sides
    assert calibration.sample_count == responses + errors
    if calibration.sample_count:
        assert calibration.response_ratio == responses
        assert calibration.error_ratio == errors
    else:
        assert calibration.response_ratio is calibration.error_ratio is calibration.latency_p50_ms is None


@pytest.mark.parametrize(
    "steps",
    [
        [start(), final(b"hello")],
        [start(), final()],
        [start(), {"type": "http.response.body", "body": b"more_body left out"}],
        [start(), {"type": "http.response.body"}],
        [start(), chunk(b"hel"), final(b"lo")],
        [start(), chunk(b"hel"), chunk(b"lo"), final()],
        [start(), chunk(b""), chunk(b""), final()],
        [start(204, {}), final()],
        [start(304, {}), final()],
        [start(headers={}), final(b"x")],
        [start(), PATHSEND],
        [start(), ZEROCOPY],
        [start(), ZEROCOPY | {"more_body": True}, ZEROCOPY | {"more_body": True}, final()],
        [start(), ZEROCOPY | {"more_body": True}, chunk(b"x"), ZEROCOPY],
        [start(trailers=True), final(b"x"), TRAILERS],
        [start(trailers=True), chunk(b"x"), final(), TRAILERS | {"more_trailers": True}, TRAILERS],
        [start(trailers=False), final(b"x")],
        [{"type": "http.response.early_hint", "links": [b"</a>"]}, start(), final(b"x")],
        [{"type": "http.response.debug", "info": {}}, start(), final(b"x")],
        [start(), {"type": "http.response.push", "path": "/", "headers": []}, final(b"x")],
        [start(), chunk(b"x"), {"type": "x.unheard.of"}, final()],
        [RECEIVE, start(), final(b"x")],
    ],
)
async def test_answer_is_complete_for_each_asgi_message_form(steps: list[Step]) -> None:
    played = await play(steps)
    assert played.error is None
    assert played.outcome == "answered"
    assert played.server.sent == [step for step in steps if not isinstance(step, str)]


@pytest.mark.parametrize("name", ["answer.txt", "answer.json", "answer.bin"])
async def test_a_file_that_the_server_sends_is_a_response(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text('{"a": 1}')
    scope = http_scope(method="GET", extensions={"http.response.pathsend": {}})
    played = await play(FileResponse(tmp_path / name), scope=scope)
    assert [message["type"] for message in played.server.sent][1] == "http.response.pathsend"
    # A response that the middleware cannot see may count as not inspected, never as a failure.
    assert played.outcome in {"answered", "not_inspected"}


@pytest.mark.parametrize("name", ["answer.txt", "answer.json", "answer.bin"])
async def test_a_file_that_the_app_sends_is_answered(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text('{"a": 1}')
    played = await play(FileResponse(tmp_path / name), scope=http_scope(method="GET"))
    assert played.outcome == "answered"


@pytest.mark.parametrize(
    "steps",
    [
        [],
        [RECEIVE],
        [start()],
        [start(), chunk(b"x")],
        [final(b"without a start")],
        [chunk(b"without a start"), final()],
        [start(trailers=True), final(b"x")],
        [start(trailers=True), final(b"x"), TRAILERS | {"more_trailers": True}],
        [start(trailers=True), TRAILERS],
    ],
)
async def test_unfinished_answer_is_a_failure_of_the_app(steps: list[Step]) -> None:
    assert (await play(steps)).outcome == "unfinished"


@pytest.mark.parametrize("headers", [PLAIN, JSON, EVENTS, {}])
@pytest.mark.parametrize(
    "surplus",
    [
        [final(b"again")],
        [final(b"again"), final(b"and again")],
        [chunk(b"again"), final()],
        [start(500), final(b"again")],
        [TRAILERS],
        [PATHSEND],
    ],
)
async def test_messages_after_the_end_are_not_counted(headers: dict[str, str], surplus: list[Step]) -> None:
    assert (await play([start(headers=headers), final(b'{"a":1}'), *surplus])).outcome == "answered"


async def test_first_of_two_response_starts_counts() -> None:
    assert (await play([start(500), start(200), final(b"x")])).outcome == "server_fault"


@pytest.mark.parametrize(
    "response",
    [
        lambda task: PlainTextResponse("done", background=task),
        lambda task: JSONResponse({}, background=task),
        lambda task: Response(status_code=204, background=task),
        lambda task: StreamingResponse(iter([b"a", b"b"]), background=task),
        lambda task: JSONResponse({}, status_code=422, background=task),
    ],
)
async def test_background_task_does_not_add_to_the_latency(response: Any) -> None:
    clock = HandClock()
    played = await play(response(BackgroundTask(clock.advance, 0.3)), clock=clock)
    assert played.latency_ms < 50


@pytest.mark.parametrize(
    "steps",
    [
        [start(), final(b"x")],
        [start(headers=JSON), final(b"{}")],
        [start(headers=PLAIN | {"content-length": "1"}), chunk(b"x"), final()],
        [start(headers=JSON_7), chunk(b'{"a":1}'), final()],
        [start(trailers=True, headers=JSON_7), final(b'{"a":1}'), TRAILERS],
        [start(204, {}), final()],
    ],
)
async def test_exception_after_a_complete_answer_is_no_error(steps: list[Step]) -> None:
    error = ValueError("later")
    played = await play([*steps, 0.3, error])
    assert played.error is error
    assert played.outcome == "answered"
    assert played.latency_ms < 50


@pytest.mark.parametrize("declared", [0, 6, 8])
@pytest.mark.parametrize("headers", [JSON, PLAIN])
@pytest.mark.parametrize("messages", [[final(b'{"a":1}')], [chunk(b'{"a"'), chunk(b":1"), final(b"}")]])
async def test_answer_of_another_length_than_declared_is_malformed(
    messages: list[Step], headers: dict[str, str], declared: int
) -> None:
    played = await play([start(headers=headers | {"content-length": str(declared)}), *messages])
    assert played.outcome == "malformed"


@pytest.mark.parametrize(
    "steps",
    [
        [start(headers=JSON_7), chunk(b'{"a"'), final(b":1}")],
        [start(headers=JSON | {"content-length": "07"}), final(b'{"a":1}')],
        [start(headers=JSON | {"content-length": "7, 7"}), final(b'{"a":1}')],
        [start(headers=JSON_7), PATHSEND],
        [start(204, JSON_7), final()],
        [start(304, JSON_7), final()],
    ],
)
async def test_answer_without_another_length_is_answered(steps: list[Step]) -> None:
    assert (await play(steps)).outcome in {"answered", "not_inspected"}


async def test_length_is_not_compared_without_inspection() -> None:
    steps: list[Step] = [start(headers=JSON_7), final(b"{}")]
    assert (await play(steps, max_inspected_bytes=0)).outcome == "answered"


async def test_an_error_that_was_answered_and_raised_counts_once() -> None:
    error = ValueError()
    played = await play([start(500), final(b"Internal Server Error"), error])
    assert played.error is error
    assert played.outcome == "server_fault"


@pytest.mark.parametrize(("stream_latency", "latency_ms"), [("first_byte", 100), ("last_byte", 400)])
async def test_latency_of_a_stream_ends_with_its_first_byte_or_last_if_configured(
    stream_latency: str, latency_ms: float
) -> None:
    event = b"data: {}\n\n"
    steps: list[Step] = [start(headers=EVENTS), 0.05, chunk(b""), 0.05]
    steps += [chunk(event), 0.1, chunk(event), 0.1, chunk(event), 0.1, final(), 5.0]
    played = await play(steps, stream_latency=stream_latency)
    assert played.outcome == "answered"
    assert played.latency_ms == pytest.approx(latency_ms, rel=0.01)
    extensions = played.middleware.health.document().extensions
    assert extensions is not None
    first_byte = extensions["io.github.lifesign.first-byte"]
    assert first_byte["latency_p99_ms"] == pytest.approx(100, rel=0.01)


KEEP_ALIVE = b": ping\n\n"


@pytest.mark.parametrize(
    ("body", "outcome"),
    [
        ([final(KEEP_ALIVE)], "answered"),
        ([chunk(KEEP_ALIVE), 15.0, final()], "answered"),
        ([chunk(KEEP_ALIVE), ValueError()], "raised"),
        ([chunk(b'data: {"jsonrpc":"2.0","error":{"code":-32603}}\n\n'), final()], "server_fault"),
        ([chunk(KEEP_ALIVE), RECEIVE], "abandoned"),
        ([RECEIVE], "abandoned"),
    ],
)
async def test_event_stream_that_a_get_opens_has_neither_latency_nor_timeout(
    body: list[Step], outcome: str
) -> None:
    steps: list[Step] = [RECEIVE, start(headers=EVENTS), 45.0, *body]
    server = Server(request(), DISCONNECT)
    played = await play(steps, scope=http_scope(method="GET"), server=server)
    assert played.outcome == outcome
    document = played.middleware.health.document()
    assert document.calibration is not None
    assert document.calibration.sample_count == (0 if outcome == "abandoned" else 1)
    assert document.calibration.latency_p99_ms is None
    assert "io.github.lifesign.first-byte" not in (document.extensions or {})


async def test_open_stream_of_a_get_is_never_overdue() -> None:
    clock = HandClock()
    server = Server(request())

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(start(headers=EVENTS))
        await receive()
        await receive()

    middleware = AgentHealthMiddleware(app, agent_id="urn:agent", clock=clock.clock)
    listening = asyncio.create_task(middleware(http_scope(method="GET"), server.receive, server.send))
    for _ in range(5):
        await asyncio.sleep(0)
    clock.advance(3600)
    assert outcomes(middleware) == {}
    server.leave()
    await listening
    assert outcomes(middleware) == {"abandoned": 1}


@pytest.mark.parametrize("headers", [PLAIN, JSON])
@pytest.mark.parametrize("end", [final(), final(b" ")])
async def test_latency_of_other_answers_ends_with_the_last_byte(headers: dict[str, str], end: Step) -> None:
    played = await play([0.1, start(headers=headers), 0.1, chunk(b"1"), 0.1, end, 5.0])
    assert played.latency_ms == pytest.approx(300, rel=0.01)


@pytest.mark.parametrize("headers", [PLAIN, JSON, EVENTS])
@pytest.mark.parametrize(
    ("seconds", "outcome"), [(9.999, "answered"), (10.0, "answered"), (10.001, "timed_out")]
)
async def test_a_first_byte_that_takes_longer_than_the_timeout_is_an_error(
    headers: dict[str, str], seconds: float, outcome: str
) -> None:
    body = b"data: {}\n\n" if headers is EVENTS else b"{}"
    steps: list[Step] = [RECEIVE, start(headers=headers), seconds, final(body)]
    assert (await play(steps, timeout_seconds=10)).outcome == outcome
    steps = [RECEIVE, seconds, start(headers=headers), chunk(body), final()]
    assert (await play(steps, timeout_seconds=10)).outcome == outcome


@pytest.mark.parametrize("headers", [PLAIN, JSON, EVENTS])
async def test_stream_has_no_timeout_after_its_first_byte(headers: dict[str, str]) -> None:
    steps: list[Step] = [start(headers=headers), 1.0, chunk(b"{"), 3600.0, chunk(b"}"), 3600.0, final()]
    assert (await play(steps)).outcome == "answered"


async def test_late_answer_stays_late_if_a_background_task_fails() -> None:
    steps: list[Step] = [40.0, start(headers=JSON_7), chunk(b'{"a":1}'), final(), ValueError()]
    assert (await play(steps)).outcome == "timed_out"


async def test_clock_change_neither_makes_a_latency_negative_nor_loses_a_request() -> None:
    clock = HandClock()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        clock.advance(0.2)
        clock.step_wall(-3600)
        await send(start())
        await send(final(b"x"))

    played = await play(app, clock=clock)
    assert played.outcome == "answered"
    assert played.latency_ms == pytest.approx(200, rel=0.01)


async def test_request_in_several_messages_reaches_the_app_unchanged() -> None:
    parts = [request(b"a", more_body=True), request(b"b", more_body=True), request(b"c")]
    received = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        received.extend([await receive() for _ in parts])
        await send(start())
        await send(final())

    played = await play(app, server=Server(*parts))
    assert all(got is given for got, given in zip(received, parts, strict=True))
    assert played.outcome == "answered"
