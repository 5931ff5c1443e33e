"""Reading a body up to a limit, from aiohttp's session or from a connection of the prober."""

from typing import Protocol

import aiohttp

from lifesign.http.answer import WithHeader
from lifesign.http.byte_counter import ByteCounter
from lifesign.http.failures import FAILURES, TooManyBytes
from lifesign.http.headers import whole_number


class Received(WithHeader, Protocol):
    """An answer whose body may be on its way."""

    @property
    def content(self) -> aiohttp.StreamReader: ...  # noqa: D102


async def read_bounded(response: Received, max_bytes: int, counter: ByteCounter) -> bytes | None:
    """Return the body, or None as soon as it turns out larger than `max_bytes`.

    The limit is on the body after decompression, which aiohttp does in pieces of bounded size; `counter`
    bounds what arrives besides. One of FAILURES if the body breaks off.
    """
    length = response.headers.get("Content-Length", "")
    if "Content-Encoding" not in response.headers and (whole_number(length) or 0) > max_bytes:
        return None
    if response.content.is_eof():
        if counter.is_exceeded:
            raise TooManyBytes
        # All of it is there, as most are that come in one piece.
        whole = response.content.read_nowait()
        return whole if len(whole) <= max_bytes else None
    body = bytearray()
    while piece := await read_piece(response, counter):
        body += piece
        if len(body) > max_bytes:
            return None
    return bytes(body)


async def read_beginning(response: Received, max_bytes: int, counter: ByteCounter) -> tuple[bytes, bool]:
    """Return a body up to `max_bytes`, and whether that is a part: it has more, or broke off.

    One of FAILURES if nothing of it came.
    """
    body = bytearray()
    try:
        while piece := await read_piece(response, counter):
            body += piece
            if len(body) > max_bytes:
                return bytes(body[:max_bytes]), True
    except FAILURES:
        if not body:
            raise
        return bytes(body), True
    return bytes(body), False


async def read_piece(response: Received, counter: ByteCounter) -> bytes:
    """Return the next piece of a body, nothing at its end. One of FAILURES, TooManyBytes among them."""
    try:
        piece = await response.content.readany()
    except FAILURES:
        if counter.is_exceeded:
            raise TooManyBytes from None
        raise
    if not piece and counter.is_exceeded:
        # A body of unknown length ends with its connection.
        raise TooManyBytes
    counter.take(len(piece))
    return piece
