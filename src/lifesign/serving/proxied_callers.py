"""Who calls, where a proxy says so?

A trusted proxy's `X-Forwarded-For` is read by uvicorn, which takes any text for an address. What is none
is nobody's: then the proxy itself counts as the caller.
"""

from collections.abc import Sequence
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from lifesign.domain.net.public_address import is_address

_PEER: Final = "lifesign.peer"
"""Where a request's scope keeps who has connected."""


class ProxiedCallers:
    """An ASGI app that tells another one who calls, by the word of trusted proxies."""

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
        if client is not None and client != scope[_PEER] and not is_address(client[0]):
            scope["client"] = scope[_PEER]
        await self._app(scope, receive, send)
