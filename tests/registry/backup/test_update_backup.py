from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import MetaData, Table, inspect, select
from tests.support.databases import bare_url
from tests.support.fleet import add_agents
from tests.support.next_version import AFTER, AGENT_NAME, BEFORE, use_next_version

from lifesign.registry.backup.create_backup import restore
from lifesign.registry.backup.update_backup import check, updated
from lifesign.storage.engine import schema_version
from lifesign.storage.engine.database import open_database
from lifesign.storage.engine.ownership import REVISION_TABLE
from lifesign.storage.engine.transaction import Database, Transaction
from lifesign.storage.errors import InvalidBackup, StoreUnavailable
from lifesign.storage.whole_database import all_rows
from lifesign.storage.whole_database.backup_file import BackupHeader, reading, writing

CREATED_AT_S = 1_763_640_000.25


@pytest.fixture(autouse=True)
def _next_version(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use_next_version(monkeypatch, tmp_path)


async def _set_up_older(database: Database, file: Path) -> None:
    """Set up a database as in an older version, and a backup by that version."""
    upgrade = partial(schema_version.upgrade_connection, to=BEFORE)
    await database.write(lambda transaction: upgrade(transaction.connection))
    await add_agents(database, 2)
    await database.read(partial(_write_backup, file=file))


def _write_backup(transaction: Transaction, file: Path) -> None:
    connection = transaction.connection
    with writing(file, BackupHeader(revision=BEFORE, created_at_s=CREATED_AT_S)) as writer:
        for table in inspect(connection).get_sorted_table_and_fkc_names():
            if table[0] is None or table[0] == REVISION_TABLE:
                continue
            # With the types of the columns, as backups are written: JSON is no text in them.
            there = Table(table[0], MetaData(), autoload_with=connection, resolve_fks=False)
            writer.begin_table(there.name, there.columns.keys())
            for row in connection.execute(select(there)):
                writer.add_row(list(row))


async def _everything(database: Database) -> dict[str, list[Any]]:
    def function(transaction: Transaction) -> dict[str, list[Any]]:
        return {table.name: list(all_rows.read(transaction, table)) for table in all_rows.KEPT}

    return await database.read(function)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory with write permission."""
    directory = tmp_path / "temporary"
    directory.mkdir()
    return directory


async def test_updated_backup_equals_a_backup_of_the_upgraded_database(
    tmp_path: Path, directory: Path
) -> None:
    file = tmp_path / "before.gz"
    older = open_database(f"sqlite:///{tmp_path}/older.db")
    await _set_up_older(older, file)
    assert check(file).revision == BEFORE
    current = await updated(file, directory)
    assert check(current) == BackupHeader(revision=AFTER, created_at_s=CREATED_AT_S)
    await older.write(schema_version.upgrade)
    upgraded = await _everything(older)
    await older.close()
    with reading(current) as (_, batches):
        held = {batch.table: [tuple(row) for row in batch.rows] for batch in batches}
    assert held == {name: rows for name, rows in upgraded.items() if rows}
    assert [row[1] for row in held["agents"]] == ["agent-0", "agent-1"]
    assert all(AGENT_NAME in row for row in held["agents"])


@pytest.mark.both_databases
async def test_upgraded_backup_is_restored_to_either_database(
    database_kind: str, tmp_path: Path, directory: Path
) -> None:
    file = tmp_path / "before.gz"
    older = open_database(f"sqlite:///{tmp_path}/older.db")
    await _set_up_older(older, file)
    await older.close()
    current = await updated(file, directory)
    target = open_database(bare_url(database_kind, tmp_path))
    done = await target.write(partial(restore, file=current, is_forced=False, actor="test"))
    assert (done.agents, done.header.created_at_s) == (2, CREATED_AT_S)
    await target.read(schema_version.check)
    await target.close()


def _written(file: Path, revision: str, table: str, columns: list[str]) -> Path:
    with writing(file, BackupHeader(revision=revision, created_at_s=1.0)) as writer:
        writer.begin_table(table, columns)
        writer.add_row([1 for _ in columns])
    return file


def test_backup_of_a_newer_version_is_refused_with_a_hint(tmp_path: Path) -> None:
    file = _written(tmp_path / "newer.gz", "9999", "agents", ["id"])
    with pytest.raises(InvalidBackup, match=r"\b9999, .*newer version"):
        check(file)


@pytest.mark.parametrize(
    ("table", "columns"), [("agents", ["id", "of_a_later_time"]), ("nowhere", ["id"]), ("event_log", ["id"])]
)
async def test_rows_that_do_not_fit_the_tables_of_their_revision_are_refused(
    tmp_path: Path, directory: Path, table: str, columns: list[str]
) -> None:
    file = _written(tmp_path / "odd.gz", BEFORE, table, columns)
    with pytest.raises(InvalidBackup, match=rf"{file.name} .*rows of '{table}'"):
        await updated(file, directory)


async def test_sessions_of_older_backups_are_dropped(tmp_path: Path, directory: Path) -> None:
    file = _written(tmp_path / "older.gz", BEFORE, "sessions", ["digest"])
    with reading(await updated(file, directory)) as (_, batches):
        assert [batch.table for batch in batches] == []


async def test_full_disk_during_an_update_is_reported_with_the_directory(
    tmp_path: Path, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_full(_transaction: Transaction) -> None:
        raise StoreUnavailable("disk full")

    file = _written(tmp_path / "older.gz", BEFORE, "sessions", ["digest"])
    monkeypatch.setattr(schema_version, "upgrade", is_full)
    with pytest.raises(StoreUnavailable, match=rf"\bolder\.gz .* {directory}: .*full"):
        await updated(file, directory)
