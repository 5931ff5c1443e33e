"""Many agents with short thresholds that talk to real servers, each at its own moment."""

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self

import aiohttp
from tests.support.registry_process import ADMIN_KEY, agent_key
from tests.support.servers import PATIENCE_SECONDS, Server

from lifesign.domain.events.event_type import EventType
from lifesign.registry.events.verify_events import LogReport, verify_log
from lifesign.storage.engine.transaction import Database, Transaction
from lifesign.storage.events import event_log

UNHEALTHY_S = 2.0
DEAD_S = 4.0
CONFIG = {"interval_seconds": 1, "unhealthy_after_seconds": UNHEALTHY_S, "dead_after_seconds": DEAD_S}
MAX_AT_ONCE = 50
"""Parallel requests to one server."""


@dataclass(frozen=True)
class Said:
    """A server's answer to one heartbeat."""

    status: int
    at_s: float
    """By the server's clock, if it was accepted."""


class Voices:
    """Many agents that speak with several servers."""

    def __init__(self, servers: Sequence[Server]) -> None:
        self._servers = servers
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        # A server may close a connection in the moment in which it is used again.
        connector = aiohttp.TCPConnector(limit_per_host=MAX_AT_ONCE, force_close=True)
        timeout = aiohttp.ClientTimeout(total=PATIENCE_SECONDS)
        self._session = aiohttp.ClientSession(connector=connector, timeout=timeout)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._session is not None
        await self._session.close()

    async def register(self, number: int, agent_id: str) -> float:
        """Register an agent at one of the servers; return when that was, by the server."""
        body = {"agent_id": agent_id, "heartbeat_config": CONFIG}
        status, answer = await self.ask(number, "POST", "/agents", body, key=agent_key(agent_id))
        assert status == 201, answer
        return time_of(answer["last_heartbeat_at"])

    async def send_heartbeat(self, number: int, agent_id: str) -> Said:
        """Send one heartbeat to one of the servers."""
        body = {"status": "active", "client_timestamp": "2025-11-20T12:00:00Z"}
        path = f"/agents/{agent_id}/heartbeat"
        status, answer = await self.ask(number, "POST", path, body, key=agent_key(agent_id))
        return Said(status, time_of(answer["server_timestamp"]) if status == 200 else 0.0)

    async def ask(
        self, number: int, method: str, path: str, body: object = None, *, key: str = ADMIN_KEY
    ) -> tuple[int, Any]:
        """Send one request to the server of this number."""
        server = self._servers[number % len(self._servers)]
        url = f"http://127.0.0.1:{server.port}/api/v1{path}"
        assert self._session is not None
        async with self._session.request(method, url, json=body, headers={"X-API-Key": key}) as response:
            return response.status, await response.json()


def time_of(text: str) -> float:
    """Return a time on the wire in seconds since the epoch."""
    return datetime.fromisoformat(text).timestamp()


@dataclass(frozen=True)
class Log:
    """The contents of the event log."""

    steps: dict[str, list[tuple[str, float]]]
    """Each agent's, in their order: to which status, and when."""
    types: Counter[str]
    """How many events there are of each."""


async def log_of(database: Database) -> Log:
    """Read the whole event log; it must be good."""
    report, events = await database.read(_read)
    assert report.is_good, (report.fault, report.differences)
    log = Log({}, Counter(kind for kind, _ in events))
    for kind, event in events:
        if kind == EventType.AGENT_LIFECYCLE:
            step = (event["new_status"], time_of(event["timestamp"]))
            log.steps.setdefault(event["agent_id"], []).append(step)
    return log


def _read(transaction: Transaction) -> tuple[LogReport, list[tuple[str, Mapping[str, Any]]]]:
    events = event_log.between(transaction, 1, event_log.last_sequence(transaction))
    return verify_log(transaction), [(event.type.value, event.payload) for event in events]


async def sleep_until(at_s: float) -> None:
    """Wait until a moment of the machine's clock, which is that of its servers too."""
    await asyncio.sleep(max(0.0, at_s - time.time()))
