import json

import pytest
from tests.support.complaints import problems_in
from tests.support.registry_server import RegistryServer

from lifesign.cli import main

Captured = pytest.CaptureFixture[str]


def shown_by(capsys: Captured, *arguments: str, ends: int = 0) -> str:
    assert main(["agents", *arguments]) == ends, capsys.readouterr().err
    captured = capsys.readouterr()
    return captured.out if ends == 0 else captured.err


def test_maintenance_of_an_agent_is_started_and_ended(registry: RegistryServer, capsys: Captured) -> None:
    shown_by(capsys, "register", "a")
    shown = shown_by(capsys, "maintenance", "a", "--for", "1h", "--reason", "new disk")
    assert "maintenance until 20" in shown
    assert "agent       a\n" in shown
    assert "maintenance" in shown_by(capsys, "show", "a")
    assert shown_by(capsys, "maintenance", "a", "--end").startswith("maintenance ended\n")
    assert "maintenance" not in shown_by(capsys, "show", "a")


def test_maintenance_of_a_pool_covers_each_member(registry: RegistryServer, capsys: Captured) -> None:
    for agent_id in ("a", "b"):
        shown_by(capsys, "register", agent_id, "--pool", "billing")
    options = ("maintenance", "--pool", "billing", "--json")
    begun = json.loads(shown_by(capsys, *options, "--for", "15m", "--reason", "deploy"))
    assert begun["agents"] == ["a", "b"]
    assert "until" in begun
    assert "until" not in json.loads(shown_by(capsys, *options, "--end"))


def test_refusal_of_the_registry_exits_with_1(registry: RegistryServer, capsys: Captured) -> None:
    assert "404" in shown_by(capsys, "maintenance", "nobody", "--end", ends=1)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--for", "1h", "--reason", "x"],
        ["a", "--pool", "r", "--end"],
        ["a"],
        ["a", "--for", "1h"],
        ["a", "--for", "1h", "--end", "--reason", "x"],
        ["a", "--for", "soon", "--reason", "x"],
        ["a", "--for", "99d", "--reason", "x"],
    ],
)
def test_wrong_usage_exits_with_3(capsys: Captured, arguments: list[str]) -> None:
    assert len(problems_in(shown_by(capsys, "maintenance", *arguments, ends=3))) == 1


def test_pool_maintenance_reports_the_number_of_agents(registry: RegistryServer, capsys: Captured) -> None:
    for agent_id in ("a", "b"):
        shown_by(capsys, "register", agent_id, "--pool", "billing")
    shown = shown_by(capsys, "maintenance", "--pool", "billing", "--for", "15m", "--reason", "deploy")
    assert shown.splitlines()[0].endswith("Z for 2 agents of billing")


def test_empty_pool_is_refused(registry: RegistryServer, capsys: Captured) -> None:
    options = ("maintenance", "--pool", "nosuch")
    assert "nosuch" in shown_by(capsys, *options, "--for", "15m", "--reason", "deploy", ends=1)
    assert "nosuch" in shown_by(capsys, *options, "--end", ends=1)


def test_absent_value_is_not_shown_as_none(capsys: Captured) -> None:
    assert "None" not in shown_by(capsys, "maintenance", "a", ends=3)


def test_end_of_a_pools_maintenance_names_its_agents(registry: RegistryServer, capsys: Captured) -> None:
    for agent_id in ("a", "b"):
        shown_by(capsys, "register", agent_id, "--pool", "billing")
    shown_by(capsys, "maintenance", "a", "--for", "1h", "--reason", "new disk")
    ended = shown_by(capsys, "maintenance", "--pool", "billing", "--end").splitlines()
    assert ended == ["maintenance ended for 1 agent of billing", "agent       a"]
    again = shown_by(capsys, "maintenance", "--pool", "billing", "--end").splitlines()
    assert again == ["maintenance has ended: no agent of billing was in maintenance"]


def test_a_maintenance_outlasts_a_restart(registry: RegistryServer, capsys: Captured) -> None:
    shown_by(capsys, "register", "a")
    shown_by(capsys, "maintenance", "a", "--for", "1h", "--reason", "deploy")
    assert "maintenance 20" in shown_by(capsys, "register", "a", "--supersede")
    assert "maintenance 20" in shown_by(capsys, "show", "a")
