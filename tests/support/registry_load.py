"""The usual load of agents, with a ledger of what was acknowledged.

Agents register, send heartbeats, hold leases, write, drain and return, at several servers at once. What was
acknowledged goes into a ledger, which is compared with the database later. A missing answer is no promise:
the agent then reads the current state, as a real one would.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Self

import aiohttp
from tests.support.registry_process import agent_key
from tests.support.servers import PATIENCE_SECONDS

from lifesign.domain.events.chain import Event
from lifesign.domain.events.event_type import EventType
from lifesign.registry.events.verify_events import LogReport, verify_log
from lifesign.storage.agents import agent_rows
from lifesign.storage.engine.transaction import Database, Transaction
from lifesign.storage.events import event_log

TIMEOUT_SECONDS = 20.0
PAUSE_SECONDS = 0.05
"""After an answer that did not come, or came from a server that cannot serve."""
ROUNDING_S = 0.0011
"""Answers are in milliseconds."""
GONE = ("dead", "deregistered")

Fact = tuple[object, ...]


@dataclass
class Ledger:
    """Acknowledgements of the servers."""

    facts: set[Fact] = field(default_factory=set)
    beats: dict[str, float] = field(default_factory=dict)
    """When each agent's last acknowledged heartbeat came, by the server."""
    statuses: Counter[int] = field(default_factory=Counter)
    slowest_s: float = 0.0
    unanswered: int = 0
    unexplained: list[str] = field(default_factory=list)
    """Answers that no server may give under any fault."""

    async def check(self, database: Database) -> LogReport:
        """Fail unless all of it is stored, the chain holds, and the stored states follow from it."""
        report, result, heard = await database.read(self._read)
        assert report.is_good, (report.fault, report.differences)
        missing = self.facts - result
        assert not missing, f"acknowledged and lost: {sorted(map(str, missing))[:5]}"
        lost = {name for name, at_s in self.beats.items() if heard.get(name, 0.0) < at_s - ROUNDING_S}
        assert not lost, f"heartbeats acknowledged and lost: {sorted(lost)[:5]}"
        assert not self.unexplained, self.unexplained[:5]
        return report

    def _read(self, transaction: Transaction) -> tuple[LogReport, set[Fact], dict[str, float]]:
        report = verify_log(transaction)
        seen = {_fact(event) for event in event_log.between(transaction, 1, report.last.sequence)}
        found = agent_rows.find_named(transaction, sorted(self.beats))
        return report, seen, {agent.agent_id: agent.last_heartbeat_at_s for agent in found}


def _fact(event: Event) -> Fact:
    result = event.payload
    match event.type:
        case EventType.AGENT_LIFECYCLE:
            return (
                event.type,
                result["agent_id"],
                result["incarnation"],
                result["version"],
                result["new_status"],
            )
        case EventType.LEASE_ACQUIRED | EventType.LEASE_RELEASED:
            return event.type, result["lease_id"]
        case EventType.STATE_WRITTEN:
            return event.type, result["resource"], result["version"]
        case _:
            return (event.type,)


class Agent:
    """One agent, and its own view of its state."""

    def __init__(self, agent_id: str, load: "Load") -> None:
        self.agent_id = agent_id
        self._load = load
        self._record: dict[str, Any] | None = None
        self._leases: dict[str, int] = {}
        """Tokens, by lease."""

    async def act(self) -> None:
        """Do one thing or another."""
        if self._record is None:
            await self._look()
        elif self._record["status"] in GONE:
            await self._register()
        elif self._record["status"] == "draining":
            await self._beat()
            await self._look()
        else:
            functions = [self._beat, self._acquire, self._release, self._write, self._drain]
            await random.choices(functions, weights=[10, 4, 3, 3, 1])[0]()  # noqa: S311 - no secret

    async def _look(self) -> None:
        status, answer = await self._ask("GET", f"/agents/{self.agent_id}")
        if status == 200:
            self._record = answer
        elif status == 404:
            self._record = {"status": "deregistered"}

    async def _register(self) -> None:
        status, answer = await self._ask("POST", "/agents", {"agent_id": self.agent_id})
        self._record, self._leases = None, {}
        if status == 201:
            self._record = answer
            self._note(EventType.AGENT_LIFECYCLE, answer)

    async def _beat(self) -> None:
        body = {"status": "active", "client_timestamp": "2025-11-20T12:00:00Z"}
        status, answer = await self._ask("POST", f"/agents/{self.agent_id}/heartbeat", body)
        if status == 200:
            at_s = datetime.fromisoformat(answer["server_timestamp"]).timestamp()
            self._load.ledger.beats[self.agent_id] = at_s
        else:
            self._record = None

    async def _acquire(self) -> None:
        resource = f"task:{self.agent_id}:{random.randrange(3)}"  # noqa: S311 - no secret
        status, answer = await self._ask("POST", "/leases", {"resource": resource, "ttl_seconds": 600})
        if status == 201:
            self._leases[answer["lease_id"]] = answer["fencing_token"]
            self._load.ledger.facts.add((EventType.LEASE_ACQUIRED, answer["lease_id"]))

    async def _release(self) -> None:
        if self._leases:
            lease_id = next(iter(self._leases))
            status, _ = await self._ask("DELETE", f"/leases/{lease_id}")
            del self._leases[lease_id]
            if status == 204:
                self._load.ledger.facts.add((EventType.LEASE_RELEASED, lease_id))

    async def _write(self) -> None:
        intent = f"intent-{self.agent_id}"
        resource = f"intent:{intent}/notes"
        body = {"resource": resource, "ttl_seconds": 600}
        status, lease = await self._ask("POST", "/leases", body)
        if status == 409:
            lease = lease.get("existing_lease", {})
        token = None if lease is None else lease.get("fencing_token")
        if token is not None:
            headers = {"X-Fencing-Token": str(token)}
            status, answer = await self._ask(
                "PUT", f"/intents/{intent}/state/notes", {"at": time.time()}, **headers
            )
            if status == 200:
                self._load.ledger.facts.add((EventType.STATE_WRITTEN, resource, answer["version"]))

    async def _drain(self) -> None:
        body = {"status": "draining", "drain_timeout_seconds": 1}
        assert self._record is not None
        headers = {"If-Match": self._record["etag"]}
        status, answer = await self._ask("PATCH", f"/agents/{self.agent_id}/status", body, **headers)
        self._record = None
        if status == 200:
            self._record = answer
            self._note(EventType.AGENT_LIFECYCLE, answer)

    def _note(self, kind: EventType, record: dict[str, Any]) -> None:
        members = ("agent_id", "incarnation", "version", "status")
        self._load.ledger.facts.add((kind, *(record[name] for name in members)))

    async def _ask(self, method: str, path: str, body: object = None, **headers: str) -> tuple[int, Any]:
        """Return status and answer; 0 if none came, and then nothing is known of itself any more."""
        status, answer = await self._load.ask(method, path, body, key=agent_key(self.agent_id), **headers)
        if status in {0, 503}:
            self._record = None
            await asyncio.sleep(PAUSE_SECONDS)
        return status, answer


class Load:
    """Many agents at several servers, until they are stopped."""

    def __init__(self, agent_ids: Sequence[str], ports: Sequence[int], ledger: Ledger) -> None:
        self.ledger = ledger
        self._ports = ports
        self._agents = [Agent(agent_id, self) for agent_id in agent_ids]
        self._running: list[asyncio.Task[None]] = []
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
        self._session = aiohttp.ClientSession(timeout=timeout)
        self._running = [asyncio.create_task(self._live(agent)) for agent in self._agents]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._running:
            task.cancel()
        ended = await asyncio.gather(*self._running, return_exceptions=True)
        assert self._session is not None
        await self._session.close()
        for each in ended:
            if isinstance(each, Exception):
                raise each

    async def until_acknowledged(self, more: int) -> None:
        """Return once so many more changes have been acknowledged; TimeoutError after the deadline."""
        wanted = len(self.ledger.facts) + more
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(self.ledger.facts) < wanted:  # noqa: ASYNC110 - an event would stop it at the same place
                await asyncio.sleep(random.uniform(0, 0.02))  # noqa: S311 - no secret

    async def until_refused(self) -> None:
        """Return once a request was answered 503 since the counts were cleared; TimeoutError if none was."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not self.ledger.statuses[503]:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.02)

    async def ask(
        self, method: str, path: str, body: object = None, *, key: str, **headers: str
    ) -> tuple[int, Any]:
        """Ask one of the servers; note how it answered."""
        url = f"http://127.0.0.1:{random.choice(self._ports)}/api/v1{path}"  # noqa: S311 - no secret
        sent = {"X-API-Key": key, **headers}
        began_s = time.monotonic()
        assert self._session is not None
        try:
            async with self._session.request(method, url, json=body, headers=sent) as response:
                status = response.status
                answer = await response.json() if response.content_type == "application/json" else None
                retry_after = response.headers.get("Retry-After")
        except (aiohttp.ClientError, ConnectionError):
            self.ledger.unanswered += 1
            return 0, None
        except TimeoutError:
            self.ledger.unexplained.append(f"{method} {path}: no answer within {TIMEOUT_SECONDS} s")
            return 0, None
        self.ledger.statuses[status] += 1
        self.ledger.slowest_s = max(self.ledger.slowest_s, time.monotonic() - began_s)
        if status >= 500 and not (status == 503 and retry_after):
            self.ledger.unexplained.append(f"{method} {path}: {status} {answer}")
        return status, answer

    async def _live(self, agent: Agent) -> None:
        while True:
            await agent.act()
