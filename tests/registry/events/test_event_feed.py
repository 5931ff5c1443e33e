"""Shared reading of the event log: restores around its reads, and waits."""

import asyncio
from functools import partial

import pytest
from sqlalchemy import delete, update
from tests.storage.events.test_event_log import appending, draft

from lifesign.domain.events.chain import GENESIS, Checkpoint
from lifesign.registry.events.event_feed import EventFeed, EventFilter
from lifesign.storage.engine import table_definitions
from lifesign.storage.engine.transaction import Database, Transaction
from lifesign.storage.events import event_log, event_news


def _restore(transaction: Transaction, *, backup: Checkpoint, added: int) -> None:
    """Remove the events after `backup`, and append others."""
    transaction.connection.execute(
        delete(table_definitions.events).where(table_definitions.events.c.sequence > backup.sequence)
    )
    transaction.connection.execute(
        update(table_definitions.event_log).values(sequence=backup.sequence, hash=backup.hash)
    )
    event_log.append(transaction, [draft(100 + n) for n in range(added)])


@pytest.mark.parametrize("added", [1, 3, 8])
async def test_restore_before_the_first_read_disconnects_clients(database: Database, added: int) -> None:
    """The restored log is shorter than the client's position, as long, or longer already."""
    await database.write(appending(*(draft(n) for n in range(3))))
    feed = EventFeed(database)
    past, position = feed.past, await feed.begin()
    assert (await feed.page(position, EventFilter())).position == 3
    await database.write(partial(_restore, backup=GENESIS, added=added))
    reading = asyncio.create_task(feed.run())
    await feed.wait_beyond(position, 10.0)
    assert feed.past == past + 1
    reading.cancel()
    await asyncio.wait([reading])


@pytest.mark.parametrize("added", [1, 3, 8])
async def test_restore_after_a_client_read_further_than_the_feed_disconnects_it(
    database: Database, monkeypatch: pytest.MonkeyPatch, added: int
) -> None:
    """The backup contains all that the feed has read, but not all that its client has read."""
    polls = asyncio.Semaphore(0)
    monkeypatch.setattr(event_news._Polling, "wait", lambda _: polls.acquire())
    await database.write(appending(draft(0)))
    backup = (await database.read(event_log.head)).last
    feed = EventFeed(database)
    reading = asyncio.create_task(feed.run())
    await feed.wait_beyond(0, 10.0)
    await database.write(appending(*(draft(n) for n in range(1, 3))))
    past, first = feed.past, await feed.page(0, EventFilter())
    assert (first.position, feed.past) == (3, past)
    await database.write(partial(_restore, backup=backup, added=added))
    polls.release()
    await feed.wait_beyond(3, 10.0)
    assert feed.past == past + 1
    reading.cancel()
    await asyncio.wait([reading])


async def test_wait_without_an_event_ends_after_its_time(database: Database) -> None:
    feed = EventFeed(database)
    await feed.wait_beyond(await feed.begin(), 0.01)
    assert (await feed.page(0, EventFilter())).position == 0
