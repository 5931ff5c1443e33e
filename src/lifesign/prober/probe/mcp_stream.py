"""Conversation with an MCP server of 2024-11-05: HTTP with SSE."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Final

from lifesign.domain.credentials.request_scope import Purpose
from lifesign.domain.credentials.secret import NO_SECRETS, Scrubber
from lifesign.domain.mcp.conversation import EVENT_STREAM, NO_REPLY, McpRequest
from lifesign.domain.mcp.tools import MAX_LIST_BYTES
from lifesign.domain.observation.results import ResultClass
from lifesign.http_client.answer import in_ms
from lifesign.http_client.headers import UTF_8
from lifesign.http_client.mcp_event_stream import ACCEPTED, NO_ANSWER, McpEventStream
from lifesign.prober.network.fetched import Fetched
from lifesign.prober.probe.mcp_exchange import MAX_ANSWER_BYTES, McpAnswer, McpExchange
from lifesign.prober.probe.session import ProbeSession

MAX_STREAM_BYTES: Final = MAX_ANSWER_BYTES + MAX_LIST_BYTES
"""Maximum for all answers of one probe."""


class StreamExchange(McpExchange):
    """Sends requests to an MCP server of 2024, whose answers arrive in an event stream."""

    def __init__(self, visit: ProbeSession) -> None:
        """`visit` sends them."""
        super().__init__(visit)
        self.stream = McpEventStream(visit.given.url, self._without_secrets)
        self._scrubber = NO_SECRETS
        """Removes the secrets that the sender of the stream receives."""

    def feed(self, piece: bytes, scrubber: Scrubber) -> bool:
        """Process a piece of the stream; return whether no more has to be read.

        It is read before the fetcher removes secrets from the whole.
        """
        self._scrubber = scrubber
        return self.stream.feed(piece)

    async def send(self, request: McpRequest, *, max_bytes: int = MAX_ANSWER_BYTES) -> McpAnswer | None:
        """Send a request and wait for its answer in the stream; None if nothing could be sent.

        Body and latency are those of the answer in the stream, the status is that of the request.
        """
        endpoint = self.stream.endpoint
        if endpoint is None:
            return None
        self.stream.expect(None if request.is_notification else request.request_id)
        has_secret = self._scrubber.is_quoted_in(str(endpoint))
        fetched = await self._post(endpoint, request, max_bytes, Purpose.ENDPOINT, has_secret=has_secret)
        if fetched is None or fetched.status not in ACCEPTED or request.is_notification:
            return None if fetched is None else McpAnswer(fetched, NO_REPLY)
        loop = asyncio.get_running_loop()
        accepted_at_s = loop.time()
        reply = await self.stream.reply()
        if reply is None:
            return McpAnswer(replace(fetched, result=ResultClass.TIMEOUT, reason=NO_ANSWER), NO_REPLY)
        return McpAnswer(
            replace(
                fetched,
                body=self.stream.reply_data,
                content_type="application/json",
                codec=UTF_8,
                is_body_unread=False,
                is_altered=self.stream.is_reply_altered,
                scrubber=self._scrubber,
                latency_ms=fetched.latency_ms + in_ms(loop.time() - accepted_at_s),
            ),
            reply,
        )

    def _without_secrets(self, data: bytes) -> bytes:
        return self._scrubber.clean_shown(data) if self._scrubber else data


Get = asyncio.Task[Fetched | None]
"""The request for the event stream."""


@asynccontextmanager
async def open_stream(visit: ProbeSession) -> AsyncIterator[tuple[StreamExchange, Get]]:
    """Open the server's event stream until the block ends; yields the exchange, and the stream's request.

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
    task.add_done_callback(lambda _: exchange.stream.end())
    try:
        await exchange.stream.until_endpoint()
        yield exchange, task
    finally:
        if not task.done():
            # A request that is given up counts too.
            visit.requests += 1
            task.cancel()
            await asyncio.wait({task})
