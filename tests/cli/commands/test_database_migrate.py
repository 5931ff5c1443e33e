import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from tests.support.complaints import problems_in
from tests.support.databases import bare_url

from lifesign.cli import main
from lifesign.storage.engine import schema_version


@pytest.mark.both_databases
def test_a_database_is_set_up_once(
    database_kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = bare_url(database_kind, tmp_path)
    newest = schema_version.newest_revision()
    assert main(["migrate", "--database", url]) == 0
    output = capsys.readouterr().out
    assert (output.startswith("created "), output.split()[-1]) == (True, newest)
    assert main(["migrate", "--database", url]) == 0
    assert capsys.readouterr().out == f"already at revision {newest}\n"


@pytest.mark.parametrize("journal", ["DELETE", "WAL"])
@pytest.mark.parametrize(
    "command", [["migrate"], ["serve", "--port", "0"], ["keys", "list"], ["census"], ["restore"]]
)
def test_migrate_does_not_change_a_file_of_another_program(
    command: list[str], journal: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "theirs.db"
    with closing(sqlite3.connect(file)) as foreign:
        foreign.execute(f"PRAGMA journal_mode={journal}")
        foreign.execute("CREATE TABLE customers (name)")
    if command == ["restore"]:
        ours = ["--database", f"sqlite:///{tmp_path}/ours.db"]
        assert main(["migrate", *ours]) == 0
        assert main(["backup", f"{tmp_path}/b.gz", *ours]) == 0
        command = ["restore", f"{tmp_path}/b.gz", "--force"]
    if command == ["census"]:
        (tmp_path / "urls.txt").write_text("https://a.example/\n")
        command = ["census", f"{tmp_path}/urls.txt", "--contact", "mailto:a@b.example"]
    capsys.readouterr()
    before = file.read_bytes(), sorted(tmp_path.iterdir())
    assert main([*command, "--database", f"sqlite:///{file}"]) == 2
    output = capsys.readouterr().err
    assert ": customers" in output
    assert (file.read_bytes(), sorted(tmp_path.iterdir())) == before


def test_unreachable_database_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["migrate", "--database", "postgresql://ah:hunter2@127.0.0.1:1/ah"]) == 2
    output = capsys.readouterr().err
    assert len(problems_in(output)) == 1
    assert "hunter2" not in output


def test_migrate_of_a_file_that_is_no_database_exits_with_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.db").write_text("no database" * 1_000)
    assert main(["migrate", "--database", f"sqlite:///{tmp_path}/a.db"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
