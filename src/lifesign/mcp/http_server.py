"""uvicorn server with limits of connections, heads and time, and without output."""

from typing import Final

import uvicorn
from starlette.types import ASGIApp

from lifesign.serving.connection_limits import BoundedProtocol
from lifesign.serving.listening_socket import BACKLOG

MAX_CONNECTIONS: Final = 256


def config_of(app: ASGIApp, *, grace_seconds: int) -> uvicorn.Config:
    """Return how an app is served; calls under way have `grace_seconds` once the server is asked to end."""
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
