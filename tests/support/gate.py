"""Intervenes at the moment in which a registry gets a request.

All requests of an agent pass a gate with a separate thread. It forwards them and intervenes once, at one kind
of request: before the registry gets it, after it was executed, or in place of the answer.
"""

import asyncio
import contextlib
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum

from tests.support.servers import PATIENCE_SECONDS

_DEEDS = {
    "register": re.compile(rb"POST /api/v1/agents "),
    "beat": re.compile(rb"POST /api/v1/agents/[^/ ]+/heartbeat "),
    "claim": re.compile(rb"POST /api/v1/tasks/claim "),
    "renew": re.compile(rb"POST /api/v1/leases/[^/ ]+/renew "),
    "complete": re.compile(rb"POST /api/v1/tasks/[^/ ]+/complete "),
    "release": re.compile(rb"POST /api/v1/tasks/[^/ ]+/release "),
    "leave": re.compile(rb"DELETE /api/v1/agents/"),
}


class Moment(StrEnum):
    """When, at a request."""

    BEFORE = "before"
    """The registry has not seen it yet."""
    AFTER = "after"
    """It was carried out; the answer is on its way."""
    LOST = "lost"
    """It was carried out; there is no answer."""


class Gate:
    """Stands before a registry on loopback."""

    def __init__(self, port: int) -> None:
        self._registry_port = port
        self._port = 0
        self._loop = asyncio.new_event_loop()
        self._ends = asyncio.Event()
        self._listens = threading.Event()
        self._armed: tuple[str, Moment, Callable[[], object]] | None = None
        self.has_fired = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gate", daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def arm(self, function: str, moment: Moment, action: Callable[[], object]) -> None:
        """Call this at the next request of that kind, in the gate's thread."""
        assert function in _DEEDS
        self._armed = (function, moment, action)

    def start(self) -> None:
        self._thread.start()
        assert self._listens.wait(PATIENCE_SECONDS)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._ends.set)
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        async with await asyncio.start_server(self._pass, "127.0.0.1", 0) as server:
            self._port = server.sockets[0].getsockname()[1]
            self._listens.set()
            await self._ends.wait()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, asks = await asyncio.open_connection("127.0.0.1", self._registry_port)
        passing = _Passing(self)
        both = [
            asyncio.create_task(passing.ask(reader, asks)),
            asyncio.create_task(passing.answer(answers, writer)),
        ]
        # The end of one side ends the other, which would otherwise wait without an end.
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in both:
                one.cancel()
            for end in (asks, writer):
                end.close()

    def fires(self, piece: bytes) -> Moment | None:
        """Return when to intervene for a request of a connection, None for never."""
        if self._armed is not None and not self.has_fired.is_set() and _DEEDS[self._armed[0]].match(piece):
            return self._armed[1]
        return None

    def fire(self) -> None:
        assert self._armed is not None
        if not self.has_fired.is_set():
            self.has_fired.set()
            self._armed[2]()


class _Passing:
    """One connection; there is one request at a time."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._awaited: Moment | None = None

    async def ask(self, reader: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while piece := await reader.read(65_536):
                moment = self._gate.fires(piece)
                if moment is Moment.BEFORE:
                    self._gate.fire()
                elif moment is not None:
                    self._awaited = moment
                to.write(piece)

    async def answer(self, reader: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while piece := await reader.read(65_536):
                moment, self._awaited = self._awaited, None
                if moment is not None:
                    self._gate.fire()
                if moment is Moment.LOST:
                    to.transport.abort()
                    return
                to.write(piece)


@contextmanager
def gate(port: int) -> Iterator[Gate]:
    """Stand before the registry at this port until the block ends."""
    standing = Gate(port)
    standing.start()
    try:
        yield standing
    finally:
        standing.stop()
