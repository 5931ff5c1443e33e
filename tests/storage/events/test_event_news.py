import asyncio
from collections.abc import AsyncIterator

import pytest
from sqlalchemy import text
from tests.storage.events.test_event_log import appending, draft
from tests.support.databases import empty_postgresql
from tests.support.servers import PATIENCE_SECONDS

from lifesign.registry.events import event_feed
from lifesign.storage.engine.database import open_database
from lifesign.storage.engine.transaction import Database, Transaction
from lifesign.storage.errors import DatabaseInUse
from lifesign.storage.events import event_news


@pytest.fixture
async def postgresql() -> AsyncIterator[Database]:
    database = open_database(empty_postgresql())
    yield database
    await database.close()


async def test_wait_for_events_ends_without_new_events(database: Database) -> None:
    news = event_news.event_news(database)
    async with asyncio.timeout(PATIENCE_SECONDS):
        await news.wait()
        await news.wait()
    await news.close()


async def _hears(news: event_news.EventNews, database: Database) -> None:
    """Check that an event is delivered although no poll happens within the test."""
    waiting = asyncio.create_task(news.wait())
    await asyncio.sleep(0.1)
    assert not waiting.done()
    await database.write(appending(draft()))
    await asyncio.wait_for(waiting, PATIENCE_SECONDS)


def _cut(transaction: Transaction) -> None:
    others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = :name"
    transaction.connection.execute(text(others), {"name": event_news.NAME_OF_LISTENERS})


async def test_postgresql_notifies_at_once_and_after_a_cut_connection(
    postgresql: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_news, "POLL_SECONDS", 10 * PATIENCE_SECONDS)
    news = event_news.event_news(postgresql)
    # Events missed before the first wait are read.
    await news.wait()
    await _hears(news, postgresql)

    await postgresql.write(_cut)
    assert isinstance(news, event_news._Listening)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not news._driver.is_closed():  # noqa: ASYNC110 - the driver has no event for it
            await asyncio.sleep(0.01)
    await asyncio.wait_for(news.wait(), PATIENCE_SECONDS)
    await _hears(news, postgresql)
    await news.close()


async def test_event_log_is_polled_without_postgresql_notifications(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(event_news, "POLL_SECONDS", 0.1)
    database = open_database("postgresql://nobody@127.0.0.1:1/nothing")
    news = event_news.event_news(database)
    await asyncio.wait_for(news.wait(), PATIENCE_SECONDS)
    await asyncio.wait_for(news.wait(), PATIENCE_SECONDS)
    # Said once, not with every poll.
    assert caplog.text.count("polls") == 1
    await news.close()
    await database.close()


async def test_resting_server_is_found_again_after_its_connection_was_cut(
    postgresql: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_feed, "LINGER_SECONDS", 0.0)
    feed = event_feed.EventFeed(postgresql)
    running = asyncio.create_task(feed.run())
    async with asyncio.timeout(PATIENCE_SECONDS):
        while feed._is_wanted.is_set():  # noqa: ASYNC110 - no client waits for a feed without clients
            await asyncio.sleep(0.01)
        first = await _listeners(postgresql)
        await postgresql.write(_cut)
        while await _listeners(postgresql) <= first:  # noqa: ASYNC110 - only the database knows
            await asyncio.sleep(0.01)
        with pytest.raises(DatabaseInUse):
            await postgresql.read(event_news.check_unserved)
    running.cancel()
    await asyncio.wait({running})


async def _listeners(database: Database) -> set[int]:
    """Return the processes of PostgreSQL that serve listeners, once there is one."""
    found = text("SELECT pid FROM pg_stat_activity WHERE application_name = :name")
    name = {"name": event_news.NAME_OF_LISTENERS}
    pids: set[int] = set()
    while not pids:
        await asyncio.sleep(0.01)
        pids = await database.read(lambda transaction: set(transaction.connection.scalars(found, name)))
    return pids
