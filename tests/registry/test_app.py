import asyncio
import os
import socket
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from resource import RLIMIT_FSIZE, getrlimit, setrlimit
from typing import Any

import pytest
from sqlalchemy import text
from tests.support.databases import KINDS, WoundClock, opened
from tests.support.hostile_server import answer, serving
from tests.support.registry_api import AGENTS, RegistryApi
from tests.support.registry_server import registry_server
from tests.support.servers import PATIENCE_SECONDS
from tests.support.small_disk import fill, mounted

from lifesign.domain.net.allowed_addresses import read_networks
from lifesign.registry.events.safe_post import Sent, safe_post
from lifesign.registry.request_handling.heard_agents import HeardAgents
from lifesign.storage.engine.sqlite import ROOM_BYTES
from lifesign.storage.engine.transaction import Transaction

FACTS = {f"fact {number}": "x" * 100 for number in range(10)}


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
async def test_server_that_cannot_write_is_unhealthy(
    path: str, tmp_path: Path, clock: WoundClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lifesign.storage.engine.sqlite.BUSY_SECONDS", 0.1)
    async with opened("sqlite", tmp_path, clock.now_s) as database:
        api = RegistryApi(database, clock)
        await api.add_keys()
        with closing(sqlite3.connect(str(database.url.database), isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            # Nothing was tried yet, and what is there can be read.
            assert (await api.ask("GET", path, key=None)).status == 200
            assert (await api.ask("POST", "/api/v1/agents", {"agent_id": "a"})).status == 503
            for _ in range(2):
                assert (await api.ask("GET", path, key=None)).status == 503
        assert (await api.ask("GET", path, key=None)).status == 200
        assert (await api.ask("POST", "/api/v1/agents", {"agent_id": "a"})).status == 201


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
@pytest.mark.parametrize("kind", KINDS)
async def test_server_without_one_of_its_tables_is_unhealthy(
    kind: str, path: str, tmp_path: Path, clock: WoundClock
) -> None:
    async with opened(kind, tmp_path, clock.now_s) as database:
        api = RegistryApi(database, clock)
        assert (await api.ask("GET", path, key=None)).status == 200

        def rename(transaction: Transaction, before: str, after: str) -> None:
            transaction.connection.execute(text(f"ALTER TABLE {before} RENAME TO {after}"))

        await database.write(lambda transaction: rename(transaction, "probers", "gone"))
        assert (await api.ask("GET", path, key=None)).status == 503
        await database.write(lambda transaction: rename(transaction, "gone", "probers"))
        assert (await api.ask("GET", path, key=None)).status == 200


@pytest.mark.fault
async def test_server_with_a_full_disk_is_unhealthy_until_there_is_space(
    tmp_path: Path, clock: WoundClock, caplog: pytest.LogCaptureFixture
) -> None:
    with mounted(tmp_path / "disk", "size=2m") as disk:
        async with opened("sqlite", disk, clock.now_s) as database:
            api = RegistryApi(database, clock)
            await api.add_keys()

            async def register_many() -> set[int]:
                bodies = ({"agent_id": f"a{number}", "metadata": FACTS} for number in range(60))
                answers = await asyncio.gather(*(api.ask("POST", AGENTS, body) for body in bodies))
                return {answer.status for answer in answers}

            filled = fill(disk)
            os.truncate(disk / "filling", filled - ROOM_BYTES // 2)
            for _ in range(3):
                assert await register_many() == {503}
                # One row is stored in what the log has kept of the disk; that is no sign of room.
                assert (await api.ask("GET", "/healthz", key=None)).status == 503
            assert os.statvfs(disk).f_bavail == 0
            (disk / "filling").unlink()
            assert (await api.ask("GET", "/healthz", key=None)).status == 200
            assert await register_many() == {201}
    changes = [record for record in caplog.records if record.getMessage().startswith("changes")]
    assert [bool(record.args) for record in changes] == [True, False]
    assert "disk is full" in changes[0].getMessage()


async def test_server_whose_files_cannot_grow_is_unhealthy_until_they_can(
    tmp_path: Path, clock: WoundClock
) -> None:
    async with opened("sqlite", tmp_path, clock.now_s) as database:
        api = RegistryApi(database, clock)
        await api.add_keys()
        await api.sweep()
        log = f"{database.url.database}-wal"
        while (log_bytes := os.path.getsize(log)) < ROOM_BYTES:  # noqa: ASYNC240, PTH202
            await api.ask("POST", AGENTS, {"agent_id": f"a{log_bytes}", "metadata": FACTS})
        soft, hard = getrlimit(RLIMIT_FSIZE)
        try:
            setrlimit(RLIMIT_FSIZE, (log_bytes, hard))
            assert (await api.ask("POST", AGENTS, {"agent_id": "a"})).status == 503
            assert [(await api.ask("GET", "/healthz", key=None)).status for _ in range(3)] == [503] * 3
        finally:
            setrlimit(RLIMIT_FSIZE, (soft, hard))
        assert (await api.ask("GET", "/healthz", key=None)).status == 200


def test_refused_connection_is_noted_for_the_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = threading.Event()
    monkeypatch.setattr(HeardAgents, "note_refusal", lambda _heard: refused.set())
    with registry_server(tmp_path) as server:
        monkeypatch.setattr("lifesign.serving.connection_limits.MAX_CONNECTIONS", 0)
        with socket.create_connection(("127.0.0.1", server.port), PATIENCE_SECONDS) as caller:
            assert caller.recv(64).startswith(b"HTTP/1.1 503")
    assert refused.is_set()


async def test_silent_name_servers_delay_no_other_lookup(
    tmp_path: Path, clock: WoundClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    are_silent = threading.Event()
    look_up = socket.getaddrinfo

    def look_up_or_wait(host: str, *arguments: Any, **keywords: Any) -> Any:
        if host.endswith(".example"):
            are_silent.wait(PATIENCE_SECONDS)
            raise socket.gaierror(socket.EAI_AGAIN, "no name server answers")
        return look_up(host, *arguments, **keywords)

    monkeypatch.setattr(socket, "getaddrinfo", look_up_or_wait)
    async with (
        opened("sqlite", tmp_path, clock.now_s) as database,
        serving({"/": answer(204)}) as receiver,
        RegistryApi(database, clock).registry.running(),
    ):
        # More than the threads that an event loop has by default.
        urls = [f"http://agent-{number}.example/" for number in range(40)]
        silent = [asyncio.create_task(safe_post(url, b"", {}, ())) for url in urls]
        await asyncio.sleep(0)
        url = f"http://localhost:{receiver.port}/"
        sent = await safe_post(url, b"", {}, read_networks(["127.0.0.0/8", "::1"]))
        are_silent.set()
        await asyncio.gather(*silent)
    assert sent == Sent(204, None)
