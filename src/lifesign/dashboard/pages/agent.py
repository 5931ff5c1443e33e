"""Page of one agent, with its actions (`/agents/{agent_id}`)."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from starlette.requests import Request

from lifesign.dashboard.event_lines import lines_of
from lifesign.dashboard.labels import (
    RECHECK_RESULTS,
    agent_probe_label,
    agent_status_text,
    failing_text,
    is_health_by_assertions,
    observed_layers,
    target_probe_label,
    unread_reason,
)
from lifesign.dashboard.maintenance_facts import last_override, maintenance_of
from lifesign.dashboard.page_handler import RequestContext, check_sure, seconds_in
from lifesign.dashboard.pages import history
from lifesign.dashboard.pages.public_status import is_public
from lifesign.dashboard.pages.targets import recheck_target
from lifesign.dashboard.plots import charts
from lifesign.domain.access.permissions import Permission
from lifesign.domain.events.event_type import EventType
from lifesign.domain.lifecycle.status_table import ALIVE, Status
from lifesign.domain.models.targets import TargetRecord
from lifesign.domain.observation.evidence_age import lost_text
from lifesign.registry.errors import TargetNotFound
from lifesign.storage.events import event_log

if TYPE_CHECKING:
    from lifesign.domain.models.agents import AgentRecord
    from lifesign.domain.models.history import AgentHistory
    from lifesign.domain.models.interface_versions import InterfaceVersions

EVENTS_SHOWN = 25
CHANGES_READ = 200
"""Number of status changes and reports that are read."""
LEASES_SHOWN = 20
TASKS_SHOWN = 20

_AGENT = "/api/v1/agents/{agent_id}"


def show_agent(context: RequestContext, request: Request) -> Mapping[str, Any]:
    """Return all that the page of an agent shows."""
    agent_id = request.path_params["agent_id"]
    agent: AgentRecord = context.ask("GET", _AGENT, agent_id=agent_id)
    transaction, now_s = context.transaction, context.transaction.now_s
    kinds = (EventType.AGENT_LIFECYCLE, EventType.AGENT_HEALTH_CHANGED)
    lifecycle, health = (
        event_log.latest(transaction, limit=CHANGES_READ, types=[kind.value], agent_id=agent_id)
        for kind in kinds
    )
    target = _target(context, agent_id)
    strips = [history.status_strip(agent, lifecycle, now_s), history.health_strip(agent, health, now_s)]
    if target is not None:
        strips.append(history.probe_strip(target, now_s))
    override = agent.override
    numbers: AgentHistory = context.ask("GET", f"{_AGENT}/history", agent_id=agent_id)
    return {
        "agent": agent,
        "why": agent_status_text(agent),
        "override": override,
        "override_origin": override
        and last_override(transaction, agent_id, EventType.AGENT_OVERRIDE_CHANGED),
        "maintenance": maintenance_of(transaction, agent),
        "unread": unread_reason(agent),
        "probe_label": agent_probe_label(agent, now_s)
        if target is None
        else target_probe_label(target, now_s),
        "failing": failing_text(agent),
        "health_lost": ""
        if agent.unknown_reason is None
        else lost_text(agent.unknown_reason, agent.evidence_at, now_s),
        "health_by_assertions": is_health_by_assertions(agent.health, agent.observed),
        "layers": [] if agent.observed is None else observed_layers(agent.observed),
        "target": target,
        "strips": strips,
        "latencies": history.latencies(agent),
        "scale": history.scale(),
        "ratios": history.ratios(agent),
        "spans": charts.spans(numbers, now_s),
        "number_names": charts.NUMBERS,
        "notes": numbers.notes,
        "recent": "" if agent.observed is None else agent.observed.recent_interactions,
        "interface": _interface(context, agent_id),
        "events": lines_of(transaction, event_log.latest(transaction, limit=EVENTS_SHOWN, agent_id=agent_id)),
        "leases": context.ask("GET", "/api/v1/leases", query={"holder": agent_id, "limit": LEASES_SHOWN}),
        "tasks": context.ask("GET", "/api/v1/tasks", query={"holder": agent_id, "limit": TASKS_SHOWN}),
        "is_public": is_public(agent.metadata),
        "may": {
            "recheck": target is not None
            and target.gone_at is None
            and context.visitor.may(Permission.RECHECK, agent_id),
            "drain": agent.status in {Status.ACTIVE, Status.UNHEALTHY}
            and context.visitor.may(Permission.DRAIN, agent_id),
            "command": agent.status in ALIVE
            and agent.last_heartbeat_at is not None
            and context.visitor.may(Permission.SEND_COMMAND, agent_id),
            "maintain": agent.status in ALIVE and context.visitor.may(Permission.SET_MAINTENANCE, agent_id),
            "declare": agent.status in {Status.ACTIVE, Status.UNHEALTHY}
            and context.visitor.may(Permission.OVERRIDE, agent_id),
            "undeclare": override is not None and context.visitor.may(Permission.OVERRIDE, agent_id),
        },
        "recheck_results": RECHECK_RESULTS,
        "position": event_log.last_sequence(transaction),
        "now_s": now_s,
    }


def recheck(context: RequestContext, request: Request, _form: Mapping[str, str]) -> str:
    """Request a probe of the agent now."""
    return recheck_target(context, request.path_params["agent_id"])


def drain(context: RequestContext, request: Request, form: Mapping[str, str]) -> str:
    """Drain the agent, if its version is still the one that the page showed."""
    agent_id = request.path_params["agent_id"]
    check_sure(form)
    headers = {"if-match": form.get("etag", "")}
    context.ask("PATCH", f"{_AGENT}/status", agent_id=agent_id, body={"status": "draining"}, headers=headers)
    return "drain"


def command(context: RequestContext, request: Request, form: Mapping[str, str]) -> str:
    """Send the agent a command to drain."""
    agent_id = request.path_params["agent_id"]
    body = {"command": "drain"} | ({"reason": form["reason"]} if "reason" in form else {})
    context.ask("POST", f"{_AGENT}/commands", agent_id=agent_id, body=body)
    return "command"


def begin_maintenance(context: RequestContext, request: Request, form: Mapping[str, str]) -> str:
    """Begin the maintenance of the agent."""
    agent_id = request.path_params["agent_id"]
    body = {"seconds": seconds_in(form), "reason": form.get("reason", "")}
    context.ask("PUT", f"{_AGENT}/maintenance", agent_id=agent_id, body=body)
    return "maintenance"


def end_maintenance(context: RequestContext, request: Request, _form: Mapping[str, str]) -> str:
    """End the maintenance of the agent: the usual verdicts apply again."""
    agent_id = request.path_params["agent_id"]
    context.ask("DELETE", f"{_AGENT}/maintenance", agent_id=agent_id)
    return "maintained"


def declare(context: RequestContext, request: Request, form: Mapping[str, str]) -> str:
    """Override the status of the agent for a limited time."""
    agent_id = request.path_params["agent_id"]
    body = {
        "status": form.get("status", ""),
        "seconds": seconds_in(form),
        "reason": form.get("reason", ""),
    }
    context.ask("PUT", f"{_AGENT}/override", agent_id=agent_id, body=body)
    return "declared"


def end_override(context: RequestContext, request: Request, _form: Mapping[str, str]) -> str:
    """End the override: the usual verdicts apply again."""
    agent_id = request.path_params["agent_id"]
    context.ask("DELETE", f"{_AGENT}/override", agent_id=agent_id)
    return "undeclared"


def _interface(context: RequestContext, agent_id: str) -> Mapping[str, Any] | None:
    """Return the versions of the agent's published interface, and the latest changes.

    None if none was read.
    """
    versions = "/api/v1/targets/{target_id}/interface-versions"
    try:
        found: InterfaceVersions = context.ask("GET", versions, target_id=agent_id)
    except TargetNotFound:
        return None
    if not found.versions:
        return None
    last = None
    if len(found.versions) > 1:
        last = context.ask("GET", f"{versions}/comparison", target_id=agent_id, query={})
    return {"is_unstable": found.is_unstable, "versions": found.versions, "last": last}


def _target(context: RequestContext, agent_id: str) -> TargetRecord | None:
    try:
        found: TargetRecord = context.ask("GET", "/api/v1/targets/{target_id}", target_id=agent_id)
    except TargetNotFound:
        return None
    return found
