"""An opencode server that a test controls: real sockets and the real protocol."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.support.hostile_server import HostileServer, Reply, answer, as_json, serving
from tests.support.opencode_events import Envelope, plain, wire
from tests.support.servers import PATIENCE_SECONDS

STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
DIRECTORY = "/home/user/project"


class FakeOpencode:
    """Streams to every client, and answers about sessions; `sessions` has the directory of each."""

    def __init__(self, envelope: Envelope = plain) -> None:
        self.envelope = envelope
        self.sessions: dict[str, str] = {}
        self.statuses: dict[str, str] = {}
        """Statuses of the busy sessions."""
        self.instead: dict[str, Reply] = {}
        """Other answers, by path, or by path and query."""
        self.opened = 0
        self.asked: list[str] = []
        self.heads: list[str] = []
        self._writers: set[asyncio.StreamWriter] = set()
        self._has_listener = asyncio.Event()

    def says(self, *events: tuple[str, dict[str, Any]], raw: bytes = b"") -> None:
        """Say something to all that listen."""
        for event in events:
            match event:
                case ("session.status", {"sessionID": str(session_id), "status": {"type": str(state)}}):
                    self.statuses.pop(session_id, None)
                    self.statuses |= {} if state == "idle" else {session_id: state}
                case ("session.idle", {"sessionID": str(session_id)}):
                    self.statuses.pop(session_id, None)
        for writer in self._writers:
            writer.write(wire(*events, envelope=self.envelope) + raw)

    def breaks_off(self) -> None:
        """Cut all streams off."""
        self._has_listener.clear()
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def is_listened_to(self) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await self._has_listener.wait()

    async def reply(self, writer: asyncio.StreamWriter, head: str) -> None:
        """Answer one request."""
        target = urlsplit(head.split(" ", 2)[1])
        self.asked.append(head.split(" ", 2)[1])
        self.heads.append(head)
        instead = self.instead.get(target.path) or self.instead.get(self.asked[-1])
        if instead is not None:
            await instead(writer, head)
        elif target.path in {"/event", "/global/event"}:
            await self._stream(writer)
        elif target.path == "/session/status":
            (directory,) = parse_qs(target.query)["directory"]
            listed = {
                session_id: {"type": state}
                for session_id, state in self.statuses.items()
                if self.sessions.get(session_id) == directory
            }
            await as_json(listed)(writer, head)
        elif target.path.removeprefix("/session/") in self.sessions:
            session_id = target.path.removeprefix("/session/")
            await as_json({"id": session_id, "directory": self.sessions[session_id]})(writer, head)
        elif target.path.startswith("/session/"):
            body = json.dumps({"name": "NotFoundError"}).encode()
            await answer(404, body, Content_Type="application/json")(writer, head)
        else:
            await answer(200, b"<!doctype html>", Content_Type="text/html")(writer, head)

    async def _stream(self, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD)
        self._writers.add(writer)
        self.opened += 1
        self.says(("server.connected", {}))
        self._has_listener.set()
        try:
            while not writer.is_closing():
                await asyncio.sleep(10)
                writer.write(wire(("server.heartbeat", {}), envelope=self.envelope))
        finally:
            self._writers.discard(writer)


class _Any(dict[str, Reply]):
    """One reply for every path."""

    def __init__(self, reply: Reply) -> None:
        super().__init__()
        self._reply = reply

    def get(self, key: str, default: Any = None) -> Any:
        return self._reply


@contextlib.asynccontextmanager
async def opencode(envelope: Envelope = plain, /, **sessions: str) -> AsyncIterator[tuple[FakeOpencode, str]]:
    """Serve on loopback; yields its output, and its URL. Sessions work in DIRECTORY, with these states."""
    fake = FakeOpencode(envelope)
    fake.sessions = dict.fromkeys(sessions, DIRECTORY)
    fake.statuses = {session_id: state for session_id, state in sessions.items() if state != "idle"}
    async with serving({}) as server:
        _answer_all(server, fake.reply)
        try:
            yield fake, server.url
        finally:
            fake.breaks_off()


def _answer_all(server: HostileServer, reply: Reply) -> None:
    server.replies = _Any(reply)
