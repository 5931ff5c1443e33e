import gzip
import json
import os
import re
import sqlite3
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.support.databases import bare_url, migrated_url
from tests.support.next_version import AFTER, BEFORE, use_next_version
from tests.support.registry_server import RegistryServer

from lifesign.cli import main
from lifesign.cli.options.server_database import run_in_transaction
from lifesign.domain.access.permissions import KEY_PREFIX
from lifesign.storage.engine.schema_version import newest_revision
from lifesign.storage.engine.table_definitions import keys
from lifesign.storage.events import webhooks
from lifesign.storage.events.webhooks import StoredWebhook
from lifesign.storage.whole_database.backup_file import BackupHeader, writing

_KEY = {
    "is_suspended": False, "key_id": "key_1",
    "digest": "0" * 64, "role": "admin", "name": "alice", "created_at_s": 1.0,
}  # fmt: skip


@pytest.fixture
def filled(database_kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """The URL of a database with a key in it."""
    url = migrated_url(database_kind, tmp_path)
    assert main(["keys", "create", "--role", "admin", "--name", "alice", "--database", url]) == 0
    capsys.readouterr()
    return url


def test_backup_is_restored_into_an_empty_database(
    filled: str, database_kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "registry.gz"
    assert main(["backup", str(file), "--database", filled]) == 0
    assert "0 agents, 1 event, " in capsys.readouterr().out
    empty = bare_url(database_kind, tmp_path)
    assert main(["restore", str(file), "--database", empty]) == 0
    assert "epoch" in capsys.readouterr().out
    assert main(["restore", str(file), "--database", empty]) == 1
    assert "--force" in capsys.readouterr().err
    assert main(["restore", str(file), "--database", empty, "--force"]) == 0


def test_restore_lists_revoked_and_unknown_keys(
    filled: str, database_kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "registry.gz"
    assert main(["backup", str(file), "--database", filled]) == 0
    capsys.readouterr()
    assert main(["keys", "list", "--database", filled, "--json"]) == 0
    [key_id] = [key["key_id"] for key in json.loads(capsys.readouterr().out)["keys"]]
    assert main(["keys", "revoke", key_id, "--database", filled]) == 0
    assert main(["restore", str(file), "--database", filled, "--force"]) == 0
    printed = capsys.readouterr().err
    assert ": 1 key\n" in printed
    assert "good again" not in printed
    empty = bare_url(database_kind, tmp_path)
    assert main(["restore", str(file), "--database", empty, "--trust-all-keys"]) == 0
    output = capsys.readouterr()
    assert f"  {key_id} admin alice\n" in output.err
    assert KEY_PREFIX not in output.out
    assert main(["restore", str(file), "--database", bare_url(database_kind, tmp_path), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["unknown_keys"], shown["are_keys_suspended"]) == ([key_id], True)


def test_restore_shows_only_the_host_of_a_webhook(
    filled: str, database_kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hook = StoredWebhook(
        id="webhook_1",
        url="https://hooks.example:1/services/s3cret?token=s3cret",
        types=(),
        agent_id=None,
        secret="whsec_s3cret",
        created_by="key_1",
        created_at_s=1.0,
        delivered_sequence=0,
        failures=0,
        failing_since_s=None,
        last_error=None,
        next_try_at_s=0.0,
        claimed_until_s=None,
        is_disabled=False,
    )
    run_in_transaction(filled, lambda transaction: webhooks.add(transaction, hook))
    file = tmp_path / "registry.gz"
    assert main(["backup", str(file), "--database", filled]) == 0
    assert main(["restore", str(file), "--database", bare_url(database_kind, tmp_path)]) == 0
    captured = capsys.readouterr()
    assert "  webhook_1 hooks.example:1\n" in captured.err
    assert "s3cret" not in captured.out + captured.err


def test_restored_keys_are_confirmed_with_the_admin_key_of_the_restore(
    filled: str, database_kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    backup, key_file, empty = tmp_path / "registry.gz", tmp_path / "key", bare_url(database_kind, tmp_path)
    assert main(["backup", str(backup), "--database", filled]) == 0
    capsys.readouterr()
    assert main(["restore", str(backup), "--database", empty, "--write-key", str(key_file)]) == 0
    output = capsys.readouterr()
    assert re.fullmatch(rf"{KEY_PREFIX}\S+\n", key_file.read_text())
    assert key_file.stat().st_mode & 0o777 == 0o600
    assert KEY_PREFIX not in output.out + output.err
    assert main(["keys", "confirm", "--all", "--database", empty, "--json"]) == 0
    [key_id] = json.loads(capsys.readouterr().out)["confirmed"]
    assert f"  {key_id} admin alice\n" in output.err
    assert main(["keys", "list", "--database", empty, "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["keys"]
    assert [(key["name"], key["is_valid"]) for key in listed] == [("alice", True), ("restore", True)]


@pytest.mark.parametrize(
    "arguments", [[], ["key_1", "--all"], ["key_1", "--role", "agent"], ["--all", "--role", "nobody"]]
)
def test_confirm_takes_ids_or_all(arguments: list[str], filled: str) -> None:
    assert main(["keys", "confirm", *arguments, "--database", filled]) == 3


def test_confirm_of_an_unknown_key_changes_nothing(filled: str) -> None:
    assert main(["keys", "confirm", "key_none", "--database", filled]) == 1


def test_invalid_backup_exits_with_3_and_creates_no_database(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "registry.gz").write_text("nonsense")
    database = f"sqlite:///{tmp_path}/new.db"
    assert main(["restore", str(tmp_path / "registry.gz"), "--database", database]) == 3
    assert capsys.readouterr().err.count("\n") == 1
    assert main(["restore", str(tmp_path / "absent.gz"), "--database", database]) == 3
    assert "No such file" in capsys.readouterr().err
    assert not (tmp_path / "new.db").exists()


@pytest.mark.parametrize(("member", "value"), [("role", ""), ("digest", "x"), ("max_workers", 2**70)])
def test_backup_with_an_invalid_value_exits_with_3_and_changes_nothing(
    member: str, value: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, database = tmp_path / "registry.gz", f"sqlite:///{tmp_path}/new.db"
    key = dict.fromkeys(keys.columns.keys()) | _KEY | {member: value}
    with writing(file, BackupHeader(revision=newest_revision(), created_at_s=1.0)) as writer:
        writer.begin_table("keys", list(key))
        writer.add_row(list(key.values()))
    assert main(["restore", str(file), "--database", database]) == 3
    assert re.fullmatch(rf"lifesign: {file} cannot be restored: .*\n", capsys.readouterr().err)
    assert main(["keys", "list", "--database", database]) != 0


def test_a_backup_of_an_older_version_is_restored_and_brought_up_to_date(
    database_kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # First: it may start PostgreSQL, which keeps its files in the usual place.
    empty = bare_url(database_kind, tmp_path)
    file = tmp_path / "before.gz"
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    use_next_version(monkeypatch, tmp_path)
    key = dict.fromkeys(keys.columns.keys()) | _KEY
    with writing(file, BackupHeader(revision=BEFORE, created_at_s=1.0)) as writer:
        writer.begin_table("keys", list(key))
        writer.add_row(list(key.values()))
    assert main(["restore", str(file), "--database", empty]) == 0
    output = capsys.readouterr()
    assert f"migrated from revision {BEFORE} to {AFTER}\n" in output.out
    assert "  key_1 admin alice\n" in output.err
    assert main(["keys", "list", "--database", empty]) == 0
    assert "alice" in capsys.readouterr().out
    assert main(["restore", str(file), "--database", empty, "--force", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["revision"] == BEFORE
    # The temporary files contain secrets.
    assert list((tmp_path / "temporary").iterdir()) == []


def test_a_backup_of_a_newer_version_is_refused_before_a_database_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with writing(tmp_path / "newer.gz", BackupHeader(revision="9999", created_at_s=1.0)):
        pass
    arguments = ["restore", str(tmp_path / "newer.gz"), "--database", f"sqlite:///{tmp_path}/new.db"]
    assert main(arguments) == 3
    assert "9999" in capsys.readouterr().err
    assert not (tmp_path / "new.db").exists()


def test_missing_database_is_not_backed_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["backup", str(tmp_path / "b.gz"), "--database", f"sqlite:///{tmp_path}/absent.db"]) == 3
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm", "-journal"])
@pytest.mark.parametrize("how", ["plain", "another_way", "linked"])
def test_backup_path_equal_to_the_database_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], suffix: str, how: str
) -> None:
    file = tmp_path / "registry.db"
    url = f"sqlite:///{file}"
    assert main(["keys", "create", "--role", "admin", "--name", "alice", "--database", url]) == 0
    before = file.read_bytes()
    target = Path(f"{file}{suffix}")
    if how == "another_way":
        target = tmp_path / "x" / ".." / target.name
        (tmp_path / "x").mkdir()
    elif how == "linked":
        (tmp_path / "link").symlink_to(tmp_path, target_is_directory=True)
        target = tmp_path / "link" / target.name
    capsys.readouterr()
    assert main(["backup", str(target), "--database", url]) == 3
    output = capsys.readouterr().err
    assert "the database itself" in output
    assert output.count("\n") == 1
    assert file.read_bytes() == before
    assert main(["keys", "list", "--database", url]) == 0


@pytest.mark.both_databases
def test_only_an_older_backup_is_replaced(
    filled: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "b.gz"
    (tmp_path / "link").symlink_to(tmp_path / "registry-file")
    (tmp_path / "registry-file").write_bytes(b"SQLite format 3\0 and all that somebody knows")
    (tmp_path / "empty").touch()
    (tmp_path / "other.gz").write_bytes(gzip.compress(b'{"format": "of somebody else"}\n'))
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "registry-file", "empty", "other.gz", "pipe", "."):
        before = {one.name: one.lstat().st_ino for one in tmp_path.iterdir()}
        assert main(["backup", str(tmp_path / name), "--database", filled]) == 3
        assert "an older backup" in capsys.readouterr().err
        assert {one.name: one.lstat().st_ino for one in tmp_path.iterdir()} == before
    assert main(["backup", str(file), "--database", filled]) == 0
    # A truncated backup may be overwritten as well.
    file.write_bytes(file.read_bytes()[:-40])
    assert main(["backup", str(file), "--database", filled]) == 0


@pytest.mark.both_databases
def test_no_backup_is_replaced_by_one_of_another_database(
    filled: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, other = tmp_path / "b.gz", tmp_path / "c.gz"
    known = ["--database", filled, "--state-dir", str(tmp_path / "state")]
    assert main(["backup", str(file), *known]) == 0
    assert main(["database", "adopt", *known]) == 0
    assert main(["backup", str(file), *known]) == 0
    marker = next((tmp_path / "state").iterdir())
    # The database was set back: this host knows a later event.
    marker.write_text(json.dumps(json.loads(marker.read_text()) | {"sequence": 999}))
    before = file.read_bytes()
    capsys.readouterr()
    assert main(["backup", str(file), *known]) == 1
    assert "lifesign database adopt" in capsys.readouterr().err
    assert file.read_bytes() == before
    assert main(["backup", str(other), *known]) == 0


@pytest.mark.both_databases
def test_backup_to_standard_output_is_refused(
    filled: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert main(["backup", "-", "--database", filled]) == 3
    assert "; got '-'" in capsys.readouterr().err
    assert list((tmp_path / "here").iterdir()) == []


def test_backup_into_a_missing_directory_exits_with_1(
    filled: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["backup", str(tmp_path / "absent" / "b.gz"), "--database", filled]) == 1
    assert "No such file" in capsys.readouterr().err


def test_restore_to_a_database_in_use_is_refused(
    registry: RegistryServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "registry.gz"
    assert main(["backup", str(file), "--database", registry.database_url]) == 0
    assert main(["agents", "register", "since-the-backup"]) == 0
    capsys.readouterr()
    for options in ([], ["--force"]):
        assert main(["restore", str(file), "--database", registry.database_url, *options]) == 1
        output = capsys.readouterr().err
        assert "registry.db is in use" in output
        assert output.count("\n") == 1
    assert main(["agents", "show", "since-the-backup"]) == 0
    registry.stop()
    assert main(["restore", str(file), "--database", registry.database_url, "--force"]) == 0
    registry.start()
    assert main(["agents", "show", "since-the-backup", "--registry", registry.url]) == 1


def test_restore_waits_for_another_process_that_closes_the_database(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, url = tmp_path / "registry.gz", f"sqlite:///{tmp_path}/registry.db"
    assert main(["keys", "create", "--role", "admin", "--name", "alice", "--database", url]) == 0
    assert main(["backup", str(file), "--database", url]) == 0
    other = sqlite3.connect(tmp_path / "registry.db", check_same_thread=False)
    other.execute("PRAGMA journal_mode=WAL")
    other.execute("SELECT count(*) FROM registry").fetchall()
    leaving = threading.Timer(0.2, other.close)
    leaving.start()
    try:
        assert main(["restore", str(file), "--database", url, "--force"]) == 0
    finally:
        leaving.join()


def test_restore_to_a_file_that_is_no_database_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, url = tmp_path / "registry.gz", f"sqlite:///{tmp_path}/registry.db"
    assert main(["keys", "create", "--role", "admin", "--name", "alice", "--database", url]) == 0
    assert main(["backup", str(file), "--database", url]) == 0
    (tmp_path / "diary.db").write_bytes(b"Dear diary, " * 1_000)
    capsys.readouterr()
    assert main(["restore", str(file), "--database", f"sqlite:///{tmp_path}/diary.db", "--force"]) == 2
    assert "database" in capsys.readouterr().err
    assert (tmp_path / "diary.db").read_bytes() == b"Dear diary, " * 1_000


def test_json_lists_what_the_restore_did(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def json_of(*arguments: str) -> dict[str, Any]:
        assert main([*arguments, "--json"]) == 0, capsys.readouterr().err
        return dict(json.loads(capsys.readouterr().out))

    first, second = (["--database", f"sqlite:///{tmp_path}/{name}.db"] for name in ("first", "second"))
    upgrade = json_of("migrate", *first)
    assert upgrade["before"] is None
    key = json_of("keys", "create", "--role", "reader", "--name", "r", *first)["key_id"]
    assert json_of("keys", "revoke", key, *first) == {"key_id": key, "is_revoked": True}
    written = json_of("backup", str(tmp_path / "b.gz"), *first)
    assert written["rows"]["keys"] == 1
    assert json_of("restore", str(tmp_path / "b.gz"), *second)["agents"] == 0
    assert json_of("migrate", *second) == {"before": upgrade["after"], "after": upgrade["after"]}
