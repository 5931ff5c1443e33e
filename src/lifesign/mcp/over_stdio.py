"""MCP server over stdio, for the program that started it.

The parent process at the other end of the pipes is trusted like the user of a command. Standard output
belongs to the protocol: other output of this process goes to standard error meanwhile.
"""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any, Final, Self

import anyio
from mcp.server import Server
from mcp.server.stdio import stdio_server
from mcp.shared.message import SessionMessage
from mcp_types import (
    PARSE_ERROR,
    ErrorData,
    JSONRPCError,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
)

from lifesign.domain.parsing.surrogate_escapes import replace_half_pairs

GRACE_SECONDS: Final = 5
"""Time for running calls after the client has closed the standard input of this process."""
_UNREADABLE: Final = JSONRPCError(
    jsonrpc="2.0", id=None, error=ErrorData(code=PARSE_ERROR, message="the line is not a JSON-RPC message")
)


async def over_stdio(server: Server) -> None:
    """Serve one client until it closes the standard input of this process."""
    if threading.current_thread() is threading.main_thread():
        # A thread waits for the next line, and cannot be called back: there is nothing to save either.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    incoming_lines: Any = _StandardInput()
    try:
        async with (
            stdio_server(stdin=incoming_lines) as (incoming, outgoing),
            anyio.create_task_group() as group,
        ):
            requests, received = anyio.create_memory_object_stream[SessionMessage | Exception]()
            answers = _Answers(outgoing)
            # The SDK's server cancels all calls as soon as its input ends.
            group.start_soon(answers.forward, incoming, requests)
            await server.run(received, answers, server.create_initialization_options())
            group.cancel_scope.cancel()
    except* BrokenPipeError:
        # The client has ended during a call.
        pass


class _Answers:
    """Stream of messages to the client, and the client's requests that have no answer yet."""

    def __init__(self, outgoing: Any) -> None:
        self._outgoing = outgoing
        self._unanswered: set[int | str] = set()
        self._is_idle = asyncio.Event()

    async def forward(self, incoming: Any, requests: Any) -> None:
        """Pass the client's messages on; close `requests` once all are answered, or the grace is over."""
        async with requests:
            async for item in incoming:
                self._note(item)
                if isinstance(item, Exception):
                    # Its id cannot be read.
                    await self._outgoing.send(SessionMessage(_UNREADABLE))
                await requests.send(item)
            with anyio.move_on_after(GRACE_SECONDS):
                while self._unanswered:
                    self._is_idle.clear()
                    await self._is_idle.wait()

    async def send(self, item: SessionMessage, /) -> None:
        await self._outgoing.send(item)
        self._note(item)

    async def aclose(self) -> None:
        await self._outgoing.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def _note(self, item: SessionMessage | Exception) -> None:
        if isinstance(item, Exception):
            return
        match item.message:
            case JSONRPCRequest(id=number):
                self._unanswered.add(number)
            # A cancelled request gets no answer.
            case (
                JSONRPCResponse(id=number)
                | JSONRPCError(id=number)
                | JSONRPCNotification(method="notifications/cancelled", params={"requestId": number})
            ):
                self._unanswered -= {number}
        if not self._unanswered:
            self._is_idle.set()


class _StandardInput:
    """Standard input, line by line, as the SDK reads a text file."""

    async def __aiter__(self) -> AsyncIterator[str]:
        # Not closed, as a thread may still read it at the end.
        with os.fdopen(os.dup(sys.stdin.fileno()), "rb", closefd=False) as opened:
            async for line in anyio.wrap_file(opened):
                if not line.strip():
                    continue
                yield replace_half_pairs(line).decode("utf-8", "replace")
