"""The command `database adopt`, and what `serve`, `restore` and `doctor` make of a marker."""

import asyncio
import json
import logging
import logging.config
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.databases import bare_url, migrated_url
from tests.support.registry_process import with_database

from lifesign.cli import main
from lifesign.domain.events.chain import Checkpoint
from lifesign.domain.events.database_marker import DatabaseMarker
from lifesign.registry import run_server
from lifesign.registry.database_identity.marker_check import current_marker
from lifesign.registry.database_identity.marker_file import MarkerFile, marker_file


@pytest.fixture
def url(database_kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """The URL of a database with a key in it."""
    url = migrated_url(database_kind, tmp_path)
    assert main(["keys", "create", "--role", "admin", "--name", "alice", "--database", url]) == 0
    capsys.readouterr()
    return url


@pytest.fixture
def file(url: str, tmp_path: Path) -> MarkerFile:
    return marker_file(url, tmp_path / "state")


def current(url: str) -> DatabaseMarker:
    return asyncio.run(with_database(url, lambda database: database.write(current_marker)))


def of_another(file: MarkerFile) -> None:
    """Let the host know another installation under this URL."""
    head = Checkpoint(7, "a" * 64)
    file.write(DatabaseMarker(installation_id="ins_other", epoch=70_000, head=head))


def adopt(url: str, file: MarkerFile, *options: str) -> int:
    return main(["database", "adopt", "--database", url, "--state-dir", str(file.directory), *options])


@pytest.mark.both_databases
def test_another_database_is_adopted_once(
    url: str, file: MarkerFile, capsys: pytest.CaptureFixture[str]
) -> None:
    of_another(file)
    assert adopt(url, file, "--json") == 0
    output = json.loads(capsys.readouterr().out)
    assert output == {"adopted": True, "epoch": 70_001, "marker": str(file.path)}
    assert file.read() == current(url)
    assert adopt(url, file, "--json") == 0
    assert json.loads(capsys.readouterr().out) == output | {"adopted": False}
    assert adopt(url, file) == 0
    assert "nothing to adopt" in capsys.readouterr().out
    assert adopt(url, file, "--force", "--json") == 0
    assert json.loads(capsys.readouterr().out)["adopted"] is True
    assert file.read() == current(url)


def test_adopting_works_without_a_marker(
    url: str, file: MarkerFile, capsys: pytest.CaptureFixture[str]
) -> None:
    before = current(url)
    assert adopt(url, file, "--json") == 0
    output = json.loads(capsys.readouterr().out)
    assert output["adopted"]
    assert output["epoch"] > before.epoch
    assert file.read() == current(url)
    assert adopt(url, file) == 0
    assert "nothing to adopt" in capsys.readouterr().out


def test_serve_logs_a_created_marker_of_an_existing_database_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(run_server._AnnouncingServer, "run", lambda *_: None)
    monkeypatch.setattr(logging.config, "dictConfig", lambda _: None)
    caplog.set_level(logging.INFO, "lifesign.registry")
    url = f"sqlite:///{tmp_path}/new.db"
    for expected in (0, 1):
        file = marker_file(url, tmp_path / "state")
        assert main(["serve", "--database", url, "--state-dir", str(file.directory), "--port", "0"]) == 0
        assert sum("created one" in line for line in caplog.messages) == expected
        file.path.unlink()


@pytest.mark.parametrize("command", ["serve --port 0", "database adopt"])
def test_a_marker_of_a_newer_format_is_refused_and_kept(
    command: str,
    url: str,
    file: MarkerFile,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    of_another(file)
    file.path.write_text('{"format": 2}')
    monkeypatch.setattr(run_server._AnnouncingServer, "run", lambda *_: None)
    monkeypatch.setattr(logging.config, "dictConfig", lambda _: None)
    assert main([*command.split(), "--database", url, "--state-dir", str(file.directory)]) == 1
    assert f"{file.path} has format 2" in capsys.readouterr().err
    assert file.path.read_text() == '{"format": 2}'


def test_adopting_a_missing_database_creates_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{tmp_path}/new.db"
    file = marker_file(url, tmp_path / "state")
    assert adopt(url, file) == 3
    assert not (tmp_path / "new.db").exists()
    of_another(file)
    capsys.readouterr()
    assert adopt(url, file) == 0
    output = capsys.readouterr()
    assert "epoch 70001" in output.out
    # The line about withdrawals that are lost.
    assert output.err.count("\n") == 1
    assert file.read() == current(url)


def test_database_in_use_or_of_another_program_is_not_adopted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "theirs.db"
    url = f"sqlite:///{file}"
    marker = marker_file(url, tmp_path / "state")
    of_another(marker)
    make = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('CREATE TABLE notes (text)')"
    subprocess.run([sys.executable, "-c", make, str(file)], check=True)
    before = file.read_bytes()
    assert adopt(url, marker) == 2
    assert "another program" in capsys.readouterr().err
    assert file.read_bytes() == before
    assert (marker.read() or current(url)).installation_id == "ins_other"


def test_read_only_directory_is_reported_before_any_change(
    url: str, file: MarkerFile, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert main(["database", "adopt", "--database", url, "--state-dir", str(tmp_path / "file")]) == 3
    assert "state_dir" in capsys.readouterr().err
    assert current(url).epoch == 0


def test_restore_updates_an_existing_marker(
    url: str, file: MarkerFile, database_kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also into an empty database from a backup that knows nothing of the marker's installation."""
    backup = str(tmp_path / "backup.gz")
    assert main(["backup", backup, "--database", url]) == 0
    state = ["--state-dir", str(file.directory)]
    assert main(["restore", backup, "--database", url, "--force", *state]) == 0
    # A host that serves no such database gets no marker.
    assert file.read() is None
    empty = bare_url(database_kind, tmp_path)
    marker = marker_file(empty, file.directory)
    of_another(marker)
    assert main(["restore", backup, "--database", empty, *state]) == 0
    assert marker.read() == current(empty)
    assert current(empty).epoch == 70_001
    assert capsys.readouterr().err.count("warning") == 0


def test_restore_over_another_database_than_the_known_one_suspends_its_keys(
    url: str, file: MarkerFile, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    backup = str(tmp_path / "backup.gz")
    assert main(["backup", backup, "--database", url]) == 0
    of_another(file)
    arguments = ["--database", url, "--state-dir", str(file.directory), "--force", "--json"]
    for lacks, suspended in ((True, 1), (False, 0)):
        capsys.readouterr()
        assert main(["restore", backup, *arguments]) == 0
        shown = json.loads(capsys.readouterr().out)
        assert (shown["may_lack_changes"], len(shown["unknown_keys"])) == (lacks, suspended)
        assert shown["epoch"] > 70_000


@pytest.mark.both_databases
def test_restore_succeeds_with_a_warning_if_the_marker_is_not_writable(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    backup = str(tmp_path / "backup.gz")
    (tmp_path / "file").touch()
    assert main(["backup", backup, "--database", url]) == 0
    state = ["--state-dir", str(tmp_path / "file")]
    assert main(["restore", backup, "--database", url, "--force", *state]) == 0
    output = capsys.readouterr().err
    assert re.search(r"warning: .*marker", output)
    assert current(url).epoch > 0


@pytest.mark.parametrize(("state", "verdict"), [
    ("absent", "skipped"),
    ("same", "ok"),
    ("other", "fault"),
    ("damaged", "warning"),
    ("newer", "fault"),
    ("unreadable", "fault"),
])  # fmt: skip
def test_doctor_checks_the_marker(
    url: str, file: MarkerFile, state: str, verdict: str, capsys: pytest.CaptureFixture[str]
) -> None:
    match state:
        case "same":
            file.write(current(url))
        case "other":
            of_another(file)
        case "damaged":
            of_another(file)
            file.path.write_text("{")
        case "newer":
            of_another(file)
            file.path.write_text('{"format": 2}')
        case "unreadable":
            file.path.mkdir(parents=True)
        case _:
            pass
    before = sorted(file.directory.parent.rglob("*"))
    main(["doctor", "--database", url, "--state-dir", str(file.directory), "--json"])
    findings = json.loads(capsys.readouterr().out)["findings"]
    (found,) = [finding for finding in findings if finding["about"] == "marker"]
    assert found["verdict"] == verdict
    assert bool(found["advice"]) is (verdict != "ok")
    assert sorted(file.directory.parent.rglob("*")) == before


@pytest.mark.parametrize("is_absent", [True, False])
def test_doctor_reports_a_missing_database_with_a_marker(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], *, is_absent: bool
) -> None:
    url = f"sqlite:///{tmp_path}/new.db"
    file = marker_file(url, tmp_path / "state")
    of_another(file)
    if not is_absent:
        (tmp_path / "new.db").touch(0o600)
    assert main(["doctor", "--database", url, "--state-dir", str(file.directory), "--json"]) == 1
    findings = json.loads(capsys.readouterr().out)["findings"]
    faults = [finding for finding in findings if finding["verdict"] == "fault"]
    assert [("adopt" in fault["advice"]) for fault in faults] == [True]
