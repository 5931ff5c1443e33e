"""Versions of an agent's published interface, on the command line."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.support.registry_server import RegistryServer
from tests.support.reporting import reported

from lifesign.cli import main
from lifesign.domain.observation.probe_memory import ProbeMemory
from lifesign.domain.observation.results import LayerResult, Observation, ResultClass
from lifesign.domain.published_interface.card_interface import card_interface

CARD = "https://agent.example/.well-known/agent-card.json"
Captured = pytest.CaptureFixture[str]


def read(registry: RegistryServer, in_row: int, **members: Any) -> None:
    """Report a probe that read a card."""
    seen = Observation(
        agent_id="billing-1", observed_at=datetime.now(UTC), discovery=LayerResult(result=ResultClass.OK)
    )
    interface = card_interface({"name": "Adder", "url": "https://agent.example/a2a", **members})
    reported(
        registry.url, seen, memories=[ProbeMemory(interface_changes=in_row)], interfaces=[interface.form]
    )


@pytest.fixture
def agent(registry: RegistryServer, capsys: Captured) -> str:
    """The id of an agent whose card lost a skill."""
    assert main(["agents", "register", "billing-1", "--card-url", CARD, "--monitoring", "probe"]) == 0
    read(registry, 0, skills=[{"id": "add"}])
    read(registry, 3, skills=[])
    capsys.readouterr()
    return "billing-1"


def test_versions_are_a_table(agent: str, capsys: Captured) -> None:
    assert main(["agents", "versions", agent]) == 0
    heads, newest, first, unstable = capsys.readouterr().out.splitlines()
    assert heads.split("  ")[0] == "VERSION"
    assert [newest.split()[place] for place in (0, 3, 4)] == ["2", "1", "yes"]
    assert [first.split()[place] for place in (0, 3, 4)] == ["1", "-", "-"]
    assert unstable.startswith("unstable")


def test_versions_and_comparison_are_json(agent: str, capsys: Captured) -> None:
    assert main(["agents", "versions", CARD, "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert [version["version"] for version in output["versions"]] == [2, 1]
    assert main(["agents", "compare", agent, "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert output["changes"] == [{"pointer": "/skills/add", "change": "removed", "breaking": True}]


def test_comparison_is_a_table(agent: str, capsys: Captured) -> None:
    assert main(["agents", "compare", agent, "--previous", "1", "--version", "2"]) == 0
    heads, change = capsys.readouterr().out.splitlines()
    assert heads.split() == ["CHANGE", "BREAKING", "POINTER"]
    assert change.split() == ["removed", "yes", "/skills/add"]


def test_only_version_is_not_compared_with_itself(registry: RegistryServer, capsys: Captured) -> None:
    assert main(["agents", "register", "billing-1", "--card-url", CARD, "--monitoring", "probe"]) == 0
    read(registry, 0, skills=[{"id": "add"}])
    capsys.readouterr()
    assert main(["agents", "compare", "billing-1"]) == 0
    assert "no other one" in capsys.readouterr().out


def test_deleted_version_is_reported_with_its_number(agent: str, capsys: Captured) -> None:
    assert main(["agents", "compare", agent, "--version", "9"]) == 1
    assert "interface_version_not_found" in capsys.readouterr().err


def test_agent_whose_interface_was_never_read_has_no_versions(
    registry: RegistryServer, capsys: Captured
) -> None:
    assert registry.url
    assert main(["agents", "register", "billing-2", "--card-url", CARD, "--monitoring", "probe"]) == 0
    capsys.readouterr()
    assert main(["agents", "versions", "billing-2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["versions"] == []
