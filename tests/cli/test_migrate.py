"""Does `agent-health migrate` say what it did?"""

from pathlib import Path

import pytest
from tests.support.databases import bare_url

from agent_health.cli import main
from agent_health.storage import schema


def test_a_database_is_set_up_once(
    database_kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = bare_url(database_kind, tmp_path)
    newest = schema.newest_revision()
    assert main(["migrate", "--database", url]) == 0
    assert capsys.readouterr().out == f"set up at revision {newest}\n"
    assert main(["migrate", "--database", url]) == 0
    assert capsys.readouterr().out == f"already at revision {newest}\n"


def test_a_database_that_is_away_ends_with_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["migrate", "--database", "postgresql://ah:hunter2@127.0.0.1:1/ah"]) == 1
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "hunter2" not in told


def test_a_file_that_is_no_database_ends_with_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.db").write_text("no database" * 1_000)
    assert main(["migrate", "--database", f"sqlite:///{tmp_path}/a.db"]) == 1
    assert capsys.readouterr().err.count("\n") == 1
