"""The token endpoint of the fleet, and the tokens that agents behind a login accept."""

import asyncio
import contextlib
import json
from typing import Final

from tests.fleet.script import LoginFault

CLIENT: Final = "fleet"
SECRET: Final = "fleet-secret"
SECRET_VARIABLE: Final = "FLEET_SECRET"
TOKEN_PATH: Final = "/token"
_PAGE: Final = b"<html>Please log in</html>"


class Login:
    """Issues access tokens of one client, and knows which of them are valid."""

    def __init__(self) -> None:
        self.fault: LoginFault | None = None
        self.is_rejecting = False
        """Whether agents reject all tokens, those that are issued now too."""
        self._issued = 0
        self._valid: set[str] = set()
        self._server: asyncio.Server | None = None
        self._place = ("", 0)
        self._tasks: set[asyncio.Task[None]] = set()

    def accepts(self, authorization: str) -> bool:
        """Return whether an agent accepts a header `Authorization`."""
        scheme, _, token = authorization.partition(" ")
        return scheme == "Bearer" and token in self._valid and not self.is_rejecting

    def issue(self) -> str:
        """Return a new token."""
        self._issued += 1
        token = f"fleet-token-{self._issued:06}"
        self._valid.add(token)
        return token

    def revoke(self) -> None:
        """Revoke all tokens up to now."""
        self._valid.clear()

    async def start(self, host: str, port: int) -> None:
        """Listen."""
        self._place = host, port
        if self._server is None:
            self._server = await asyncio.start_server(self._serve, host, port)

    async def stop(self) -> None:
        """Close the port and every connection."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def fail(self, fault: LoginFault | None) -> None:
        """Go down in a way, or come back."""
        self.fault = fault
        if fault is LoginFault.CLOSED:
            await self.stop()
        elif self._place[1]:
            await self.start(*self._place)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                await reader.readuntil(b"\r\n\r\n")
                if self.fault is LoginFault.HANGING:
                    await asyncio.Event().wait()
                writer.write(self._answer())
                await writer.drain()
        except asyncio.CancelledError:
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    def _answer(self) -> bytes:
        match self.fault:
            case LoginFault.FAILING:
                return _written("503 Unavailable", b"")
            case LoginFault.PAGE:
                return _written("200 OK", _PAGE, "text/html")
            case LoginFault.REFUSING:
                return _written("401 Unauthorized", json.dumps({"error": "invalid_client"}).encode())
            case _:
                answer = {"access_token": self.issue(), "token_type": "Bearer", "expires_in": 3600}
                return _written("200 OK", json.dumps(answer).encode())


def _written(status: str, body: bytes, content_type: str = "application/json") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n"
    return f"{head}Connection: close\r\n\r\n".encode() + body
