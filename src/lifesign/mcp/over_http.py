"""MCP server on a socket (MCP, streamable HTTP)."""

import logging
import signal
import socket
from collections.abc import Callable
from typing import Any, Final

import uvicorn
from mcp.server import Server

from lifesign.mcp.authentication import PATH, Guard
from lifesign.mcp.http_app import app_of, config_of
from lifesign.mcp.listen_address import ListenAddress
from lifesign.serving.bounded_server import BoundedServer
from lifesign.serving.listening_socket import bound, url_of

GRACE_SECONDS: Final = 5
"""Time for running calls after the server gets a signal to end."""

_log = logging.getLogger("lifesign.mcp")


async def over_http(
    server: Server[Any], place: ListenAddress, token: str, *, say_ready: Callable[[str], None]
) -> None:
    """Serve until SIGTERM, which is SystemExit(0), or Ctrl-C. Raises CannotListen.

    `say_ready` receives the URL once it answers.
    """
    app = Guard(app_of(server, place.accepted_hosts()), token)
    with bound(place.host, place.port) as opened:
        if not place.is_local:
            _log.warning("clients send the token unencrypted: put a proxy with TLS in front of this server")
        config = config_of(app, grace_seconds=GRACE_SECONDS)
        # uvicorn handles the signal while it serves, and raises it again afterwards.
        signal.signal(signal.SIGTERM, _end)
        await _HttpServer(config, lambda: say_ready(url_of(opened, place.host) + PATH)).serve([opened])


def _end(_number: int, _frame: object) -> None:
    raise SystemExit(0)


class _HttpServer(BoundedServer):
    """Says so once it answers."""

    def __init__(self, config: uvicorn.Config, say_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._say_ready = say_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._say_ready()
