"""Payloads of events about the monitoring itself."""

from typing import Annotated

from pydantic import StringConstraints

from lifesign.domain.credentials.acceptance import MAX_DETAIL_CHARS, CredentialState
from lifesign.domain.credentials.credential_watch import FaultEnd
from lifesign.domain.credentials.request_scope import ORIGIN_PATTERN
from lifesign.domain.events.payload_fields import AgentId, Label, Moment, Number, OwnId, Payload, Seconds
from lifesign.domain.lifecycle.verdict_suspension import MonitorChange, MonitorState, Track


class MonitorStateChanged(Payload):
    """The state of one track (heartbeats or probes) changed; the type of the event names the new state.

    While a track is suspended, silence makes no agent unhealthy or dead.
    """

    track: Track
    previous: MonitorState
    """State before the change."""
    cause: MonitorChange
    exits: Number
    """Number of agents that would become unhealthy or dead now, or that wait in the suspension."""
    limit: Number
    """Maximum number of such agents in one cadence without a suspension."""
    unwitnessed: Number | None = None
    """Number of these agents since whose missed heartbeat no request of any agent has arrived."""


class MonitorDowntime(Payload):
    """The registry did not run for 10 s or longer.

    This time does not count as missed heartbeats. Neither do shorter gaps, which have no event.
    """

    begin: Moment
    end: Moment


class LostEvidenceChanged(Payload):
    """The monitoring fails, so living agents have no current evidence; or this has ended.

    The type of the event says which. All numbers are 0 at the end.
    """

    agents: Number
    """Number of living agents without current evidence."""
    no_prober: Number
    """Number of these agents without a result of any kind."""
    no_witness: Number
    """Number of these agents whose last probe failed without proof that the prober could reach them."""
    prober_slow: Number
    """Number of these agents whose prober was overloaded or stopped."""
    since: Moment
    """Time from which at least one agent had no current evidence."""


class ProberFailures(Payload):
    """The share of failures among the results of a prober's key became high, or normal again.

    The type of the event says which. Only results about living agents in one period are counted.
    """

    key_id: OwnId
    """Id of the prober's key."""
    results: Number
    """Number of results that measured something."""
    failed: Number
    """Number of failures among these results."""


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
    """Beginning of the fault."""
    end: FaultEnd | None = None
    """Reason for the end of the fault; absent if the fault began."""


class OutageConfirmed(Payload):
    """An operator confirmed that a network class, or one agent, may be down.

    The operator is the actor of the event.
    """

    network_class: Label | None = None
    """Network class, with all of its targets; absent if the confirmation is for one agent."""
    agent_id: AgentId | None = None
    """Agent or target; absent if the confirmation is for a network class."""


class MonitorClockJump(Payload):
    """The wall clock of the database was set while the registry ran."""

    jump_seconds: Seconds
    """Time by which the clock was set forward, in seconds; negative if it was set back."""
