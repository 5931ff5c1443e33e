import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lifesign.agent import Agent, AgentLink, AgentRunner
from lifesign.agent.profile import AgentProfile, ProfileSettings
from lifesign.domain.models.agents import HeartbeatConfig
from lifesign.errors import InvalidValue

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


def generate() -> Iterator[None]:
    yield


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Is never called."""


def test_tests_cover_each_profile_field() -> None:
    unsaid = {field.name for field in dataclasses.fields(AgentProfile)} - SAID.keys()
    assert unsaid == set()


def test_settings_are_all_fields_of_a_profile_but_its_id() -> None:
    fields = {field.name for field in dataclasses.fields(AgentProfile)}
    assert ProfileSettings.__annotations__.keys() == fields - {"agent_id"}


@pytest.mark.parametrize("given", [{"agent_id": "a"}, {"profile": AgentProfile(agent_id="a")}])
@pytest.mark.parametrize("made_of", [Agent, AgentRunner])
def test_unknown_setting_is_refused_with_and_without_a_profile(
    made_of: Callable[..., object], given: dict[str, Any]
) -> None:
    with pytest.raises(TypeError, match="'capabilitys'"):
        made_of(**given, **REACHED, capabilitys=["billing"])


@pytest.mark.parametrize(
    ("expected", "named"),
    [
        ({"capabilities": "billing"}, "capabilities: expected a list or a tuple of texts; got 'billing'"),
        ({"capabilities": 7}, "capabilities"),
        ({"capabilities": {"billing": 1}}, "capabilities"),
        ({"capabilities": [7]}, "capabilities"),
        ({"capacity": "5"}, "capacity"),
        ({"capacity": True}, "capacity"),
        ({"metadata": [1]}, "metadata"),
        ({"name": 7}, "name"),
        ({"monitoring": 7}, "monitoring"),
        ({"drain_timeout_seconds": "60"}, "drain_timeout_seconds"),
        ({"allow_plain_http": "no"}, "allow_plain_http"),
        ({"key_file": 7}, "key_file"),
        ({"key": 7}, "key: expected text$"),
        ({"on_drain": "leave"}, "on_drain"),
        ({"on_drain": generate}, "on_drain"),
    ],
)
def test_wrong_type_is_refused_in_every_declaration(expected: dict[str, Any], named: str) -> None:
    declared: Callable[..., object] = Agent if "on_drain" not in expected else AgentRunner
    for say in (declared, AgentRunner, lambda **given: AgentLink(app, **given)):
        with pytest.raises(InvalidValue, match=f"^{named}"):
            say(**{"agent_id": "a", **REACHED, **expected})


def test_declaration_copies_its_lists() -> None:
    given = ["billing"]
    profile = AgentProfile(capabilities=given)
    given.append("invoices")
    assert profile.capabilities == ("billing",)


def test_decorator_accepts_each_profile_field() -> None:
    assert Agent(**SAID).profile == AgentProfile(**SAID)


def test_runner_accepts_each_profile_field() -> None:
    assert AgentRunner(**SAID, **REACHED).profile == AgentProfile(**SAID)


async def test_asgi_link_accepts_each_profile_field() -> None:
    assert AgentLink(app, **SAID, **REACHED).profile == AgentProfile(**SAID)
