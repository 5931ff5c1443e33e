"""The monitor of a registry on the command line."""

import json

import pytest
from tests.support.registry_server import RegistryServer
from tests.support.suspension import suspend

from lifesign.cli import main

CARD = "https://agent.example/.well-known/agent-card.json"


def test_one_agent_is_confirmed(registry: RegistryServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["agents", "register", "a", "--monitoring", "probe", "--card-url", CARD]) == 0
    capsys.readouterr()
    assert main(["monitor", "confirm", "--agent", "a", "--json"]) == 0
    confirmed = json.loads(capsys.readouterr().out)
    assert confirmed.keys() == {"agent_id", "confirmed_at"}
    assert main(["monitor", "confirm", "--agent", "a"]) == 0
    assert capsys.readouterr().out.startswith("confirmed a at ")


def test_refusal_of_the_registry_exits_with_1(
    registry: RegistryServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["monitor", "confirm", "--class", "public_ipv4"]) == 1
    assert "network_class_not_found" in capsys.readouterr().err
    assert main(["monitor", "confirm", "--agent", "nobody"]) == 1
    assert "target_not_found" in capsys.readouterr().err


def test_suspensions_are_shown_and_ended(
    registry: RegistryServer, capsys: pytest.CaptureFixture[str]
) -> None:
    registry.write(suspend)
    assert main(["monitor", "show"]) == 0
    shown = capsys.readouterr().out
    assert "heartbeat   suspended since " in shown
    assert "30 agents are silent" in shown
    assert main(["monitor", "release", "--track", "probe", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tracks"]["heartbeat"]["state"] == "suspended"
    assert main(["monitor", "release", "--track", "heartbeat"]) == 0
    assert "heartbeat   held" not in capsys.readouterr().out
    assert main(["monitor", "release", "--track", "both"]) == 3


@pytest.mark.parametrize("arguments", [[], ["--class", "public_ipv4", "--agent", "a"]])
def test_wrong_usage_exits_with_3(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    assert main(["monitor", "confirm", *arguments]) == 3
    assert "--class" in capsys.readouterr().err
