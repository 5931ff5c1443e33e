"""Replay: the states that follow from the event log.

A comparison of the stored states with those of a replay verifies both. An event that contradicts earlier
events is an error of its writer: replay is also a test of the registry. Memory grows with the agents,
resources and keys, not with the events.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from pydantic import TypeAdapter

from lifesign.domain.errors import ImpossibleEvent, InvalidEvent
from lifesign.domain.events.agent_payloads import (
    AgentErased,
    AgentHealthChanged,
    AgentLifecycle,
    AgentLinked,
    AgentUnlinked,
    AgentUpdated,
    MaintenanceChanged,
    StatusOverrideChanged,
)
from lifesign.domain.events.chain import Event, payload_of
from lifesign.domain.events.event_type import EventType
from lifesign.domain.events.key_state import KeyState, after_event
from lifesign.domain.events.lease_payloads import (
    EpochRaised,
    LeaseAcquired,
    LeaseEnded,
    ShardLease,
    ShardsEnded,
    ShardsGranted,
    StateWritten,
)
from lifesign.domain.events.payload_fields import Payload
from lifesign.domain.events.registry_payloads import KeyChanged
from lifesign.domain.events.replayed_states import (
    AgentState,
    Contradiction,
    LeaseState,
    ReplayedLink,
    TaskState,
    after_change,
    after_lifecycle,
    after_task_lifecycle,
    differences,
)
from lifesign.domain.events.task_payloads import TaskBudgetChanged, TaskCreated, TaskLifecycle, TaskReported
from lifesign.domain.lifecycle.status_table import (
    Status,
)
from lifesign.domain.tasks.lease import EndReason, shard_resource
from lifesign.domain.tasks.task_states import (
    FINISHED,
    HELD,
    TaskStatus,
    task_resource,
)
from lifesign.domain.text.counts import pluralize

MAX_DIFFERENCES = 1_000
"""Maximum of reported differences."""

_ENDED_BY_STATUS = {
    EndReason.AGENT_DEAD: Status.DEAD,
    EndReason.AGENT_DEREGISTERED: Status.DEREGISTERED,
}
_TAKES_LEASES = frozenset({Status.ACTIVE, Status.UNHEALTHY})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Snapshot:
    sequence: int
    epoch: int
    erased_events: int
    agents: tuple[AgentState, ...]
    leases: tuple[LeaseState, ...]
    tasks: tuple[TaskState, ...]
    keys: tuple[KeyState, ...]
    links: tuple[ReplayedLink, ...]


_SNAPSHOT = TypeAdapter(_Snapshot)


class Replay:
    """The states that result from the events of the log up to `sequence`.

    Erased events are skipped and counted: nothing is known of an erased agent. Replay checks the sequence of
    each event, `event_chain.link` its hash.
    """

    def __init__(self) -> None:
        self.sequence = 0
        self.epoch = 0
        self.erased_events = 0
        self.agents: dict[str, AgentState] = {}
        self.leases: dict[str, LeaseState] = {}
        self.tasks: dict[str, TaskState] = {}
        self.keys: dict[str, KeyState] = {}
        self.links: dict[str, ReplayedLink] = {}
        """By the target's id."""

    def apply(self, event: Event) -> None:
        """Apply the next event; ImpossibleEvent, without any change, if it contradicts the states."""
        if event.sequence != self.sequence + 1:
            raise ImpossibleEvent(event.sequence, f"it does not follow on {self.sequence}")
        if event.is_erased:
            self.erased_events += 1
        else:
            try:
                self._apply(event.type, payload_of(event))
            except InvalidEvent as error:
                raise ImpossibleEvent(event.sequence, error.what) from error
            except Contradiction as error:
                raise ImpossibleEvent(event.sequence, str(error)) from None
        self.sequence = event.sequence

    def forget(self, agent_id: str) -> None:
        """Remove the state of an erased agent. Fencing tokens that it was granted are kept.

        The states of an archived prefix need this too: otherwise the erased events after it would be missed.
        """
        self.agents.pop(agent_id, None)
        self.keys = {key_id: key for key_id, key in self.keys.items() if key.agent_id != agent_id}
        self.links = {
            link.target_id: link
            for link in self.links.values()
            if agent_id not in {link.target_id, link.agent_id}
        }
        for lease in [lease for lease in self.leases.values() if lease.holder == agent_id]:
            self.leases[lease.resource] = LeaseState(
                resource=lease.resource, lease_id=None, holder=None, token=lease.token
            )

    def differences(
        self,
        agents: Iterable[AgentState],
        leases: Iterable[LeaseState],
        tasks: Iterable[TaskState] = (),
        keys: Iterable[KeyState] = (),
        links: Iterable[ReplayedLink] = (),
        *,
        limit: int = MAX_DIFFERENCES,
    ) -> list[str]:
        """Return how stored states differ from those by the log, as at most `limit` sentences."""
        found: list[str] = []
        for difference in self._all_differences(agents, leases, tasks, keys, links):
            found.append(difference)
            if len(found) == limit:
                break
        return found

    def to_json(self) -> str:
        """Return the states as JSON, to continue without the events that are archived."""
        snapshot = _Snapshot(
            sequence=self.sequence,
            epoch=self.epoch,
            erased_events=self.erased_events,
            agents=tuple(self.agents.values()),
            leases=tuple(self.leases.values()),
            tasks=tuple(self.tasks.values()),
            keys=tuple(self.keys.values()),
            links=tuple(self.links.values()),
        )
        return _SNAPSHOT.dump_json(snapshot).decode()

    @classmethod
    def from_json(cls, text: str) -> "Replay":
        """Return a replay with the states of a text from `to_json`; ValueError if the text is invalid."""
        snapshot = _SNAPSHOT.validate_json(text)
        replay = cls()
        replay.sequence = snapshot.sequence
        replay.epoch = snapshot.epoch
        replay.erased_events = snapshot.erased_events
        replay.agents = {agent.agent_id: agent for agent in snapshot.agents}
        replay.leases = {lease.resource: lease for lease in snapshot.leases}
        replay.tasks = {task.task_id: task for task in snapshot.tasks}
        replay.keys = {key.key_id: key for key in snapshot.keys}
        replay.links = {link.target_id: link for link in snapshot.links}
        return replay

    def _apply(self, event_type: EventType, payload: Payload) -> None:
        match payload:
            case AgentLifecycle():
                self.agents[payload.agent_id] = after_lifecycle(self.agents.get(payload.agent_id), payload)
            case AgentUpdated() | AgentHealthChanged() | MaintenanceChanged() | StatusOverrideChanged():
                self.agents[payload.agent_id] = after_change(self._agent(payload.agent_id), payload)
            case AgentErased():
                self.forget(payload.agent_id)
            case LeaseAcquired() | LeaseEnded() | ShardsGranted() | ShardsEnded():
                self.leases |= self._after_leases(payload)
            case StateWritten():
                _check_holder(self._open_lease(payload.resource), payload.holder, payload.fencing_token)
            case TaskCreated() | TaskLifecycle() | TaskReported() | TaskBudgetChanged():
                self.tasks[payload.task_id] = self._after_task(payload)
            case EpochRaised():
                self.epoch = self._raised(payload.new_epoch)
            case AgentLinked() | AgentUnlinked():
                self._apply_link(payload)
            case KeyChanged(key_id=key_id):
                self.keys[key_id] = after_event(self.keys.get(key_id), event_type, payload)
            case _:
                # Warnings, commands, webhooks and the monitor's own affairs are no agent's state.
                pass

    def _raised(self, epoch: int) -> int:
        if epoch <= self.epoch:
            raise Contradiction(f"epoch {epoch} is not above {self.epoch}")
        return epoch

    def _apply_link(self, payload: AgentLinked | AgentUnlinked) -> None:
        self._agent(payload.agent_id)
        link = self.links.get(payload.target_id)
        if isinstance(payload, AgentLinked):
            if link is not None:
                raise Contradiction(f"{link.target_id} is linked to {link.agent_id}")
            self.links[payload.target_id] = ReplayedLink(
                target_id=payload.target_id, agent_id=payload.agent_id
            )
        else:
            if link is None or link.agent_id != payload.agent_id:
                raise Contradiction(f"{payload.target_id} is not linked to {payload.agent_id}")
            del self.links[payload.target_id]

    def _agent(self, agent_id: str) -> AgentState:
        if agent_id not in self.agents:
            raise Contradiction(f"agent {agent_id} was never registered")
        return self.agents[agent_id]

    def _open_lease(self, resource: str) -> LeaseState:
        lease = self.leases.get(resource)
        if lease is None or not lease.is_held:
            raise Contradiction(f"{resource} has no holder")
        return lease

    def _after_leases(
        self, payload: LeaseAcquired | LeaseEnded | ShardsGranted | ShardsEnded
    ) -> dict[str, LeaseState]:
        """Return the resources that change; all are checked before any is changed."""
        match payload:
            case LeaseAcquired():
                self._check_taker(payload)
                lease = self._granted(
                    payload.resource, payload.lease_id, payload.holder, payload.fencing_token
                )
                return {payload.resource: lease}
            case LeaseEnded():
                lease = self._ended(
                    payload.resource, payload.lease_id, payload.holder, payload.fencing_token, payload.reason
                )
                return {payload.resource: lease}
            case ShardsGranted():
                return {
                    name: self._granted(name, shard.lease_id, payload.holder, shard.fencing_token)
                    for name, shard in _by_resource(payload.shards)
                }
            case ShardsEnded():
                return {
                    name: self._ended(
                        name, shard.lease_id, payload.holder, shard.fencing_token, payload.reason
                    )
                    for name, shard in _by_resource(payload.shards)
                }

    def _after_task(
        self, payload: TaskCreated | TaskLifecycle | TaskReported | TaskBudgetChanged
    ) -> TaskState:
        task = self.tasks.get(payload.task_id)
        if isinstance(payload, TaskCreated):
            if task is not None:
                raise Contradiction(f"task {payload.task_id} was created before")
            return TaskState(status=TaskStatus.QUEUED, **payload.model_dump())
        if task is None:
            raise Contradiction(f"task {payload.task_id} was never created")
        match payload:
            case TaskReported():
                if task.status not in HELD or payload.report != task.reports + 1:
                    raise Contradiction(
                        f"task {task.task_id} is {task.status}, with {pluralize(task.reports, 'report')}"
                    )
                return replace(task, reports=payload.report)
            case TaskBudgetChanged():
                if payload.tokens < task.tokens or payload.micro_usd < task.micro_usd:
                    raise Contradiction(f"the envelope of task {task.task_id} was larger")
                return replace(task, tokens=payload.tokens, micro_usd=payload.micro_usd)
            case TaskLifecycle():
                self._check_lease_of(payload)
                return after_task_lifecycle(task, payload)

    def _check_lease_of(self, payload: TaskLifecycle) -> None:
        """Check that a task is held exactly while its lease is current.

        After an erasure the holder is unknown.
        """
        if self.erased_events:
            return
        lease = self.leases.get(task_resource(payload.task_id))
        is_held = lease is not None and lease.is_held
        if is_held != (payload.new_status in HELD):
            raise Contradiction(f"task {payload.task_id} becomes {payload.new_status}, its lease does not")

    def _check_taker(self, payload: LeaseAcquired) -> None:
        if payload.holder_incarnation:
            holder = self._agent(payload.holder)
            if holder.status not in _TAKES_LEASES or holder.incarnation != payload.holder_incarnation:
                raise Contradiction(
                    f"{payload.holder} is {holder.status} in incarnation {holder.incarnation}"
                )

    def _granted(self, resource: str, lease_id: str, holder: str, token: int) -> LeaseState:
        before = self.leases.get(resource)
        if before is not None and before.is_held:
            raise Contradiction(f"{before.holder} holds {resource}")
        if before is not None and token <= before.token:
            raise Contradiction(f"token {token} is not above {before.token}")
        return LeaseState(resource=resource, lease_id=lease_id, holder=holder, token=token)

    def _ended(self, resource: str, lease_id: str, holder: str, token: int, reason: EndReason) -> LeaseState:
        lease = self._open_lease(resource)
        if lease.lease_id != lease_id:
            raise Contradiction(f"the lease of {resource} is {lease.lease_id}")
        _check_holder(lease, holder, token)
        # RFC-0016 9.1: the death comes first, and is the cause.
        status = _ENDED_BY_STATUS.get(reason)
        if status is not None and self._agent(holder).status is not status:
            raise Contradiction(f"{holder} is {self.agents[holder].status}, not {status}")
        return replace(lease, end_reason=reason)

    def _all_differences(
        self,
        agents: Iterable[AgentState],
        leases: Iterable[LeaseState],
        tasks: Iterable[TaskState],
        keys: Iterable[KeyState],
        links: Iterable[ReplayedLink],
    ) -> Iterator[str]:
        missing = set(self.agents)
        for agent in agents:
            missing.discard(agent.agent_id)
            yield from differences(f"agent {agent.agent_id}", self.agents.get(agent.agent_id), agent)
        yield from (f"agent {agent_id}: in the log, not in the store" for agent_id in sorted(missing))
        missing = {lease.resource for lease in self.leases.values()}
        for lease in leases:
            missing.discard(lease.resource)
            yield from self._compared_lease(lease)
        yield from (f"lease of {resource}: in the log, not in the store" for resource in sorted(missing))
        # Old finished tasks are deleted, while the log still contains them.
        missing = {task_id for task_id, task in self.tasks.items() if task.status not in FINISHED}
        for task in tasks:
            missing.discard(task.task_id)
            yield from differences(f"task {task.task_id}", self.tasks.get(task.task_id), task)
        yield from (f"task {task_id}: in the log, not in the store" for task_id in sorted(missing))
        missing = set(self.links)
        for link in links:
            missing.discard(link.target_id)
            yield from differences(f"link of {link.target_id}", self.links.get(link.target_id), link)
        yield from (f"link of {target_id}: in the log, not in the store" for target_id in sorted(missing))
        missing = set(self.keys)
        for key in keys:
            missing.discard(key.key_id)
            yield from differences(f"key {key.key_id}", self.keys.get(key.key_id), key)
        yield from (f"key {key_id}: in the log, not in the store" for key_id in sorted(missing))

    def _compared_lease(self, stored: LeaseState) -> Iterator[str]:
        replayed = self.leases.get(stored.resource)
        if stored.lease_id is None and not (replayed is not None and replayed.is_held):
            # Never leased, or leased by an erased agent: then only the token can be compared.
            token = 0 if replayed is None else replayed.token
            if stored.token < token or (stored.token > token and not self.erased_events):
                yield f"lease of {stored.resource}: token is {token} in the log, {stored.token} in the store"
            return
        yield from differences(f"lease of {stored.resource}", replayed, stored)


def _by_resource(shards: Sequence[ShardLease]) -> list[tuple[str, ShardLease]]:
    named = {shard_resource(lease.shard): lease for lease in shards}
    if len(named) < len(shards):
        raise Contradiction("it names a shard twice")
    return list(named.items())


def _check_holder(lease: LeaseState, holder: str, token: int) -> None:
    if (lease.holder, lease.token) != (holder, token):
        raise Contradiction(f"{lease.holder} holds {lease.resource} with token {lease.token}")
