"""Payloads of events about the monitoring itself."""

from lifesign.domain.events.payload_fields import AgentId, Label, Moment, Number, OwnId, Payload, Seconds
from lifesign.domain.lifecycle.mass_exit import MonitorChange, MonitorState, Track


class MonitorStateChanged(Payload):
    """Verdicts by silence are suspended on one track, or believed again; the event's type says which."""

    track: Track
    previous: MonitorState
    cause: MonitorChange
    exits: Number
    """Agents that would have exited, or still wait."""
    limit: Number
    """How many exits in one cadence would have been believed."""
    unwitnessed: Number | None = None
    """How many of the exits no request of any agent bears out."""


class MonitorDowntime(Payload):
    """The registry did not run for 10 s or longer.

    This time does not count as missed heartbeats; shorter gaps do not either.
    """

    begin: Moment
    end: Moment


class LostEvidenceChanged(Payload):
    """Living agents of which nothing is known, through a fault of the monitoring; all 0 when it is over."""

    agents: Number
    no_prober: Number
    """Of these: no result of any kind came."""
    no_witness: Number
    """Of these: the last probe failed, and nothing proved that the prober could have reached the agent."""
    prober_slow: Number
    """Of these: the prober was overloaded or stopped."""
    since: Moment
    """Since when there was any such agent."""


class ProberFailures(Payload):
    """How many results of a prober's key about living agents were failures, in one period."""

    key_id: OwnId
    results: Number
    """Measured ones."""
    failed: Number


class OutageConfirmed(Payload):
    """Confirmation by an operator of exactly one of both. The event's actor is the operator."""

    network_class: Label | None = None
    """All targets of this network class."""
    agent_id: AgentId | None = None
    """This agent or target alone."""


class MonitorClockJump(Payload):
    """The database's clock went another way than ours."""

    jump_seconds: Seconds
    """How much further it advanced; negative if less."""
