"""Registration of an agent: its record, incarnation and key."""

from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import accumulate
from typing import Final

from pydantic_core import to_json

from lifesign.agent.credentials import AgentKeys
from lifesign.agent.profile import AgentProfile
from lifesign.client.registry import RegistryClient
from lifesign.client.registry_connection import TIMEOUT_SECONDS
from lifesign.client.registry_errors import (
    Conflict,
    Gone,
    InvalidAnswer,
    NotFound,
    NotPermitted,
    RateLimited,
    RegistryError,
    RegistryFailure,
    Stale,
    Unprocessable,
)
from lifesign.domain.lifecycle.status_table import ALIVE, Reason
from lifesign.domain.models.agents import MAX_HEARTBEAT_BYTES, MAX_TASKS, AgentRecord, HeartbeatReply

MIN_TIMEOUT_SECONDS: Final = 2.0
"""Minimum time limit of one call with all its attempts."""
_DRAINED: Final = frozenset({Reason.DRAIN_COMPLETED, Reason.DRAIN_TIMEOUT})
MAX_LEAVE_TRIES: Final = 5
"""Each attempt fails only if the record was changed at the same moment."""
_NO_TASK: Final = f"task_{26 * '0'}"
"""A valid task id that never exists, of the first millisecond of 1970."""
_NO_INCARNATION: Final = 0
"""The first incarnation of an agent is 1."""
_OTHER_BYTES: Final = 1_024
"""Room for the other members of a heartbeat."""


@dataclass(frozen=True, slots=True)
class Load:
    """Current load of an agent."""

    count: int = 0
    """Tasks, or requests, in progress."""
    tasks: tuple[str, ...] = ()
    """Ids of the work that is a task of the registry."""


class RegistrySession:
    """Registers one agent at one registry, and sends its heartbeats. Every method raises RegistryError."""

    def __init__(
        self,
        profile: AgentProfile,
        keys: AgentKeys,
        registry: str,
        *,
        allow_plain_http: bool = False,
        works_tasks: bool = False,
        has_fixed_id: bool = True,
    ) -> None:
        """`works_tasks`: whether tasks are claimed, which only the agent's own key may do.

        `has_fixed_id`: whether a later process may run as this agent; else its key ends with the agent.
        """
        self.profile = profile
        self.incarnation: int | None = None
        """Incarnation of this process; None while there is none."""
        self._keys = keys
        self.registry = registry
        """URL of the registry."""
        self._allows_plain_http = allow_plain_http
        self._works_tasks = works_tasks
        self._has_fixed_id = has_fixed_id
        self.client = self._new_client()
        """Client of the agent itself: its registration, heartbeats, claims, leases and results."""
        self.handler_client = self._new_client()
        """Client of the handlers, with other connections: heartbeats must not wait for their requests."""

    @property
    def agent_id(self) -> str:
        """Id of the agent."""
        return self.profile.agent_id

    def hint(self, error: RegistryError) -> str:
        """Return what to do about a refusal of the agent's key; empty if the refusal has another cause."""
        return self._keys.hint(error, self.agent_id)

    async def check_key(self) -> None:
        """Raise NotPermitted if the configured key would not let the agent work after a registration.

        InvalidValue if the agent's own key could not be stored.

        A new agent gets its own key. An existing agent has it already, and no other caller gets it: with
        another key, a process could end the agent's incarnation, or begin one, and would then be refused
        its heartbeats and all tasks.
        """
        if self._keys.is_own and not self._works_tasks:
            return
        try:
            await self.client.agents.get(self.agent_id)
        except (NotFound, NotPermitted):
            # It is new, or the key only enrols, and replaces no agent.
            await self._check_key_file()
        else:
            await self._check_permission()

    async def _check_key_file(self) -> None:
        """Raise InvalidValue if a new agent could not store the key that its next start needs."""
        fault = self._keys.file_fault() if self._has_fixed_id else None
        if fault is not None:
            try:
                await self._check_permission()
            except NotPermitted:
                raise fault from None

    async def _check_permission(self) -> None:
        """Raise NotPermitted if the key may not claim tasks, or not send heartbeats if it claims none."""
        # The task and the incarnation never exist: a key with the permission gets one of the other refusals.
        with suppress(Conflict, Gone, NotFound, Unprocessable):
            if self._works_tasks:
                await self.client.tasks.claim(task_id=_NO_TASK)
            else:
                await self.client.agents.heartbeat(self.agent_id, incarnation=_NO_INCARNATION)

    async def register(self, *, supersede: bool) -> AgentRecord:
        """Register the agent, which begins an incarnation, and store the agent's own key if it gets one.

        Raise Conflict if the agent is alive and is not to be superseded; NotPermitted if the registry does
        not send the agent's own key, and the configured key cannot replace it.
        """
        record = await self.profile.register(self.client.agents, supersede=supersede)
        if record.agent_id != self.agent_id:
            raise InvalidAnswer(f"the registry registered {record.agent_id!a} instead of {self.agent_id}")
        if record.agent_key is not None:
            self._keys.keep(record.agent_key)
        elif not self._keys.is_own:
            # A failure without a refusal says nothing about the key; the heartbeats will show it.
            with suppress(RegistryFailure, RateLimited):
                await self._check_permission()
        self.incarnation = record.incarnation
        return record

    async def send_heartbeat(self, load: Load, *, is_draining: bool, client_s: float) -> HeartbeatReply:
        """Send a heartbeat; Gone if the incarnation has ended. `client_s` is the local wall-clock time."""
        self._keys.write_again()
        return await self.client.agents.heartbeat(
            self.agent_id,
            status="draining" if is_draining else "active",
            current_load=load.count,
            tasks_in_progress=_fitting(load.tasks),
            client_timestamp=datetime.fromtimestamp(client_s, UTC),
            incarnation=self.incarnation,
        )

    async def drain_end(self) -> Reason | None:
        """Return how a drain by another caller ended this incarnation; None if no drain did."""
        record = await self.client.agents.get(self.agent_id)
        is_drained = record.incarnation == self.incarnation and record.reason in _DRAINED
        return Reason(record.reason) if is_drained else None

    async def drain_left_s(self, now: datetime) -> float | None:
        """Return the time that the registry leaves to a drain, at `now` by its clock; None if unknown."""
        try:
            deadline = (await self.client.agents.get(self.agent_id)).drain_deadline
        except RegistryError:
            return None
        return None if deadline is None else max(0.0, (deadline - now).total_seconds())

    async def leave(self) -> None:
        """Deregister this incarnation. If another process has registered the agent since, nothing changes."""
        if self.incarnation is None:
            return
        for _ in range(MAX_LEAVE_TRIES):
            record = await self.client.agents.get(self.agent_id)
            if record.incarnation != self.incarnation or record.status not in ALIVE:
                break
            try:
                await self.client.agents.deregister(
                    self.agent_id, if_match=record.etag, ends_key=not self._has_fixed_id
                )
            except Stale:
                # The drain was noted, or it ended, between the two.
                continue
            except (Conflict, Gone, NotFound):
                pass
            break
        self.incarnation = None

    async def close(self) -> None:
        """Close the connections."""
        await self.client.close()
        await self.handler_client.close()

    def _new_client(self) -> RegistryClient:
        """Return a client of the registry that sends the agent's current key with each request."""
        interval_s = self.profile.rhythm.interval_seconds
        return RegistryClient(
            self.registry,
            key=self._keys,
            timeout_seconds=min(TIMEOUT_SECONDS, max(MIN_TIMEOUT_SECONDS, interval_s)),
            allow_plain_http=self._allows_plain_http,
        )


def _fitting(tasks: tuple[str, ...]) -> tuple[str, ...]:
    """Return the first tasks, as many as a heartbeat may list: the registry would refuse a longer body."""
    listed = tasks[:MAX_TASKS]
    # Each is followed by a comma.
    ends = accumulate(len(to_json(task)) + 1 for task in listed)
    return listed[: sum(end <= MAX_HEARTBEAT_BYTES - _OTHER_BYTES for end in ends)]
