"""Changes of an agent's record while it is alive (`PATCH /api/v1/agents/{agent_id}`)."""

from collections.abc import Mapping
from dataclasses import astuple
from typing import Any

from lifesign.domain.access.permissions import Permission
from lifesign.domain.common.finding import Finding
from lifesign.domain.errors import InvalidRequest
from lifesign.domain.events.agent_payloads import AgentUpdated
from lifesign.domain.events.event import EventDraft
from lifesign.domain.events.event_type import EventType
from lifesign.domain.lifecycle.heartbeat_timeout import Thresholds
from lifesign.domain.lifecycle.observed_facts import Observed, excused
from lifesign.domain.lifecycle.status_table import ALIVE
from lifesign.domain.lifecycle.verdict import DecidingEvidence
from lifesign.domain.models.agents import AgentRecord, AgentUpdate
from lifesign.registry.errors import AgentGone
from lifesign.registry.request_handling.operation import Call, Operation, OperationReply
from lifesign.registry.serializers.agent_records import etag, existing_agent, record
from lifesign.registry.status_changes.agent_verdicts import extended_thresholds
from lifesign.registry.status_changes.monitor_row import verdict_context
from lifesign.registry.targets import probed_agents
from lifesign.storage.agents import agent_rows
from lifesign.storage.agents.agent_rows import EXTENDED_COLUMNS, StoredAgent
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.events import event_log
from lifesign.storage.targets import target_links


def update_agent(transaction: Transaction, call: Call) -> OperationReply:
    """Change the members that the body names. The version rises, and the next sweep assesses the agent."""
    body = call.body_as(AgentUpdate)
    agent = existing_agent(transaction, call.agent_id, to_change=True)
    call.check_version(agent.incarnation, agent.version, etag(agent), is_required=True)
    if agent.status not in ALIVE:
        raise AgentGone(agent.agent_id, agent.status, agent.incarnation)
    columns = _columns(body)
    if columns.get("card_url", "") is None and agent.monitoring != DecidingEvidence.HEARTBEAT:
        raise InvalidRequest([Finding("card_url_missing", "/card_url", "monitoring by probes requires one")])
    changed = {name: value for name, value in columns.items() if value != getattr(agent, name)}
    if "card_url" in changed and probed_agents.has_registered_itself(transaction, agent.agent_id):
        url = probed_agents.url_to_probe(agent.monitoring, changed["card_url"])
        version = probed_agents.begin_step(transaction, url)
        probed_agents.end_step(transaction, agent.agent_id, url, version, has_history=True)
        _excuse_failures(transaction, agent.id)
    if not {"unhealthy_after_s", "dead_after_s"}.isdisjoint(changed):
        probed_agents.publish_thresholds(transaction, agent.agent_id)
    if not set(_THRESHOLDS).isdisjoint(changed):
        changed |= _extended_columns(transaction, agent, changed)
    if not {"card_url", "endpoint"}.isdisjoint(changed):
        target_links.make_claims_due(transaction, agent_ids=[agent.agent_id])
    if changed:
        # Other thresholds have another deadline.
        agent_rows.change(
            transaction,
            agent.id,
            {**changed, "version": agent.version + 1, "assess_at_s": transaction.now_s},
        )
        payload = AgentUpdated(
            agent_id=agent.agent_id,
            incarnation=agent.incarnation,
            version=agent.version + 1,
            changed=sorted(body.model_fields_set),
        )
        draft = EventDraft(
            type=EventType.AGENT_UPDATED, actor=call.actor, payload=payload, agent_id=agent.agent_id
        )
        event_log.append(transaction, [draft])
        agent = existing_agent(transaction, call.agent_id)
    return OperationReply(content=record(agent, transaction.now_s), headers={"ETag": etag(agent)})


def _excuse_failures(transaction: Transaction, number: int) -> None:
    """Exclude failures that were measured at the agent's former URL."""
    # Facts that were read with the lock may be older than the lock.
    (agent,) = agent_rows.find_many(transaction, [number])
    if agent.observed is not None:
        known = excused(Observed.from_json(agent.observed))
        agent_rows.set_observed(transaction, [agent_rows.observed_row(number, known)])


def _extended_columns(
    transaction: Transaction, agent: StoredAgent, changed: Mapping[str, Any]
) -> dict[str, float | None]:
    """Return the columns that keep new thresholds from counting for the silence before the change."""
    new = Thresholds(*(changed.get(name, getattr(agent, name)) for name in _THRESHOLDS))
    longer = extended_thresholds(agent, new, transaction.now_s, verdict_context(transaction))
    values = (None,) * len(EXTENDED_COLUMNS) if longer is None else astuple(longer)
    return dict(zip(EXTENDED_COLUMNS, values, strict=True))


def _columns(body: AgentUpdate) -> dict[str, Any]:
    """Return the members of the body as columns, null included."""
    given = {name: getattr(body, name) for name in body.model_fields_set}
    required = [name for name in _NEVER_NULL if name in given and given[name] is None]
    if required:
        raise InvalidRequest([Finding("null", f"/{name}", "cannot be null") for name in required])
    columns = {name: given[name] for name in _AS_THEY_ARE if name in given}
    if "capabilities" in given:
        columns["capabilities"] = tuple(given["capabilities"])
    if "drain_timeout_seconds" in given:
        columns["drain_timeout_s"] = given["drain_timeout_seconds"]
    if "heartbeat_config" in given:
        config = given["heartbeat_config"]
        columns |= {
            "interval_s": config.interval_seconds,
            "unhealthy_after_s": config.unhealthy_after_seconds,
            "dead_after_s": config.dead_after_seconds,
        }
    return columns


_THRESHOLDS = ("interval_s", "unhealthy_after_s", "dead_after_s")
_AS_THEY_ARE = ("name", "max_concurrent_tasks", "endpoint", "card_url", "metadata")
_NEVER_NULL = ("capabilities", "heartbeat_config", "drain_timeout_seconds", "metadata")

OPERATIONS = (
    Operation(
        method="PATCH",
        path="/api/v1/agents/{agent_id}",
        summary="Change an agent's record",
        action=Permission.UPDATE,
        function=update_agent,
        body=AgentUpdate,
        example={"capabilities": ["billing"], "max_concurrent_tasks": 3},
        answer=AgentRecord,
        errors=(404, 410, 412, 428),
        needs_version=True,
    ),
)
