"""Assessment of agents: the consequences of the stored facts about them.

Fetches the facts for `verdict`, calls it, and returns the changes; it changes nothing itself.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from lifesign.domain.common.fast_dataclass import fast_dataclass
from lifesign.domain.health.document import HealthStatus
from lifesign.domain.lifecycle.heartbeat_timeout import (
    ExcludedSpan,
    ExtendedThresholds,
    Thresholds,
    extended,
    silent_for_s,
)
from lifesign.domain.lifecycle.observed_facts import Observed
from lifesign.domain.lifecycle.status_table import Reason, Signal, Status
from lifesign.domain.lifecycle.verdict import (
    DecidingEvidence,
    Facts,
    Override,
    Verdict,
    judge,
    silent_since_s,
    thresholds_in_force,
)
from lifesign.domain.lifecycle.verdict_suspension import ExcludedDowntime, Track
from lifesign.storage.agents.agent_rows import StoredAgent
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.tasks import leases

_TIMEOUT_SIGNALS = frozenset({Signal.HEARTBEAT_TIMEOUT, Signal.PROBE_FAILURES})


@fast_dataclass(kw_only=True)
class Change:
    """Change of one agent: signals in their order, and further changes of its record."""

    agent: StoredAgent
    """The agent in its stored form."""
    signals: tuple[Signal, ...]
    explanation: str
    """Explanation of the last signal; unchanged if there is none."""
    health: HealthStatus
    assess_at_s: float | None
    drain_deadline_s: float | None = None
    silent_since_s: float | None = None
    """Time of the last liveness signal, if silence makes the agent unhealthy or dead."""
    heard_for_s: float = 0.0
    """Time for which it had given liveness signals by then, since its status began."""

    @property
    def track(self) -> Track:
        """Evidence that the agent lacks if it falls silent: heartbeats or probes."""
        return Track.PROBE if self.agent.monitoring == DecidingEvidence.PROBE else Track.HEARTBEAT

    @property
    def is_visible(self) -> bool:
        """Whether anything changes besides the time of the next assessment."""
        return bool(self.signals) or self.health != self.agent.health


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictContext:
    """Facts for the verdicts on all agents: whether the monitor is suspended, and which time is excluded."""

    is_suspended: bool = False
    """Missed heartbeats and failed probes make no agent unhealthy or dead."""
    excluded_downtime: tuple[ExcludedSpan, ...] = ()
    holds: tuple[ExcludedDowntime, ...] = ()
    """Time that is excluded only for the agents that were suspended in it."""

    def excluded_since(self, sign_s: float) -> list[ExcludedSpan]:
        """Return the excluded time of a silence that began at this time."""
        holds = (hold for hold in self.holds if sign_s >= hold.cohort_before_s)
        spans = (*self.excluded_downtime, *(ExcludedSpan(hold.begin_s, hold.end_s) for hold in holds))
        return [span for span in spans if span.end_s > sign_s]


def judge_agents(
    transaction: Transaction, agents: Sequence[StoredAgent], verdict_context: VerdictContext
) -> list[Change]:
    """Return the change of each agent by its verdict at the transaction's time."""
    leases_by_agent = leases_of_draining(transaction, agents)
    return [
        change_of(
            agent,
            assess_agent(agent, leases_by_agent.get(agent.agent_id, 0), transaction.now_s, verdict_context),
        )
        for agent in agents
    ]


def leases_of_draining(transaction: Transaction, agents: Iterable[StoredAgent]) -> Mapping[str, int]:
    """Return the number of leases of each draining agent, by its id."""
    draining = [agent.agent_id for agent in agents if agent.status == Status.DRAINING]
    return leases.count_held(transaction, draining) if draining else {}


def assess_agent(
    agent: StoredAgent,
    leases_held: int,
    now_s: float,
    verdict_context: VerdictContext,
    seen: Observed | None = None,
) -> Verdict:
    """Return the verdict about one agent; `seen` replaces the stored facts of its probes."""
    facts = facts_of(agent, leases_held, seen)
    excluded_downtime = verdict_context.excluded_since(silent_since_s(facts))
    return judge(facts, now_s, is_suspended=verdict_context.is_suspended, excluded_downtime=excluded_downtime)


def extended_thresholds(
    agent: StoredAgent, new: Thresholds, now_s: float, verdict_context: VerdictContext
) -> ExtendedThresholds | None:
    """Return the thresholds for an agent's present silence after a change to new ones; None: the new ones."""
    facts = facts_of(agent, 0)
    if facts.monitoring is DecidingEvidence.PROBE:
        return None
    since_s = silent_since_s(facts)
    silent_s = silent_for_s(since_s, now_s, verdict_context.excluded_since(since_s))
    return extended(thresholds_in_force(facts), new, silent_s)


def change_of(agent: StoredAgent, verdict: Verdict) -> Change:
    """Return the changes that a verdict makes to an agent."""
    is_silent = not _TIMEOUT_SIGNALS.isdisjoint(verdict.signals)
    last_liveness_s = silent_since_s(facts_of(agent, 0)) if is_silent else None
    return Change(
        agent=agent,
        signals=verdict.signals,
        explanation=verdict.explanation if verdict.signals else agent.explanation,
        health=verdict.health,
        assess_at_s=verdict.assess_at_s,
        silent_since_s=last_liveness_s,
        heard_for_s=0.0 if last_liveness_s is None else max(0.0, last_liveness_s - agent.status_since_s),
    )


def unchanged(agent: StoredAgent) -> Change:
    """Return the change that changes nothing."""
    return Change(
        agent=agent,
        signals=(),
        explanation=agent.explanation,
        health=HealthStatus(agent.health),
        assess_at_s=agent.assess_at_s,
    )


def facts_of(agent: StoredAgent, leases_held: int, seen: Observed | None = None) -> Facts:
    """Return the facts for verdicts from the stored agent; `seen` replaces the stored facts of its probes."""
    if seen is None and agent.observed is not None:
        seen = Observed.from_json(agent.observed)
    override = None
    if agent.override_status is not None and agent.override_until_s is not None:
        is_active = agent.override_status == Status.ACTIVE
        override = Override(Status.ACTIVE if is_active else Status.UNHEALTHY, agent.override_until_s)
    return Facts(
        status=Status(agent.status),
        reason=Reason(agent.reason),
        status_since_s=agent.status_since_s,
        monitoring=DecidingEvidence(agent.monitoring),
        thresholds=Thresholds(agent.interval_s, agent.unhealthy_after_s, agent.dead_after_s),
        extended=_extended(agent),
        last_heartbeat_at_s=agent.last_heartbeat_at_s,
        observed=seen,
        drain_deadline_s=agent.drain_deadline_s,
        leases_held=leases_held,
        current_load=agent.current_load,
        maintenance_until_s=agent.maintenance_until_s,
        override=override,
        recoveries_s=agent.recoveries_s,
    )


def _extended(agent: StoredAgent) -> ExtendedThresholds | None:
    interval_s, unhealthy_after_s = agent.extended_interval_s, agent.extended_unhealthy_after_s
    dead_after_s = agent.extended_dead_after_s
    if interval_s is None or unhealthy_after_s is None or dead_after_s is None:
        return None
    return ExtendedThresholds(interval_s, unhealthy_after_s, dead_after_s)
