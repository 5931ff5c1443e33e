"""uvicorn's server, with limits for TLS handshakes and without a double effect of one request to end.

uvicorn counts a connection only after its TLS handshake, which has asyncio's limit of 60 s. Clients that
never finish a handshake would use up the open files of the process.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import FrameType

import uvicorn
from uvicorn.server import ServerState

from lifesign.serving.connection_limits import HEAD_SECONDS, REFUSES, BoundedProtocol, may_accept
from lifesign.serving.ending_signals import EndRequests

RETRY_SECONDS = 1.0
"""Wait after an error of the listening socket, such as too many open files."""

_log = logging.getLogger("lifesign.registry")


class BoundedServer(uvicorn.Server):
    """uvicorn's server; with TLS, it accepts the connections itself."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._requests = EndRequests()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to end; a second SIGINT drops the running requests."""
        if self._requests.is_new(sig):
            super().handle_exit(sig, frame)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to serve."""
        if self.config.ssl is None or sockets is None:
            await super().startup(sockets)
            return
        await super().startup([])
        make_protocol = partial(
            BoundedProtocol,
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )
        for each in sockets:
            listener = TlsListener(
                each,
                self.config.ssl,
                self.server_state,
                make_protocol,
                refuses=self.lifespan.state.get(REFUSES),
            )
            listener.start()
            # uvicorn closes it at the end, and waits for it.
            self.servers.append(listener)  # type: ignore[arg-type]


class TlsListener:
    """Accepts TLS connections, and counts each from before its handshake."""

    def __init__(
        self,
        listening: socket.socket,
        context: ssl.SSLContext,
        state: ServerState,
        make_protocol: Callable[[], BoundedProtocol],
        *,
        refuses: Callable[[], None] | None = None,
    ) -> None:
        """`refuses` is called for each connection too many."""
        self._listening = listening
        self._context = context
        self._state = state
        self._make_protocol = make_protocol
        self._refuses = refuses or (lambda: None)
        self._handshakes: set[asyncio.Task[None]] = set()
        self._accepting: asyncio.Task[None] | None = None
        self._is_closed = False

    def start(self) -> None:
        """Accept connections until `close`."""
        self._listening.setblocking(False)  # noqa: FBT003
        self._accepting = asyncio.create_task(self._accept())

    def close(self) -> None:
        """Accept no more connections."""
        self._is_closed = True
        if self._accepting is not None:
            self._accepting.cancel()

    async def wait_closed(self) -> None:
        """End the handshakes that are not finished."""
        for handshake in [*self._handshakes]:
            handshake.cancel()
        await asyncio.gather(*self._handshakes, return_exceptions=True)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            # asyncio returns a connection that already waits without a turn of the loop.
            await asyncio.sleep(0)
            try:
                accepted, _ = await loop.sock_accept(self._listening)
            except ConnectionError:
                continue
            except OSError as error:
                _log.error("cannot accept connections: %s", error.strerror)
                self._refuses()
                await asyncio.sleep(RETRY_SECONDS)
                continue
            if not may_accept(self._state, len(self._handshakes)):
                accepted.close()
                self._refuses()
                continue
            handshake = loop.create_task(self._secure(accepted))
            self._handshakes.add(handshake)
            handshake.add_done_callback(self._handshakes.discard)

    async def _secure(self, accepted: socket.socket) -> None:
        """Wait for a handshake; the protocol serves the connection from then on."""
        loop = asyncio.get_running_loop()
        protocol = self._make_protocol()
        # An error is not logged: strangers cause it at will.
        with suppress(OSError):
            await loop.connect_accepted_socket(
                lambda: protocol, accepted, ssl=self._context, ssl_handshake_timeout=HEAD_SECONDS
            )
            if self._is_closed:
                protocol.shutdown()
