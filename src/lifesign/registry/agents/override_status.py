"""Overrides by an operator: maintenance, and a status in place of the computed one.

Each override ends at its time; a registration does not end it earlier. The agent is assessed again in the
same transaction. Missed heartbeats meanwhile are left to the next sweep.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Literal, Self

from pydantic import BaseModel, Field, model_validator
from pydantic_core import PydanticCustomError

from lifesign.domain.access.permissions import Permission
from lifesign.domain.common.finding import Finding
from lifesign.domain.errors import InvalidRequest, InvalidTransition
from lifesign.domain.events.agent_payloads import MaintenanceChanged, StatusOverrideChanged
from lifesign.domain.events.event import EventDraft
from lifesign.domain.events.event_type import EventType
from lifesign.domain.health.document import Time
from lifesign.domain.lifecycle.observed_facts import Observed, excused
from lifesign.domain.lifecycle.status_table import ALIVE, Signal, Status
from lifesign.domain.lifecycle.verdict import is_in_force, is_judged_by_probes
from lifesign.domain.models.agents import AgentRecord
from lifesign.domain.models.base import AGENT_ID_CHARACTERS, Body, Name, moment
from lifesign.registry.errors import AgentGone, PoolNotFound, PoolTooLarge
from lifesign.registry.request_handling.operation import Call, Operation, OperationReply
from lifesign.registry.serializers.agent_records import etag, existing_agent, record
from lifesign.registry.status_changes.agent_status import change_status
from lifesign.registry.status_changes.agent_verdicts import facts_of, judge_agents
from lifesign.registry.status_changes.monitor_row import verdict_context
from lifesign.registry.targets import probed_agents
from lifesign.storage.agents import agent_rows
from lifesign.storage.agents.agent_rows import StoredAgent
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.events import event_log

MAX_OVERRIDE_SECONDS = 2_592_000
"""30 days: a forgotten override ends at the latest then."""
MAX_MEMBERS = 5_000
"""Maximum members of a pool whose maintenance begins or ends at once: a few seconds of work."""

_MAINTENANCE = "/api/v1/agents/{agent_id}/maintenance"
_POOL_MAINTENANCE = "/api/v1/pools/{role_id}/maintenance"
_OVERRIDE = "/api/v1/agents/{agent_id}/override"


class Maintenance(Body):
    """Body of `PUT …/maintenance`."""

    until: Time | None = None
    seconds: (
        Annotated[float, Field(gt=0, le=MAX_OVERRIDE_SECONDS, allow_inf_nan=False, strict=True)] | None
    ) = None
    """Duration from now on. Give either this member or `until`."""
    reason: Name

    @model_validator(mode="after")
    def _require_one_end(self) -> Self:
        if (self.until is None) == (self.seconds is None):
            raise PydanticCustomError("one_end", "expected either `until` (a time) or `seconds` (a duration)")
        return self

    def until_s(self, now_s: float) -> float:
        """Return the requested end (epoch); InvalidRequest if it is past, or too far ahead."""
        until_s = now_s + (self.seconds or 0.0) if self.until is None else self.until.timestamp()
        if not now_s < until_s <= now_s + MAX_OVERRIDE_SECONDS:
            expected = f"expected a time in the future, at most {MAX_OVERRIDE_SECONDS} s away"
            raise InvalidRequest([Finding("not_ahead", "/until", expected)])
        return until_s


class OverrideRequest(Maintenance):
    """Body of `PUT …/override`: the status that replaces the computed one."""

    status: Literal["active", "unhealthy"]


class PoolMaintenance(BaseModel):
    """The answer to the maintenance of a pool."""

    role_id: str
    agents: list[str]
    """Agents in the maintenance: the living members of the pool. At its end: all agents that were in it."""
    until: Time | None = None
    """End of the maintenance; absent if it has ended."""


def begin_maintenance(transaction: Transaction, call: Call) -> OperationReply:
    """Begin the maintenance of an agent."""
    agent = _living_agent(transaction, call)
    body = call.body_as(Maintenance)
    until_s = body.until_s(transaction.now_s)
    return _shown(transaction, _maintain(transaction, [agent], until_s, body.reason, call.actor)[0])


def end_maintenance(transaction: Transaction, call: Call) -> OperationReply:
    """End the maintenance of an agent; nothing changes if the agent is not in maintenance.

    Do this for a deregistered agent too: its maintenance would continue in its next incarnation.
    """
    agent = existing_agent(transaction, call.agent_id, to_change=True)
    if not is_in_force(agent.maintenance_until_s, transaction.now_s):
        return _shown(transaction, agent)
    return _shown(transaction, _maintain(transaction, [agent], None, None, call.actor)[0])


def begin_pool_maintenance(transaction: Transaction, call: Call) -> OperationReply:
    """Begin the maintenance of the members of a pool."""
    members = _members(transaction, call)
    body = call.body_as(Maintenance)
    until_s = body.until_s(transaction.now_s)
    _maintain(transaction, members, until_s, body.reason, call.actor)
    return _pool_shown(call, members, until_s)


def end_pool_maintenance(transaction: Transaction, call: Call) -> OperationReply:
    """End the maintenance of a pool."""
    maintained = _maintained(transaction, call)
    _maintain(transaction, maintained, None, None, call.actor)
    return _pool_shown(call, maintained, None)


def override(transaction: Transaction, call: Call) -> OperationReply:
    """Fix the status of an agent until the given time; its heartbeats and probes do not change it."""
    agent = _living_agent(transaction, call)
    body = call.body_as(OverrideRequest)
    if agent.status not in {Status.ACTIVE, Status.UNHEALTHY}:
        declared = Signal.DECLARED_ACTIVE if body.status == "active" else Signal.DECLARED_UNHEALTHY
        raise InvalidTransition(agent.status, declared)
    until_s = body.until_s(transaction.now_s)
    payload = StatusOverrideChanged(
        agent_id=agent.agent_id, status=Status(body.status), until=moment(until_s), reason=body.reason
    )
    return _overridden(transaction, agent, payload, until_s, call.actor)


def end_override(transaction: Transaction, call: Call) -> OperationReply:
    """Withdraw the override, so that heartbeats and probes decide again. It may be repeated."""
    agent = existing_agent(transaction, call.agent_id, to_change=True)
    if agent.override_status is None:
        return _shown(transaction, agent)
    if not is_in_force(agent.override_until_s, transaction.now_s):
        # It has expired; perhaps no sweep has noticed that yet.
        return _shown(transaction, _apply_verdicts(transaction, [agent], [], call.actor)[0])
    return _overridden(transaction, agent, StatusOverrideChanged(agent_id=agent.agent_id), None, call.actor)


def _living_agent(transaction: Transaction, call: Call) -> StoredAgent:
    agent = existing_agent(transaction, call.agent_id, to_change=True)
    if agent.status not in ALIVE:
        raise AgentGone(agent.agent_id, agent.status, agent.incarnation)
    return agent


def _pool(call: Call) -> str:
    role_id = call.path["role_id"]
    if not re.fullmatch(AGENT_ID_CHARACTERS, role_id):
        raise InvalidRequest([Finding("invalid_role_id", "", "expected the role_id of a pool in the path")])
    return role_id


def _maintained(transaction: Transaction, call: Call) -> list[StoredAgent]:
    """Return the members of a pool in maintenance, also former ones: it would continue with them."""
    role_id = _pool(call)
    maintained = agent_rows.maintained_of_pool(transaction, role_id, MAX_MEMBERS + 1)
    if not maintained and not agent_rows.of_pool(transaction, role_id, sorted(ALIVE), 1):
        raise PoolNotFound(role_id)
    if len(maintained) > MAX_MEMBERS:
        raise PoolTooLarge(role_id, MAX_MEMBERS)
    return maintained


def _members(transaction: Transaction, call: Call) -> list[StoredAgent]:
    role_id = _pool(call)
    members = agent_rows.of_pool(transaction, role_id, sorted(ALIVE), MAX_MEMBERS + 1)
    if not members:
        # A pool is its members: without any, the name is most likely misspelt.
        raise PoolNotFound(role_id)
    if len(members) > MAX_MEMBERS:
        raise PoolTooLarge(role_id, MAX_MEMBERS)
    return members


def _maintain(
    transaction: Transaction,
    concerned: Sequence[StoredAgent],
    until_s: float | None,
    reason: str | None,
    actor: str,
) -> list[StoredAgent]:
    """Begin, move or end the maintenance of these agents; return all of them after the change."""
    changed = [
        replace(agent, maintenance_until_s=until_s)
        for agent in concerned
        if agent.maintenance_until_s != until_s
    ]
    agent_rows.set_maintenance(transaction, [agent.id for agent in changed], until_s)
    until = None if until_s is None else moment(until_s)
    drafts = [
        EventDraft(
            type=EventType.AGENT_MAINTENANCE_CHANGED,
            actor=actor,
            payload=MaintenanceChanged(agent_id=agent.agent_id, until=until, reason=reason),
            agent_id=agent.agent_id,
        )
        for agent in changed
    ]
    changed = _without_earlier_failures(transaction, changed)
    after = {agent.id: agent for agent in _apply_verdicts(transaction, changed, drafts, actor)}
    return [after.get(agent.id, agent) for agent in concerned]


def _overridden(
    transaction: Transaction,
    agent: StoredAgent,
    payload: StatusOverrideChanged,
    until_s: float | None,
    actor: str,
) -> OperationReply:
    status = None if payload.status is None else payload.status.value
    agent_rows.change(transaction, agent.id, {"override_status": status, "override_until_s": until_s})
    draft = EventDraft(
        type=EventType.AGENT_OVERRIDE_CHANGED, actor=actor, payload=payload, agent_id=agent.agent_id
    )
    changed = replace(agent, override_status=status, override_until_s=until_s)
    excused_agents = _without_earlier_failures(transaction, [changed])
    return _shown(transaction, _apply_verdicts(transaction, excused_agents, [draft], actor)[0])


def _without_earlier_failures(transaction: Transaction, changed: Sequence[StoredAgent]) -> list[StoredAgent]:
    """Reset failures up to now for these agents; recheck those without an override."""
    # Facts that were read with the lock may be older than the lock.
    known = {
        agent.id: Observed.from_json(agent.observed)
        for agent in agent_rows.find_many(transaction, [agent.id for agent in changed])
        if agent.observed is not None
    }
    after = {number: excused(seen) for number, seen in known.items() if seen.failures_in_row}
    rows = [agent_rows.observed_row(number, seen) for number, seen in after.items()]
    agent_rows.set_observed(transaction, rows)
    now_s = transaction.now_s
    probed = [agent.agent_id for agent in changed if is_judged_by_probes(facts_of(agent, 0), now_s)]
    probed_agents.request_rechecks(transaction, probed)
    return [
        replace(agent, observed=after[agent.id].to_json()) if agent.id in after else agent
        for agent in changed
    ]


def _apply_verdicts(
    transaction: Transaction, changed: Sequence[StoredAgent], drafts: Sequence[EventDraft], actor: str
) -> list[StoredAgent]:
    """Log the decisions, and apply their consequences."""
    transaction = transaction.after_waiting()
    changes = judge_agents(transaction, changed, verdict_context(transaction))
    event_log.append(transaction, drafts)
    return change_status(transaction, changes, actor)


def _shown(transaction: Transaction, agent: StoredAgent) -> OperationReply:
    return OperationReply(content=record(agent, transaction.now_s), headers={"ETag": etag(agent)})


def _pool_shown(call: Call, members: Sequence[StoredAgent], until_s: float | None) -> OperationReply:
    answer = PoolMaintenance(
        role_id=call.path["role_id"],
        agents=[agent.agent_id for agent in members],
        until=None if until_s is None else moment(until_s),
    )
    return OperationReply(content=answer)


OPERATIONS = (
    Operation(
        method="PUT",
        path=_MAINTENANCE,
        summary="Put an agent into maintenance: until its end, no failure makes it unhealthy or dead",
        action=Permission.SET_MAINTENANCE,
        function=begin_maintenance,
        body=Maintenance,
        example={"seconds": 3600, "reason": "new disks"},
        answer=AgentRecord,
        errors=(404, 410),
    ),
    Operation(
        method="DELETE",
        path=_MAINTENANCE,
        summary="End an agent's maintenance",
        action=Permission.SET_MAINTENANCE,
        function=end_maintenance,
        answer=AgentRecord,
        errors=(404,),
    ),
    Operation(
        method="PUT",
        path=_POOL_MAINTENANCE,
        summary="Put all members of a pool into maintenance",
        action=Permission.SET_MAINTENANCE,
        function=begin_pool_maintenance,
        body=Maintenance,
        example={"seconds": 3600, "reason": "new disks"},
        answer=PoolMaintenance,
        errors=(404, 409, 422),
    ),
    Operation(
        method="DELETE",
        path=_POOL_MAINTENANCE,
        summary="End the maintenance of a pool",
        action=Permission.SET_MAINTENANCE,
        function=end_pool_maintenance,
        answer=PoolMaintenance,
        errors=(404, 409, 422),
    ),
    Operation(
        method="PUT",
        path=_OVERRIDE,
        summary="Override the status of an agent until a time",
        action=Permission.OVERRIDE,
        function=override,
        body=OverrideRequest,
        example={"status": "active", "seconds": 900, "reason": "its probes are refused by a firewall"},
        answer=AgentRecord,
        errors=(404, 409, 410),
    ),
    Operation(
        method="DELETE",
        path=_OVERRIDE,
        summary="Withdraw an override",
        action=Permission.OVERRIDE,
        function=end_override,
        answer=AgentRecord,
        errors=(404,),
    ),
)
