"""For those who write agents: live in a registry, and leave it in good order.

    decorator.py       how does a class say that it is an agent?
    runner.py          how does an agent live, from registering to the end?
    profile.py         what does it say of itself when it registers?
    given_settings.py  is what its program sets of the right kind?
    shown_log.py          the log of an agent, in a program that sets no logging up
    own_key.py         by which key does it speak, and where is its own kept?
    place.py           which place has it in the registry?
    heartbeat_loop.py  how does it stay known, whatever becomes of either?
    assignments.py     where does its work come from?
    task_source.py     how does it get tasks of the registry?
    held_task.py       what does it hold that works at one, and what may it say?
    work.py            what is it doing now, and how is that stopped?
    handler.py         how is a method called that may be a coroutine or not?
    drain.py           how does it leave?
    asgi_link.py       how is an ASGI app an agent of the registry?
    worker_crew.py     which of its worker processes beats, and for how much?

Needs the extra `agent` (aiohttp; PyYAML for workflow files). Decides nothing of its own: when to beat is
said by `lifesign.domain.lifecycle.heartbeat_interval`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lifesign.agent.asgi_link import AgentLink
    from lifesign.agent.assignments import Assignment, AssignmentSource
    from lifesign.agent.claimed_task import ClaimedTask
    from lifesign.agent.decorator import Agent, on_assignment, on_drain, run_agent
    from lifesign.agent.drain import AgentEnd
    from lifesign.agent.profile import AgentProfile
    from lifesign.agent.runner import AgentRunner
    from lifesign.domain.models.agents import HeartbeatConfig
    from lifesign.errors import WorkDropped, WorkRefused

__all__ = [
    "Agent",
    "AgentLink",
    "AgentProfile",
    "AgentRunner",
    "Assignment",
    "AssignmentSource",
    "AgentEnd",
    "HeartbeatConfig",
    "ClaimedTask",
    "WorkDropped",
    "WorkRefused",
    "on_assignment",
    "on_drain",
    "run_agent",
]

_PLACES = {
    "Agent": "agent.decorator",
    "AgentLink": "agent.asgi_link",
    "AgentProfile": "agent.profile",
    "AgentRunner": "agent.runner",
    "Assignment": "agent.assignments",
    "AssignmentSource": "agent.assignments",
    "AgentEnd": "agent.drain",
    "HeartbeatConfig": "domain.models.agents",
    "ClaimedTask": "agent.claimed_task",
    "WorkDropped": "errors",
    "WorkRefused": "errors",
    "on_assignment": "agent.decorator",
    "on_drain": "agent.decorator",
    "run_agent": "agent.decorator",
}


def __getattr__(name: str) -> Any:
    # Imported late: who links an app does not load the runner, and who names the package loads neither.
    if name in _PLACES:
        return getattr(import_module(f"lifesign.{_PLACES[name]}"), name)
    raise AttributeError(f"module 'lifesign.agent' has no attribute {name!r}")
