"""A registry whose answers a test scripts and which records the agent's requests.

A server on a real socket in the test's own loop, so that time may be set by hand. It keeps one agent as a
registry does, as far as an agent can notice, unless the test scripts another answer.
"""

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer
from tests.support.virtual_loop import virtual_loop

from lifesign.domain.models.agents import Registration

Answer = tuple[int, dict[str, Any]]
KEY = "ahk_given"
OWN_KEY = "ahk_own"


def refusal(status: int, code: str, message: str = "", **details: Any) -> Answer:
    """An error as our registry spells it."""
    return status, {"error": {"code": code, "message": message or code, "details": details}}


CONFLICT = refusal(409, "already_registered", "is registered already")
NO_ANSWER: Answer = (0, {})
"""The connection is closed when the request was read."""


@dataclass
class Asked:
    """One request of the agent."""

    at_s: float
    method: str
    path: str
    body: Any
    headers: dict[str, str]

    @property
    def function(self) -> str:
        """The requested function."""
        return "beat" if self.path.endswith("heartbeat") else self.method


@dataclass
class ScriptedRegistry:
    """A registry with one agent in it."""

    url: str = ""
    asked: list[Asked] = field(default_factory=list)
    scripted: dict[str, deque[Answer]] = field(default_factory=dict)
    """Scripted answers by function: "POST" registers, then "beat", "GET", "DELETE"."""
    retry_after: str = ""
    """`Retry-After` of all refusals."""
    takes_s: float = 0.0
    """Seconds from the execution of each request to its answer."""
    incarnation: int = 0
    status: str = "deregistered"
    reason: str = "registered"
    registration: dict[str, Any] = field(default_factory=dict)
    commands: list[dict[str, Any]] = field(default_factory=list)
    clock_s: float = 0.0
    """Seconds by which its clock is ahead of the agent's."""
    _has_come: asyncio.Event = field(default_factory=asyncio.Event)

    def answers(self, function: str, *answers: Answer) -> None:
        """Give these answers, one after another, to the next requests of this kind."""
        self.scripted.setdefault(function, deque()).extend(answers)

    def functions(self) -> list[str]:
        """Return the requested functions in order."""
        return [asked.function for asked in self.asked]

    def beats(self) -> list[Asked]:
        """The heartbeats."""
        return [asked for asked in self.asked if asked.function == "beat"]

    async def until(self, holds: Callable[[], object]) -> None:
        """Wait until something is true, looking at it whenever a request was answered."""
        async with asyncio.timeout(100_000):
            while not holds():
                self._has_come.clear()
                await self._has_come.wait()
        # Time stands still until the agent has taken in what it was answered.
        await asyncio.sleep(0.01)

    async def until_beats(self, number: int) -> None:
        """Wait for so many more heartbeats."""
        wanted = len(self.beats()) + number
        await self.until(lambda: len(self.beats()) >= wanted)

    async def answer(self, request: web.Request) -> web.Response:
        text = await request.text()
        asked = Asked(
            asyncio.get_running_loop().time(),
            request.method,
            request.path,
            json.loads(text) if text else None,
            dict(request.headers),
        )
        self.asked.append(asked)
        scripted = self.scripted.get(asked.function)
        status, body = scripted.popleft() if scripted else self._lawful(asked)
        await asyncio.sleep(self.takes_s)
        # Notify the tests only after the answer is sent.
        asyncio.get_running_loop().call_soon(self._has_come.set)
        if status == 0:
            assert request.transport is not None
            request.transport.abort()
            raise web.HTTPBadRequest
        if status == 204:
            return web.Response(status=204)
        headers = {"Retry-After": self.retry_after} if status >= 400 and self.retry_after else {}
        return web.json_response(body, status=status, headers=headers)

    def _lawful(self, asked: Asked) -> Answer:
        functions = {"beat": self._take_beat, "POST": self._register, "DELETE": self._end}
        return functions.get(asked.function, self._show)(asked)

    def _show(self, _: Asked) -> Answer:
        return (200, self.record()) if self.registration else refusal(404, "agent_not_found")

    def _register(self, asked: Asked) -> Answer:
        if self.status in {"active", "draining"} and not asked.body.get("supersede"):
            return CONFLICT
        self.incarnation += 1
        self.status, self.registration = "active", asked.body
        own = {"agent_key": OWN_KEY} if self.incarnation == 1 else {}
        return 201, {**self.record(), **own}

    def _take_beat(self, asked: Asked) -> Answer:
        life = asked.headers.get("X-Agent-Incarnation", str(self.incarnation))
        if self.status not in {"active", "draining"} or life != str(self.incarnation):
            details = {"status": self.status, "incarnation": self.incarnation}
            return 410, {"error": {"code": "agent_gone", "message": "register again", "details": details}}
        if asked.body["status"] == "draining":
            self.status, self.commands = "draining", []
        return 200, {
            "acknowledged": True,
            "server_timestamp": self._now(),
            "agent_status": self.status,
            "pending_commands": self.commands,
        }

    def _end(self, asked: Asked) -> Answer:
        if asked.headers.get("If-Match") not in {None, self.record()["etag"]}:
            return refusal(412, "stale_version")
        self.status = "deregistered"
        return 204, {}

    def record(self) -> dict[str, Any]:
        """The agent as a registry shows it."""
        result = Registration.model_validate(self.registration)
        thresholds = result.thresholds().model_dump()
        return {
            "agent_id": result.agent_id,
            "capabilities": result.capabilities,
            "capacity": result.capacity.model_dump(),
            "status": self.status,
            "health": "unknown",
            "monitoring": "heartbeat",
            "heartbeat_config": thresholds,
            "drain_timeout_seconds": result.drain_timeout_seconds,
            "metadata": result.metadata,
            "registered_at": self._now(),
            "version": 1,
            "incarnation": self.incarnation,
            "etag": f'"{self.incarnation}.{self.status}"',
            "reason": self.reason,
            "status_since": self._now(),
            "explanation": "",
            "reported": {"current_load": 0, "tasks_in_progress": []},
        }

    def _now(self) -> str:
        return datetime.fromtimestamp(virtual_loop().wall_s() + self.clock_s, UTC).isoformat()


@asynccontextmanager
async def scripted_registry() -> AsyncIterator[ScriptedRegistry]:
    """Serve until the block ends; only in virtual time."""
    registry = ScriptedRegistry()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", registry.answer)
    server = TestServer(app, host="127.0.0.1")
    await server.start_server()
    registry.url = str(server.make_url("")).rstrip("/")
    try:
        yield registry
    finally:
        await server.close()
