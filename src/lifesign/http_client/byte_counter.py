"""Byte counter: the limit of the bytes that a peer may send besides the body that is read.

A reader of a body sees no header fields, no 1xx answers, no chunk extensions, no zeros in front of a chunk
size, no trailers, and no compressed data that unpacks to nothing. HTTP bounds none of them. So every byte of
a message counts as it arrives, and each byte of its body that is read extends the limit.
"""

from typing import Final

MAX_HEADER_BYTES: Final = 65_536
"""Maximum size of one answer's header, including all 1xx answers before it."""
READ_BYTES: Final = 65_536
"""Unread bytes of a body after which its peer has to wait; aiohttp keeps twice as many."""
MAX_SPARE_BYTES: Final = 524_288
"""Maximum of a message besides its body.

This is its header, the bytes that wait to be read (128 KiB), and one piece from the socket (256 KiB).
"""
MAX_BYTES_PER_BODY_BYTE: Final = 8
"""Chunks of one byte take six bytes each; encoders that write JSON token by token come close to that."""


class ByteCounter:
    """Counts the bytes of one answer, to stop at a limit."""

    __slots__ = ("limit_bytes", "received_bytes")

    def __init__(self, limit_bytes: int = MAX_SPARE_BYTES) -> None:
        self.limit_bytes = limit_bytes
        """Maximum number of bytes that may have arrived by now."""
        self.received_bytes = 0

    @property
    def is_exceeded(self) -> bool:
        """Whether more bytes arrived than the limit."""
        return self.received_bytes > self.limit_bytes

    @property
    def room_bytes(self) -> int:
        """Number of bytes that may still arrive within the limit."""
        return self.limit_bytes - self.received_bytes

    def receive(self, size: int) -> bool:
        """Count bytes that arrived from the network; return whether the limit is kept."""
        self.received_bytes += size
        return self.received_bytes <= self.limit_bytes

    def take(self, size: int) -> None:
        """Raise the limit, because so many bytes of the body, decompressed, were read."""
        self.limit_bytes += MAX_BYTES_PER_BODY_BYTE * size
