"""Call advice in the client of the MCP SDK (mcp 2.3 or later, below 3), which has to be installed."""

from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Final, Self

from mcp.client import Transport
from mcp.client.streamable_http import streamable_http_client
from yarl import URL

from lifesign.client.call_advice import DEFAULT_SECONDS
from lifesign.client.candidate_urls import server_health_url
from lifesign.client.hooks.call_guard import CallGuard

CHECKED_METHODS: Final = frozenset({"tools/call", "prompts/get", "resources/read"})
"""Requests that make a server work. Handshakes, lists and notifications are never delayed or refused."""


class AdvisedTransport:
    """Transport of an MCP SDK client that gets advice about the server before each call.

    Pass it to `mcp.Client` in place of the URL, or enter it for the streams of a `ClientSession`. It is
    entered once, as other transports are. Needs asyncio.
    """

    def __init__(
        self,
        url: str,
        transport: Transport | None = None,
        *,
        health_url: str | None = None,
        refuse: bool = False,
        timeout_seconds: float = DEFAULT_SECONDS,
    ) -> None:
        """`url`: that of the server's endpoint, such as `https://tools.example/mcp`.

        `transport`: the connection to use; by default Streamable HTTP to `url`. `health_url`: that of the
        server's health document; by default the well-known path beside the endpoint. `refuse` and
        `timeout_seconds`: see `CallGuard`.
        """
        self._url = url
        self._health_url = health_url
        if health_url is None:
            self._health_url = str(server_health_url(URL(url, encoded=True)))
        self._transport = streamable_http_client(url) if transport is None else transport
        self._guard = CallGuard(refuse=refuse, timeout_seconds=timeout_seconds)

    async def __aenter__(self) -> tuple[Any, Any]:
        """Connect and return the streams for reading and for writing."""
        incoming, outgoing = await self._transport.__aenter__()
        return incoming, _CheckedStream(outgoing, self._check)

    async def _check(self) -> None:
        await self._guard.check(self._url, health_url=self._health_url)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        """Close the connection."""
        return await self._transport.__aexit__(kind, error, trace)


class _CheckedStream:
    """Stream of messages to the server; an error in `send` reaches the caller of the request."""

    def __init__(self, outgoing: Any, check: Callable[[], Awaitable[None]]) -> None:
        self._outgoing = outgoing
        self._check = check

    async def send(self, item: Any, /) -> None:
        # Answers have no method.
        if getattr(item.message, "method", None) in CHECKED_METHODS:
            await self._check()
        await self._outgoing.send(item)

    async def aclose(self) -> None:
        await self._outgoing.aclose()

    async def __aenter__(self) -> Self:
        await self._outgoing.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        closed: bool | None = await self._outgoing.__aexit__(kind, error, trace)
        return closed
