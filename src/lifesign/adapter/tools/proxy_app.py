"""Two ASGI apps around the MCP server of a run: a bound on the messages at once, and an end with the run."""

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lifesign.mcp.authentication import refuse


class ConcurrentMessageLimit:
    """ASGI middleware that processes at most `most_at_once` requests at a time; further ones wait unread.

    A message takes twenty times its size once it is read.
    """

    def __init__(self, app: ASGIApp, *, most_at_once: int) -> None:
        self._app = app
        self._places = asyncio.Semaphore(most_at_once)
        self._has_ended = False

    def end(self) -> None:
        """Refuse all further requests; may be called from any thread."""
        self._has_ended = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on once there is room for it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        async with self._places:
            if self._has_ended:
                await _send_over(send)
            else:
                await self._app(scope, receive, send)


class RequestCanceller:
    """ASGI middleware that cancels running requests at the end of a run, so that none is logged as an error.

    The end of a run is an ordinary event. Usually the client has ended with the agent.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._has_ended = asyncio.Event()

    def end(self) -> None:
        """Cancel running requests, and answer no further ones."""
        self._has_ended.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on until the end."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        has_begun = False

        async def send_noting(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        answering = asyncio.ensure_future(self._app(scope, receive, send_noting))
        ends = asyncio.ensure_future(self._has_ended.wait())
        try:
            await asyncio.wait({answering, ends}, return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                answering.result()
                return
        finally:
            ends.cancel()
            answering.cancel()
            await asyncio.gather(answering, return_exceptions=True)
        if not has_begun:
            await _send_over(send)


async def _send_over(send: Send) -> None:
    await refuse(send, 503, "the run is over")
