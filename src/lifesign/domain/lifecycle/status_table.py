"""Status transitions of agents, by signal."""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from lifesign.domain.errors import InvalidTransition


class Status(StrEnum):
    """Status of an agent (RFC-0016 2.1)."""

    REGISTERING = "registering"
    """Before the first registration is accepted; only ever the previous status of an event."""
    ACTIVE = "active"
    """Alive, and accepting work."""
    UNHEALTHY = "unhealthy"
    """Silent or failing for a while; keeps its leases, and may recover."""
    DRAINING = "draining"
    """Finishing its work, accepting none."""
    DEAD = "dead"
    """Silent for too long; its leases are expired.

    Only a new registration brings it back, or a prober that finds it alive again.
    """
    DEREGISTERED = "deregistered"
    """Gone in good order. Only a new registration brings it back."""


ALIVE = frozenset({Status.ACTIVE, Status.UNHEALTHY, Status.DRAINING})
"""Statuses of living agents; records of the others are kept for audit."""


class Reason(StrEnum):
    """Reason of a change of status, as `agent.lifecycle` events name it: a closed list (RFC-0016 2.3)."""

    REGISTERED = "registered"
    RE_REGISTERED = "re_registered"
    SUPERSEDED = "superseded"
    DEREGISTERED = "deregistered"
    HEARTBEAT_TIMEOUT = "heartbeat_timeout"
    HEARTBEAT_RESUMED = "heartbeat_resumed"
    DRAIN_INITIATED = "drain_initiated"
    DRAIN_COMPLETED = "drain_completed"
    DRAIN_TIMEOUT = "drain_timeout"
    PROBE_FAILURES = "probe_failures"
    PROBE_RECOVERED = "probe_recovered"
    PROBE_REDISCOVERED = "probe_rediscovered"
    HEALTH_REPORTED_UNHEALTHY = "health_reported_unhealthy"
    HEALTH_RECOVERED = "health_recovered"
    OBSERVED_CONTRADICTS_REPORT = "observed_contradicts_report"
    ASSERTION_FAILED = "assertion_failed"
    ASSERTIONS_PASSED = "assertions_passed"
    OPERATOR_OVERRIDE = "operator_override"
    LINKED = "linked"


class Signal(StrEnum):
    """Something that happens to an agent and may change its status."""

    REGISTERED = "registered"
    RE_REGISTERED = "re_registered"
    SUPERSEDED = "superseded"
    """The agent's own key registers it again while it is alive: the old incarnation ends."""
    DEREGISTERED = "deregistered"
    """The agent was deregistered, left its directory, or opted out."""
    HEARTBEAT_TIMEOUT = "heartbeat_timeout"
    HEARTBEAT_RESUMED = "heartbeat_resumed"
    DRAIN_INITIATED = "drain_initiated"
    DRAIN_COMPLETED = "drain_completed"
    """The agent holds no lease and has no work left."""
    DRAIN_TIMEOUT = "drain_timeout"
    """The drain timeout is over, and the agent still holds leases."""
    PROBE_FAILURES = "probe_failures"
    PROBE_RECOVERED = "probe_recovered"
    PROBE_REDISCOVERED = "probe_rediscovered"
    HEALTH_REPORTED_UNHEALTHY = "health_reported_unhealthy"
    HEALTH_RECOVERED = "health_recovered"
    OBSERVED_CONTRADICTS_REPORT = "observed_contradicts_report"
    ASSERTION_FAILED = "assertion_failed"
    """The agent's answers fail its operator's assertions."""
    ASSERTIONS_PASSED = "assertions_passed"
    DECLARED_ACTIVE = "declared_active"
    """An operator declares the agent active, or ends the declaration that it is unhealthy."""
    DECLARED_UNHEALTHY = "declared_unhealthy"
    """An operator declares the agent unhealthy."""
    LINKED = "linked"
    """The record belongs to a crawled target that is one record with a registered agent from now on."""


# A pair absent from this table is refused. docs/lifecycle.md is drawn from it.
TRANSITIONS: Mapping[tuple[Status, Signal], Status] = MappingProxyType({
    (Status.REGISTERING,  Signal.REGISTERED):                  Status.ACTIVE,

    (Status.ACTIVE,       Signal.HEARTBEAT_TIMEOUT):           Status.UNHEALTHY,
    (Status.ACTIVE,       Signal.PROBE_FAILURES):               Status.UNHEALTHY,
    (Status.ACTIVE,       Signal.HEALTH_REPORTED_UNHEALTHY):   Status.UNHEALTHY,
    (Status.ACTIVE,       Signal.OBSERVED_CONTRADICTS_REPORT): Status.UNHEALTHY,
    (Status.ACTIVE,       Signal.ASSERTION_FAILED):            Status.UNHEALTHY,
    (Status.ACTIVE,       Signal.DECLARED_UNHEALTHY):          Status.UNHEALTHY,
    (Status.ACTIVE,       Signal.DRAIN_INITIATED):             Status.DRAINING,
    (Status.ACTIVE,       Signal.DEREGISTERED):                Status.DEREGISTERED,
    (Status.ACTIVE,       Signal.SUPERSEDED):                  Status.DEREGISTERED,
    (Status.ACTIVE,       Signal.LINKED):                      Status.DEREGISTERED,

    # Missed heartbeats lead through unhealthy to dead: after a long time the agent makes two steps.
    (Status.UNHEALTHY,    Signal.HEARTBEAT_TIMEOUT):           Status.DEAD,
    (Status.UNHEALTHY,    Signal.PROBE_FAILURES):               Status.DEAD,
    (Status.UNHEALTHY,    Signal.HEARTBEAT_RESUMED):           Status.ACTIVE,
    (Status.UNHEALTHY,    Signal.PROBE_RECOVERED):             Status.ACTIVE,
    (Status.UNHEALTHY,    Signal.HEALTH_RECOVERED):            Status.ACTIVE,
    (Status.UNHEALTHY,    Signal.ASSERTIONS_PASSED):           Status.ACTIVE,
    (Status.UNHEALTHY,    Signal.DECLARED_ACTIVE):             Status.ACTIVE,
    (Status.UNHEALTHY,    Signal.DRAIN_INITIATED):             Status.DRAINING,
    (Status.UNHEALTHY,    Signal.DEREGISTERED):                Status.DEREGISTERED,
    (Status.UNHEALTHY,    Signal.SUPERSEDED):                  Status.DEREGISTERED,
    (Status.UNHEALTHY,    Signal.LINKED):                      Status.DEREGISTERED,

    # A draining agent still sends heartbeats, but they never make it active again, and missed ones change
    # nothing.
    (Status.DRAINING,     Signal.DRAIN_COMPLETED):             Status.DEREGISTERED,
    (Status.DRAINING,     Signal.DRAIN_TIMEOUT):               Status.DEAD,
    (Status.DRAINING,     Signal.DEREGISTERED):                Status.DEREGISTERED,
    (Status.DRAINING,     Signal.SUPERSEDED):                  Status.DEREGISTERED,
    (Status.DRAINING,     Signal.LINKED):                      Status.DEREGISTERED,

    (Status.DEAD,         Signal.RE_REGISTERED):               Status.ACTIVE,
    (Status.DEAD,         Signal.PROBE_REDISCOVERED):          Status.ACTIVE,
    (Status.DEAD,         Signal.LINKED):                      Status.DEREGISTERED,
    (Status.DEREGISTERED, Signal.RE_REGISTERED):               Status.ACTIVE,
})  # fmt: skip

_DECLARATIONS = frozenset({Signal.DECLARED_ACTIVE, Signal.DECLARED_UNHEALTHY})


def status_after(status: Status, signal: Signal) -> Status:
    """Return the status after a signal; InvalidTransition if the signal is not allowed in this status."""
    try:
        return TRANSITIONS[status, signal]
    except KeyError:
        raise InvalidTransition(status, signal) from None


def reason_of(signal: Signal) -> Reason:
    """Return the reason that events name for a change of status by this signal."""
    return Reason.OPERATOR_OVERRIDE if signal in _DECLARATIONS else Reason(signal.value)


def begins_incarnation(signal: Signal) -> bool:
    """Return whether this signal begins a new incarnation of the agent."""
    return signal in {Signal.RE_REGISTERED, Signal.PROBE_REDISCOVERED}
