"""ASGI app of an MCP server over streamable HTTP: the SDK's app behind the guard.

Requests are independent: there are no sessions that could be taken over or pile up, and every answer is one
JSON object.
"""

from collections.abc import Sequence
from typing import Any

from mcp.server import Server
from mcp.server.transport_security import TransportSecuritySettings
from starlette.types import ASGIApp

from lifesign.mcp.guard import MAX_BODY_BYTES, PATH


def app_of(server: Server[Any], hosts: Sequence[str]) -> ASGIApp:
    """Return the app; requests have to name one of `hosts`, with or without a port.

    A page that a browser was led to here by its own name says so in Host, and by whom in Origin.
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
