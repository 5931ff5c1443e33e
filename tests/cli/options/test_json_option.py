import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.command_tree import commands, options_of
from tests.support.registry_server import RegistryServer

from lifesign.cli import main

ALL = dict(commands())
WITHOUT = {
    "serve": "runs until it is ended; its log has --log-format",
    "crawl": "runs until it is ended; its progress has --log-format",
    "mcp": "speaks a protocol on standard output",
    "completion": "prints a script for a shell",
}
WITH = [name for name in ALL if name not in WITHOUT]


@pytest.mark.parametrize("name", WITH)
def test_every_command_that_prints_data_has_the_same_option(name: str) -> None:
    option = options_of(ALL[name])["--json"]
    assert (option.opts, option.is_flag, option.envvar) == (["--json"], True, None)
    assert option.help == options_of(ALL["check"])["--json"].help
    assert "json" not in (getattr(options_of(ALL[name]).get("--format"), "metavar", None) or "")


def test_commands_listed_without_a_json_option_have_none() -> None:
    assert [name for name in WITHOUT if "--json" in options_of(ALL[name])] == []


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Run a command with `--json`; return the only document on standard output."""

    def run(*arguments: str, code: int = 0) -> Any:
        capsys.readouterr()
        ended = main([*arguments, "--json"])
        shown = capsys.readouterr()
        assert ended == code, shown.err
        assert shown.out.isascii()
        return json.loads(shown.out)

    return run


def test_registry_commands_print_one_json_document(
    registry: RegistryServer, printed: Callable[..., Any]
) -> None:
    assert registry.url
    assert printed("agents", "register", "a-1", "--pool", "p", "--name", "Müller")["agent_id"] == "a-1"
    assert printed("agents", "register", "a-2")["agent_id"] == "a-2"
    task_id = printed("tasks", "create", "first")["task_id"]
    for arguments in (
        ["agents", "list"],
        ["agents", "show", "a-1"],
        ["agents", "history", "a-1"],
        ["agents", "maintenance", "a-1", "--for", "1h", "--reason", "test"],
        ["agents", "command", "a-1", "drain"],
        ["agents", "drain", "a-1"],
        ["agents", "deregister", "a-2"],
        ["agents", "erase", "a-1", "--yes"],
        ["tasks", "list"],
        ["tasks", "show", task_id],
        ["tasks", "top-up", task_id, "--tokens", "1"],
        ["tasks", "cancel", task_id],
        ["events", "list"],
        ["monitor", "show"],
        ["monitor", "release"],
        ["directories", "list"],
        ["targets", "list"],
        ["census", "--registry", registry.url],
    ):
        assert isinstance(printed(*arguments), dict), arguments


def test_database_commands_print_one_json_document(
    tmp_path: Path, printed: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LIFESIGN_SERVER_STATE_DIR", str(tmp_path))
    assert printed("migrate")["before"] is None
    key_id = printed("keys", "create", "--role", "prober", "--name", "Müller")["key_id"]
    for arguments in (
        ["keys", "list"],
        ["keys", "limit", key_id, "--max-workers", "2"],
        ["keys", "rotate", key_id],
        ["keys", "revoke", key_id],
        ["events", "verify"],
        ["backup", "backup.gz"],
        ["restore", "backup.gz", "--force"],
        ["database", "adopt"],
        ["doctor"],
        ["census", "sqlite:///lifesign.db"],
        ["directories", "list", "--database", "sqlite:///lifesign.db"],
        ["targets", "list", "--database", "sqlite:///lifesign.db"],
    ):
        assert isinstance(printed(*arguments), dict), arguments


def test_census_prints_json_and_writes_its_files(
    tmp_path: Path, printed: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["migrate", "--database", "sqlite:///here.db"]) == 0
    taken = printed("census", "here.db", "--output", "report")
    assert json.loads((tmp_path / "report" / "census.json").read_text()) == taken


def test_json_and_format_options_of_census_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["census", "list.txt", "--json", "--format", "csv"]) == 3
    assert capsys.readouterr().err.startswith("lifesign: --format: ")
    assert main(["census", "list.txt", "--format", "json"]) == 3
