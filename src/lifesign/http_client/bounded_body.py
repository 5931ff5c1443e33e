"""Reading a body up to a limit, from aiohttp's session or from a connection of the prober."""

import zlib
from collections.abc import Callable
from typing import Final, Protocol

import aiohttp

from lifesign.domain.parsing.event_framing import end_of_last_event
from lifesign.http_client.answer import WithHeader
from lifesign.http_client.byte_counter import ByteCounter
from lifesign.http_client.failures import FAILURES, X_GZIP, TooManyBytes
from lifesign.http_client.headers import whole_number

_GZIP_WINDOW_BITS: Final = 16 + zlib.MAX_WBITS
"""zlib's number for a gzip header and its largest window."""
_GZIP_HEAD_BYTES: Final = 512
"""Room for the header of gzip, which may name a file, and for its end."""


class Received(WithHeader, Protocol):
    """An answer whose body may still be arriving."""

    @property
    def content(self) -> aiohttp.StreamReader: ...  # noqa: D102


async def read_bounded(response: Received, max_bytes: int, counter: ByteCounter) -> bytes | None:
    """Return a body; None as soon as it exceeds `max_bytes`.

    The limit is on the body after decompression, which is done in pieces of bounded size; `counter`
    bounds what arrives besides. One of FAILURES if the body breaks off.
    """
    if not _is_x_gzip(response):
        return await _read_whole(response, max_bytes, counter)
    # Incompressible data is larger in gzip.
    packed = await _read_whole(response, max_bytes + max_bytes // 1_000 + _GZIP_HEAD_BYTES, counter)
    if packed is None:
        return None
    unpacked, is_part = _gunzip(packed, max_bytes + 1)
    if len(unpacked) > max_bytes:
        return None
    if is_part:
        raise aiohttp.ClientPayloadError("the gzip data ends early or has a second part")
    return unpacked


async def _read_whole(response: Received, max_bytes: int, counter: ByteCounter) -> bytes | None:
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
    """Return at most `max_bytes` of a body, and whether it is incomplete: longer, or broken off.

    One of FAILURES if no byte of it arrived.
    """
    body, is_part = await _read_beginning(response, max_bytes, counter)
    if not _is_x_gzip(response):
        return body, is_part
    unpacked, is_part_of_gzip = _gunzip(body, max_bytes)
    return unpacked, is_part or is_part_of_gzip


async def read_until(
    response: Received, max_bytes: int, counter: ByteCounter, is_enough: Callable[[bytes], bool]
) -> tuple[bytes | None, bool]:
    """Return a body up to the piece at which `is_enough` returns True, and whether it is incomplete.

    None as soon as it turns out larger than `max_bytes`. One of FAILURES if it breaks off before.
    """
    body = bytearray()
    while piece := await read_piece(response, counter):
        body += piece
        if len(body) > max_bytes:
            return None, True
        if is_enough(piece):
            whole = bytes(body)
            return whole[: end_of_last_event(b"", whole)], True
    return bytes(body), False


async def _read_beginning(response: Received, max_bytes: int, counter: ByteCounter) -> tuple[bytes, bool]:
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
    """Return the next piece of a body, empty at its end. Raises FAILURES, TooManyBytes among them."""
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


def _is_x_gzip(response: Received) -> bool:
    return response.headers.get("Content-Encoding", "").strip().lower() == X_GZIP


def _gunzip(packed: bytes, max_bytes: int) -> tuple[bytes, bool]:
    """Unpack gzip data up to `max_bytes`; return also whether there is more, or an end is missing.

    aiohttp.ClientPayloadError if the data is not gzip.
    """
    unpacker = zlib.decompressobj(_GZIP_WINDOW_BITS)
    try:
        unpacked = unpacker.decompress(packed, max_bytes)
    except zlib.error:
        raise aiohttp.ClientPayloadError("the data is not gzip") from None
    return unpacked, not unpacker.eof or bool(unpacker.unused_data)
