import asyncio
import time
from collections.abc import AsyncIterator

import pytest
from sqlalchemy import text
from tests.storage.test_event_log import appending, draft
from tests.support.databases import empty_postgresql

from agent_health.storage import event_news
from agent_health.storage.database import Database, Transaction, open_database

SOON_S = 0.5


@pytest.fixture
async def postgresql() -> AsyncIterator[Database]:
    database = open_database(empty_postgresql())
    yield database
    await database.close()


async def test_a_wait_is_never_long(database: Database) -> None:
    news = event_news.event_news(database)
    begun_s = time.monotonic()
    await news.wait()
    await news.wait()
    assert time.monotonic() - begun_s < 2 * event_news.POLL_SECONDS + SOON_S
    await news.close()


async def _heard_after(news: event_news.EventNews, database: Database) -> float:
    """How long it takes until an event is heard of."""
    waiting = asyncio.create_task(news.wait())
    await asyncio.sleep(0.1)
    assert not waiting.done()
    begun_s = time.monotonic()
    await database.write(appending(draft()))
    await waiting
    return time.monotonic() - begun_s


async def test_postgresql_tells_at_once_and_again_after_its_connection_was_cut(
    postgresql: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_news, "POLL_SECONDS", 30.0)
    news = event_news.event_news(postgresql)
    # What was missed before the first wait is looked for.
    await news.wait()
    assert await _heard_after(news, postgresql) < SOON_S

    def cut(transaction: Transaction) -> None:
        others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = :name"
        transaction.connection.execute(text(others), {"name": "agent-health-news"})

    await postgresql.write(cut)
    await asyncio.sleep(0.1)
    await asyncio.wait_for(news.wait(), 5)
    assert await _heard_after(news, postgresql) < SOON_S
    await news.close()


async def test_where_postgresql_is_away_it_is_polled(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(event_news, "POLL_SECONDS", 0.1)
    database = open_database("postgresql://nobody@127.0.0.1:1/nothing")
    news = event_news.event_news(database)
    await asyncio.wait_for(news.wait(), 5)
    await asyncio.wait_for(news.wait(), 5)
    # Said once, not with every poll.
    assert caplog.text.count("polled") == 1
    await news.close()
    await database.close()
