"""How is it served on a socket? (MCP, streamable HTTP)

Every request stands for itself: there are no sessions that somebody could take over or pile up, and any
answer is one JSON object.
"""

import logging
import logging.config
import signal
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, Final

import uvicorn
from mcp.server import Server
from mcp.server.transport_security import TransportSecuritySettings
from starlette.types import ASGIApp

from agent_health.errors import InvalidSetting
from agent_health.mcp.guard import CALL_SECONDS, MAX_BODY_BYTES, PATH, Guard
from agent_health.registry.connection_bounds import BoundedProtocol
from agent_health.registry.listening_socket import BACKLOG, bound, url_of
from agent_health.registry.log_lines import log_config

MAX_CONNECTIONS: Final = 256
GRACE_SECONDS: Final = 5
"""How long calls under way may go on once the server is asked to end."""
DEFAULT_PORT: Final = 8441

_LOOPBACK_NAMES: Final = ("127.0.0.1", "localhost", "[::1]")

_log = logging.getLogger("agent_health.mcp")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where it is served, and under which names."""

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    """0: any that is free."""
    names: Sequence[str] = ()
    """By which clients reach it, besides `host`."""

    @property
    def is_local(self) -> bool:
        """Whether this machine alone reaches it."""
        if self.host == "localhost":
            return True
        with suppress(ValueError):
            return ip_address(self.host).is_loopback
        return False

    def known_as(self) -> list[str]:
        """Return the hosts that requests may name; InvalidSetting if nobody could name any."""
        is_everywhere = self.host in {"", "0.0.0.0", "::"}  # noqa: S104 - they are compared, not listened on
        if is_everywhere and not self.names:
            raise InvalidSetting("--allow-host", None, f"a name by which clients reach {self.host}")
        own = f"[{self.host}]" if ":" in self.host else self.host
        hosts = [*self.names, *([] if is_everywhere else [own]), *_LOOPBACK_NAMES]
        return list(dict.fromkeys(hosts))


def app_of(server: Server[Any], place: Place, token: str, *, call_seconds: float = CALL_SECONDS) -> ASGIApp:
    """Return the app: first the token is asked for, then for whom the request is meant, then it is read."""
    hosts = place.known_as()
    app = server.streamable_http_app(
        streamable_http_path=PATH,
        json_response=True,
        stateless_http=True,
        max_request_body_size=MAX_BODY_BYTES,
        host=place.host,
        # A page that a browser was led to here by its own name says so in Host, and by whom in Origin.
        transport_security=TransportSecuritySettings(
            allowed_hosts=[name for host in hosts for name in (host, f"{host}:*")],
            allowed_origins=[
                f"{scheme}://{host}{port}"
                for host in hosts
                for scheme in ("http", "https")
                for port in ("", ":*")
            ],
        ),
    )
    return Guard(app, token, call_seconds=call_seconds)


def config_of(app: ASGIApp, *, grace_seconds: int = GRACE_SECONDS) -> uvicorn.Config:
    """Return how it is served: bounded in connections, heads and time, and silent."""
    return uvicorn.Config(
        app,
        lifespan="on",
        http=BoundedProtocol,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        limit_concurrency=MAX_CONNECTIONS,
        timeout_graceful_shutdown=grace_seconds,
    )


async def over_http(
    server: Server[Any], place: Place, token: str, *, say_ready: Callable[[str], None]
) -> None:
    """Serve until SIGTERM, which is SystemExit(0), or Ctrl-C; CannotListen.

    `say_ready` is told the URL once it answers.
    """
    app = app_of(server, place, token)
    with bound(place.host, place.port) as opened:
        logging.config.dictConfig(dict(log_config(access_log=False)))
        if not place.is_local:
            _log.warning("the token travels in the clear: put a proxy with TLS before it")
        config = config_of(app)
        # uvicorn hears it while it serves, and repeats it afterwards.
        signal.signal(signal.SIGTERM, _end)
        await _Server(config, lambda: say_ready(url_of(opened, place.host) + PATH)).serve([opened])


def _end(_number: int, _frame: object) -> None:
    raise SystemExit(0)


class _Server(uvicorn.Server):
    """Says so once it answers."""

    def __init__(self, config: uvicorn.Config, say_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._say_ready = say_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._say_ready()
