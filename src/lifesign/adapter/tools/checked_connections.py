"""Check of the servers on this machine to which the adapter sends the secret headers of a tool server.

While a tool server is down, any user of the machine can listen on its port, also the agent.
"""

from collections.abc import Collection, Mapping
from typing import Any, Final

import httpx2

from lifesign.loopback.listeners import IN_THIS_PROCESS, server_users

_LOCALHOST: Final = "127.0.0.1"
"""The address of `localhost`. Another user could listen on ::1, which many systems return first."""
_CONNECTED: Final = "connection.connect_tcp.complete"
"""HTTPX's name of the step after which nothing was sent yet."""


class ListenerRefused(httpx2.ConnectError):
    """A user who must not receive the request listens on its port of this machine. Nothing was sent."""


class CheckedConnections(httpx2.AsyncBaseTransport):
    """HTTP transport that checks which user's server it reached on this machine, before it sends without TLS.

    The user must be that of the first server at this port, root, or our own; else a request raises
    ListenerRefused. `localhost` is 127.0.0.1.
    """

    def __init__(self, transport: httpx2.AsyncBaseTransport, *, refused_user: int | None = None) -> None:
        """`refused_user`: number of a user to whose servers nothing is ever sent."""
        self._transport = transport
        self._refused_user = refused_user

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request and return the answer."""
        if request.url.scheme != "http":
            return await self._transport.handle_async_request(request)
        url = request.url.copy_with(host=_LOCALHOST) if request.url.host == "localhost" else request.url
        checked = httpx2.Request(
            request.method,
            url,
            headers=request.headers,
            stream=request.stream,
            extensions={**request.extensions, "trace": self._trace},
        )
        return await self._transport.handle_async_request(checked)

    async def aclose(self) -> None:
        """Close all connections."""
        await self._transport.aclose()

    async def _trace(self, step: str, facts: Mapping[str, Any]) -> None:
        if step != _CONNECTED:
            return
        stream = facts["return_value"]
        try:
            self._check(stream.get_extra_info("server_addr"), stream.get_extra_info("client_addr"))
        except ListenerRefused:
            await stream.aclose()
            raise

    def _check(self, peer: tuple[str, int] | None, own: tuple[str, int]) -> None:
        """Raise ListenerRefused for the server at `peer`; None if the connection has ended meanwhile."""
        if peer and self._refused_user is not None and self._refused_user in _users(peer, own):
            what = f"user {self._refused_user} listens on {peer[0]}, port {peer[1]}"
            raise ListenerRefused(f"{what}; this is the agent's user, who must not get the server's secrets")
        if (refusal := IN_THIS_PROCESS.refusal(peer, own)) is not None:
            raise ListenerRefused(refusal)


def _users(peer: tuple[str, int], own: tuple[str, int]) -> Collection[int | None]:
    """Return the users of the server at `peer`; none where the system does not show them."""
    try:
        return server_users(peer, own)
    except OSError:
        return ()
