"""Shared reading of the event log: what happens before its first read."""

import asyncio

import pytest
from sqlalchemy import delete, update
from tests.storage.events.test_event_log import appending, draft

from lifesign.domain.events.chain import GENESIS
from lifesign.registry.events.event_feed import EventFeed, EventFilter
from lifesign.storage.engine import table_definitions
from lifesign.storage.engine.transaction import Database, Transaction
from lifesign.storage.events import event_log


@pytest.mark.parametrize("restored", [1, 3, 8])
async def test_restore_before_the_first_read_disconnects_clients(database: Database, restored: int) -> None:
    """The restored log is shorter than the client's position, as long, or longer already."""

    def restore(transaction: Transaction) -> None:
        transaction.connection.execute(delete(table_definitions.events))
        transaction.connection.execute(
            update(table_definitions.event_log).values(sequence=GENESIS.sequence, hash=GENESIS.hash)
        )
        event_log.append(transaction, [draft(100 + n) for n in range(restored)])

    await database.write(appending(*(draft(n) for n in range(3))))
    feed = EventFeed(database)
    past, position = feed.past, await feed.begin()
    assert (await feed.page(position, EventFilter())).position == 3
    await database.write(restore)
    reading = asyncio.create_task(feed.run())
    await feed.wait_beyond(position, 10.0)
    assert feed.past == past + 1
    reading.cancel()
    await asyncio.wait([reading])


async def test_wait_without_an_event_ends_after_its_time(database: Database) -> None:
    feed = EventFeed(database)
    await feed.wait_beyond(await feed.begin(), 0.01)
    assert (await feed.page(0, EventFilter())).position == 0
