import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from tests.support.hand_clock import HandClock
from tests.support.scripted import (
    CANCELLED,
    DISCONNECT,
    EVENTS,
    JSON,
    PLAIN,
    RECEIVE,
    TRAILERS,
    Server,
    Step,
    Tolerantly,
    chunk,
    final,
    http_scope,
    outcomes,
    play,
    request,
    start,
)

from lifesign import AgentHealthMiddleware
from lifesign.middleware.body import Message
from lifesign.middleware.exchange import Receive, Scope, Send

TYPES = [PLAIN, JSON, EVENTS, {}]


class Surrounding(BaseHTTPMiddleware):
    """A middleware as applications use it: it passes on the answer of the app."""

    async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        return await call_next(request)


# Exceptions of the app.


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (ValueError(), "raised"),
        (OSError("gone"), "raised"),
        (ConnectionResetError("gone"), "raised"),
        (ExceptionGroup("", [OSError("gone")]), "raised"),
        (TimeoutError(), "timed_out"),
        (asyncio.CancelledError(), "raised"),
        (SystemExit(), "raised"),
        (BaseException(), "raised"),
        (BaseExceptionGroup("", [GeneratorExit(), SystemExit()]), "raised"),
        (BaseExceptionGroup("", [GeneratorExit(), KeyboardInterrupt()]), "abandoned"),
        (GeneratorExit(), "abandoned"),
        (KeyboardInterrupt(), "abandoned"),
    ],
)
@pytest.mark.parametrize(
    "before",
    [
        [],
        [start()],
        [start(headers=JSON)],
        [start(headers=EVENTS), chunk(b"data: {}\n\n")],
        [start(headers=EVENTS), chunk(b"data: {}\n\n"), chunk(b"data: {}\n\n")],
        [start(headers=JSON | {"content-length": "9"}), chunk(b"{")],
        [start(trailers=True), chunk(b"x"), final()],
    ],
)
async def test_exception_before_the_end_counts_once_and_is_reraised(
    before: list[Step], error: BaseException, outcome: str
) -> None:
    cause, context = error.__cause__, error.__context__
    played = await play([*before, error])
    assert played.error is error
    assert (error.__cause__, error.__context__) == (cause, context)
    assert played.outcome == outcome


async def test_a_timeout_within_the_app_is_an_error() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        async with asyncio.timeout(0):
            await asyncio.Event().wait()

    played = await play(app)
    assert isinstance(played.error, TimeoutError)
    assert played.outcome == "timed_out"


async def test_a_cancelled_request_is_in_neither_ratio_and_stays_cancelled() -> None:
    is_waiting = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        is_waiting.set()
        await asyncio.Event().wait()

    middleware = AgentHealthMiddleware(app, agent_id="agent", clock=HandClock().clock)
    server = Server()
    task = asyncio.ensure_future(middleware(http_scope(), server.receive, server.send))
    await is_waiting.wait()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert outcomes(middleware) == {"abandoned": 1}
    calibration = middleware.health.document().calibration
    assert calibration is not None
    assert calibration.sample_count == 0


# An exception in mid-stream, plain and where BaseHTTPMiddleware closes the body cleanly first (B5).


async def two_events() -> AsyncIterator[bytes]:
    yield b"data: {}\n\n"
    yield b"data: {}\n\n"
    raise ValueError


async def no_event() -> AsyncIterator[bytes]:
    for event in [int("none")]:
        yield b"%d" % event


def failing_agent(events: Any, headers: dict[str, str], media_type: str | None) -> Starlette:
    async def answer(request: Request) -> Response:
        return StreamingResponse(events(), headers=headers, media_type=media_type)

    return Starlette(routes=[Route("/ask", answer, methods=["POST"])])


@pytest.mark.parametrize("headers", [{}, {"content-length": "1000"}])
@pytest.mark.parametrize("media_type", ["text/event-stream", "text/plain", "application/json", None])
@pytest.mark.parametrize("events", [two_events, no_event])
@pytest.mark.parametrize("is_surrounded", [False, True])
async def test_a_failure_in_mid_stream_is_an_error(
    *, events: Any, headers: dict[str, str], media_type: str | None, is_surrounded: bool
) -> None:
    agent: Any = failing_agent(events, headers, media_type)
    played = await play(Surrounding(agent) if is_surrounded else agent)
    assert isinstance(played.error, ValueError)
    assert played.server.sent[0]["status"] == 200
    assert played.outcome == "raised"


async def test_a_failing_background_task_behind_a_middleware_is_no_error_of_the_answer() -> None:
    async def fail() -> None:
        raise ValueError

    async def answer(request: Request) -> Response:
        response = Response("whole")
        response.background = fail  # type: ignore[assignment]
        return response

    agent = Starlette(routes=[Route("/ask", answer, methods=["POST"])])
    played = await play(Surrounding(agent))
    assert isinstance(played.error, ValueError)
    assert played.outcome == "answered"


# The server refuses what the app sends.


@pytest.mark.parametrize("headers", TYPES)
@pytest.mark.parametrize("fails_at", [1, 2, 3])
async def test_answer_rejected_by_the_server_is_an_error(headers: dict[str, str], fails_at: int) -> None:
    """uvicorn and h11 do so if the body does not match its Content-Length."""
    error = RuntimeError("too short")
    steps: list[Step] = [start(headers=headers), chunk(b"x"), final(b"y")]
    played = await play(steps, server=Server(fails_at=fails_at, error=error))
    assert played.error is error
    assert played.outcome == "raised"


@pytest.mark.parametrize("headers", TYPES)
async def test_single_message_rejected_by_the_server_is_an_error(headers: dict[str, str]) -> None:
    error = RuntimeError("too short")
    played = await play([start(headers=headers), final(b"y")], server=Server(fails_at=2, error=error))
    assert played.error is error
    assert played.outcome == "raised"


# The caller leaves.

SENDERS = ["coroutine function", "plain function", "object"]
UNARY: list[Step] = [final(b"{}")]
STREAM: list[Step] = [chunk(b"data: {}\n\n"), chunk(b"data: {}\n\n"), final()]


@pytest.mark.parametrize("send", SENDERS)
@pytest.mark.parametrize("headers", TYPES)
@pytest.mark.parametrize(
    ("steps", "fails_at"), [(UNARY, 1), (UNARY, 2), (STREAM, 1), (STREAM, 2), (STREAM, 3), (STREAM, 4)]
)
async def test_oserror_from_send_counts_as_a_disconnect(
    steps: list[Step], headers: dict[str, str], fails_at: int, send: str
) -> None:
    server = Server(fails_at=fails_at)
    played = await play([start(headers=headers), *steps], server=server, send=send)
    assert played.error is server.error
    assert played.outcome == "abandoned"


@pytest.mark.parametrize("headers", TYPES)
@pytest.mark.parametrize(
    ("steps", "fails_at"), [(UNARY, 2), (STREAM, 2), (STREAM, 3), (STREAM, 4), ([chunk(b"x")], 2)]
)
async def test_oserror_from_send_counts_as_a_disconnect_if_the_app_ignores_it(
    steps: list[Any], headers: dict[str, str], fails_at: int
) -> None:
    tolerant = [Tolerantly(step) for step in steps]
    played = await play([start(headers=headers), *tolerant], server=Server(fails_at=fails_at))
    assert played.error is None
    assert played.outcome == "abandoned"


@pytest.mark.parametrize(
    ("steps", "fails_at"), [([start(), *UNARY], 2), ([start(headers=EVENTS), *STREAM], 3), ([start()], 1)]
)
@pytest.mark.parametrize("disguise", ["from", "while", "group", "groups", "chain"])
async def test_oserror_from_send_counts_as_a_disconnect_if_the_app_wraps_it(
    steps: list[Any], fails_at: int, disguise: str
) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            for step in steps:
                await send(step)
        except OSError as error:
            if disguise == "from":
                raise ClientDisconnect from error
            if disguise == "while":
                raise ClientDisconnect  # noqa: B904 - as Starlette does
            if disguise == "group":
                raise ExceptionGroup("", [ValueError(), error]) from None
            if disguise == "groups":
                raise BaseExceptionGroup("", [ExceptionGroup("", [error])]) from None
            second = ValueError()
            second.__cause__ = error
            raise ClientDisconnect from second

    played = await play(app, server=Server(fails_at=fails_at))
    assert played.error is not None
    assert played.outcome == "abandoned"


@pytest.mark.parametrize("fails_at", [1, 2, 3])
@pytest.mark.parametrize("is_surrounded", [False, True])
async def test_disconnect_during_a_starlette_stream_is_abandoned(
    *, fails_at: int, is_surrounded: bool
) -> None:
    """Only since HTTP spec 2.4 does a server raise; of an earlier one Starlette asks `receive`."""

    async def many() -> AsyncIterator[bytes]:
        for _ in range(5):
            yield b"data: {}\n\n"

    agent: Any = failing_agent(many, {}, "text/event-stream")
    played = await play(Surrounding(agent) if is_surrounded else agent, server=Server(fails_at=fails_at))
    assert played.error is not None
    assert played.outcome == "abandoned"


async def test_oserror_raised_by_the_app_counts_as_an_error() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(start(headers=EVENTS))
        await send(chunk(b"data: {}\n\n"))
        try:
            raise ConnectionRefusedError("the database")
        except OSError as error:
            raise RuntimeError from error

    assert (await play(app)).outcome == "raised"


@pytest.mark.parametrize("rest", [[], [final()], [chunk(), final()], [TRAILERS]])
@pytest.mark.parametrize("headers", TYPES)
@pytest.mark.parametrize("before", [[], [chunk(b"data: {}\n\n")]])
@pytest.mark.parametrize(("seconds", "outcome"), [(29.9, "abandoned"), (30.1, "abandoned_late")])
async def test_disconnect_is_classified_by_the_waiting_time(
    *, before: list[Step], rest: list[Step], headers: dict[str, str], seconds: float, outcome: str
) -> None:
    """B7: a return without the final body, and http.disconnect followed by an empty one."""
    steps: list[Step] = [RECEIVE, start(headers=headers), *before, seconds, RECEIVE, *rest]
    played = await play(steps, server=Server(request(), DISCONNECT))
    flows = headers is EVENTS and before
    assert played.outcome == ("abandoned" if flows else outcome)


@pytest.mark.parametrize(("first_s", "outcome"), [(30.0, "abandoned"), (30.1, "abandoned_late")])
@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_disconnect_from_a_stream_counts_by_its_first_byte(
    *, first_s: float, outcome: str, is_cancelled: bool
) -> None:
    """A stream may flow for hours: how long its caller listens is no fault of the agent."""
    tick = chunk(b": tick\n\n")
    leaves: Step = CANCELLED if is_cancelled else RECEIVE
    steps: list[Step] = [RECEIVE, start(headers=EVENTS), first_s, tick, 3600.0, tick, 3600.0, leaves]
    played = await play(steps, server=Server(request(), DISCONNECT), counting="server_faults")
    assert played.outcome == outcome


@pytest.mark.parametrize("rest", [[], [final()], [chunk(), final()], [ValueError()]])
@pytest.mark.parametrize("headers", TYPES)
async def test_work_after_a_disconnect_does_not_count_as_waiting_time(
    rest: list[Step], headers: dict[str, str]
) -> None:
    steps: list[Step] = [start(headers=headers), chunk(), 1.0, RECEIVE, 3600.0, *rest]
    assert (await play(steps, server=Server(DISCONNECT))).outcome == "abandoned"


@pytest.mark.parametrize("steps", [[RECEIVE, ValueError()], [start(), chunk(), RECEIVE, ValueError()]])
async def test_exception_after_a_disconnect_is_no_error(steps: list[Step]) -> None:
    assert (await play(steps, server=Server(DISCONNECT))).outcome == "abandoned"


@pytest.mark.parametrize("headers", TYPES)
async def test_disconnect_after_a_complete_answer_counts_as_answered(headers: dict[str, str]) -> None:
    body = b"data: {}\n\n" if headers is EVENTS else b"{}"
    whole: list[Step] = [start(headers=headers), final(body)]
    streamed: list[Step] = [start(headers=headers), chunk(body), final()]
    for steps in (whole, streamed):
        played = await play([RECEIVE, *steps, RECEIVE], server=Server(request(), DISCONNECT))
        assert played.outcome == "answered"


@pytest.mark.parametrize("counting", ["literal", "interactions", "server_faults"])
@pytest.mark.parametrize(("seconds", "errors"), [(1, 0), (31, 1)])
async def test_only_a_late_disconnect_is_a_sample(counting: str, seconds: int, errors: int) -> None:
    played = await play([float(seconds), RECEIVE], server=Server(DISCONNECT), counting=counting)
    calibration = played.middleware.health.document().calibration
    assert calibration is not None
    assert calibration.sample_count == errors
    assert calibration.response_ratio == (0 if errors else None)


async def test_disconnect_before_the_trailers_is_abandoned() -> None:
    steps: list[Step] = [start(trailers=True), final(b"x"), TRAILERS]
    assert (await play(steps, server=Server(fails_at=3))).outcome == "abandoned"


async def test_endless_request_is_counted_when_overdue() -> None:
    """Its caller may have left long ago, unnoticed: a handler that hangs does not call `receive`."""
    clock = HandClock()
    waiting = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await waiting.wait()
        await send(start())
        await send(final(b"at last"))

    middleware = AgentHealthMiddleware(app, agent_id="urn:agent", timeout_seconds=30, clock=clock.clock)
    hanging = asyncio.create_task(middleware(http_scope(), idle_receive, swallow))
    await asyncio.sleep(0)
    clock.advance(30)
    assert outcomes(middleware) == {}
    clock.advance(1)
    for _ in range(2):
        assert outcomes(middleware) == {"timed_out": 1}
    waiting.set()
    await hanging
    assert outcomes(middleware) == {"timed_out": 1}


async def test_upload_time_does_not_add_to_the_latency() -> None:
    clock = HandClock()

    async def slowly() -> Message:
        clock.advance(40)
        return request(b"{}")

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        clock.advance(0.1)
        await send(start())
        await send(final(b"ok"))

    middleware = AgentHealthMiddleware(app, agent_id="urn:agent", timeout_seconds=30, clock=clock.clock)
    await middleware(http_scope(), slowly, swallow)
    document = middleware.health.document()
    assert outcomes(middleware) == {"answered": 1}
    assert document.calibration is not None
    assert document.calibration.latency_p99_ms == pytest.approx(100, rel=0.01)


async def test_upload_during_the_answer_gives_no_negative_latency() -> None:
    clock = HandClock()
    incoming: asyncio.Queue[Message] = asyncio.Queue()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        # Two tasks that receive: the time of neither counts twice.
        tasks = [asyncio.ensure_future(receive()) for _ in range(2)]
        await asyncio.sleep(0)
        clock.advance(40)
        await send(start())
        clock.advance(0.1)
        await send(final(b"ok"))
        await asyncio.wait(tasks)

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            clock.advance(1)
            for _ in range(2):
                incoming.put_nowait(request(b"a", more_body=True))
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    middleware = AgentHealthMiddleware(app, agent_id="urn:agent", timeout_seconds=30, clock=clock.clock)
    await middleware(http_scope(), incoming.get, send)
    assert outcomes(middleware) == {"answered": 1}
    document = middleware.health.document()
    assert document.calibration is not None
    assert document.calibration.latency_p99_ms == pytest.approx(100, rel=0.01)


@pytest.mark.parametrize("outcome", ["answered", "abandoned", "timed_out"])
async def test_stalled_upload_is_never_overdue(outcome: str) -> None:
    """Any caller can stall one; but an app that hangs once it has the whole body is overdue."""
    clock = HandClock()
    incoming: asyncio.Queue[Message] = asyncio.Queue()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive()).get("more_body"):
            pass
        if outcome == "timed_out":
            await receive()
        await send(start())
        await send(final(b"ok"))

    middleware = AgentHealthMiddleware(app, agent_id="urn:agent", timeout_seconds=30, clock=clock.clock)
    under_way = asyncio.create_task(middleware(http_scope(), incoming.get, swallow))
    incoming.put_nowait(request(b"a", more_body=True))
    await asyncio.sleep(0)
    clock.advance(100)
    assert outcomes(middleware) == {}
    incoming.put_nowait(DISCONNECT if outcome == "abandoned" else request(b"b"))
    if outcome == "timed_out":
        await asyncio.sleep(0)
        clock.advance(31)
        assert outcomes(middleware) == {"timed_out": 1}
        incoming.put_nowait(DISCONNECT)
    await under_way
    assert outcomes(middleware) == {outcome: 1}


async def test_cancelled_receive_ends_the_upload_time() -> None:
    clock = HandClock()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        with suppress(TimeoutError):
            async with asyncio.timeout(0):
                await receive()
        await asyncio.Event().wait()

    server = Server(request(b"a", more_body=True))
    middleware = AgentHealthMiddleware(app, agent_id="urn:agent", timeout_seconds=30, clock=clock.clock)
    hanging = asyncio.create_task(middleware(http_scope(), server.receive, swallow))
    for _ in range(10):
        await asyncio.sleep(0)
    clock.advance(31)
    assert outcomes(middleware) == {"timed_out": 1}
    hanging.cancel()
    await asyncio.wait([hanging])


async def idle_receive() -> Message:
    return request()


async def swallow(message: Message) -> None:
    pass
