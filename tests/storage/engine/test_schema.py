"""Does every database become what tables.py says, once, whatever happens meanwhile?"""

import asyncio
import base64
import multiprocessing
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import insert, text
from tests.support.databases import bare_url, create_tables
from tests.support.fleet import older_columns
from tests.support.servers import PATIENCE_SECONDS

from lifesign.domain.events.webhook_signature import secret_of
from lifesign.domain.net.target import host_of, shard_of, target_id
from lifesign.domain.observation.probe_memory import ProbeMemory
from lifesign.storage.engine import schema, tables
from lifesign.storage.engine.database import Database, open_database
from lifesign.storage.engine.ownership import REVISION_TABLE
from lifesign.storage.engine.tables import metadata
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.errors import ForeignDatabase, SchemaOutdated, SchemaUnknown
from lifesign.storage.events import webhooks
from lifesign.storage.targets import census_counts, target_rows


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
    """What the database itself says of its tables and indexes, where Alembic does not look."""
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


async def test_the_migrations_lead_to_what_the_tables_say(
    bare: Database, database_kind: str, tmp_path: Path
) -> None:
    """After a change of tables.py: `python -m lifesign.storage.migrations "what has changed"`."""
    await bare.write(schema.upgrade)
    assert await bare.read(_differences) == []
    created = open_database(bare_url(database_kind, tmp_path))
    await create_tables(created)
    assert await bare.read(_definitions) == await created.read(_definitions)
    await created.close()


async def test_a_column_that_no_migration_makes_is_seen(bare: Database) -> None:
    def drop(transaction: Transaction) -> None:
        schema.upgrade(transaction)
        transaction.connection.execute(text("ALTER TABLE agents DROP COLUMN drain_deadline_s"))

    await bare.write(drop)
    assert len(await bare.read(_differences)) == 1


def _add_older(transaction: Transaction, agent_id: str, columns: Mapping[str, object]) -> None:
    """Store an agent as the first version did."""
    row = older_columns(agent_id, **columns)
    names = ", ".join(row)
    values = ", ".join(f":{name}" for name in row)
    transaction.connection.execute(text(f"INSERT INTO agents ({names}) VALUES ({values})"), row)  # noqa: S608


async def test_agents_that_wanted_to_be_probed_are_targets_of_the_next_version(bare: Database) -> None:
    def set_up_as_before(transaction: Transaction) -> None:
        command.upgrade(schema.alembic_config(transaction.connection), "0001")

    await bare.write(set_up_as_before)
    for agent_id, columns in {
        "probed": {"monitoring": "probe", "card_url": "https://AGENT.example:443/card"},
        "both": {"monitoring": "both", "card_url": "http://10.0.0.1"},
        "dead": {"monitoring": "probe", "card_url": "https://dead.example/", "status": "dead"},
        "beats": {"card_url": "https://beats.example/"},
        "gone": {"monitoring": "probe", "card_url": "https://gone.example/", "status": "deregistered"},
        "odd": {"monitoring": "probe", "card_url": "https://a..example/"},
    }.items():
        await bare.write(partial(_add_older, agent_id=f"{agent_id}-0", columns=columns))
    await bare.write(schema.upgrade)
    whole = partial(target_rows.feed, after=None, until=1, place=None, limit=10)
    found: dict[str, str] = {}
    for host in ("agent.example", "10.0.0.1", "dead.example", "beats.example", "gone.example"):
        rows = await bare.read(partial(whole, shard=shard_of(host)))
        found |= {row.subject_id: row.url for row in rows}
    assert found == {
        "probed-0": "https://agent.example/card",
        "both-0": "http://10.0.0.1/",
        "dead-0": "https://dead.example/",
    }
    assert await bare.read(target_rows.last_version) == 1
    # The next change is told to whoever has read all of these.
    assert await bare.write(target_rows.next_version) == 2


async def test_agents_that_probers_found_are_told_apart_from_their_cards_by_the_next_version(
    bare: Database,
) -> None:
    found = {"with": "https://with.example/", "without": "https://without.example/"}
    own = "https://own.example/card"
    card = "https://with.example/.well-known/agent.json"

    def set_up_as_before(transaction: Transaction) -> None:
        connection = transaction.connection
        command.upgrade(schema.alembic_config(connection), "0010")
        for number, (agent_id, url, is_registered) in enumerate(
            [
                *((target_id(url), url, False) for url in found.values()),
                ("own", own, True),
                (target_id(own), own, True),
            ]
        ):
            _add_older(transaction, agent_id, {"monitoring": "probe", "card_url": url})
            row = {"id": number + 1, "subject_id": agent_id, "url": url, "host": host_of(url), "shard": 1}
            row |= {"version": 1, "is_registered": is_registered, "added_at_s": 1.0}
            connection.execute(insert(tables.targets).values(row))
        memory = ProbeMemory(card_url=card, probed_at_s=1.0).to_json()
        connection.execute(insert(tables.probed).values(target=1, observed_at_s=1.0, memory=memory))

    await bare.write(set_up_as_before)
    await bare.write(schema.upgrade)
    statement = text("SELECT agent_id, target_url, card_url FROM agents")
    after = await bare.read(lambda transaction: transaction.connection.execute(statement).all())
    assert sorted(tuple(row) for row in after) == sorted(
        [
            (target_id(found["with"]), found["with"], card),
            (target_id(found["without"]), found["without"], None),
            ("own", None, own),
            (target_id(own), None, own),
        ]
    )


async def test_a_pass_of_an_older_version_tells_nothing_that_was_not_noted_then(bare: Database) -> None:
    def set_up_as_before(transaction: Transaction) -> None:
        command.upgrade(schema.alembic_config(transaction.connection), "0011")
        row = {"run_id": "old", "name": "census", "began_at_s": 1.0}
        transaction.connection.execute(insert(tables.census_runs).values(row))

    await bare.write(set_up_as_before)
    await bare.write(schema.upgrade)
    run = await bare.read(partial(census_counts.find_run, run_id="old"))
    assert run is not None
    assert (run.began_at_s, run.deadlines, run.not_read) == (1.0, None, ())


async def test_secrets_of_webhooks_are_standard_base64_of_the_same_bytes_in_the_next_version(
    bare: Database,
) -> None:
    random_bytes = bytes(range(224, 256))
    older = "whsec_" + base64.urlsafe_b64encode(random_bytes).decode().rstrip("=")
    assert {"-", "_"} & set(older.removeprefix("whsec_"))

    def set_up_as_before(transaction: Transaction) -> None:
        connection = transaction.connection
        command.upgrade(schema.alembic_config(connection), "0014")
        columns = "id, url, types, secret, created_by, created_at_s, delivered_sequence, failures"
        connection.execute(
            text(
                f"INSERT INTO webhooks ({columns}, next_try_at_s, is_disabled)"  # noqa: S608 - constants only
                " VALUES ('w', 'https://hook.example/', '[]', :secret, 'k', 1, 2, 0, 1, false)"
            ),
            {"secret": older},
        )

    await bare.write(set_up_as_before)
    await bare.write(schema.upgrade)
    (webhook,) = await bare.read(lambda transaction: webhooks.listing(transaction, 10))
    assert webhook.secrets_at(1.0) == [secret_of(random_bytes)]
    assert (webhook.delivered_sequence, webhook.message_id) == (2, None)


async def test_thresholds_of_heartbeats_are_whole_seconds_in_the_next_version(bare: Database) -> None:
    names = ("interval_s", "unhealthy_after_s", "dead_after_s")
    before = {"whole": (30, 90, 300), "odd": (10.5, 21.25, 42.5), "near": (1.5, 3.0, 6.0)}

    def set_up_as_before(transaction: Transaction) -> None:
        command.upgrade(schema.alembic_config(transaction.connection), "0014")
        for agent_id, thresholds in before.items():
            _add_older(transaction, agent_id, dict(zip(names, thresholds, strict=True)))

    await bare.write(set_up_as_before)
    await bare.write(schema.upgrade)
    statement = text(f"SELECT agent_id, {', '.join(names)} FROM agents")  # noqa: S608 - constants only
    after = await bare.read(lambda transaction: transaction.connection.execute(statement).all())
    assert {row[0]: tuple(row[1:]) for row in after} == {
        "whole": (30, 90, 300),
        "odd": (10, 22, 44),
        "near": (1, 3, 6),
    }


async def test_an_empty_database_is_set_up_once(bare: Database) -> None:
    assert await bare.read(schema.revision) is None
    assert await bare.write(schema.set_up_or_check) is True
    assert await bare.write(schema.set_up_or_check) is False
    await bare.read(schema.check)
    again = await bare.write(schema.upgrade)
    assert again.before == again.after == schema.newest_revision()


async def test_an_empty_database_is_outdated_where_nothing_may_be_changed(bare: Database) -> None:
    with pytest.raises(SchemaOutdated, match="run lifesign migrate"):
        await bare.read(schema.check)


def _pretend(revision: str) -> Any:
    def deed(transaction: Transaction) -> None:
        schema.upgrade(transaction)
        statement = text(f"UPDATE {REVISION_TABLE} SET version_num = :revision")  # noqa: S608 - a constant
        transaction.connection.execute(statement, {"revision": revision})

    return deed


async def test_a_database_of_a_newer_version_is_left_alone(bare: Database) -> None:
    await bare.write(_pretend("9999"))
    for deed in (schema.check, schema.upgrade, schema.set_up_or_check):
        with pytest.raises(SchemaUnknown, match="9999"):
            await bare.write(deed)
    assert await bare.read(schema.revision) == "9999"


async def test_a_database_of_an_older_version_is_not_upgraded_unasked(
    bare: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bare.write(schema.upgrade)
    current = schema.newest_revision()
    monkeypatch.setattr(schema, "newest_revision", lambda: "9998")
    with pytest.raises(SchemaOutdated, match=current):
        await bare.write(schema.set_up_or_check)


def _done(*statements: str) -> Callable[[Transaction], None]:
    def deed(transaction: Transaction) -> None:
        for statement in statements:
            transaction.connection.execute(text(statement))

    return deed


@pytest.mark.parametrize("name", ["agents", "customers", REVISION_TABLE.replace("_", "")])
async def test_a_database_of_another_program_is_not_touched(bare: Database, name: str) -> None:
    await bare.write(_done(f"CREATE TABLE {name} (codename text)"))
    before = await bare.read(_definitions)
    for deed in (schema.check, schema.is_behind, schema.upgrade, schema.set_up_or_check):
        with pytest.raises(ForeignDatabase, match=name):
            await bare.write(deed)
    assert await bare.read(_definitions) == before


async def test_a_table_of_revisions_without_one_makes_other_tables_no_less_foreign(bare: Database) -> None:
    await bare.write(_done(f"CREATE TABLE {REVISION_TABLE} (version_num text)"))
    assert await bare.read(schema.revision) is None
    await bare.write(_done("CREATE TABLE customers (name text)"))
    with pytest.raises(ForeignDatabase, match="customers"):
        await bare.write(schema.upgrade)


async def test_what_others_put_beside_our_tables_later_is_their_business(bare: Database) -> None:
    assert await bare.write(schema.set_up_or_check) is True
    await bare.write(_done("CREATE TABLE customers (name text)"))
    assert await bare.write(schema.set_up_or_check) is False


async def test_what_is_no_table_of_another_program_keeps_nobody_from_a_new_database(
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
    assert await bare.write(schema.set_up_or_check) is True


async def test_a_migration_that_fails_leaves_nothing(bare: Database) -> None:
    def fail_late(transaction: Transaction) -> None:
        schema.upgrade(transaction)
        raise LookupError("on purpose")

    with pytest.raises(LookupError):
        await bare.write(fail_late)
    assert await bare.read(schema.revision) is None
    assert await bare.read(_definitions) == set()


def _set_up(url: str, start: Any, answers: Any) -> None:
    async def run() -> bool:
        database = open_database(url)
        try:
            return await database.write(schema.set_up_or_check)
        finally:
            await database.close()

    start.wait(PATIENCE_SECONDS)
    answers.put(asyncio.run(run()))


def test_of_servers_that_start_at_once_one_sets_up_the_database(database_kind: str, tmp_path: Path) -> None:
    url = bare_url(database_kind, tmp_path)
    spawning = multiprocessing.get_context("spawn")
    start, answers = spawning.Barrier(3), spawning.SimpleQueue()
    processes = [spawning.Process(target=_set_up, args=(url, start, answers)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(PATIENCE_SECONDS)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert sorted(answers.get() for _ in processes) == [False, False, True]
