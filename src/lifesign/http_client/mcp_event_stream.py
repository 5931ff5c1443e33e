"""Event stream of an MCP server of 2024-11-05 (HTTP with SSE), while it arrives.

A GET opens it. Its event `endpoint` names the URL for requests, whose answers arrive in events `message`.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from yarl import URL

from lifesign.domain.mcp.conversation import McpReply, read_reply
from lifesign.domain.mcp.event_reader import EventReader
from lifesign.domain.observation.results import MAX_URL_CHARS
from lifesign.domain.parsing.event_framing import MESSAGE_NAMES
from lifesign.http_client.redirects import is_same_origin, resolve_url

ACCEPTED: Final = frozenset({200, 202, 204})
"""Statuses of a request whose answer arrives in the stream."""
OTHER_ORIGIN: Final = "the endpoint event leads to another origin, or to no URL"
NO_ENDPOINT: Final = "the event stream names no endpoint"
NO_ANSWER: Final = "the event stream ended without an answer"
_ENDPOINT: Final = b"endpoint"


class McpEventStream:
    """Event stream of an MCP server of 2024, which contains the URL for requests and all answers."""

    def __init__(self, url: URL, clean: Callable[[bytes], bytes] = bytes) -> None:
        """`url` is that of the stream. `clean` removes secrets from the data of a message."""
        self._url = url
        self._clean = clean
        self._reader = EventReader()
        self._awaited: int | None = None
        self._reply: McpReply | None = None
        self._has_news = asyncio.Event()
        self._is_over = False
        self.endpoint: URL | None = None
        """URL for requests; None as long as it is not known."""
        self.is_misled = False
        """Whether the endpoint is not on the server's own origin."""
        self.reply_data = b""
        """JSON-RPC message of the last answer."""
        self.is_reply_altered = False
        """Whether secrets were removed from it."""

    def feed(self, piece: bytes) -> bool:
        """Process a piece of the stream; return whether no more has to be read."""
        for name, data in self._reader.feed(piece):
            if name in MESSAGE_NAMES:
                self._handle_message(data)
            elif name == _ENDPOINT and self.endpoint is None:
                # Requested as it is, and not shown: some servers repeat the query of the GET, with its key.
                self._set_endpoint(data)
        self._has_news.set()
        return self._is_over or self.is_misled

    def end(self) -> None:
        """Record that the stream has ended."""
        self._is_over = True
        self._has_news.set()

    async def until_endpoint(self) -> None:
        """Wait until the stream has named the URL for requests, or certainly will not."""
        while not (self.endpoint is not None or self.is_misled or self._is_over):
            await self._next_news()

    def expect(self, request_id: int | None) -> None:
        """Choose the request whose answer is to be kept; None if the next one gets no answer."""
        self._awaited, self._reply = request_id, None

    async def reply(self) -> McpReply | None:
        """Wait for the expected answer; None if the stream ended without it."""
        while self._reply is None and not self._is_over:
            await self._next_news()
        reply = self._reply
        self.expect(None)
        return reply

    async def _next_news(self) -> None:
        self._has_news.clear()
        await self._has_news.wait()

    def _set_endpoint(self, data: bytes) -> None:
        text = data.decode(errors="replace").strip()
        url = resolve_url(self._url, text) if 0 < len(text) <= MAX_URL_CHARS else None
        if url is None or url.raw_user is not None or not is_same_origin(self._url, url):
            self.is_misled = True
        else:
            self.endpoint = url

    def _handle_message(self, data: bytes) -> None:
        if self._awaited is None or self._reply is not None:
            return
        cleaned = self._clean(data)
        reply = read_reply("application/json", cleaned, self._awaited)
        if reply.is_answer:
            self._reply, self.reply_data = reply, cleaned
            self.is_reply_altered = cleaned != data
