"""One-line texts of events for people.

Pages and the live feed use the same lines: the feed sends them, and the script inserts them as text.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final

from lifesign.dashboard.labels import as_words, brief, moment_text
from lifesign.domain.access.event_actor import MEMBERS_OF_ACTORS, OwnActor, display_actor
from lifesign.domain.events.chain import Event, agent_of
from lifesign.domain.events.event_type import EventType
from lifesign.domain.tasks.task_states import end_text
from lifesign.domain.text.counts import pluralize
from lifesign.domain.text.durations import precise_text
from lifesign.registry.serializers.key_names import keys_in, names_of_keys
from lifesign.registry.serializers.target_names import names_of_targets
from lifesign.storage.engine.transaction import Transaction

MAX_POINTERS: Final = 3
"""Changes of an interface that a line names."""
NOTABLE: Final = tuple(
    kind
    for kind in EventType
    if kind
    not in {
        EventType.LEASE_ACQUIRED,
        EventType.LEASE_RELEASED,
        EventType.SHARDS_GRANTED,
        EventType.SHARDS_ENDED,
        EventType.STATE_WRITTEN,
        EventType.TASK_REPORTED,
        EventType.AGENT_UPDATED,
    }
)
"""Events on the overview. Frequent events without news are left out."""
GROUPS: Final = tuple(dict.fromkeys(kind.value.partition(".")[0] for kind in EventType))
"""Groups in the filter of events: the part of their types before the dot."""

_BY_ITSELF: Final = frozenset(OwnActor) - {OwnActor.COMMAND_LINE}
_ARROW: Final = "\N{RIGHTWARDS ARROW}"
_MARKS_OF_STATUSES: Final[Mapping[str, str]] = MappingProxyType({
    "active": "good", "unhealthy": "warn", "dead": "bad", "done": "good", "handoff": "warn",
})  # fmt: skip
"""Ids of agents and tasks that the texts contain already."""
_MARKS_OF_HEALTH: Final[Mapping[str, str]] = MappingProxyType({
    "healthy": "good", "degraded": "warn", "unhealthy": "bad",
})  # fmt: skip
_MARKS: Final[Mapping[EventType, str]] = MappingProxyType({
    EventType.COORDINATOR_LOST: "bad",
    EventType.FENCED_WRITE_REJECTED: "bad",
    EventType.LEASE_EXPIRED: "warn",
    EventType.AGENT_DRIFT_WARNING: "warn",
    EventType.AGENT_TASKS_MISMATCH: "warn",
    EventType.AGENT_DRAIN_WARNING: "warn",
    EventType.MONITOR_SUSPENDED: "bad",
    EventType.MONITOR_RESUMING: "warn",
    EventType.MONITOR_NORMAL: "good",
    EventType.MONITOR_DOWNTIME: "warn",
    EventType.MONITOR_CLOCK_JUMP: "warn",
    EventType.MONITOR_EVIDENCE_LOST: "bad",
    EventType.MONITOR_EVIDENCE_RESTORED: "good",
    EventType.MONITOR_CONFIRMED: "warn",
    EventType.PROBER_FAILURES_HIGH: "warn",
    EventType.PROBER_FAILURES_NORMAL: "good",
    EventType.PROBER_CREDENTIAL_FAILED: "warn",
    EventType.PROBER_CREDENTIAL_FAULT_ENDED: "good",
    EventType.DIRECTORY_SUSPENDED: "warn",
    EventType.WEBHOOK_DISABLED: "bad",
    EventType.EPOCH_RAISED: "warn",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class EventLine:
    """One event as the dashboard shows it."""

    sequence: int
    at: str
    """RFC 3339."""
    type: str
    subject: str
    """Subject of the event; empty for the registry itself."""
    where: str
    """Page of the subject; empty without one."""
    text: str
    mark: str
    """`good`, `warn`, `bad` or `plain`: a colour, which never is the only difference."""
    agent_id: str
    status: str
    """Status of the agent after the event; empty if the event does not change it. The same for `health`."""
    health: str
    by: str
    """Actor of the event; empty if the text names it, or if the registry acted by itself."""

    def members(self) -> dict[str, Any]:
        """Return the members of the line as the live feed sends them."""
        return asdict(self)


def lines_of(transaction: Transaction, events: Sequence[Event]) -> list[EventLine]:
    """Return the dashboard's lines for events, with the names of keys and targets."""
    names = names_of_keys(transaction, keys_in(events)) | names_of_targets(transaction, events)
    return [line_of(event, names) for event in events]


def line_of(event: Event, names: Mapping[str, str]) -> EventLine:
    """Return an event as the dashboard shows it; `names` are the names of keys and targets by their ids."""
    members = {
        name: display_actor(value, names) if isinstance(value, str) else value
        for name, value in event.payload.items()
    }
    agent_id = agent_of(event) or ""
    by = _by(event, names)
    if by and str(members.get("explanation", "")).endswith(f" by {event.actor}"):
        # The event has no further content.
        members["explanation"] = ""
    subject, where = _subject(members, agent_id)
    subject = names.get(subject, subject)
    describe = _TEXTS.get(event.type)
    text = (
        "its payload was erased"
        if event.is_erased
        else brief(_facts(members) if describe is None else describe(members))
    )
    return EventLine(
        sequence=event.sequence,
        at=event.created_at,
        type=event.type.value,
        subject=brief(subject),
        where=where,
        text=text,
        mark=_mark(event),
        agent_id=agent_id,
        status=str(members.get("new_status", "")) if event.type is EventType.AGENT_LIFECYCLE else "",
        health=str(members.get("new_health", "")) if event.type is EventType.AGENT_HEALTH_CHANGED else "",
        by=brief(by),
    )


def _by(event: Event, names: Mapping[str, str]) -> str:
    agents = {event.payload.get(member) for member in ("agent_id", *MEMBERS_OF_ACTORS)}
    return "" if event.actor in agents | _BY_ITSELF else display_actor(event.actor, names)


def _subject(payload: Mapping[str, Any], agent_id: str) -> tuple[str, str]:
    if "resource" in payload:
        # The text names the holder of its lease.
        return payload["resource"], ""
    if agent_id:
        return agent_id, f"/agents/{agent_id}"
    if "task_id" in payload:
        return payload["task_id"], f"/tasks/{payload['task_id']}"
    for name in ("directory", "origin", "name", "host", "holder"):
        if name in payload:
            return str(payload[name]), ""
    return "", ""


def _mark(event: Event) -> str:
    known = _MARKS.get(event.type)
    if known is not None:
        return known
    status, health = (str(event.payload.get(member)) for member in ("new_status", "new_health"))
    return _MARKS_OF_STATUSES.get(status) or _MARKS_OF_HEALTH.get(health, "plain")


def _lifecycle(payload: Mapping[str, Any]) -> str:
    reason, explanation = as_words(payload["reason"]), payload.get("explanation", "")
    why = reason if explanation in {"", payload["reason"]} else f"{reason}: {explanation}"
    return f"{payload['previous_status']} {_ARROW} {payload['new_status']} ({why})"


def _task(payload: Mapping[str, Any]) -> str:
    why = end_text(payload["signal"], payload.get("exit_reason"))
    return f"{payload['previous_status']} {_ARROW} {payload['new_status']} ({why})"


def _monitor(payload: Mapping[str, Any]) -> str:
    who = f"agents monitored by {payload['track']}, " if "track" in payload else ""
    exits = f"{pluralize(payload['exits'], 'agent')} would exit, more than the limit of {payload['limit']}"
    return f"{who}{as_words(payload['cause'])}: {exits}"


def _moment(text: str) -> str:
    """Return a time of an event as pages show times."""
    return moment_text(datetime.fromisoformat(text))


def _until_text(what: str) -> Callable[[Mapping[str, Any]], str]:
    def describe(payload: Mapping[str, Any]) -> str:
        if "until" not in payload:
            return f"{what} ended"
        reason = f": {payload['reason']}" if "reason" in payload else ""
        status = f" {payload['status']}" if "status" in payload else ""
        return f"{what}{status} until {_moment(payload['until'])}{reason}"

    return describe


_TEXTS: Final[Mapping[EventType, Callable[[Mapping[str, Any]], str]]] = MappingProxyType({
    EventType.AGENT_LIFECYCLE: _lifecycle,
    EventType.AGENT_HEALTH_CHANGED: lambda data: (
        f"health is {data['new_health']}, was {data['previous_health']} before"
    ),
    EventType.AGENT_UPDATED: lambda data: f"changed {', '.join(map(as_words, data['changed']))}",
    EventType.AGENT_DRIFT_WARNING: lambda data: (
        f"its clock is off by {precise_text(abs(data['drift_seconds']))}"
    ),
    EventType.AGENT_TASKS_MISMATCH: lambda data: (

            f"reports {pluralize(len(data['without_lease']), 'task')} without a lease, and does not report "
            f"{len(data['not_in_progress'])} that it holds"

    ),
    EventType.AGENT_DRAIN_WARNING: lambda data: (
        f"did not drain in time: {pluralize(data['leases_held'], 'lease')} left"
    ),
    EventType.AGENT_MAINTENANCE_CHANGED: _until_text("maintenance"),
    EventType.AGENT_OVERRIDE_CHANGED: _until_text("declared"),
    EventType.AGENT_COMMAND_SENT: lambda data: (
        f"gets the command {data['command']} at its next heartbeat"
        f"{': ' + data['reason'] if 'reason' in data else ''}"
    ),
    EventType.AGENT_COMMAND_HONOURED: lambda data: f"follows the command: {data['command']}",
    EventType.AGENT_COMMAND_EXPIRED: lambda data: f"did not get the command {data['command']} in time",
    EventType.AGENT_ERASED: lambda data: f"erased, with the payloads of {pluralize(data['events'], 'event')}",
    EventType.TARGET_INTERFACE_CHANGED: lambda data: (
        f"{'breaking changes' if data['breaking'] else 'changes'} of its interface: "
        f"{', '.join(change['pointer'] for change in data['changes'][:MAX_POINTERS])}"
    ),
    EventType.COORDINATOR_LOST: lambda data: f"a coordinator is dead ({as_words(data['reason'])})",
    EventType.LEASE_ACQUIRED: lambda data: f"granted to {data['holder']}, token {data['fencing_token']}",
    EventType.LEASE_RELEASED: lambda data: f"released by {data['holder']} ({as_words(data['reason'])})",
    EventType.LEASE_EXPIRED: lambda data: f"lost by {data['holder']} ({as_words(data['reason'])})",
    EventType.FENCED_WRITE_REJECTED: lambda data: (
        f"a write of {data['writer']} with token {data['fencing_token']} was refused "
        f"({as_words(data['reason'])})"
    ),
    EventType.STATE_WRITTEN: lambda data: f"state {data['version']} written by {data['holder']}",
    EventType.TASK_CREATED: lambda _data: "created",
    EventType.TASK_LIFECYCLE: _task,
    EventType.TASK_REPORTED: lambda data: f"progress report {data['report']}",
    EventType.MONITOR_SUSPENDED: _monitor,
    EventType.MONITOR_RESUMING: _monitor,
    EventType.MONITOR_NORMAL: _monitor,
    EventType.MONITOR_DOWNTIME: lambda data: (
        f"the registry was down from {_moment(data['begin'])} to {_moment(data['end'])}"
    ),
    EventType.MONITOR_CLOCK_JUMP: lambda data: (

            f"the database's clock jumped {'forward' if data['jump_seconds'] > 0 else 'back'} by "
            f"{precise_text(abs(data['jump_seconds']))}"

    ),
    EventType.SHARDS_GRANTED: lambda data: f"probes {pluralize(len(data['shards']), 'more shard')}",
    EventType.SHARDS_ENDED: lambda data: (
        f"lost {pluralize(len(data['shards']), 'shard')} ({data['reason']})"
    ),
    EventType.DIRECTORY_APPLIED: lambda data: (
        f"lists {data['listed']}: {data['added']} added, {data['removed']} removed"
    ),
    EventType.DIRECTORY_SUSPENDED: lambda data: f"suspended: {data.get('reason', 'it has shrunk too much')}",
})  # fmt: skip


def _facts(payload: Mapping[str, Any]) -> str:
    """Return the members of a payload without a text of its own."""
    shown = ((name, value) for name, value in payload.items() if name not in {"agent_id", "fingerprint"})
    return ", ".join(f"{as_words(name)} {value}" for name, value in shown)
