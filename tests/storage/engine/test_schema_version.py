import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import text
from tests.support.databases import bare_url, create_tables
from tests.support.fleet import add_agents
from tests.support.next_version import AFTER, AGENT_NAME, BEFORE, use_next_version
from tests.support.racing import racing_context
from tests.support.servers import PATIENCE_SECONDS

from lifesign.storage.engine import schema_version
from lifesign.storage.engine.database import open_database
from lifesign.storage.engine.ownership import REVISION_TABLE
from lifesign.storage.engine.table_definitions import metadata
from lifesign.storage.engine.transaction import Database, Transaction
from lifesign.storage.errors import ForeignDatabase, SchemaOutdated, SchemaUnknown


@pytest.fixture
async def bare(database_kind: str, tmp_path: Path) -> AsyncIterator[Database]:
    """A database in which there is nothing at all."""
    database = open_database(bare_url(database_kind, tmp_path))
    yield database
    await database.close()


def _differences(transaction: Transaction) -> list[Any]:
    context = MigrationContext.configure(
        transaction.connection,
        opts={"compare_type": True, "compare_server_default": True, "version_table": REVISION_TABLE},
    )
    return list(compare_metadata(context, metadata))


def _definitions(transaction: Transaction) -> set[tuple[str, ...]]:
    """Return the database's own description of its tables and indexes, where Alembic does not look."""
    if transaction.is_postgresql:
        statement = """
            SELECT tablename, indexdef FROM pg_indexes WHERE schemaname = 'public'
            UNION SELECT relname, array_to_string(reloptions, ',') FROM pg_class
            WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace
            UNION SELECT relname, description FROM pg_description JOIN pg_class ON objoid = pg_class.oid
            WHERE relnamespace = 'public'::regnamespace
        """
    else:
        statement = "SELECT name, sql FROM sqlite_master"
    found = transaction.connection.execute(text(statement))
    return {(row[0], " ".join(str(row[1]).split())) for row in found if REVISION_TABLE not in row[0]}


async def test_migrations_create_the_defined_tables(
    bare: Database, database_kind: str, tmp_path: Path
) -> None:
    """After a change of table_definitions.py: `python -m lifesign.storage.migrations "what has changed"`."""
    await bare.write(schema_version.upgrade)
    assert await bare.read(_differences) == []
    created = open_database(bare_url(database_kind, tmp_path))
    await create_tables(created)
    assert await bare.read(_definitions) == await created.read(_definitions)
    await created.close()


async def test_column_without_a_migration_is_detected(bare: Database) -> None:
    def drop(transaction: Transaction) -> None:
        schema_version.upgrade(transaction)
        transaction.connection.execute(text("ALTER TABLE agents DROP COLUMN drain_deadline_s"))

    await bare.write(drop)
    assert len(await bare.read(_differences)) == 1


async def test_an_empty_database_is_set_up_once(bare: Database) -> None:
    assert await bare.read(schema_version.revision) is None
    assert await bare.write(schema_version.set_up_or_check) is True
    assert await bare.write(schema_version.set_up_or_check) is False
    await bare.read(schema_version.check)
    again = await bare.write(schema_version.upgrade)
    assert again.before == again.after == schema_version.newest_revision()


async def test_empty_database_is_outdated_when_opened_without_upgrade(bare: Database) -> None:
    with pytest.raises(SchemaOutdated, match="run lifesign migrate"):
        await bare.read(schema_version.check)


def _pretend(revision: str) -> Any:
    def function(transaction: Transaction) -> None:
        schema_version.upgrade(transaction)
        statement = text(f"UPDATE {REVISION_TABLE} SET version_num = :revision")  # noqa: S608 - a constant
        transaction.connection.execute(statement, {"revision": revision})

    return function


async def test_database_of_a_newer_version_is_not_changed(bare: Database) -> None:
    await bare.write(_pretend("9999"))
    for function in (schema_version.check, schema_version.upgrade, schema_version.set_up_or_check):
        with pytest.raises(SchemaUnknown, match="9999"):
            await bare.write(function)
    assert await bare.read(schema_version.revision) == "9999"


async def test_older_database_is_upgraded_only_on_request(
    bare: Database, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    await bare.write(schema_version.upgrade)
    await add_agents(bare, 2)
    use_next_version(monkeypatch, tmp_path)
    for function in (schema_version.check, schema_version.set_up_or_check):
        with pytest.raises(SchemaOutdated, match=BEFORE):
            await bare.write(function)
    assert await bare.read(schema_version.is_behind)
    done = await bare.write(schema_version.upgrade)
    assert (done.before, done.after) == (BEFORE, AFTER)
    await bare.read(schema_version.check)
    statement = text("SELECT name, of_the_next_version FROM agents")
    rows = await bare.read(lambda transaction: transaction.connection.execute(statement).all())
    assert [tuple(row) for row in rows] == [(AGENT_NAME, None)] * 2


async def test_empty_database_gets_all_migrations(
    bare: Database, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use_next_version(monkeypatch, tmp_path)
    done = await bare.write(schema_version.upgrade)
    assert (done.before, done.after) == (None, AFTER)
    assert schema_version.known_revisions() == {BEFORE, AFTER}


def test_names_of_the_files_are_the_revisions_that_alembic_reads(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for is_next in (False, True):
        if is_next:
            use_next_version(monkeypatch, tmp_path)
        scripts = ScriptDirectory.from_config(schema_version.alembic_config())
        assert schema_version.known_revisions() == {script.revision for script in scripts.walk_revisions()}
        assert scripts.get_heads() == [schema_version.newest_revision()]


def _done(*statements: str) -> Callable[[Transaction], None]:
    def function(transaction: Transaction) -> None:
        for statement in statements:
            transaction.connection.execute(text(statement))

    return function


@pytest.mark.parametrize("name", ["agents", "customers", REVISION_TABLE.replace("_", "")])
async def test_a_database_of_another_program_is_not_touched(bare: Database, name: str) -> None:
    await bare.write(_done(f"CREATE TABLE {name} (codename text)"))
    before = await bare.read(_definitions)
    for function in (
        schema_version.check,
        schema_version.is_behind,
        schema_version.upgrade,
        schema_version.set_up_or_check,
    ):
        with pytest.raises(ForeignDatabase, match=name):
            await bare.write(function)
    assert await bare.read(_definitions) == before


async def test_database_with_foreign_tables_and_an_empty_revision_table_is_foreign(bare: Database) -> None:
    await bare.write(_done(f"CREATE TABLE {REVISION_TABLE} (version_num text)"))
    assert await bare.read(schema_version.revision) is None
    await bare.write(_done("CREATE TABLE customers (name text)"))
    with pytest.raises(ForeignDatabase, match="customers"):
        await bare.write(schema_version.upgrade)


async def test_tables_of_others_are_ignored(bare: Database) -> None:
    assert await bare.write(schema_version.set_up_or_check) is True
    await bare.write(_done("CREATE TABLE customers (name text)"))
    assert await bare.write(schema_version.set_up_or_check) is False


async def test_views_of_another_program_do_not_prevent_a_new_database(
    bare: Database, database_kind: str
) -> None:
    others = ["CREATE VIEW numbers AS SELECT 1 AS one"]
    if database_kind == "postgresql":
        others += [
            "CREATE SCHEMA theirs",
            "CREATE TABLE theirs.customers (name text)",
            # As of PostGIS: a table that an extension has brought.
            "CREATE TABLE spatial_ref_sys (srid integer)",
            "ALTER EXTENSION plpgsql ADD TABLE spatial_ref_sys",
        ]
    await bare.write(_done(*others))
    assert await bare.write(schema_version.set_up_or_check) is True


async def test_failed_migration_is_rolled_back(bare: Database) -> None:
    def fail_late(transaction: Transaction) -> None:
        schema_version.upgrade(transaction)
        raise LookupError("on purpose")

    with pytest.raises(LookupError):
        await bare.write(fail_late)
    assert await bare.read(schema_version.revision) is None
    assert await bare.read(_definitions) == set()


def _set_up(url: str, start: Any, answers: Any) -> None:
    async def run() -> bool:
        database = open_database(url)
        try:
            return await database.write(schema_version.set_up_or_check)
        finally:
            await database.close()

    start.wait(PATIENCE_SECONDS)
    answers.put(asyncio.run(run()))


def test_one_of_many_starting_servers_sets_up_the_database(database_kind: str, tmp_path: Path) -> None:
    url = bare_url(database_kind, tmp_path)
    context = racing_context()
    start, answers = context.Barrier(3), context.SimpleQueue()
    processes = [context.Process(target=_set_up, args=(url, start, answers)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(PATIENCE_SECONDS)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert sorted(answers.get() for _ in processes) == [False, False, True]
