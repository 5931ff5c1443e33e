"""Does the server's own health show whether it can serve?"""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from tests.support.databases import WoundClock, opened
from tests.support.registry_api import RegistryApi


async def test_a_server_that_can_store_nothing_says_that_it_is_ill(
    tmp_path: Path, clock: WoundClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent_health.storage.database.BUSY_SECONDS", 0.1)
    async with opened("sqlite", tmp_path, clock.now_s) as database:
        api = RegistryApi(database, clock)
        await api.add_keys()
        with closing(sqlite3.connect(str(database.url.database), isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            # Nothing was tried yet, and what is there can be read.
            assert (await api.ask("GET", "/healthz", key=None)).status == 200
            assert (await api.ask("POST", "/api/v1/agents", {"agent_id": "a"})).status == 503
            for _ in range(2):
                assert (await api.ask("GET", "/healthz", key=None)).status == 503
        assert (await api.ask("GET", "/healthz", key=None)).status == 200
        assert (await api.ask("POST", "/api/v1/agents", {"agent_id": "a"})).status == 201
