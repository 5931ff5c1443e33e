import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.support.complaints import problems_in
from tests.support.databases import migrated_url

from lifesign.cli import main
from lifesign.cli.options.server_database import DEFAULT_DATABASE
from lifesign.domain.access.permissions import Role
from lifesign.registry.settings import RegistrySettings

KEY = re.compile(r"ahk_[A-Za-z0-9_-]{43}")


class Shell:
    """Runs commands on one database, which is named by the environment."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.errors = ""
        """Standard error of the last command."""

    def run(self, *arguments: str, code: int = 0) -> str:
        """Run a command and return its output, or the error message of a command that fails."""
        ended = main(["keys", *arguments])
        captured = self._capsys.readouterr()
        self.errors = captured.err
        assert ended == code, captured.err
        return captured.out if code == 0 else captured.err

    def create(self, *options: str) -> dict[str, Any]:
        """Create a key and return all that is shown of it."""
        return dict(json.loads(self.run("create", *options, "--json")))

    def listed(self, *options: str) -> list[dict[str, Any]]:
        return list(json.loads(self.run("list", *options, "--json"))["keys"])


@pytest.fixture
def shell(
    database_kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Shell:
    monkeypatch.setenv("LIFESIGN_SERVER_DATABASE", migrated_url(database_kind, tmp_path))
    return Shell(capsys)


def test_keys_create_prints_only_the_key(shell: Shell) -> None:
    assert KEY.fullmatch(shell.run("create", "--role", "admin", "--name", "alice").strip())


@pytest.mark.parametrize("as_json", [False, True])
def test_key_is_written_to_a_new_private_file_only(shell: Shell, tmp_path: Path, *, as_json: bool) -> None:
    file = tmp_path / "admin.key"
    options = ["--role", "admin", "--name", "alice", "--write-key", str(file), *["--json"] * as_json]
    assert "ahk_" not in shell.run("create", *options)
    assert as_json or ("(admin, alice)" in shell.errors and str(file) in shell.errors)
    assert KEY.fullmatch(file.read_text().strip())
    assert file.stat().st_mode & 0o777 == 0o600
    kept = file.read_text()
    assert {"--write-key:", "hint:"} <= set(shell.run("create", *options, code=3).split())
    (found,) = shell.listed()
    other = tmp_path / "other.key"
    shell.run("rotate", found["key_id"], "--write-key", str(other))
    assert other.read_text() != kept == file.read_text()
    third = tmp_path / "third.key"
    assert shell.run("rotate", "key_nobodys", "--write-key", str(third), code=1)
    assert not third.exists()


def test_created_key_is_listed_without_its_secret(shell: Shell) -> None:
    created = shell.create("--role", "enroll", "--name", "fleet", "--expires-in", "30d")
    (found,) = shell.listed()
    assert KEY.fullmatch(created.pop("key"))
    assert found == created
    assert found["is_valid"]
    table = shell.run("list", "--role", "enroll")
    assert found["key_id"] in table
    assert "until " in table
    assert shell.listed("--role", "admin") == []


def test_rotated_key_without_an_overlap_is_revoked(shell: Shell) -> None:
    old = shell.create("--role", "agent", "--name", "a", "--agent-id", "agent-1")
    new = json.loads(shell.run("rotate", old["key_id"], "--overlap", "0s", "--json"))
    assert (new["role"], new["agent_id"]) == ("agent", "agent-1")
    assert {key["key_id"]: key["is_valid"] for key in shell.listed()} == {
        old["key_id"]: False,
        new["key_id"]: True,
    }
    assert "revoked" in shell.run("list")
    assert KEY.fullmatch(shell.run("rotate", new["key_id"]).strip())
    assert all(key["expires_at"] for key in shell.listed()[:2])


def test_last_admin_key_can_be_revoked_on_the_command_line(shell: Shell) -> None:
    admin = shell.create("--role", "admin", "--name", "alice")
    assert "revoked" in shell.run("revoke", admin["key_id"])
    assert "revoked" in shell.run("list")
    assert admin["key_id"] in shell.run("rotate", admin["key_id"], code=1)


@pytest.mark.both_databases
def test_number_of_workers_of_a_prober_key_can_be_limited(shell: Shell) -> None:
    created = shell.create("--role", "prober", "--name", "p", "--max-workers", "2")
    assert created["max_workers"] == 2
    assert (
        json.loads(shell.run("limit", created["key_id"], "--max-workers", "32", "--json"))["max_workers"]
        == 32
    )
    assert shell.listed()[0]["max_workers"] == 32
    shell.create("--role", "prober", "--name", "q")
    assert "  default  " in shell.run("list")
    assert "up to 32" in shell.run("list")
    assert "may have 1 worker\n" in shell.run("limit", created["key_id"], "--max-workers", "1")
    assert "--max-workers" in shell.run("limit", created["key_id"], "--max-workers", "0", code=3)
    shell.run("create", "--role", "reader", "--name", "r", "--max-workers", "2", code=3)


def test_unknown_key_is_reported(shell: Shell) -> None:
    shell.create("--role", "admin", "--name", "alice")
    assert "'key_nobody'" in shell.run("limit", "key_nobody", "--max-workers", "2", code=1)
    for command in ("rotate", "revoke"):
        assert "'key_nobody'" in shell.run(command, "key_nobody", code=1)


def test_keys_of_several_pages_are_listed(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lifesign.cli.commands.keys.PAGE", 2)
    created = [shell.create("--role", "reader", "--name", str(number))["key_id"] for number in range(5)]
    assert [key["key_id"] for key in shell.listed()] == created


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--role", "king", "--name", "x"], "--role"),
        (["--role", "reader"], "--name"),
        (["--role", "reader", "--name", ""], "--name"),
        (["--role", "agent", "--name", "x"], "agent_id"),
        (["--role", "reader", "--name", "x", "--agent-id", "a"], "agents and coordinators"),
        (["--role", "reader", "--name", "x", "--expires-in", "soon"], "--expires-in"),
        (
            ["--role", "reader", "--name", "x", "--expires-in", "0d"],
            "at least 1s; got '0s'",
        ),
        (
            ["--role", "reader", "--name", "x", "--expires-in", "9999d"],
            "expected at most 3660d; got '9999d'",
        ),
    ],
)
def test_wrong_usage_is_one_line_and_no_key(shell: Shell, options: list[str], named: str) -> None:
    output = shell.run("create", *options, code=3)
    assert named in output
    assert len(problems_in(output)) == 1


def test_invalid_role_is_not_listed(shell: Shell) -> None:
    assert "one of enroll" in shell.run("list", "--role", "king", code=3)
    assert Role.ADMIN in shell.run("list", "--role", "king", code=3)


@pytest.mark.parametrize("arguments", [["list"], ["revoke", "key_a"], ["rotate", "key_a"]])
def test_keys_commands_do_not_create_a_missing_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LIFESIGN_SERVER_DATABASE", raising=False)
    assert main(["keys", *arguments]) == 3
    assert "lifesign.db" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_keys_commands_use_the_database_of_the_server_by_default() -> None:
    assert RegistrySettings().database == DEFAULT_DATABASE


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--role", "nosuch"], "--role: expected one of 'enroll', "),
        (["--role", "agent"], "--agent-id: expected the agent_id of the agent to which the key belongs\n"),
        (["--role", "reader", "--agent-id", "a"], "--agent-id: expected agent_id only for keys of "),
        (["--role", "agent", "--agent-id", "a b"], "--agent-id: expected 1 to 128 letters, "),
    ],
)
def test_errors_name_their_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    database = f"sqlite:///{tmp_path}/r.db"
    assert main(["keys", "create", "--name", "x", "--database", database, *options]) == 3
    assert capsys.readouterr().err.startswith(f"lifesign: {message}")
