"""The redirect of an authorization: one HTTP server on loopback, for one answer (RFC 8252 7.3)."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from lifesign.domain.credentials.authorization import AuthorizationCode, RedirectFault
from lifesign.prober.network.loopback_peer import Place, peers_of_other_users

HOST: Final = "127.0.0.1"
PATH: Final = "/callback"
MAX_HEAD_BYTES: Final = 16_384
HEAD_SECONDS: Final = 5.0
"""Time for the request of a browser to arrive."""
MAX_CONNECTIONS: Final = 64
"""Maximum number of connections at the same time; the server closes further ones unread.

Refused users have as many of their own, so that they cannot take those of the browser.
"""
CODE_ARRIVED: Final = "The answer to the login has arrived. The terminal shows whether the login is complete."
LOGIN_FAILED: Final = "The login failed. The terminal shows the reason."
NOT_THIS_LOGIN: Final = "This is not the answer to the login. See the terminal."
ANOTHER_USER: Final = (
    "This page was requested by another user of this machine. To log in with the browser of another user, "
    "start the command with --no-browser."
)

Read = Callable[[str], AuthorizationCode | RedirectFault]
"""Reads the query of a redirect."""


class LoopbackRedirect:
    """Receives the redirect of one OAuth login at a local port."""

    def __init__(self) -> None:
        """Without a socket: see `listening`."""
        self.port = 0
        self.read: Read | None = None
        """Reads redirects; None: none is expected yet."""
        self._found: asyncio.Future[AuthorizationCode | RedirectFault] = (
            asyncio.get_running_loop().create_future()
        )

    @property
    def uri(self) -> str:
        """The redirect URI, with the port."""
        return f"http://{HOST}:{self.port}{PATH}"

    async def wait(self, seconds: float) -> AuthorizationCode | RedirectFault:
        """Wait up to `seconds` for the redirect; return its authorization code, or the fault."""
        try:
            return await asyncio.wait_for(asyncio.shield(self._found), seconds)
        except TimeoutError:
            return RedirectFault(
                f"the provider did not redirect the browser back within {seconds:g} s", is_final=True
            )

    async def serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_refused: bool
    ) -> None:
        """Answer one request of the browser, or of another user who `is_refused`."""
        failures = (ConnectionError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError)
        with contextlib.closing(writer), contextlib.suppress(*failures):
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), HEAD_SECONDS)
            status, text = "403 Forbidden", ANOTHER_USER
            if not is_refused:
                status, text = self._answer(head.decode("latin-1"))
            body = text.encode()
            writer.write(
                f"HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nCache-Control: no-store\r\n"
                f"Referrer-Policy: no-referrer\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
                .encode() + body
            )  # fmt: skip
            await asyncio.wait_for(writer.drain(), HEAD_SECONDS)

    def _answer(self, head: str) -> tuple[str, str]:
        """Return the status and the text of the answer to a request."""
        first, *lines = head.split("\r\n")
        method, _, rest = first.partition(" ")
        path, _, query = rest.partition(" ")[0].partition("?")
        hosts = [line.partition(":")[2].strip() for line in lines if line.lower().startswith("host:")]
        # The name of another host leads here too if its owner wants it to (DNS rebinding).
        if method != "GET" or path != PATH or hosts != [f"{HOST}:{self.port}"] or self.read is None:
            return "404 Not Found", NOT_THIS_LOGIN
        if self._found.done():
            return "409 Conflict", NOT_THIS_LOGIN
        found = self.read(query)
        if isinstance(found, RedirectFault):
            if found.is_final:
                self._end(found)
            return "400 Bad Request", LOGIN_FAILED if found.is_final else NOT_THIS_LOGIN
        self._end(found)
        return "200 OK", CODE_ARRIVED

    def _end(self, found: AuthorizationCode | RedirectFault) -> None:
        if not self._found.done():
            self._found.set_result(found)


@asynccontextmanager
async def listening(*, is_for_own_user: bool = False) -> AsyncIterator[LoopbackRedirect]:
    """Listen on a free port of 127.0.0.1 until the block ends.

    `is_for_own_user`: whether requests of other users of this machine are refused (on Linux).
    """
    redirect = LoopbackRedirect()
    accepted: set[asyncio.Task[None]] = set()
    refused: set[asyncio.Task[None]] = set()
    arrived: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # The tables of sockets are read once for all connections that arrive together.
        if not arrived:
            asyncio.get_running_loop().call_soon(admit)
        arrived.append((reader, writer))

    def admit() -> None:
        # Before the first byte is read: the socket of a peer that has closed it has no user.
        peers = [writer.get_extra_info("peername") for _, writer in arrived]
        refused_peers: set[Place] = set()
        if is_for_own_user:
            refused_peers = peers_of_other_users(list(filter(None, peers)), (HOST, redirect.port))
        for peer, (reader, writer) in zip(peers, arrived, strict=True):
            # A connection that the peer has reset has no address.
            is_refused = is_for_own_user and (peer is None or peer in refused_peers)
            tasks = refused if is_refused else accepted
            if len(tasks) >= MAX_CONNECTIONS:
                writer.close()
                continue
            task = asyncio.ensure_future(redirect.serve(reader, writer, is_refused=is_refused))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        arrived.clear()

    server = await asyncio.start_server(accept, HOST, 0, limit=MAX_HEAD_BYTES)
    redirect.port = server.sockets[0].getsockname()[1]
    try:
        yield redirect
    finally:
        server.close()
        if accepted:
            # The browser gets its page first.
            await asyncio.wait(accepted, timeout=HEAD_SECONDS)
        for task in accepted | refused:
            task.cancel()
        for _, writer in arrived:
            writer.close()
        await server.wait_closed()
