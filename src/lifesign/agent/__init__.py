"""SDK for agent authors: registration, heartbeats, drain, tasks. Needs the extra `agent`."""

from typing import TYPE_CHECKING, Any

from lifesign.domain.common.project import import_with_extra

if TYPE_CHECKING:
    from lifesign.agent.asgi_link import AgentLink
    from lifesign.agent.claimed_task import ClaimedTask
    from lifesign.agent.decorator import Agent, on_assignment, on_drain, run_agent
    from lifesign.agent.drain import AgentEnd
    from lifesign.agent.errors import WorkDropped, WorkRefused
    from lifesign.agent.profile import AgentProfile
    from lifesign.agent.runner import AgentRunner
    from lifesign.agent.work_sources import Assignment, AssignmentSource
    from lifesign.domain.models.agents import HeartbeatConfig

__all__ = [
    "Agent",
    "AgentEnd",
    "AgentLink",
    "AgentProfile",
    "AgentRunner",
    "Assignment",
    "AssignmentSource",
    "ClaimedTask",
    "HeartbeatConfig",
    "WorkDropped",
    "WorkRefused",
    "on_assignment",
    "on_drain",
    "run_agent",
]

_MODULES = {
    "Agent": "agent.decorator",
    "AgentLink": "agent.asgi_link",
    "AgentProfile": "agent.profile",
    "AgentRunner": "agent.runner",
    "Assignment": "agent.work_sources",
    "AssignmentSource": "agent.work_sources",
    "AgentEnd": "agent.drain",
    "HeartbeatConfig": "domain.models.agents",
    "ClaimedTask": "agent.claimed_task",
    "WorkDropped": "agent.errors",
    "WorkRefused": "agent.errors",
    "on_assignment": "agent.decorator",
    "on_drain": "agent.decorator",
    "run_agent": "agent.decorator",
}


def __getattr__(name: str) -> Any:
    # Imported late: a program that links an app does not need the runner, and the package name alone needs
    # neither.
    if name in _MODULES:
        return getattr(import_with_extra(f"lifesign.{_MODULES[name]}", "agent"), name)
    raise AttributeError(f"module 'lifesign.agent' has no attribute {name!r}")
