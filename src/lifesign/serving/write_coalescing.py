"""Sends an answer in one piece.

uvicorn writes the head as soon as it is known, and the body after that: two system calls, two packets, and a
client that wakes up for half an answer. That was a tenth of the processor time of a renewal.
"""

import asyncio
from typing import Final

MAX_JOINED_BYTES: Final = 16_384
"""Larger bodies are written on their own: a copy for each connection could fill the memory."""


class WriteCoalescingTransport(asyncio.Transport):
    """A transport that holds a piece back until the next one comes, for at most one turn of the loop.

    It never holds more than one: flow control works as before.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._transport = transport
        self._loop = loop
        self._kept = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Write data after the piece that is held back; if there is none, hold the data back.

        Nothing is written to a closed connection.
        """
        if self._transport.is_closing():
            self._kept = b""
        elif self._kept:
            kept, self._kept = self._kept, b""
            if len(data) <= MAX_JOINED_BYTES:
                self._transport.write(kept + data)
            else:
                self._transport.write(kept)
                self._transport.write(data)
        elif len(data) > MAX_JOINED_BYTES:
            self._transport.write(data)
        elif data:
            self._kept = bytes(data)
            self._loop.call_soon(self._flush)

    def write_eof(self) -> None:
        """End the writing side, behind all that was written."""
        self._flush()
        self._transport.write_eof()

    def can_write_eof(self) -> bool:
        """Return whether the sending side can be closed separately."""
        return self._transport.can_write_eof()

    def close(self) -> None:
        """Close the connection, once all that was written has left."""
        self._flush()
        self._transport.close()

    def abort(self) -> None:
        """Close the connection at once."""
        self._kept = b""
        self._transport.abort()

    def is_closing(self) -> bool:
        """Return whether the connection is closed, or about to be."""
        return self._transport.is_closing()

    def get_write_buffer_size(self) -> int:
        """Return the number of bytes that were not sent yet."""
        return len(self._kept) + self._transport.get_write_buffer_size()

    def _flush(self) -> None:
        kept, self._kept = self._kept, b""
        # Meanwhile the caller may have left.
        if kept and not self._transport.is_closing():
            self._transport.write(kept)
