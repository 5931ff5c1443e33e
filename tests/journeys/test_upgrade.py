"""Is anything lost, or anybody dead, when a database of the version before is upgraded under its agents?"""

import asyncio
import json
import os
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from alembic import command
from alembic.script import ScriptDirectory
from sqlalchemy import MetaData, func, insert, select, text
from tests.support.databases import bare_url
from tests.support.registry_load import Ledger, Load
from tests.support.registry_process import DATABASE_VARIABLE, agent_key, prepare, registry, with_database
from tests.support.servers import PATIENCE_SECONDS, SCRIPTS, Server, free_port

from lifesign.domain.events.event_type import EventType
from lifesign.storage.engine import schema
from lifesign.storage.engine.ownership import REVISION_TABLE
from lifesign.storage.engine.tables import metadata
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.events import event_log

AGENTS = [f"agent-{number}" for number in range(8)]
QUIET = "agent-that-beats-every-second"
"""Silence of a few seconds makes it unhealthy, unless nobody was there to hear it."""
BEAT = {"status": "active", "client_timestamp": "2026-01-01T00:00:00Z"}
FACTS = 30
"""So many changes are acknowledged before the upgrade, and after it."""
BEFORE, NEWEST = [
    each.revision for each in ScriptDirectory.from_config(schema.alembic_config()).walk_revisions()
][1::-1]


def rows_of(transaction: Transaction) -> dict[str, list[dict[str, Any]]]:
    return {
        table.name: [dict(row) for row in transaction.connection.execute(select(table)).mappings()]
        for table in metadata.sorted_tables
    }


def set_up_as_before(transaction: Transaction, rows: dict[str, list[dict[str, Any]]]) -> None:
    """Make the tables of the version before and fill them with what they can hold."""
    connection = transaction.connection
    command.upgrade(schema.alembic_config(connection), BEFORE)
    known = MetaData()
    known.reflect(connection)
    for table in known.sorted_tables:
        if kept := [
            {name: row[name] for name in table.columns.keys() & row.keys()}
            for row in rows.get(table.name, [])
        ]:
            # The types are ours: what SQLite tells of its own loses JSON and truths.
            types = {name: metadata.tables[table.name].columns[name].type for name in kept[0]}
            typed = sqlalchemy.table(table.name, *(sqlalchemy.column(*each) for each in types.items()))
            connection.execute(insert(typed), kept)
    if transaction.is_postgresql:
        for table in known.sorted_tables:
            for column in table.primary_key.columns:
                sequence = connection.scalar(select(func.pg_get_serial_sequence(table.name, column.name)))
                if sequence is not None:
                    most = select(func.coalesce(func.max(column), 0) + 1).scalar_subquery()
                    connection.execute(select(func.setval(sequence, most, False)))  # noqa: FBT003 - of SQL


def ran(url: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [SCRIPTS / "lifesign", *arguments],
        env={**os.environ, DATABASE_VARIABLE: url},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )


def told(server: Server, method: str, path: str, body: object = None) -> tuple[int, Any]:
    sent = None if body is None else json.dumps(body).encode()
    headers = {"X-API-Key": agent_key(QUIET), "Content-Type": "application/json"}
    status, answer = server.send(f"/api/v1{path}", method=method, body=sent, **headers)
    return status, json.loads(answer)


def set_up_quiet(server: Server) -> dict[str, Any]:
    """Register who beats every second, and return a lease of its."""
    heartbeat = {"interval_seconds": 1, "unhealthy_after_seconds": 4, "dead_after_seconds": 8}
    status, answer = told(server, "POST", "/agents", {"agent_id": QUIET, "heartbeat_config": heartbeat})
    assert status == 201, answer
    assert told(server, "POST", f"/agents/{QUIET}/heartbeat", BEAT)[0] == 200
    status, lease = told(server, "POST", "/leases", {"resource": "task:kept", "ttl_seconds": 600})
    assert status == 201, lease
    return dict(lease)


def upgrade(old_url: str, url: str, port: int) -> None:
    """Do what docs/operating.md says once the old servers are stopped."""
    rows = asyncio.run(with_database(old_url, lambda database: database.read(rows_of)))
    fill = partial(set_up_as_before, rows=rows)
    asyncio.run(with_database(url, lambda database: database.write(fill)))
    refused = ran(url, "serve", "--port", str(port))
    assert (refused.returncode, "run lifesign migrate" in refused.stderr) == (1, True)
    migrated = ran(url, "migrate")
    assert migrated.stdout == f"from revision {BEFORE} to {NEWEST}\n"


async def drill(old_url: str, url: str, directory: Path) -> None:
    """Serve, upgrade and serve again, at one port and under one load."""
    ledger, port = Ledger(), free_port()
    async with Load(AGENTS, [port], ledger) as load:
        with registry(old_url, directory, port=port) as server:
            await load.until_acknowledged(FACTS)
            granted = await asyncio.to_thread(set_up_quiet, server)
        assert server.process.returncode == 0
        await asyncio.to_thread(upgrade, old_url, url, port)
        with registry(url, directory, port=port) as server:
            beaten = await asyncio.to_thread(told, server, "POST", f"/agents/{QUIET}/heartbeat", BEAT)
            assert beaten[0] == 200, beaten
            path = f"/leases/{granted['lease_id']}/renew"
            mine = {"fencing_token": granted["fencing_token"], "ttl_seconds": 600}
            renewed = await asyncio.to_thread(told, server, "POST", path, mine)
            assert renewed[0] == 200, renewed
            await load.until_acknowledged(FACTS)
    report = await with_database(url, ledger.check)
    assert report.leases > 1
    found = partial(silenced, last=report.last.sequence)
    assert await with_database(url, lambda database: database.read(found)) == []


def silenced(transaction: Transaction, last: int) -> list[object]:
    """Return what the log says of agents that were found silent."""
    return [
        event.payload
        for event in event_log.between(transaction, 1, last)
        # Those who drain die of their deadline.
        if event.type is EventType.AGENT_LIFECYCLE
        and event.payload["previous_status"] in {"active", "unhealthy"}
        and event.payload["new_status"] in {"unhealthy", "dead"}
    ]


@pytest.mark.fault
@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgresql", marks=pytest.mark.long)])
def test_a_database_of_the_version_before_is_upgraded_and_nobody_is_lost(kind: str, tmp_path: Path) -> None:
    old_url, url = (bare_url(kind, tmp_path) for _ in range(2))
    prepare(old_url, [*AGENTS, QUIET])
    asyncio.run(drill(old_url, url, tmp_path))
    verified = ran(url, "events", "verify")
    assert verified.returncode == 0, verified.stdout


def pretend_to_be_before(transaction: Transaction) -> None:
    statement = text(f"UPDATE {REVISION_TABLE} SET version_num = :revision")  # noqa: S608 - a constant
    transaction.connection.execute(statement, {"revision": BEFORE})


def test_nothing_is_upgraded_under_a_server_that_runs(database_kind: str, tmp_path: Path) -> None:
    url = bare_url(database_kind, tmp_path)
    prepare(url, [QUIET])
    with registry(url, tmp_path) as server:
        assert ran(url, "migrate").stdout == f"already at revision {NEWEST}\n"
        asyncio.run(with_database(url, lambda database: database.write(pretend_to_be_before)))
        refused = ran(url, "migrate")
        assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
        assert "is in use: stop the server" in refused.stderr
        assert asyncio.run(with_database(url, lambda database: database.read(schema.revision))) == (BEFORE)
        assert told(server, "POST", "/agents", {"agent_id": QUIET})[0] == 201
