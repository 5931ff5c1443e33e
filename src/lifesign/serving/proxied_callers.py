"""Client addresses behind proxies.

uvicorn reads a trusted proxy's `X-Forwarded-For`, and accepts any text as an address. For an invalid one, the
proxy itself counts as the client.
"""

from collections.abc import Sequence
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from lifesign.domain.net.public_url import is_address

_PEER: Final = "lifesign.peer"
"""Member of a request's scope with the address of the peer."""


class ProxiedCallers:
    """ASGI app that passes on the client's address according to trusted proxies."""

    def __init__(self, app: ASGIApp, trusted: Sequence[str]) -> None:
        self._app = app
        self._named = ProxyHeadersMiddleware(self._checked, list(trusted))  # type: ignore[arg-type]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Take a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope[_PEER] = scope.get("client")
        await self._named(scope, receive, send)  # type: ignore[arg-type]

    async def _checked(self, scope: Scope, receive: Receive, send: Send) -> None:
        client = scope.get("client")
        # The zone of an IPv6 address may be any text, and means nothing on another machine.
        is_usable = (
            client is None or client == scope[_PEER] or (is_address(client[0]) and "%" not in client[0])
        )
        if not is_usable:
            scope["client"] = scope[_PEER]
        await self._app(scope, receive, send)
