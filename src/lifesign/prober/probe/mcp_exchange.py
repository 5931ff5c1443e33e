"""Requests to an MCP server, each with the answer that belongs to it."""

from dataclasses import dataclass
from typing import Final

from yarl import URL

from lifesign.domain.credentials.request_scope import Purpose
from lifesign.domain.mcp.conversation import ACCEPT, FIRST_ID, McpReply, McpRequest, read_reply
from lifesign.domain.mcp.event_reader import ReplyReader
from lifesign.prober.network.fetched import Fetched
from lifesign.prober.probe.session import ProbeSession

MAX_ANSWER_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class McpAnswer:
    """Answer of an MCP server to one request, with the JSON-RPC reply in it."""

    fetched: Fetched
    reply: McpReply


class McpExchange:
    """Sends the requests of one probe to an MCP server."""

    def __init__(self, visit: ProbeSession) -> None:
        """`visit` sends them."""
        self._visit = visit
        self._last_id = FIRST_ID - 1

    def next_id(self) -> int:
        """Return the JSON-RPC id for the next request."""
        self._last_id += 1
        return self._last_id

    async def send(self, request: McpRequest, *, max_bytes: int = MAX_ANSWER_BYTES) -> McpAnswer | None:
        """Send a request and return its answer; None if nothing could be sent."""
        fetched = await self._post(self._visit.given.url, request, max_bytes, Purpose.INTERFACE)
        if fetched is None:
            return None
        return McpAnswer(fetched, read_reply(fetched.content_type, fetched.body, request.request_id))

    async def _post(
        self, url: URL, request: McpRequest, max_bytes: int, purpose: Purpose, *, has_secret: bool = False
    ) -> Fetched | None:
        reader = ReplyReader(request.request_id)
        return await self._visit.ask(
            url,
            method="POST",
            body=request.body,
            headers=request.headers,
            accept=ACCEPT,
            max_bytes=max_bytes,
            is_enough=lambda piece, _: reader.feed(piece),
            has_secret=has_secret,
            purpose=purpose,
        )
