"""Payloads of events about the monitoring itself."""

from typing import Annotated

from pydantic import StringConstraints

from lifesign.domain.credentials.acceptance import MAX_DETAIL_CHARS, CredentialState
from lifesign.domain.credentials.credential_watch import FaultEnd
from lifesign.domain.credentials.request_scope import ORIGIN_PATTERN
from lifesign.domain.events.payload_fields import AgentId, Label, Moment, Number, OwnId, Payload, Seconds
from lifesign.domain.lifecycle.verdict_suspension import MonitorChange, MonitorState, Track


class MonitorStateChanged(Payload):
    """Verdicts by silence were suspended or resumed on one track; the type of the event says which."""

    track: Track
    previous: MonitorState
    cause: MonitorChange
    exits: Number
    """Number of agents that would have exited or still wait."""
    limit: Number
    """Maximum number of exits in one cadence without a suspension."""
    unwitnessed: Number | None = None
    """Number of these exits during which no request of any agent arrived."""


class MonitorDowntime(Payload):
    """The registry did not run for 10 s or longer.

    This time does not count as missed heartbeats; shorter gaps do not either.
    """

    begin: Moment
    end: Moment


class LostEvidenceChanged(Payload):
    """Living agents without current evidence because the monitoring failed; all 0 when this is over."""

    agents: Number
    no_prober: Number
    """Number of these agents without a result of any kind."""
    no_witness: Number
    """Number of these agents whose last probe failed without proof that the prober could reach them."""
    prober_slow: Number
    """Number of these agents whose prober was overloaded or stopped."""
    since: Moment
    """Time since which there has been such an agent."""


class ProberFailures(Payload):
    """Number of failures among a prober key's results about living agents in one period."""

    key_id: OwnId
    results: Number
    """Measured ones."""
    failed: Number


class CredentialFaultChanged(Payload):
    """A fault of a prober's credential began or ended; the type of the event says which."""

    key_id: OwnId
    """Id of the prober's key."""
    credential: Label
    """Name of the credential in the definition of the prober."""
    origin: Annotated[str, StringConstraints(pattern=ORIGIN_PATTERN)]
    """Origin to which the prober sends the credential."""
    fault: CredentialState
    detail: Annotated[str, StringConstraints(pattern=f"^[ -~]{{1,{MAX_DETAIL_CHARS}}}$")] | None = None
    """Answer that rejected the credential, or why there is no token."""
    since: Moment
    """Begin of the fault."""
    end: FaultEnd | None = None
    """Reason of the end."""


class OutageConfirmed(Payload):
    """Confirmation by an operator of exactly one of both. The event's actor is the operator."""

    network_class: Label | None = None
    """Network class; the event concerns all of its targets."""
    agent_id: AgentId | None = None
    """The single agent or target that the event concerns."""


class MonitorClockJump(Payload):
    """The database's clock went another way than ours."""

    jump_seconds: Seconds
    """Difference by which it advanced further, in seconds; negative if it advanced less."""
