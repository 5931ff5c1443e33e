"""MCP server over streamable HTTP: the SDK's app, in a uvicorn server with limits and without output.

Requests are independent: there are no sessions that could be taken over or pile up, and every answer is one
JSON object. An adapter loads this module with the first connection of its agent, so that it needs no logs.
"""

from collections.abc import Sequence
from typing import Any, Final

import uvicorn
from mcp.server import Server
from mcp.server.transport_security import TransportSecuritySettings
from starlette.types import ASGIApp

from lifesign.mcp.authentication import MAX_BODY_BYTES, PATH
from lifesign.serving.connection_limits import BoundedProtocol
from lifesign.serving.listening_socket import BACKLOG

MAX_CONNECTIONS: Final = 256


def app_of(server: Server[Any], hosts: Sequence[str]) -> ASGIApp:
    """Return the app; requests have to name one of `hosts`, with or without a port.

    A browser page under a name that leads here sends this name in Host, and its own origin in Origin.
    """
    origins = [f"{scheme}://{host}" for host in hosts for scheme in ("http", "https")]
    return server.streamable_http_app(
        streamable_http_path=PATH,
        json_response=True,
        stateless_http=True,
        max_request_body_size=MAX_BODY_BYTES,
        transport_security=TransportSecuritySettings(
            allowed_hosts=[name for host in hosts for name in (host, f"{host}:*")],
            allowed_origins=[name for origin in origins for name in (origin, f"{origin}:*")],
        ),
    )


def config_of(app: ASGIApp, *, grace_seconds: int) -> uvicorn.Config:
    """Return the configuration of the HTTP server for an app.

    Running calls have `grace_seconds` once the server is asked to end.
    """
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
