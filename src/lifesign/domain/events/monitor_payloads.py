"""Payloads of events about the monitoring itself."""

from typing import Annotated

from pydantic import StringConstraints

from lifesign.domain.credentials.acceptance import MAX_DETAIL_CHARS, CredentialState
from lifesign.domain.credentials.credential_watch import FaultEnd
from lifesign.domain.credentials.request_scope import ORIGIN_PATTERN
from lifesign.domain.events.payload_fields import AgentId, Label, Moment, Number, OwnId, Payload, Seconds
from lifesign.domain.lifecycle.verdict_suspension import MonitorChange, MonitorState, Track


class MonitorStateChanged(Payload):
    """The state of the verdicts on one track changed. The event's type names the new state.

    There are two tracks. `heartbeat`: the agents with the monitoring `heartbeat` or `both`. `probe`: the
    agents with the monitoring `probe`.
    """

    track: Track
    previous: MonitorState
    """State before the change."""
    cause: MonitorChange
    """`mass_exit`: too many agents fell silent, or the registry itself may be the cause of their silence.
    `mass_exit_over`: few agents still waited for a verdict. `max_suspension`: the longest suspension ended.
    `released`: an operator ended it. `cohort_passed`: for `mass_exit_quiet_cadences` (2) cadences, no agent
    that was silent during the suspension has become unhealthy or dead.
    """
    exits: Number
    """In `monitor.resuming`: number of silent agents that waited for a verdict when the suspension ended.
    In the other two types: number of agents that fell silent in this cadence.
    """
    limit: Number
    """Maximum number of agents that may fall silent in one cadence without a suspension."""
    unwitnessed: Number | None = None
    """Number of these agents for whose silence the registry itself may be the cause. This is so if no agent
    has reached the registry since their missed heartbeat, or if the registry has refused a connection since
    then.
    """


class MonitorDowntime(Payload):
    """The registry did not run for 10 s or longer.

    This time does not count as missed heartbeats of an agent. A downtime of less than 10 s does not count
    as missed heartbeats either, and it has no event.
    """

    begin: Moment
    end: Moment


class LostEvidenceChanged(Payload):
    """A fault of the monitoring left living agents without current evidence, or this has ended.

    Evidence is old if no measured result arrived for three intervals of the crawl.
    """

    agents: Number
    """Number of living agents with old evidence; 0 at the end."""
    no_prober: Number
    """Number of these agents about which no prober reported any result in this time."""
    no_witness: Number
    """Number of these agents whose last probe failed, while no witness proved that the network works."""
    prober_slow: Number
    """Number of these agents whose prober was overloaded or stopped."""
    prober_clock: Number
    """Number of these agents whose certificate failed by date; no witness confirmed the prober's clock."""
    prober_fault: Number
    """Number of these agents whose last probe was ended by a defect of the prober."""
    not_probed: Number
    """Number of these agents whose last probe did not take place, or whose result was lost."""
    no_credential: Number
    """Number of these agents whose prober lacks a credential that another prober has."""
    since: Moment
    """Time since which there was at least one such agent."""


class ProberFailures(Payload):
    """The share of failures among a prober key's results became too high, or normal again.

    The registry counts results about living agents in periods of `evidence_lost_after` (5 min). A period with
    fewer than 20 results changes nothing.
    """

    key_id: OwnId
    """Id of the prober's key."""
    results: Number
    """Number of results of the period that measured something."""
    failed: Number
    """Number of failures among these results."""


class CredentialFaultChanged(Payload):
    """A fault of a prober's credential began or ended. The type of the event says which.

    One event covers all targets and all workers of the prober's key. `key_id` and `credential` say
    which events belong together.
    """

    key_id: OwnId
    """Id of the prober's key."""
    credential: Label
    """Name of the credential in the definition of the prober."""
    origin: Annotated[str, StringConstraints(pattern=ORIGIN_PATTERN)]
    """Origin to which the prober sends the credential."""
    fault: CredentialState
    """Last known fault: `credentials_rejected` or `token_error`, never `works`. It may change before the end.
    """
    detail: Annotated[str, StringConstraints(pattern=f"^[ -~]{{1,{MAX_DETAIL_CHARS}}}$")] | None = None
    """Answer that rejected the credential, or why there is no token."""
    since: Moment
    """Beginning of the fault."""
    end: FaultEnd | None = None
    """Why the fault ended; absent in `prober.credential_failed`. `works`: the credential is accepted again.
    `not_reported`: no living prober reports the credential any more.
    """


class OutageConfirmed(Payload):
    """An operator confirmed the outage of a network class, or of one agent.

    From now on, a failed probe of such a target counts without a witness, until the target answers again. A
    witness is another host whose answer shows that the prober's network works. The event's actor is the
    operator.
    """

    network_class: Label | None = None
    """Network class, with all of its targets; absent if the confirmation is for one agent."""
    agent_id: AgentId | None = None
    """Agent or target; absent if the confirmation is for a network class."""


class MonitorClockJump(Payload):
    """The wall clock of the database was set while the registry ran."""

    jump_seconds: Seconds
    """Time by which the clock was set forward, in seconds; negative if it was set back."""
