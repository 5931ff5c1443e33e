"""How is a server of tools spoken with over its pipes, whatever it writes?

As the SDK's own stdio transport does it, with bounds: a line has a greatest length, what is not UTF-8 ends
the server, an answer that cannot be read fails its call at once, and what is no message is shown like a
peer's text. Whatever ends the reading is known at once to whoever waits for answers.
"""

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, cast

import anyio
from anyio.abc import ByteReceiveStream, ByteSendStream, Process
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage

from agent_health.adapter.server_line import TOO_LONG, NotText, answer_in_place, answered_call, read_line
from agent_health.adapter.server_words import ServerWords, WordsPipe

EXIT_SECONDS: Final = 2.0
"""For a server to end once nothing more comes in; and again between SIGTERM and SIGKILL."""
FLUSH_SECONDS: Final = 0.5
"""For what was accepted already, before its input is closed."""
_POLL_SECONDS: Final = 0.01
_PIECE_BYTES: Final = 65_536

_log = logging.getLogger("agent_health.adapter.tools")
_Incoming = MemoryObjectSendStream[SessionMessage | Exception]
_Outgoing = MemoryObjectReceiveStream[SessionMessage]
Streams = tuple[MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]]
"""What the SDK's client reads from and writes to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerProgram:
    """What is started, and how much it may write on one line."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    """Beside what is everybody's; never shown."""
    directory: Path | None
    max_line_bytes: int


@dataclass(slots=True)
class ServerEnd:
    """How a server came to its end, for whoever waits for its answers."""

    is_there: asyncio.Event = field(default_factory=asyncio.Event)
    why: str = "it has ended"
    is_too_long: bool = False
    """Whether it wrote a longer line than it may, and it is not known which call that answers."""
    is_fault: bool = False
    """Whether it goes on writing what nobody reads."""


class _LineTooLong(ValueError):
    """A line has more bytes than are taken; `beginning` is what there is of it."""

    def __init__(self, beginning: bytes) -> None:
        super().__init__(f"it has written a line of more than {len(beginning)} bytes")
        self.beginning = beginning


@asynccontextmanager
async def server_pipes(program: ServerProgram, end: ServerEnd) -> AsyncIterator[Streams]:
    """Start a server and speak with it until the block ends; then it is ended with all that it has started.

    OSError if it cannot be started.
    """
    words = ServerWords(program.name)
    beside = WordsPipe(words)
    try:
        process = await anyio.open_process(
            program.command,
            env=get_default_environment() | dict(program.environment),
            cwd=program.directory,
            stderr=beside.write_fd,
            start_new_session=True,
        )
    finally:
        beside.begin()
    stdin, stdout = cast("ByteSendStream", process.stdin), cast("ByteReceiveStream", process.stdout)
    # Nothing is awaited between here and the group, or a cancellation would leave the process behind.
    incoming_end, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outgoing, outgoing_end = anyio.create_memory_object_stream[SessionMessage](0)
    is_written = anyio.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(_read, stdout, incoming_end, words, program.max_line_bytes, end)
        group.start_soon(_write, stdin, outgoing_end, incoming_end, end, is_written)
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
                await asyncio.to_thread(beside.finish)
            # A process that has left the group may still hold a pipe open.
            group.cancel_scope.cancel()


async def _read(
    stdout: ByteReceiveStream, to: _Incoming, words: ServerWords, max_line_bytes: int, end: ServerEnd
) -> None:
    """Hand on what a server says, until it says nothing more or what cannot be taken; then drop the rest."""
    with to:
        try:
            async for line in _lines(stdout, max_line_bytes):
                message = read_line(line)
                if message is None:
                    words.tell(line)
                else:
                    await to.send(SessionMessage(message))
        except _LineTooLong as error:
            end.why, end.is_fault = str(error), True
            call = answered_call(error.beginning)
            end.is_too_long = call is None
            if call is not None:
                with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                    await to.send(SessionMessage(answer_in_place(call, TOO_LONG, str(error))))
        except NotText as error:
            end.why, end.is_fault = str(error), True
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
            # The session is over, or the pipe is.
            pass
        except Exception as error:  # noqa: BLE001 - a defect of ours must not leave a call waiting
            end.why, end.is_fault = f"what it wrote could not be read ({type(error).__name__})", True
            _log.error("what a server wrote could not be read", exc_info=error)
        finally:
            end.is_there.set()
    await _drop_all(stdout)


async def _lines(stream: ByteReceiveStream, max_bytes: int) -> AsyncIterator[bytes]:
    """Yield whole lines; _LineTooLong as soon as one has more bytes than are taken."""
    line = bytearray()
    while True:
        try:
            piece = await stream.receive(_PIECE_BYTES)
        except anyio.EndOfStream:
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


async def _drop_all(stream: ByteReceiveStream) -> None:
    """Read on, so that a server that writes comes to its end."""
    with suppress(anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError, OSError):
        while True:
            await stream.receive(_PIECE_BYTES)


async def _write(
    stdin: ByteSendStream, messages: _Outgoing, incoming: _Incoming, end: ServerEnd, is_written: anyio.Event
) -> None:
    """Hand on what a server is asked."""
    try:
        with messages:
            async for message in messages:
                line = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                await stdin.send(f"{line}\n".encode())
    except (anyio.ClosedResourceError, anyio.BrokenResourceError, OSError):
        # It may still live: whoever waits for an answer must know that none will come.
        incoming.close()
        end.is_there.set()
    finally:
        is_written.set()


async def _end(process: Process, stdin: ByteSendStream, *, at_once: bool) -> None:
    """Let it end by itself unless that must be `at_once`, then end it with all that it has started."""
    with suppress(OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
        await stdin.aclose()
    if at_once or not await _is_over(lambda: process.returncode is not None):
        _send(process.pid, signal.SIGTERM)
        if not await _is_over(lambda: process.returncode is not None and not _send(process.pid, 0)):
            _send(process.pid, signal.SIGKILL)
            if not await _is_over(lambda: process.returncode is not None):
                _log.warning("process %d of a server of tools is there although it was killed", process.pid)
    with anyio.move_on_after(EXIT_SECONDS), suppress(OSError, anyio.BrokenResourceError):
        await process.aclose()


async def _is_over(is_over: Callable[[], bool]) -> bool:
    """Wait until something is over, and return whether it is, in time."""
    # Not process.wait(): that waits for whoever has inherited a pipe, too.
    with anyio.move_on_after(EXIT_SECONDS):
        while not is_over():  # noqa: ASYNC110 - a process group tells nobody of its end
            await anyio.sleep(_POLL_SECONDS)
        return True
    return False


def _send(group: int, number: int) -> bool:
    """Send a signal to all that a server has started, and return whether there is any of it left.

    Its group has the number of its first process, also when that is gone.
    """
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
