"""Talks to the registry's API without a network and with a fixed time."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from tests.support.asgi_client import Answer, ask
from tests.support.databases import WoundClock
from tests.support.keys_without_events import add_without_event
from tests.support.servers import LONGEST_ANSWER_SECONDS

from lifesign.domain.access.permissions import Role, StoredKey, digest_of, key_of
from lifesign.domain.models.base import moment
from lifesign.domain.targets.target import host_of, shard_of
from lifesign.domain.tasks.lease import (
    MAX_TTL_SECONDS,
    EndReason,
    ended,
    is_unexpired,
    next_token,
    shard_resource,
)
from lifesign.registry.app import Registry, create_app
from lifesign.registry.settings import RegistrySettings
from lifesign.registry.status_changes import lease_events
from lifesign.storage.engine import registry_row
from lifesign.storage.engine.transaction import Database, Transaction
from lifesign.storage.events import event_log
from lifesign.storage.tasks import lease_requesters, leases

AGENTS = "/api/v1/agents"
CLIENT_TIME = "2025-11-20T12:00:00Z"
"""The wound clock's beginning."""


class RegistryApi:
    """The registry's app, its clock, and a key for each role."""

    def __init__(self, database: Database, clock: WoundClock, **settings: object) -> None:
        self.database = database
        self.clock = clock
        self.registry = Registry(
            RegistrySettings.read(
                **{"database": "sqlite://", "answer_seconds": LONGEST_ANSWER_SECONDS} | settings
            ),
            database=database,
            monotonic_s=clock.now_s,
        )
        self.app = create_app(self.registry)
        self.keys = {role: key_of(bytes([number]) * 32) for number, role in enumerate(Role)}
        self._shards: dict[int, tuple[int, float]] = {}
        """The shards of `report`, each with its token and its end."""
        self._reported = 0

    async def add_keys(self) -> None:
        """Store a key for each role but `agent`, whose keys belong to agents."""
        keys = [self._stored(role, self.keys[role], None) for role in Role if role is not Role.AGENT]
        await self.database.write(lambda transaction: add_without_event(transaction, *keys))

    async def add_agent_key(self, agent_id: str, role: Role = Role.AGENT) -> str:
        """Store a key of an agent's own and return it."""
        key = key_of(digest_of(f"{role} {agent_id}"))
        stored = self._stored(role, key, agent_id)
        await self.database.write(lambda transaction: add_without_event(transaction, stored))
        return key

    async def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        key: str | Role | None = Role.ADMIN,
        headers: Mapping[str, str] | None = None,
        raw: bytes | None = None,
    ) -> Answer:
        """Send one request; `key` is a key, or the role whose key is to be used."""
        sent = {"content-type": "application/json", **(headers or {})}
        if key is not None:
            sent["x-api-key"] = self.keys[key] if isinstance(key, Role) else key
        path, _, query = path.partition("?")
        extra: dict[str, Any] = {
            "headers": [(name.lower().encode(), value.encode()) for name, value in sent.items()],
            "query_string": query.encode(),
        }
        return await ask(self.app, path, method=method, body=body, raw=raw, **extra)

    async def register(self, agent_id: str = "agent-1", **members: object) -> dict[str, Any]:
        """Register an agent and return its record; `agent_key` is its key."""
        answer = await self.ask("POST", AGENTS, {"agent_id": agent_id, **members})
        assert answer.status == 201, answer.body
        return dict(answer.json())

    async def send_heartbeat(self, agent_id: str, key: str, **members: object) -> Answer:
        """Send a heartbeat."""
        body = {"status": "active", "client_timestamp": self.time_text(), **members}
        return await self.ask("POST", f"{AGENTS}/{agent_id}/heartbeat", body, key=key)

    async def report(
        self, *observations: dict[str, Any], key: str | Role = Role.PROBER, **members: Any
    ) -> Answer:
        """Report observations, with the tokens of the targets' shards, which are leased for this.

        The `observed_at` of an observation sets its age. `members` are further ones of the batch, or replace
        the default ones.
        """
        tokens: dict[str, int] = {}
        if not {"tokens", "shard"} & members.keys():
            tokens = {
                str(shard): token for shard, token in [await self._shard_of(each) for each in observations]
            }
        ages_s = [
            max(0.0, self.clock.at_s - datetime.fromisoformat(each["observed_at"]).timestamp())
            for each in observations
        ]
        first, self._reported = self._reported + 1, self._reported + len(observations)
        body = {
            "observations": list(observations),
            "ages_s": ages_s,
            "numbers": list(range(first, self._reported + 1)),
            "interval_s": 300,
            **({"tokens": tokens} if tokens else {}),
            **members,
        }
        return await self.ask("POST", "/api/v1/observations", body, key=key)

    def hold(self, tokens: Mapping[int, int], ttl_seconds: float) -> None:
        """Report with these tokens, of shards that a worker of the prober's key has claimed."""
        until_s = self.clock.at_s + ttl_seconds
        self._shards |= {shard: (token, until_s) for shard, token in tokens.items()}

    async def _shard_of(self, observation: dict[str, Any]) -> tuple[int, int]:
        """Return the shard of an observation's target and its token; the shard is leased if need be."""
        if observation.get("target_url") is not None:
            shard = shard_of(host_of(observation["target_url"]))
        else:
            target = await self.ask("GET", f"/api/v1/targets/{observation['agent_id']}")
            shard = target.json()["shard"] if target.status == 200 else 0
        token, until_s = self._shards.get(shard, (0, 0.0))
        if until_s <= self.clock.at_s:
            # A worker of the same key may hold it, and may give it back at any time.
            token = await self.lease_shard(shard, holder="key:key_prober_/reports")
        return shard, token

    async def lease_shard(self, shard: int, *, holder: str, ttl_seconds: float = MAX_TTL_SECONDS) -> int:
        """Return the token of a shard, which is granted to this worker if none holds it."""

        def grant(transaction: Transaction) -> int:
            ((number, before),) = leases.lock(transaction, to_hold={shard_resource(shard)}).items()
            now_s = transaction.now_s
            if is_unexpired(before, now_s):
                return before.token
            claim = leases.granted(
                before,
                number,
                holder=holder,
                token=next_token(before.token, lease_requesters.lock(transaction, (), ()).token_floor),
                acquired_at_s=now_s,
                expires_at_s=now_s + ttl_seconds,
            )
            over = []
            if before.lease_id is not None and before.ended_at_s is None:
                over.append(ended(before, EndReason.EXPIRED, now_s))
            leases.store(transaction, [claim])
            drafts = [
                *lease_events.leases_ended(over, holder),
                *lease_events.shards_granted([claim], holder, holder),
            ]
            event_log.append(transaction, drafts)
            return claim.token

        return await self.database.write(grant)

    async def record(self, agent_id: str) -> dict[str, Any]:
        """Return an agent's record."""
        answer = await self.ask("GET", f"{AGENTS}/{agent_id}")
        assert answer.status == 200, answer.body
        return dict(answer.json())

    async def events(self, **query: str) -> list[dict[str, Any]]:
        """Return the events of the log, the oldest first."""
        text = "&".join(f"{name}={value}" for name, value in {"limit": "1000", **query}.items())
        answer = await self.ask("GET", f"/api/v1/events?{text}")
        assert answer.status == 200, answer.body
        return list(answer.json()["events"])

    async def lifecycle(self, agent_id: str) -> list[tuple[str, str, str]]:
        """Return an agent's steps: from, to, why."""
        found = await self.events(type="agent.lifecycle", agent_id=agent_id)
        payloads = [event["payload"] for event in found]
        return [
            (payload["previous_status"], payload["new_status"], payload["reason"]) for payload in payloads
        ]

    async def sweep(self) -> None:
        """Run one sweep, as if others had run until now: moving the clock is no downtime.

        While verdicts are suspended, sweeps must really run: call the sweeper itself.
        """

        def seem_alive(transaction: Transaction) -> None:
            row = registry_row.lock(transaction)
            registry_row.store(transaction, replace(row, swept_at_s=self.clock.at_s))

        await self.database.write(seem_alive)
        await self.registry.sweeper.sweep_once()

    def time_text(self) -> str:
        """The wound clock's time, as a client writes it."""
        return moment(self.clock.now_s()).isoformat().replace("+00:00", "Z")

    def _stored(self, role: Role, key: str, agent_id: str | None) -> StoredKey:
        return StoredKey(
            key_id=f"key_{role.value}_{agent_id or ''}",
            name=role.value,
            role=role,
            agent_id=agent_id,
            digest=digest_of(key),
            created_at_s=self.clock.now_s(),
        )
