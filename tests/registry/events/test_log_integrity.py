import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import delete, update
from tests.registry.events.test_archive_events import archive_everything
from tests.registry.events.test_verify_events import execute, live_a_little
from tests.support.registry_api import RegistryApi

from lifesign.registry.events import log_integrity
from lifesign.storage.engine.table_definitions import events
from lifesign.storage.events import event_log


async def test_unchanged_log_is_sound(api: RegistryApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "PAGE", 3)
    assert (await api.registry.log_watch.check_once()).is_sound
    await live_a_little(api)
    state = await api.registry.log_watch.check_once()
    assert (state.is_sound, state.sequence) == (True, len(await api.events()))
    in_ms = replace(state, checked_at_s=int(state.checked_at_s * 1000) / 1000)
    assert api.registry.counts.sums().log == in_ms


@pytest.mark.both_databases
@pytest.mark.parametrize("column", ["actor", "agent_id"])
async def test_changed_event_is_found_and_reported(
    api: RegistryApi, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, column: str
) -> None:
    monkeypatch.setattr(event_log, "PAGE", 3)
    await live_a_little(api)
    await execute(api, update(events).where(events.c.sequence == 5).values({column: "forged"}))
    state = await api.registry.log_watch.check_once()
    assert (state.is_sound, state.sequence) == (False, 3)
    assert "event 5" in caplog.text
    assert "somebody" not in caplog.text


async def test_missing_end_of_the_log_is_detected(api: RegistryApi) -> None:
    await live_a_little(api)
    await execute(api, delete(events).where(events.c.sequence >= len(await api.events())))
    assert not (await api.registry.log_watch.check_once()).is_sound


@pytest.mark.both_databases
async def test_log_check_succeeds_during_archiving(
    api: RegistryApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_log, "PAGE", 2)
    monkeypatch.setattr(log_integrity, "MIN_PAUSE_SECONDS", 0.2)
    await live_a_little(api)
    looking = asyncio.create_task(api.registry.log_watch.check_once())
    await asyncio.sleep(0)
    monkeypatch.setattr(event_log, "PAGE", 1_000)
    await archive_everything(api, tmp_path)
    assert (await looking).is_sound
