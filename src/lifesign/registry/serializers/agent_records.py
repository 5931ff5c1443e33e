"""Records of agents: how a stored agent is shown (RFC-0016 1, 6)."""

from datetime import datetime
from typing import Any

from lifesign.domain.health.document import HealthStatus
from lifesign.domain.lifecycle.observed_facts import LastDocument, LastResult, Observed
from lifesign.domain.lifecycle.status_table import Reason, Status
from lifesign.domain.lifecycle.verdict import UNHEALTHY_AFTER_FAILURES, DecidingEvidence, Verdict, is_in_force
from lifesign.domain.models.agents import (
    AgentRecord,
    AgentSummary,
    DocumentShown,
    HeartbeatConfig,
    ObservedLayer,
    ObservedState,
    OverrideShown,
    ReportedState,
    etag_of,
)
from lifesign.domain.models.base import moment, moment_text
from lifesign.domain.observation.evidence_age import is_evidence_old, is_unreachable, shown_health
from lifesign.registry.errors import AgentNotFound
from lifesign.storage.agents import agent_rows
from lifesign.storage.agents.agent_rows import StoredAgent, tasks_of
from lifesign.storage.agents.search import ListedAgent
from lifesign.storage.engine.transaction import Transaction


def etag(agent: StoredAgent) -> str:
    """Return the entity tag of an agent's record."""
    return etag_of(agent.incarnation, agent.version)


def summary(agent: StoredAgent | ListedAgent, now_s: float) -> AgentSummary:
    """Return an agent as listings show it."""
    return AgentSummary(**summary_members(agent, now_s))


def summary_members(agent: StoredAgent | ListedAgent, now_s: float) -> dict[str, Any]:
    """Return the members of a summary; unknown ones are omitted.

    A page of a hundred is written from these: models would cost more than the query.
    """
    beat_at_s, evidence = _heartbeat_at_s(agent), agent.evidence
    health, reason = shown_health(HealthStatus(agent.health), evidence, now_s)
    members = {
        "agent_id": agent.agent_id,
        "role_id": agent.role_id,
        "name": agent.name,
        "capabilities": agent.capabilities,
        "capacity": {"current_load": agent.current_load}
        if agent.max_concurrent_tasks is None
        else {"max_concurrent_tasks": agent.max_concurrent_tasks, "current_load": agent.current_load},
        "status": agent.status,
        "health": health.value,
        "unknown_reason": None if reason is None else reason.value,
        "evidence_at": None if evidence.at_s is None else moment_text(evidence.at_s),
        "failing_probes": None if is_evidence_old(reason) else _failing_probes(agent),
        "is_unreachable": is_unreachable(agent.last_interface, health, evidence, now_s),
        "monitoring": agent.monitoring,
        "kind": agent.kind,
        "last_heartbeat_at": None if beat_at_s is None else moment_text(beat_at_s),
        "endpoint": agent.endpoint,
        "card_url": agent.card_url,
        "target_url": agent.target_url,
    }
    return {name: value for name, value in members.items() if value is not None}


def record(agent: StoredAgent, now_s: float, verdict: Verdict | None = None) -> AgentRecord:
    """Return the complete record of an agent with reported and observed values.

    Overrides are shown until they end. `verdict` is the current one; without it the current health is
    omitted.
    """
    return AgentRecord(
        **summary_members(agent, now_s),
        heartbeat_config=HeartbeatConfig(
            interval_seconds=int(agent.interval_s),
            unhealthy_after_seconds=int(agent.unhealthy_after_s),
            dead_after_seconds=int(agent.dead_after_s),
        ),
        drain_timeout_seconds=agent.drain_timeout_s,
        metadata=dict(agent.metadata),
        registered_at=moment(agent.registered_at_s),
        version=agent.version,
        incarnation=agent.incarnation,
        etag=etag(agent),
        reason=Reason(agent.reason),
        status_since=moment(agent.status_since_s),
        explanation=agent.explanation,
        current_explanation=None if verdict is None else verdict.explanation,
        drain_deadline=_time(agent.drain_deadline_s),
        maintenance_until=_maintenance_until(agent, now_s),
        override=_override(agent, now_s),
        reported=ReportedState(
            last_heartbeat_at=_time(_heartbeat_at_s(agent)),
            current_load=agent.current_load,
            tasks_in_progress=tasks_of(agent),
        ),
        observed=None if agent.observed is None else _observed_state(Observed.from_json(agent.observed)),
    )


def _observed_state(observed: Observed) -> ObservedState | None:
    if observed.last_observed_at_s is None:
        return None
    return ObservedState(
        last_observed_at=_time(observed.last_observed_at_s),
        last_liveness_signal_at=_time(observed.last_liveness_signal_at_s),
        failures_in_row=observed.failures_in_row,
        recent_interactions=observed.recent_interactions,
        kind=observed.kind,
        discovery=_layer(observed.discovery),
        transport=_layer(observed.transport),
        readiness=_layer(observed.readiness),
        message=_layer(observed.message),
        paths=None
        if observed.paths is None
        else {path: _shown_layer(last) for path, last in observed.paths.items()},
        document=_document(observed.document),
        assertions=list(observed.assertions) or None,
        login=observed.login,
        reported_agent_id=observed.reported_agent_id,
    )


def _layer(last: LastResult | None) -> ObservedLayer | None:
    return None if last is None else _shown_layer(last)


def _shown_layer(last: LastResult) -> ObservedLayer:
    return ObservedLayer(
        result=last.layer.result,
        reason=last.layer.reason,
        status_code=last.layer.status_code,
        latency_ms=last.layer.latency_ms,
        observed_at=moment(last.observed_at_s),
    )


def _document(last: LastDocument | None) -> DocumentShown | None:
    if last is None:
        return None
    return DocumentShown(
        status=last.status,
        timestamp=moment(last.timestamp_s),
        observed_at=moment(last.observed_at_s),
        is_stale=last.is_stale,
        response_ratio=last.response_ratio,
        sample_count=last.sample_count,
        error_ratio=last.error_ratio,
        latency_p50_ms=last.latency_p50_ms,
        latency_p99_ms=last.latency_p99_ms,
    )


def _failing_probes(agent: StoredAgent | ListedAgent) -> int | None:
    is_failing = agent.status == Status.ACTIVE and agent.failures_in_row >= UNHEALTHY_AFTER_FAILURES
    return agent.failures_in_row if is_failing else None


def _time(at_s: float | None) -> datetime | None:
    return None if at_s is None else moment(at_s)


def _heartbeat_at_s(agent: StoredAgent | ListedAgent) -> float | None:
    """Return the time of an agent's last heartbeat; None for an agent monitored only by probes."""
    return None if agent.monitoring == DecidingEvidence.PROBE else agent.last_heartbeat_at_s


def _maintenance_until(agent: StoredAgent, now_s: float) -> datetime | None:
    until_s = agent.maintenance_until_s
    return moment(until_s) if is_in_force(until_s, now_s) else None


def _override(agent: StoredAgent, now_s: float) -> OverrideShown | None:
    if agent.override_status is None or not is_in_force(agent.override_until_s, now_s):
        return None
    return OverrideShown(status=Status(agent.override_status), until=moment(agent.override_until_s))


def existing_agent(transaction: Transaction, agent_id: str, *, to_change: bool = False) -> StoredAgent:
    """Return an agent, or raise AgentNotFound; `to_change` keeps others from changing it meanwhile."""
    agent = agent_rows.find(transaction, agent_id, to_change=to_change)
    if agent is None:
        raise AgentNotFound(agent_id)
    return agent
