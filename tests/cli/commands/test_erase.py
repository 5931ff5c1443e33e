import io
import json
import re

import pytest
from tests.support.registry_server import KEYS, RegistryServer

from lifesign.cli import main
from lifesign.client.environment_variables import KEY_VARIABLE
from lifesign.domain.access.permissions import Role

Captured = pytest.CaptureFixture[str]


class Terminal(io.StringIO):
    """A person who types this."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def agent(registry: RegistryServer, capsys: Captured) -> str:
    """The id of an agent that is there."""
    assert main(["agents", "register", "billing-1"]) == 0
    capsys.readouterr()
    return "billing-1"


def test_yes_option_erases_an_agent_and_lists_what_was_removed(agent: str, capsys: Captured) -> None:
    assert main(["agents", "erase", agent, "--yes"]) == 0
    agent_line, erased = capsys.readouterr().out.splitlines()
    assert agent_line.split() == ["agent", "billing-1"]
    assert re.findall(r"\d+", erased) == ["3"], "number of events"
    assert main(["agents", "show", agent]) == 1
    assert main(["agents", "erase", agent, "--yes"]) == 1
    assert "(agent_not_found)" in capsys.readouterr().err


def test_json_is_the_answer_of_the_registry(agent: str, capsys: Captured) -> None:
    assert main(["agents", "erase", agent, "--yes", "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert output == {"agent_id": agent, "events": 3, "archived_sequence": 0}


def test_erase_without_a_terminal_requires_yes(
    agent: str, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert main(["agents", "erase", agent]) == 3
    output = capsys.readouterr()
    assert (output.out, output.err.count("\n")) == ("", 2)
    assert "--yes" in output.err
    assert main(["agents", "show", agent]) == 0


@pytest.mark.parametrize(("typed", "ends"), [("y\n", 0), ("Yes\n", 0), ("n\n", 1), ("\n", 1), ("", 1)])
def test_terminal_asks_for_confirmation(
    agent: str, capsys: Captured, monkeypatch: pytest.MonkeyPatch, typed: str, ends: int
) -> None:
    monkeypatch.setattr("sys.stdin", Terminal(typed))
    assert main(["agents", "erase", agent]) == ends
    output = capsys.readouterr().err
    assert output.startswith("Erase billing-1 permanently? [y/N] ")
    assert ("nothing was erased" in output) is bool(ends)
    assert main(["agents", "show", agent]) == 1 - ends


def test_erase_with_a_key_of_another_role_is_refused(
    agent: str, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, KEYS[Role.COORDINATOR])
    assert main(["agents", "erase", agent, "--yes"]) == 1
    assert "(not_allowed)" in capsys.readouterr().err
