"""Sends bytes that no HTTP library would send, and reads the answer."""

import contextlib
import json
import socket
from dataclasses import dataclass
from typing import Any

from tests.support.servers import PATIENCE_SECONDS


@dataclass(frozen=True)
class RawAnswer:
    """The first answer on a connection, and whatever followed it."""

    status: int
    head: str
    body: bytes
    rest: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """Our error's code; empty if the body is none of ours."""
        try:
            return str(self.json()["error"]["code"])
        except (ValueError, KeyError, TypeError):
            return ""


def exchange(port: int, *parts: bytes, seconds: float = PATIENCE_SECONDS) -> RawAnswer:
    """Send bytes over one connection; read until the server closes it, or for so many seconds."""
    received = b""
    with socket.create_connection(("127.0.0.1", port), timeout=seconds) as connection:
        # The server may answer and close before it has received everything.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for part in parts:
                connection.sendall(part)
        with contextlib.suppress(ConnectionResetError, TimeoutError):
            while read := connection.recv(65_536):
                received += read
    return answer_in(received)


def answer_in(received: bytes) -> RawAnswer:
    """Parse the received bytes."""
    head, _, rest = received.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    status = int(lines[0].split(" ")[1]) if lines[0].startswith("HTTP/1.1 ") else 0
    lengths = [int(line[15:]) for line in lines if line.lower().startswith("content-length:")]
    length = lengths[0] if lengths else len(rest)
    return RawAnswer(status, "\r\n".join(lines), rest[:length], rest[length:])


def request(
    method: str,
    path: str | bytes,
    body: bytes = b"",
    *,
    key: str | None = None,
    headers: tuple[bytes, ...] = (),
    content_type: bytes | None = b"application/json",
) -> bytes:
    """Return a request for a new connection; `headers` are whole lines."""
    target = path.encode() if isinstance(path, str) else path
    lines = [b"%s %s HTTP/1.1" % (method.encode(), target), b"Host: registry.test", b"Connection: close"]
    if key is not None:
        lines.append(b"X-API-Key: " + key.encode())
    if body:
        lines.append(b"Content-Length: %d" % len(body))
        if content_type is not None:
            lines.append(b"Content-Type: " + content_type)
    return b"\r\n".join([*lines, *headers, b"", b""]) + body
