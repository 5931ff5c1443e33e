"""Registration of agents (RFC-0016 3)."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ulid import ULID

from lifesign.domain.access.permissions import (
    KEY_BYTES,
    Permission,
    Principal,
    Role,
    StoredKey,
    digest_of,
    is_valid,
    key_of,
    may,
    require,
)
from lifesign.domain.events.event_type import EventType
from lifesign.domain.health.document import HealthStatus
from lifesign.domain.lifecycle.heartbeat_timeout import PROBE_THRESHOLDS
from lifesign.domain.lifecycle.observed_facts import Observed, expected
from lifesign.domain.lifecycle.status_table import ALIVE, Reason, Signal, Status
from lifesign.domain.lifecycle.verdict import DecidingEvidence, is_in_force
from lifesign.domain.models.agents import AgentRecord, DeclaredAgent, FoundAgent, Registration
from lifesign.domain.observation.evidence_age import EVIDENCE_INTERVALS
from lifesign.registry.errors import AlreadyRegistered
from lifesign.registry.keys import manage_keys
from lifesign.registry.request_handling.operation import Call, Operation, OperationReply
from lifesign.registry.serializers.agent_records import etag, record
from lifesign.registry.status_changes.agent_status import MONITOR, change_status, lifecycle_event
from lifesign.registry.status_changes.agent_verdicts import (
    Change,
    VerdictContext,
    assess_agent,
    change_of,
)
from lifesign.registry.status_changes.history_recorder import store_half_hours
from lifesign.registry.targets import probed_agents
from lifesign.storage.agents import agent_rows
from lifesign.storage.agents.agent_rows import StoredAgent
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.events import event_log
from lifesign.storage.keys import key_rows
from lifesign.storage.probing import probers


def register_agent(transaction: Transaction, call: Call) -> OperationReply:
    """Store a new agent, or begin the next incarnation of an agent that has ended.

    The answer has the record. AlreadyRegistered if an agent with this id is alive, and the body does not have
    `supersede`.
    """
    body = call.body_as(Registration)
    agent_id = body.agent_id or call.caller.agent_id or f"agent_{str(ULID()).lower()}"
    existing = agent_rows.find(transaction, agent_id, to_change=True)
    stored_keys = key_rows.of_agent(transaction, agent_id)
    _may_register(call.caller, agent_id, is_known=existing is not None or bool(stored_keys))
    url = probed_agents.url_to_probe(body.monitoring, body.card_url)
    version = probed_agents.begin_step(transaction, url)
    if existing is None:
        agent = add_agent(transaction, agent_id, body, call.actor)
    else:
        agent = begin_incarnation(transaction, existing, body, call.actor, supersede=body.supersede)
    probed_agents.end_step(transaction, agent_id, url, version, has_history=existing is not None)
    key = _key_for(transaction, agent_id, stored_keys, call)
    shown = record(agent, transaction.now_s).model_copy(update={"agent_key": key})
    return OperationReply(
        content=shown,
        status=201,
        headers={"ETag": etag(agent), "Location": f"/api/v1/agents/{agent_id}"},
    )


def _may_register(caller: Principal, agent_id: str, *, is_known: bool) -> None:
    """Refuse a caller without permission: an enrolling key adds agents and replaces none.

    An agent is known by its record, or by a key of its own, with which it may hold leases without a record.
    """
    if not is_known and caller.role is not Role.AGENT:
        require(caller, Permission.REGISTER, agent_id)
    else:
        require(caller, Permission.RE_REGISTER, agent_id)


def add_agent(transaction: Transaction, agent_id: str, body: DeclaredAgent, actor: str) -> StoredAgent:
    """Store a new agent as active, with its first event."""
    return add_agents(transaction, {agent_id: body}, actor)[0]


def add_agents(
    transaction: Transaction,
    bodies: Mapping[str, DeclaredAgent],
    actor: str,
    explanation: str = "registered",
) -> list[StoredAgent]:
    """Store new agents as active, each with its first event; `bodies` are indexed by agent id."""
    now_s = transaction.now_s
    first = {
        "status": Status.ACTIVE.value,
        "reason": Reason.REGISTERED.value,
        "status_since_s": now_s,
        "explanation": explanation,
        "health": "unknown",
        "incarnation": 1,
        "version": 1,
        "registered_at_s": now_s,
        "drain_deadline_s": None,
        "maintenance_until_s": None,
        "override_status": None,
        "override_until_s": None,
        "recoveries_s": (),
    }
    columns: list[dict[str, Any]] = []
    for agent_id, body in bodies.items():
        given = {"agent_id": agent_id, **_declared(body), **first}
        unnumbered = agent_rows.new_agent(0, {**given, "assess_at_s": None}, now_s)
        verdict = assess_agent(unnumbered, 0, now_s, VerdictContext())
        columns.append({**given, "assess_at_s": verdict.assess_at_s})
    numbers = agent_rows.add_many(transaction, columns, now_s)
    _expect_results(transaction, dict(zip(numbers, bodies.values(), strict=True)))
    added = [
        agent_rows.new_agent(number, given, now_s) for number, given in zip(numbers, columns, strict=True)
    ]
    drafts = [lifecycle_event(Status.REGISTERING, agent, Reason.REGISTERED, now_s, actor) for agent in added]
    event_log.append(transaction, drafts)
    return added


def begin_incarnation(
    transaction: Transaction,
    existing: StoredAgent,
    body: DeclaredAgent,
    actor: str,
    *,
    supersede: bool = False,
) -> StoredAgent:
    """Store an agent's next incarnation; AlreadyRegistered if it is alive and `supersede` is false.

    Overrides by an operator stay in force.
    """
    if existing.status in ALIVE:
        if not supersede:
            raise AlreadyRegistered(existing.agent_id, existing.status)
        existing = _step(transaction, existing, Signal.SUPERSEDED, "superseded by a new incarnation", actor)
    now_s = transaction.now_s
    if existing.observed is not None and (slot := Observed.from_json(existing.observed).slot) is not None:
        store_half_hours(transaction, {existing.id: [slot]})
    agent_rows.reset_agent(transaction, existing.id, {**_declared(body), **_in_force(existing, now_s)}, now_s)
    _expect_results(transaction, {existing.id: body})
    agent = agent_rows.find(transaction, existing.agent_id)
    assert agent is not None  # noqa: S101 - it is locked
    agent = _step(transaction, agent, Signal.RE_REGISTERED, "registered again", actor)
    change = change_of(agent, assess_agent(agent, 0, now_s, VerdictContext()))
    if change.is_visible:
        # Overrides by an operator apply from the start of the incarnation.
        return change_status(transaction, [change], MONITOR)[0]
    agent_rows.set_verdict_due(transaction, {agent.id: change.assess_at_s})
    return replace(agent, assess_at_s=change.assess_at_s)


def _expect_results(transaction: Transaction, bodies: Mapping[int, DeclaredAgent]) -> None:
    """Note until when a prober should have sent a first result of agents that registered to be probed.

    Any of the living probers may be the one: the longest of their intervals counts, 300 s at least.
    """
    probed = [
        number
        for number, body in bodies.items()
        if body.monitoring is not DecidingEvidence.HEARTBEAT and not isinstance(body, FoundAgent)
    ]
    if not probed:
        return
    longest_s = probers.longest_interval_s(transaction) or 0.0
    interval_s = max(longest_s, PROBE_THRESHOLDS.interval_s)
    known = expected(transaction.now_s, EVIDENCE_INTERVALS * interval_s)
    agent_rows.set_observed(transaction, [agent_rows.observed_row(number, known) for number in probed])


def _in_force(agent: StoredAgent, now_s: float) -> dict[str, Any]:
    """Return the operator's overrides as columns: they continue until their end for every incarnation."""
    is_maintained = is_in_force(agent.maintenance_until_s, now_s)
    is_declared = is_in_force(agent.override_until_s, now_s)
    return {
        "maintenance_until_s": agent.maintenance_until_s if is_maintained else None,
        "override_status": agent.override_status if is_declared else None,
        "override_until_s": agent.override_until_s if is_declared else None,
    }


def _step(
    transaction: Transaction, agent: StoredAgent, signal: Signal, explanation: str, actor: str
) -> StoredAgent:
    change = Change(
        agent=agent, signals=(signal,), explanation=explanation, health=HealthStatus.UNKNOWN, assess_at_s=None
    )
    return change_status(transaction, [change], actor)[0]


def _declared(body: DeclaredAgent) -> dict[str, Any]:
    """Return the columns of a new record."""
    thresholds = body.thresholds()
    return {
        "role_id": body.role_id,
        "name": body.name,
        "endpoint": body.endpoint,
        "card_url": body.card_url,
        "target_url": body.target_url if isinstance(body, FoundAgent) else None,
        "capabilities": tuple(body.capabilities),
        "max_concurrent_tasks": body.capacity.max_concurrent_tasks,
        "metadata": body.metadata,
        "monitoring": body.monitoring.value,
        "interval_s": thresholds.interval_seconds,
        "unhealthy_after_s": thresholds.unhealthy_after_seconds,
        "dead_after_s": thresholds.dead_after_seconds,
        "drain_timeout_s": body.drain_timeout_seconds,
    }


def _key_for(
    transaction: Transaction, agent_id: str, stored_keys: Sequence[StoredKey], call: Call
) -> str | None:
    """Return a new key for the agent, unless it has one or registers itself; it outlives incarnations.

    A key that was revoked or has expired is replaced only by a caller who may create keys.
    """
    now_s = transaction.now_s
    has_valid_key = any(is_valid(stored, stored.digest, now_s) for stored in stored_keys)
    may_replace = not stored_keys or may(call.caller, Permission.MANAGE_KEYS)
    if call.caller.agent_id == agent_id or has_valid_key or not may_replace:
        return None
    key = key_of(secrets.token_bytes(KEY_BYTES))
    stored = StoredKey(
        key_id=f"key_{str(ULID()).lower()}",
        name=f"agent {agent_id}",
        role=Role.AGENT,
        agent_id=agent_id,
        digest=digest_of(key),
        created_at_s=now_s,
    )
    key_rows.add(transaction, stored)
    event_log.append(transaction, [manage_keys.changed(EventType.KEY_CREATED, stored, call.actor)])
    return key


REGISTER_AGENT = Operation(
    method="POST",
    path="/api/v1/agents",
    summary="Register an agent, or start its next incarnation (RFC-0016 3)",
    action=None,
    one_of=(Permission.REGISTER, Permission.RE_REGISTER),
    function=register_agent,
    body=Registration,
    example={
        "agent_id": "agent_billing_01",
        "role_id": "billing-processor",
        "name": "Billing Processor",
        "capabilities": ["billing", "invoicing"],
        "capacity": {"max_concurrent_tasks": 5},
    },
    answer=AgentRecord,
    status=201,
    errors=(409,),
)
