"""Transport over the pipes of a tool server.

It works like the SDK's own stdio transport, with limits: a line has a maximum length, invalid UTF-8 ends the
server, an unreadable answer fails its call at once, and other output is logged as a peer's text. Callers
learn of the end of the output at once.
"""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCError, JSONRPCRequest, JSONRPCResponse

from lifesign.adapter.process.agent_process import AgentProcess, Job
from lifesign.adapter.process.run_deadline import RunDeadline
from lifesign.adapter.tools.server_line import (
    MAX_UNANSWERED,
    TOO_LONG,
    NotText,
    answered_call,
    read_line,
    substitute_error,
)
from lifesign.adapter.tools.server_stderr import ServerLog, ServerLogPipe
from lifesign.domain.credentials.secret import NO_SECRETS, Scrubber

WIDTH: Final = "10000"
"""Width of a line in a server's log. A secret that is wrapped over several lines would not be recognised."""
EXIT_SECONDS: Final = 2.0
"""Time for a server to end after its input was closed; again between SIGTERM and SIGKILL."""
FLUSH_SECONDS: Final = 0.5
"""Time to write accepted input before it is closed, and to read the last output after the end."""
MAX_STRAYS: Final = 10_000
"""Maximum number of lines without a message between two messages."""
_PIECE_BYTES: Final = 65_536

_log = logging.getLogger("lifesign.adapter.tools")
_Incoming = MemoryObjectSendStream[SessionMessage | Exception]
_Outgoing = MemoryObjectReceiveStream[SessionMessage]
Streams = tuple[MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]]
"""Streams of the SDK's client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerProgram:
    """How to start a tool server, and the maximum length of its output lines."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    """Variables besides the usual ones; never shown."""
    scrubber: Scrubber = NO_SECRETS
    """Removes the secrets among them from logged lines."""
    directory: Path | None
    max_line_bytes: int
    run_deadline: RunDeadline | None = None
    """Timer that kills the server when it is due."""


@dataclass(slots=True)
class ServerEnd:
    """Whether a tool server's output has ended, and why, for callers that wait for its answers."""

    is_there: asyncio.Event = field(default_factory=asyncio.Event)
    why: str = "it has ended"
    is_too_long: bool = False
    """Whether the server wrote a line that is too long, and it is unknown which call that answers."""
    is_fault: bool = False
    """Whether the server keeps writing output that is not read."""
    unanswered: int = 0
    """Number of requests of the server, such as `ping`, whose answers are not written yet."""


class _LineTooLong(ValueError):
    """A line is too long; `beginning` contains its first bytes."""

    def __init__(self, beginning: bytes) -> None:
        super().__init__(f"the server wrote a line of more than {len(beginning)} bytes")
        self.beginning = beginning


@asynccontextmanager
async def server_pipes(program: ServerProgram, end: ServerEnd) -> AsyncIterator[Streams]:
    """Start a tool server and yield streams of messages from and to it.

    At the end of the block, all its processes end. CommandFailed or OSError if it cannot be started.
    """
    words = ServerLog(program.name, scrubber=program.scrubber)
    ends = _Ends(words)
    job = Job(
        command=program.command,
        environment=get_default_environment() | {"COLUMNS": WIDTH} | dict(program.environment),
        directory=program.directory or Path.cwd(),
        input_fd=ends.input_fd,
        run_deadline=program.run_deadline,
    )
    try:
        process = await AgentProcess.start(job, ends)
    except BaseException:
        ends.close()
        raise
    try:
        stdout, stdin = await ends.opened()
    except BaseException:
        await process.kill()
        raise
    # Nothing is awaited between here and the group, or a cancellation would leave the process behind.
    incoming_end, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outgoing, outgoing_end = anyio.create_memory_object_stream[SessionMessage](0)
    is_written = anyio.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(_read, stdout, incoming_end, words, program.max_line_bytes, end)
        group.start_soon(_write, stdin, outgoing_end, incoming_end, end, is_written)
        group.start_soon(_notice_exit, process, incoming_end, end)
        try:
            yield incoming, outgoing
        finally:
            with anyio.CancelScope(shield=True):
                incoming.close()
                outgoing.close()
                with anyio.move_on_after(FLUSH_SECONDS):
                    await is_written.wait()
                await _end(process, stdin, at_once=end.is_fault)
                incoming_end.close()
                outgoing_end.close()
                await asyncio.to_thread(ends.finish)
            # A process that is stuck in the kernel may still hold a pipe open.
            ends.stop()
            group.cancel_scope.cancel()


class _Ends:
    """The pipes of a server: its ends, which the one that starts it has, and ours."""

    def __init__(self, words: ServerLog) -> None:
        self.input_fd, self._write_fd = os.pipe2(os.O_CLOEXEC)
        self._read_fd, self.stdout_fd = os.pipe2(os.O_CLOEXEC)
        self._beside = ServerLogPipe(words)
        self._reading: asyncio.BaseTransport | None = None

    @property
    def stderr_fd(self) -> int:
        """Descriptor to which the server writes its standard error."""
        return self._beside.write_fd

    def begin(self) -> None:
        """Close this process's copies of the server's ends, and begin to read its standard error."""
        os.close(self.input_fd)
        os.close(self.stdout_fd)
        self._beside.begin()

    def close(self) -> None:
        """Close this process's ends of the pipes of a server that was not started."""
        os.close(self._write_fd)
        os.close(self._read_fd)

    async def opened(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Return a reader of the server's standard output, and a writer to its standard input."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        self._reading, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(self._read_fd, "rb")
        )
        transport, protocol = await loop.connect_write_pipe(
            lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), os.fdopen(self._write_fd, "wb")
        )
        return reader, asyncio.StreamWriter(transport, protocol, None, loop)

    def finish(self) -> None:
        """Wait a short time until the server's standard error is logged."""
        self._beside.finish()

    def stop(self) -> None:
        """Stop reading, even if a process still writes."""
        if self._reading is not None:
            self._reading.close()


async def _read(
    stdout: asyncio.StreamReader, to: _Incoming, words: ServerLog, max_line_bytes: int, end: ServerEnd
) -> None:
    """Pass on the server's messages until it ends or sends an unacceptable one; then drop the rest."""
    with to:
        try:
            strays = 0
            async for line in _lines(stdout, max_line_bytes):
                message = read_line(line)
                strays = 0 if message else strays + 1
                end.unanswered += isinstance(message, JSONRPCRequest)
                if end.unanswered > MAX_UNANSWERED:
                    end.why, end.is_fault = (
                        f"the server sent more than {MAX_UNANSWERED} requests without reading the answers",
                        True,
                    )
                    break
                if message is not None:
                    await to.send(SessionMessage(message))
                elif strays <= MAX_STRAYS:
                    words.log_line(line)
                else:
                    end.why, end.is_fault = (
                        f"the server wrote more than {MAX_STRAYS} lines without a message",
                        True,
                    )
                    break
        except _LineTooLong as error:
            end.why, end.is_fault = str(error), True
            call = answered_call(error.beginning)
            end.is_too_long = call is None
            if call is not None:
                with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                    await to.send(SessionMessage(substitute_error(call, TOO_LONG, str(error))))
        except NotText as error:
            end.why, end.is_fault = str(error), True
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
            # The session is over, or the pipe is.
            pass
        except Exception as error:  # noqa: BLE001 - a defect of ours must not leave a call waiting
            end.why, end.is_fault = f"the server's output could not be read ({type(error).__name__})", True
            _log.error("a tool server's output could not be read: the server is restarted", exc_info=error)
        finally:
            end.is_there.set()
    await _drop_all(stdout)


async def _notice_exit(process: AgentProcess, incoming: _Incoming, end: ServerEnd) -> None:
    """End all waits for a server that has ended, even if another process still holds its pipes."""
    await process.wait()
    with anyio.move_on_after(FLUSH_SECONDS):
        await end.is_there.wait()
    incoming.close()
    end.is_there.set()


async def _lines(stream: asyncio.StreamReader, max_bytes: int) -> AsyncIterator[bytes]:
    """Yield whole lines; _LineTooLong as soon as one has more bytes than are taken."""
    line = bytearray()
    while True:
        piece = await stream.read(_PIECE_BYTES)
        if not piece:
            return
        first, *others = piece.split(b"\n")
        line += first
        for following in others:
            if len(line) > max_bytes:
                break
            yield bytes(line)
            line = bytearray(following)
        if len(line) > max_bytes:
            raise _LineTooLong(bytes(line[:max_bytes]))


async def _drop_all(stream: asyncio.StreamReader) -> None:
    """Continue to read, so that a server that writes can end."""
    with suppress(OSError):
        while await stream.read(_PIECE_BYTES):
            pass


async def _write(
    stdin: asyncio.StreamWriter,
    messages: _Outgoing,
    incoming: _Incoming,
    end: ServerEnd,
    is_written: anyio.Event,
) -> None:
    """Pass on requests to a server."""
    try:
        with messages:
            async for message in messages:
                line = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                stdin.write(f"{line}\n".encode())
                await stdin.drain()
                end.unanswered -= isinstance(message.message, JSONRPCResponse | JSONRPCError)
    except (anyio.ClosedResourceError, anyio.BrokenResourceError, OSError):
        # It may still be alive: callers must learn that there will be no answer.
        incoming.close()
        end.is_there.set()
    finally:
        is_written.set()


async def _end(process: AgentProcess, stdin: asyncio.StreamWriter, *, at_once: bool) -> None:
    """Wait for the server to end, unless `at_once`; then end it with all processes that it started."""
    stdin.close()
    if not at_once:
        with anyio.move_on_after(EXIT_SECONDS):
            await process.wait()
    if not await process.end(EXIT_SECONDS, asyncio.Event()):
        _log.warning("process %s of a tool server still exists although it was killed", process.pid)
