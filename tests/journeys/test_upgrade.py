"""A database of the previous version is upgraded while its agents run, without loss."""

import asyncio
import json
import os
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.support import preloaded
from tests.support.databases import bare_url
from tests.support.next_version import AFTER, BEFORE, package_of_next_version
from tests.support.registry_load import Ledger, Load
from tests.support.registry_process import DATABASE_VARIABLE, agent_key, prepare, registry, with_database
from tests.support.servers import PATIENCE_SECONDS, Server, free_port

from lifesign.domain.events.event_type import EventType
from lifesign.storage.engine import schema_version
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.events import event_log

AGENTS = [f"agent-{number}" for number in range(8)]
QUIET = "agent-that-beats-every-second"
"""Silence of a few seconds makes it unhealthy, unless no server was there to hear it."""
HEARTBEAT = {"status": "active", "client_timestamp": "2026-01-01T00:00:00Z"}
FACTS = 30
"""Number of changes acknowledged before the upgrade and after it."""


def ran(url: str, *arguments: str, python_path: Path | None = None) -> "subprocess.CompletedProcess[str]":
    if python_path is None:
        return preloaded.run(*arguments, env={**os.environ, DATABASE_VARIABLE: url})
    return subprocess.run(
        [preloaded.PROGRAM, *arguments],
        env={**os.environ, DATABASE_VARIABLE: url, **_version(python_path)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )


def _version(python_path: Path | None) -> dict[str, str]:
    """Return the variables by which a process runs another version than the installed one."""
    return {} if python_path is None else {"PYTHONPATH": str(python_path)}


def request_api(server: Server, method: str, path: str, body: object = None) -> tuple[int, Any]:
    sent = None if body is None else json.dumps(body).encode()
    headers = {"X-API-Key": agent_key(QUIET), "Content-Type": "application/json"}
    status, answer = server.send(f"/api/v1{path}", method=method, body=sent, **headers)
    return status, json.loads(answer)


def set_up_quiet(server: Server) -> dict[str, Any]:
    """Register an agent that sends a heartbeat every second, and return its lease."""
    heartbeat = {"interval_seconds": 1, "unhealthy_after_seconds": 4, "dead_after_seconds": 8}
    status, answer = request_api(
        server, "POST", "/agents", {"agent_id": QUIET, "heartbeat_config": heartbeat}
    )
    assert status == 201, answer
    assert request_api(server, "POST", f"/agents/{QUIET}/heartbeat", HEARTBEAT)[0] == 200
    status, lease = request_api(server, "POST", "/leases", {"resource": "task:kept", "ttl_seconds": 600})
    assert status == 201, lease
    return dict(lease)


def upgrade(url: str, port: int, package: Path) -> None:
    """Do the steps of docs/operating.md after the old servers were stopped."""
    refused = ran(url, "serve", "--port", str(port), python_path=package)
    assert (refused.returncode, "run lifesign migrate" in refused.stderr) == (2, True)
    migrated = ran(url, "migrate", python_path=package)
    assert migrated.stdout == f"migrated from revision {BEFORE} to {AFTER}\n"


async def drill(url: str, directory: Path, package: Path) -> None:
    """Serve, upgrade and serve again, at one port and under one load."""
    ledger, port = Ledger(), free_port()
    async with Load(AGENTS, [port], ledger) as load:
        with registry(url, directory, port=port) as server:
            await load.until_acknowledged(FACTS)
            granted = await asyncio.to_thread(set_up_quiet, server)
        assert server.process.returncode == 0
        await asyncio.to_thread(upgrade, url, port, package)
        with registry(url, directory, port=port, settings=_version(package)) as server:
            beaten = await asyncio.to_thread(
                request_api, server, "POST", f"/agents/{QUIET}/heartbeat", HEARTBEAT
            )
            assert beaten[0] == 200, beaten
            path = f"/leases/{granted['lease_id']}/renew"
            mine = {"fencing_token": granted["fencing_token"], "ttl_seconds": 600}
            renewed = await asyncio.to_thread(request_api, server, "POST", path, mine)
            assert renewed[0] == 200, renewed
            await load.until_acknowledged(FACTS)
    report = await with_database(url, ledger.check)
    assert report.leases > 1
    found = partial(silenced, last=report.last.sequence)
    assert await with_database(url, lambda database: database.read(found)) == []


def silenced(transaction: Transaction, last: int) -> list[object]:
    """Return the log lines about agents that were found silent."""
    return [
        event.payload
        for event in event_log.between(transaction, 1, last)
        # Draining agents die at their deadline.
        if event.type is EventType.AGENT_LIFECYCLE
        and event.payload["previous_status"] in {"active", "unhealthy"}
        and event.payload["new_status"] in {"unhealthy", "dead"}
    ]


@pytest.mark.fault
@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgresql", marks=pytest.mark.long)])
def test_database_of_the_previous_version_is_upgraded_without_loss(kind: str, tmp_path: Path) -> None:
    url, package = bare_url(kind, tmp_path), package_of_next_version(tmp_path)
    prepare(url, [*AGENTS, QUIET])
    asyncio.run(drill(url, tmp_path, package))
    refused = ran(url, "events", "verify")
    assert refused.returncode != 0
    assert "install" in refused.stderr
    verified = ran(url, "events", "verify", python_path=package)
    assert verified.returncode == 0, verified.stdout


def test_running_server_prevents_an_upgrade(database_kind: str, tmp_path: Path) -> None:
    url, package = bare_url(database_kind, tmp_path), package_of_next_version(tmp_path)
    prepare(url, [QUIET])
    with registry(url, tmp_path) as server:
        assert ran(url, "migrate").stdout == f"already at revision {BEFORE}\n"
        refused = ran(url, "migrate", python_path=package)
        assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
        assert "is in use: " in refused.stderr
        assert (
            asyncio.run(with_database(url, lambda database: database.read(schema_version.revision))) == BEFORE
        )
        assert request_api(server, "POST", "/agents", {"agent_id": QUIET})[0] == 201
