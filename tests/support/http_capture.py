"""Reads HTTP exchanges that were captured byte by byte."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

Headers = tuple[tuple[bytes, bytes], ...]

# Added by the server or the connection; no application sends it.
_NOT_OF_THE_APP = frozenset({b"connection", b"date", b"server", b"transfer-encoding"})


@dataclass(frozen=True, slots=True)
class CapturedRequest:
    """The request of the caller."""

    method: str
    path: str
    query: bytes
    headers: Headers
    body: bytes


@dataclass(frozen=True, slots=True)
class CapturedAnswer:
    """The answer of the agent."""

    status: int
    headers: Headers
    """As the application sent them, names in lower case."""
    chunks: tuple[bytes, ...]
    """The body as it was sent: its HTTP chunks, or all of it in one."""
    is_streamed: bool
    is_cut: bool
    """Whether the connection ended before the last, empty chunk."""


def read_request(raw: bytes) -> CapturedRequest:
    """Read a captured request."""
    line, headers, body = _parted(raw)
    method, target, _ = line.decode().split(" ")
    path, _, query = target.partition("?")
    return CapturedRequest(method, path, query.encode(), headers, body)


def read_answer(raw: bytes) -> CapturedAnswer:
    """Read a captured answer."""
    line, headers, body = _parted(raw)
    status = int(line.split(b" ")[1])
    is_streamed = (b"transfer-encoding", b"chunked") in headers
    chunks = tuple(_chunks(body)) if is_streamed else (body,)
    is_cut = is_streamed and b"" not in chunks
    of_the_app = tuple(header for header in headers if header[0] not in _NOT_OF_THE_APP)
    return CapturedAnswer(status, of_the_app, tuple(filter(None, chunks)), is_streamed, is_cut)


def captured_exchanges(directory: Path) -> dict[str, tuple[CapturedRequest, CapturedAnswer]]:
    """Return every exchange of a directory by its name."""
    return {
        path.name.removesuffix(".request.http"): (
            read_request(path.read_bytes()),
            read_answer(path.with_name(path.name.replace(".request.", ".response.")).read_bytes()),
        )
        for path in sorted(directory.glob("*.request.http"))
    }


def _parted(raw: bytes) -> tuple[bytes, Headers, bytes]:
    head, _, body = raw.partition(b"\r\n\r\n")
    first, *lines = head.split(b"\r\n")
    pairs = (line.partition(b":") for line in lines)
    return first, tuple((name.lower(), value.strip()) for name, _, value in pairs), body


def _chunks(body: bytes) -> Iterator[bytes]:
    """Yield the chunks (RFC 9112 7.1), the empty last one too if it came."""
    while body:
        size, _, rest = body.partition(b"\r\n")
        length = int(size, 16)
        assert rest[length : length + 2] == b"\r\n", "a chunk is longer or shorter than it says"
        yield rest[:length]
        body = rest[length + 2 :]
