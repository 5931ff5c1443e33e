"""Callers that read slowly: the app waits in `send`, and that is not its own time."""

import asyncio
from typing import Any

import pytest
from tests.support.hand_clock import HandClock
from tests.support.scripted import (
    DISCONNECT,
    EVENTS,
    JSON,
    PLAIN,
    Message,
    Played,
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

VERSIONS = ["2.3", "2.4"]
BODY = [start(headers=JSON), chunk(b"{"), chunk(b'"a":1'), chunk(b"}"), final()]


class SlowReader(Server):
    """Takes each message but the last one only after `seconds`."""

    def __init__(self, clock: HandClock, seconds: float, kinds: tuple[str, ...], **more: Any) -> None:
        super().__init__(request(), **more)
        self._clock = clock
        self._seconds = seconds
        self._kinds = kinds

    async def send(self, message: Message) -> None:
        if message["type"] in self._kinds and message.get("more_body", True):
            self._clock.advance(self._seconds)
        await super().send(message)


async def read_slowly(
    steps: list[Step], seconds: float, *kinds: str, version: str = "2.3", **more: Any
) -> Played:
    clock = HandClock()
    server = SlowReader(clock, seconds, kinds, fails_at=more.pop("fails_at", None))
    scope = http_scope(asgi={"version": "3.0", "spec_version": version})
    return await play(steps, server=server, clock=clock, scope=scope, **more)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("headers", [PLAIN, JSON, EVENTS])
async def test_time_waiting_for_a_slow_reader_does_not_add_to_the_latency(
    headers: dict[str, str], version: str
) -> None:
    steps: list[Step] = [
        start(headers=headers),
        chunk(b"[1"),
        0.5,
        chunk(b",2]"),
        chunk(b"\n"),
        1.0,
        final(b"\n"),
    ]
    kinds = ("http.response.start", "http.response.body")
    played = await read_slowly(steps, 9.0, *kinds, version=version, stream_latency="last_byte")
    assert played.outcome == "answered"
    assert played.latency_ms == pytest.approx(1500, rel=0.01)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("steps", [BODY, [start(headers=JSON), final(b"{}")], [start(), final(b"x")]])
async def test_delayed_send_of_the_response_start_is_no_timeout(steps: list[Step], version: str) -> None:
    played = await read_slowly(steps, 40.0, "http.response.start", version=version)
    assert played.outcome == "answered"
    assert played.latency_ms < 1
    late = await read_slowly([31.0, *steps], 40.0, "http.response.start", version=version)
    assert late.outcome == "timed_out"


@pytest.mark.parametrize("own", [0.0, 31.0])
@pytest.mark.parametrize("headers", [PLAIN, JSON])
async def test_disconnect_of_a_slow_reader_is_late_only_by_the_time_of_the_app(
    headers: dict[str, str], own: float
) -> None:
    steps: list[Step] = [start(headers=headers), chunk(b"{"), own, chunk(b"}"), chunk(b"}")]
    outcome = "abandoned_late" if own else "abandoned"
    for fails_at in (3, 4):
        played = await read_slowly(steps, 40.0, "http.response.body", version="2.4", fails_at=fails_at)
        assert isinstance(played.error, OSError)
        assert played.outcome == outcome


async def stalled(*, gets_disconnect: bool) -> AgentHealthMiddleware:
    """Stop reading for 100 s, and leave; the server stops the app, and may tell it before."""
    clock = HandClock()
    is_waiting = asyncio.Event()

    async def send(message: Message) -> None:
        if message.get("body") == b"2":
            is_waiting.set()
            await asyncio.Event().wait()

    async def receive() -> Message:
        return DISCONNECT

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(start())
        await send(chunk(b"1"))
        sending = asyncio.ensure_future(send(chunk(b"2")))
        try:
            await asyncio.Event().wait()
        finally:
            if gets_disconnect:
                await receive()
                clock.advance(50.0)
            sending.cancel()
            await asyncio.wait([sending])

    middleware = AgentHealthMiddleware(app, agent_id="agent", clock=clock.clock)
    scope = http_scope(asgi={"version": "3.0", "spec_version": "2.3"})
    task = asyncio.ensure_future(middleware(scope, receive, send))
    await is_waiting.wait()
    clock.advance(100.0)
    task.cancel()
    await asyncio.wait([task])
    return middleware


@pytest.mark.parametrize("gets_disconnect", [False, True])
async def test_disconnect_of_a_caller_that_stopped_reading_is_no_error(*, gets_disconnect: bool) -> None:
    assert outcomes(await stalled(gets_disconnect=gets_disconnect)) == {"abandoned": 1}


async def test_request_that_waits_for_its_reader_is_not_overdue() -> None:
    clock = HandClock()
    is_waiting, is_read = asyncio.Event(), asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(start())
        clock.advance(1.0)
        await send(final(b"x"))

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            is_waiting.set()
            await is_read.wait()

    middleware = AgentHealthMiddleware(app, agent_id="agent", clock=clock.clock)
    task = asyncio.ensure_future(middleware(http_scope(), Server().receive, send))
    await is_waiting.wait()
    clock.advance(100.0)
    assert outcomes(middleware) == {}
    is_read.set()
    await task
    assert outcomes(middleware) == {"answered": 1}
