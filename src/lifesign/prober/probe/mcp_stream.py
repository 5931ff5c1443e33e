"""Conversation with an MCP server of 2024-11-05: HTTP with SSE.

A GET opens an event stream, whose first event names the URL for requests. Their answers arrive in the stream.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from lifesign.domain.credentials.request_scope import Purpose
from lifesign.domain.mcp.conversation import EVENT_STREAM, NO_REPLY, McpReply, McpRequest, read_reply
from lifesign.domain.mcp.event_reader import EventReader
from lifesign.domain.mcp.tools import MAX_LIST_BYTES
from lifesign.domain.observation.results import MAX_URL_CHARS, ResultClass
from lifesign.domain.parsing.event_framing import MESSAGE_NAMES
from lifesign.http_client.redirects import is_same_origin, joined
from lifesign.prober.network.fetch import Fetched
from lifesign.prober.probe.mcp_exchange import MAX_ANSWER_BYTES, McpAnswer, McpExchange
from lifesign.prober.probe.session import ProbeSession

if TYPE_CHECKING:
    from yarl import URL

MAX_STREAM_BYTES: Final = MAX_ANSWER_BYTES + MAX_LIST_BYTES
"""Maximum for all answers of one probe."""
ENDPOINT: Final = b"endpoint"
_ACCEPTED: Final = frozenset({200, 202, 204})
OTHER_ORIGIN: Final = "the endpoint event leads to another origin, or to no URL"


class StreamExchange(McpExchange):
    """Requests whose answers arrive in the event stream of a GET."""

    def __init__(self, visit: ProbeSession) -> None:
        """`visit` sends them."""
        super().__init__(visit)
        self._reader = EventReader()
        self._endpoint: URL | None = None
        self._awaited: int | None = None
        self._reply: McpReply | None = None
        self._has_news = asyncio.Event()
        self._is_over = False
        self.is_misled = False
        """Whether the endpoint is not on the server's own origin."""

    @property
    def has_endpoint(self) -> bool:
        """Whether the URL for requests is known."""
        return self._endpoint is not None

    def feed(self, piece: bytes) -> bool:
        """Take a piece of the stream; whether nothing more need be read."""
        for name, given in self._reader.feed(piece):
            # The stream arrives in pieces, and is read before the fetcher removes secrets from the whole.
            data = self._visit.without_own_secrets(given)
            if name in MESSAGE_NAMES:
                self._take_message(data)
            elif name == ENDPOINT and self._endpoint is None:
                self._take_endpoint(data)
        self._has_news.set()
        return self._is_over or self.is_misled

    def end(self) -> None:
        """Note that the stream has ended."""
        self._is_over = True
        self._has_news.set()

    async def until_endpoint(self) -> None:
        """Wait until the URL for requests is known, or cannot become known."""
        while not (self.has_endpoint or self.is_misled or self._is_over):
            self._has_news.clear()
            await self._has_news.wait()

    async def send(
        self,
        request: McpRequest,
        *,
        max_bytes: int = MAX_ANSWER_BYTES,
        purpose: Purpose = Purpose.INTERFACE,
    ) -> McpAnswer | None:
        """Send a request and wait for its answer in the stream; None if nothing could be sent."""
        if self._endpoint is None:
            return None
        self._awaited = None if request.is_notification else request.request_id
        fetched = await self._post(self._endpoint, request, max_bytes, purpose)
        if fetched is None or fetched.status not in _ACCEPTED or request.is_notification:
            return None if fetched is None else McpAnswer(fetched, NO_REPLY)
        while self._reply is None and not self._is_over:
            self._has_news.clear()
            await self._has_news.wait()
        reply, self._reply, self._awaited = self._reply, None, None
        if reply is None:
            reason = "the event stream ended without an answer"
            return McpAnswer(replace(fetched, result=ResultClass.TIMEOUT, reason=reason), NO_REPLY)
        return McpAnswer(fetched, reply)

    def _take_endpoint(self, data: bytes) -> None:
        text = data.decode(errors="replace").strip()
        here = self._visit.given.url
        url = joined(here, text) if 0 < len(text) <= MAX_URL_CHARS else None
        if url is None or url.raw_user is not None or not is_same_origin(here, url):
            self.is_misled = True
        else:
            self._endpoint = url

    def _take_message(self, data: bytes) -> None:
        if self._awaited is None or self._reply is not None:
            return
        reply = read_reply("application/json", data, self._awaited)
        if reply.is_answer:
            self._reply = reply


Get = asyncio.Task[Fetched | None]
"""The request for the event stream."""


@asynccontextmanager
async def open_stream(visit: ProbeSession) -> AsyncIterator[tuple[StreamExchange, Get]]:
    """Request the event stream while the block runs; yield the exchange, and the GET.

    The GET is done once its answer is no event stream, has ended, or was given up.
    """
    exchange = StreamExchange(visit)
    task = asyncio.ensure_future(
        visit.ask(
            visit.given.url,
            accept=EVENT_STREAM,
            max_bytes=MAX_STREAM_BYTES,
            is_enough=exchange.feed,
            purpose=Purpose.INTERFACE,
        )
    )
    task.add_done_callback(lambda _: exchange.end())
    try:
        await exchange.until_endpoint()
        yield exchange, task
    finally:
        if not task.done():
            # A request that is given up counts too.
            visit.requests += 1
            task.cancel()
            await asyncio.wait({task})
