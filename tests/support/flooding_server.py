"""A raw-socket server that sends a beginning, and then one piece without an end."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

KERNEL_BYTES = 16 * 1024 * 1024
"""Maximum of the bytes that wait in the kernel's buffers on both sides."""


@dataclass
class FloodingServer:
    """Answers every request alike, and counts what could be written."""

    beginning: bytes
    piece: bytes
    port: int = 0
    connections: int = 0
    sent_bytes: int = 0
    has_ended: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once a client has ended a connection."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(self.beginning)
            while self.piece:
                writer.write(self.piece)
                await writer.drain()
                self.sent_bytes += len(self.piece)
            await reader.read()
        self.has_ended.set()
        writer.transport.abort()


@contextlib.asynccontextmanager
async def flooding(beginning: bytes, piece: bytes) -> AsyncIterator[FloodingServer]:
    """Run such a server until the block ends."""
    flood = FloodingServer(beginning, piece)
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        await flood.serve(reader, writer)
        tasks.discard(task)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    flood.port = server.sockets[0].getsockname()[1]
    try:
        yield flood
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()
