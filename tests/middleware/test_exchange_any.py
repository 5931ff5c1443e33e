import asyncio
import copy
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.support.properties import examples
from tests.support.scripted import (
    DISCONNECT,
    EVENTS,
    JSON,
    PATHSEND,
    PLAIN,
    RECEIVE,
    TRAILERS,
    ZEROCOPY,
    Message,
    Server,
    chunk,
    final,
    http_scope,
    outcomes,
    request,
    start,
)

from lifesign import AgentHealthMiddleware
from lifesign.middleware.asgi import App
from lifesign.middleware.exchange import Receive, Scope, Send

BODIES = st.sampled_from([b"", b"{", b'{"jsonrpc":"2.0","error":{"code":1}}', b"data: {}\n\n", b"x" * 100])
HEADERS = st.sampled_from([PLAIN, JSON, EVENTS, {}, JSON | {"content-length": "2"}])
STARTS = st.builds(
    lambda status, headers, more: start(status, headers, **more),
    st.sampled_from([200, 200, 204, 304, 404, 422, 500]),
    HEADERS,
    st.sampled_from([{}, {}, {"trailers": True}, {"trailers": False}]),
)
SENT = st.one_of(
    STARTS,
    st.builds(chunk, BODIES),
    st.builds(final, BODIES),
    st.sampled_from(
        [PATHSEND, ZEROCOPY, ZEROCOPY | {"more_body": True}, TRAILERS, TRAILERS | {"more_trailers": True}]
    ),
    st.sampled_from([{"type": "http.response.debug", "info": {}}, {"type": "x.unheard.of"}]),
)
ERRORS = st.sampled_from(
    [ValueError, OSError, TimeoutError, asyncio.CancelledError, KeyboardInterrupt, GeneratorExit]
)


@dataclass(frozen=True)
class Do:
    """The next step of an app: send, receive or raise; with `is_tolerant` it continues after an exception."""

    what: Message | str | type[BaseException]
    is_tolerant: bool = False


DEEDS = st.lists(st.builds(Do, st.one_of(SENT, SENT, st.just(RECEIVE), ERRORS), st.booleans()), max_size=12)
# Most scripts begin with a valid start message.
SCRIPTS = st.one_of(
    DEEDS, st.builds(lambda first, rest: [Do(first), *rest], STARTS, DEEDS), st.builds(
        lambda first, rest, last: [Do(RECEIVE), Do(first), *rest, Do(last)],
        STARTS, DEEDS, st.builds(final, BODIES),
    )
)  # fmt: skip


@dataclass
class Seen:
    """Messages between an app and its server."""

    received: list[Message] = field(default_factory=list)
    caught: list[BaseException] = field(default_factory=list)
    raised: BaseException | None = None


def scripted(script: list[Do], seen: Seen) -> App:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        for do in script:
            try:
                if isinstance(do.what, type):
                    raise do.what  # noqa: TRY301 - that the app raises is the point
                if isinstance(do.what, str):
                    seen.received.append(await receive())
                else:
                    await send(do.what)
            except (Exception, asyncio.CancelledError) as error:
                if not do.is_tolerant:
                    raise
                seen.caught.append(error)

    return app


async def run(app: App, seen: Seen, scope: Scope, server: Server, send: Send) -> Seen:
    try:
        await app(scope, server.receive, send)
    except BaseException as error:  # noqa: BLE001 - whatever leaves the app is compared
        seen.raised = error
    return seen


@settings(max_examples=examples(500))
@given(
    script=SCRIPTS,
    incoming=st.lists(
        st.sampled_from([request(b"{"), request(b"}", more_body=True), DISCONNECT]), min_size=1, max_size=12
    ),
    fails_at=st.none() | st.integers(1, 8),
    error=st.sampled_from([OSError, ConnectionResetError, RuntimeError, asyncio.CancelledError]),
    kind=st.sampled_from(["coroutine function", "plain function", "object"]),
    most_bytes=st.sampled_from([0, 50, 32_768]),
)
async def test_middleware_passes_messages_unchanged_and_counts_once(
    *,
    script: list[Do],
    incoming: list[Message],
    fails_at: int | None,
    error: type[BaseException],
    kind: str,
    most_bytes: int,
) -> None:
    failure = error("the caller left")
    # After these messages the caller disconnects, which prevents a blocked `receive`.
    given_to_app = [*incoming, *[DISCONNECT] * len(script)]
    bare_server = Server(*given_to_app, fails_at=fails_at, error=failure)
    server = Server(*given_to_app, fails_at=fails_at, error=failure)
    bare, wrapped = Seen(), Seen()
    messages_before = copy.deepcopy([do.what for do in script])

    await run(scripted(script, bare), bare, http_scope(), bare_server, bare_server.senders()[kind])
    middleware = AgentHealthMiddleware(
        scripted(script, wrapped), agent_id="agent", max_inspected_bytes=most_bytes
    )
    scope = http_scope()
    await run(middleware, wrapped, scope, server, server.senders()[kind])

    assert list(map(id, server.sent)) == list(map(id, bare_server.sent))
    assert list(map(id, wrapped.received)) == list(map(id, bare.received))
    assert [type(caught) for caught in wrapped.caught] == [type(caught) for caught in bare.caught]
    assert type(wrapped.raised) is type(bare.raised)
    assert (wrapped.raised is failure) == (bare.raised is failure)
    assert [do.what for do in script] == messages_before
    assert scope == http_scope()
    counted = outcomes(middleware)
    assert sum(counted.values()) == 1, counted


@example(sizes=[0], content=JSON | {"content-length": "2"})
@given(sizes=st.lists(st.integers(0, 5), min_size=1, max_size=40), content=HEADERS)
async def test_valid_stream_is_answered_for_any_chunks(sizes: list[int], content: dict[str, str]) -> None:
    """Requests that are no JSON-RPC calls may be answered with anything but what claims JSON and is none.

    A body that is shorter than its stated length is none either.
    """

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(start(headers=content))
        for size in sizes:
            await send(chunk(b"\n" * size))
        await send(final())

    middleware = AgentHealthMiddleware(app, agent_id="agent")
    server = Server()
    await middleware(http_scope(), server.receive, server.send)
    claims_json = content.get("content-type") == JSON["content-type"]
    is_malformed = claims_json and (any(sizes) or "content-length" in content)
    assert outcomes(middleware) == {"malformed" if is_malformed else "answered": 1}


@pytest.mark.parametrize("steps", [[start(), final(b"x")], [start(headers=JSON), chunk(b"{"), final(b"}")]])
@pytest.mark.parametrize("kind", ["coroutine function", "plain function", "object"])
async def test_return_value_of_send_is_awaitable_with_every_server(steps: list[Message], kind: str) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        for step in steps:
            await asyncio.gather(wrapping(send(step)))

    async def wrapping(sending: Awaitable[None]) -> None:
        await sending

    server = Server()
    middleware = AgentHealthMiddleware(app, agent_id="agent")
    await middleware(http_scope(), server.receive, server.senders()[kind])
    assert list(map(id, server.sent)) == list(map(id, steps))
    assert outcomes(middleware) == {"answered": 1}


async def test_send_of_a_coroutine_function_can_become_a_task() -> None:
    async def app(scope: Scope, receive: Receive, send: Any) -> None:
        for step in (start(headers=JSON), chunk(b"{"), final(b"}")):
            await asyncio.create_task(send(step))

    server = Server()
    middleware = AgentHealthMiddleware(app, agent_id="agent")
    await middleware(http_scope(), server.receive, server.send)
    assert outcomes(middleware) == {"answered": 1}
