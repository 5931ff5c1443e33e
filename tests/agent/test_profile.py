"""Can all that an agent may say of itself be said in each of the ways to say it?"""

import dataclasses
from typing import Any

from agent_health.agent import Agent, AgentLink, AgentRunner
from agent_health.agent.profile import AgentProfile
from agent_health.agent_record import HeartbeatConfig

REACHED: dict[str, Any] = {"registry": "http://127.0.0.1:1", "key": "ahk_" + "k" * 43}
SAID: dict[str, Any] = {
    "agent_id": "billing-01",
    "role_id": "billing",
    "name": "Billing",
    "capabilities": ("invoices",),
    "capacity": 5,
    "endpoint": "https://agent.example/a2a",
    "card_url": "https://agent.example",
    "monitoring": "both",
    "heartbeat": HeartbeatConfig(interval_seconds=1, unhealthy_after_seconds=3, dead_after_seconds=6),
    "drain_timeout_seconds": 60.0,
    "metadata": {"version": "1.2.0"},
}


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Nobody asks it."""


def test_nothing_of_a_profile_is_left_unsaid_here() -> None:
    unsaid = {field.name for field in dataclasses.fields(AgentProfile)} - SAID.keys()
    assert unsaid == set()


def test_a_class_says_all_of_a_profile() -> None:
    assert Agent(**SAID).profile == AgentProfile(**SAID)


def test_a_runner_says_all_of_a_profile() -> None:
    assert AgentRunner(**SAID, **REACHED).profile == AgentProfile(**SAID)


async def test_an_asgi_app_says_all_of_a_profile() -> None:
    assert AgentLink(app, **SAID, **REACHED).profile == AgentProfile(**SAID)
