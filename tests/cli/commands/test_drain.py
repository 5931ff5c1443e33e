import json
import re
from typing import Any

import pytest
from tests.support.registry_server import ADMIN_KEY

from lifesign.cli import main

Captured = pytest.CaptureFixture[str]


def shown_by(capsys: Captured, *arguments: str, ends: int = 0) -> str:
    """Run a command about agents and return its output, or its errors if it fails."""
    assert main(["agents", *arguments]) == ends
    captured = capsys.readouterr()
    assert ADMIN_KEY not in captured.out + captured.err
    return captured.err if ends else captured.out


def json_of(capsys: Captured, *arguments: str) -> Any:
    return json.loads(shown_by(capsys, *arguments, "--json"))


@pytest.mark.usefixtures("registry")
def test_drain_command_and_deregister_work(capsys: Captured) -> None:
    shown_by(capsys, "register", "a")
    assert json_of(capsys, "command", "a", "drain", "--reason", "new version")["reason"] == "new version"
    assert "drain (command_" in shown_by(capsys, "command", "a", "drain", "--expires-in", "1m")
    shown = shown_by(capsys, "drain", "a", "--drain-timeout", "10m")
    assert "drains by   20" in shown
    shown_by(capsys, "register", "b")
    assert json_of(capsys, "drain", "b")["status"] == "draining"
    shown_by(capsys, "register", "c")
    assert "deregistered" in shown_by(capsys, "deregister", "c")
    assert re.search(r"because +deregistered: asked by admin, key:key_\w+\n", shown_by(capsys, "show", "c"))
    assert json_of(capsys, "register", "c", "--supersede")["incarnation"] == 2
    assert json_of(capsys, "deregister", "c") == {"agent_id": "c", "status": "deregistered"}


def test_command_other_than_drain_is_wrong_usage(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    # A question there would end with 2.
    monkeypatch.setenv("LIFESIGN_REGISTRY", "http://127.0.0.1:1")
    assert "'dance'" in shown_by(capsys, "command", "a", "dance", ends=3)
