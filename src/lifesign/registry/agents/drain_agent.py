"""Draining and deregistration of an agent (RFC-0016 5; `PATCH …/status`, `DELETE`)."""

from dataclasses import replace
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from lifesign.domain.access.permissions import Permission, require
from lifesign.domain.health.document import HealthStatus
from lifesign.domain.lifecycle.status_table import Signal
from lifesign.domain.models.agents import AgentRecord, StatusChange
from lifesign.registry.keys.manage_keys import revoke_key
from lifesign.registry.request_handling.operation import Call, Operation, OperationReply
from lifesign.registry.serializers.agent_records import etag, existing_agent, record
from lifesign.registry.status_changes.agent_status import change_status
from lifesign.registry.status_changes.agent_verdicts import Change, unchanged
from lifesign.storage.agents.agent_rows import StoredAgent
from lifesign.storage.engine.transaction import Transaction


class Departure(BaseModel):
    """Body of a deregistration."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    end_key: Annotated[
        bool,
        Field(description="Whether to revoke the key of this request too, if it is the agent's own."),
    ] = False


def with_drain(change: Change, now_s: float, timeout_s: float, explanation: str) -> Change:
    """Return a change that also drains the agent; the next sweep decides whether the drain is complete."""
    return replace(
        change,
        signals=(*change.signals, Signal.DRAIN_INITIATED),
        explanation=explanation,
        drain_deadline_s=now_s + timeout_s,
        assess_at_s=now_s,
    )


def set_status(transaction: Transaction, call: Call) -> OperationReply:
    """Drain or deregister an agent."""
    body = call.body_as(StatusChange)
    agent = existing_agent(transaction, call.agent_id, to_change=True)
    call.check_version(agent.incarnation, agent.version, etag(agent), is_required=True)
    if body.status == "deregistered":
        require(call.caller, Permission.DEREGISTER, agent.agent_id)
        agent = _deregister(transaction, agent, call.actor)
    else:
        agent = _drain(transaction, agent, body.drain_timeout_seconds, call.actor)
    return OperationReply(content=record(agent, transaction.now_s), headers={"ETag": etag(agent)})


def delete_agent(transaction: Transaction, call: Call) -> OperationReply:
    """Deregister an agent at once. The registry keeps its record.

    An agent that will not return may revoke its own key with the same request (`end_key`).
    """
    agent = existing_agent(transaction, call.agent_id, to_change=True)
    call.check_version(agent.incarnation, agent.version, etag(agent), is_required=False)
    _deregister(transaction, agent, call.actor)
    if call.query_as(Departure).end_key and call.caller.agent_id == agent.agent_id:
        revoke_key(transaction, call.caller.key_id, call.actor)
    return OperationReply(status=204)


def _drain(transaction: Transaction, agent: StoredAgent, timeout_s: float | None, actor: str) -> StoredAgent:
    timeout_s = timeout_s or agent.drain_timeout_s
    change = with_drain(unchanged(agent), transaction.now_s, timeout_s, f"asked by {actor}")
    return change_status(transaction, [change], actor)[0]


def _deregister(transaction: Transaction, agent: StoredAgent, actor: str) -> StoredAgent:
    change = Change(
        agent=agent,
        signals=(Signal.DEREGISTERED,),
        explanation=f"asked by {actor}",
        health=HealthStatus.UNKNOWN,
        assess_at_s=None,
    )
    return change_status(transaction, [change], actor)[0]


OPERATIONS = (
    Operation(
        method="PATCH",
        path="/api/v1/agents/{agent_id}/status",
        summary="Drain an agent, or deregister it (RFC-0016 5)",
        action=Permission.DRAIN,
        function=set_status,
        body=StatusChange,
        example={"status": "draining", "drain_timeout_seconds": 120},
        answer=AgentRecord,
        errors=(404, 409, 412, 428),
        needs_version=True,
    ),
    Operation(
        method="DELETE",
        path="/api/v1/agents/{agent_id}",
        summary="Deregister an agent at once, without a drain",
        action=Permission.DEREGISTER,
        function=delete_agent,
        query=Departure,
        status=204,
        errors=(404, 409, 412),
        headers=("If-Match",),
    ),
)
