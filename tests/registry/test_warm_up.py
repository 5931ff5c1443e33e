import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.support.databases import migrated_url

from lifesign.dashboard.responses import _environment
from lifesign.dashboard.routes import FIRST_TEMPLATES, Dashboard
from lifesign.registry import warm_up as warming
from lifesign.registry.app import Registry
from lifesign.registry.settings import RegistrySettings
from lifesign.registry.warm_up import warm_up
from lifesign.storage.engine.database import open_database
from lifesign.storage.engine.transaction import Database
from lifesign.storage.errors import StoreUnavailable


async def hang() -> None:
    await asyncio.Event().wait()


async def miss_the_database() -> None:
    raise StoreUnavailable("away")


async def stumble() -> None:
    raise ValueError("a fault of ours")


@pytest.mark.both_databases
async def test_warm_up_fills_totals_and_page_cache(database_kind: str, tmp_path: Path) -> None:
    url = migrated_url(database_kind, tmp_path)
    registry = Registry(RegistrySettings.read(database=url))
    dashboard = Dashboard(registry)
    await warm_up(registry.database, dashboard.warm_up)
    assert {template for _, template in _environment().cache or ()} >= {*FIRST_TEMPLATES}
    facts = dashboard.facts
    assert all(kept._kept is not None for kept in (facts.agents, facts.observed, facts.waiting))
    await registry.database.close()


async def test_slow_count_does_not_delay_the_start(
    database: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(warming, "WARM_UP_SECONDS", 0.01)
    with caplog.at_level(logging.INFO):
        await warm_up(database, hang)
    assert "will take longer" in caplog.text


@pytest.mark.parametrize("face", [miss_the_database, stumble])
async def test_server_starts_although_warm_up_fails(
    database: Database, face: Callable[[], Awaitable[None]], caplog: pytest.LogCaptureFixture
) -> None:
    await warm_up(database, face)
    assert "will take longer" in caplog.text


async def test_server_starts_without_its_database(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    nowhere = open_database(f"postgresql://nobody@/nothing?host={tmp_path}")
    await warm_up(nowhere, None)
    assert "will take longer" in caplog.text
    await nowhere.close()
