"""MCP server over streamable HTTP: the SDK's app, in a uvicorn server with limits and without output.

Requests are independent: there are no sessions that could be taken over or pile up, and every answer is one
JSON object. An adapter loads this module with the first connection of its agent, so that it needs no logs.
"""

from collections.abc import Sequence
from typing import Any, Final

import uvicorn
from mcp.server import Server
from mcp.server.transport_security import TransportSecuritySettings
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lifesign.mcp.authentication import MAX_BODY_BYTES, PATH, refuse
from lifesign.serving.connection_limits import BoundedProtocol
from lifesign.serving.listening_socket import BACKLOG

MAX_CONNECTIONS: Final = 256


def app_of(server: Server[Any], hosts: Sequence[str]) -> ASGIApp:
    """Return the app; requests have to name one of `hosts`, with or without a port.

    A browser page under a name that leads here sends this name in Host, and its own origin in Origin.
    """
    origins = [f"{scheme}://{host}" for host in hosts for scheme in ("http", "https")]
    app = server.streamable_http_app(
        streamable_http_path=PATH,
        json_response=True,
        stateless_http=True,
        max_request_body_size=MAX_BODY_BYTES,
        transport_security=TransportSecuritySettings(
            allowed_hosts=[name for host in hosts for name in (host, f"{host}:*")],
            allowed_origins=[name for origin in origins for name in (origin, f"{origin}:*")],
        ),
    )
    return _ReadableRefusals(app)


class _ReadableRefusals:
    """ASGI middleware that sends the SDK's refusals in plain text, as of another Host, as JSON-RPC errors."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        status, text = 0, b""

        async def send_readable(message: Message) -> None:
            nonlocal status, text
            if message["type"] == "http.response.start" and _is_plain_refusal(message):
                status = message["status"]
            elif not status:
                await send(message)
            else:
                text += message.get("body", b"")
                if not message.get("more_body", False):
                    await refuse(send, status, text.decode("utf-8", "replace"))

        await self._app(scope, receive, send_readable)


def _is_plain_refusal(start: Message) -> bool:
    media_type = Headers(raw=start["headers"]).get("content-type", "text/plain")
    return 400 <= start["status"] < 500 and media_type.startswith("text/plain")


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
