"""An ASGI app on loopback, in a thread of this process."""

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from tests.support.servers import PATIENCE_SECONDS


@contextmanager
def served(make_app: Callable[[str], Any]) -> Iterator[str]:
    """Serve the app that is made for a URL until the block ends; yield the URL, with no slash at its end."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        config = uvicorn.Config(
            make_app(url), log_level="warning", lifespan="auto", ws="none", timeout_graceful_shutdown=1
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=lambda: asyncio.run(server.serve([listening])), daemon=True)
        thread.start()
        try:
            yield url
        finally:
            server.should_exit = True
            thread.join(PATIENCE_SECONDS)
            assert not thread.is_alive()
