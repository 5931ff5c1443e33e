import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tests.storage.test_event_log import appending, draft, written

from agent_health.event import EventType
from agent_health.registry.event_feed import EventFeed, EventFilter
from agent_health.storage.database import Database, Transaction

STATES = EventFilter(types=frozenset({EventType.STATE_WRITTEN}))


class _Watched:
    """A database that notes which events were read of it."""

    def __init__(self, database: Database) -> None:
        self.sequences: list[int] = []
        self._database = database

    async def read(self, deed: Callable[[Transaction], Any]) -> Any:
        found = await self._database.read(deed)
        # Pages of all events are lists of pairs, those of a filter the second of three.
        if isinstance(found, list):
            self.sequences += [event.sequence for event, _ in found]
        elif isinstance(found, tuple):
            self.sequences += [event.sequence for event in found[1]]
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)


@pytest.mark.parametrize(("followers", "read"), [(1, [3, 6]), (2, [1, 2, 3, 4, 5, 6])])
async def test_all_events_are_read_where_several_follow_and_what_one_alone_wants(
    database: Database, followers: int, read: list[int]
) -> None:
    watched = _Watched(database)
    feed = EventFeed(watched)

    found: list[list[int]] = [[] for _ in range(followers)]

    async def follow(mine: list[int]) -> None:
        position = 0
        while len(mine) < 2:
            await feed.wait_beyond(position, 10)
            page = await feed.page(position, STATES)
            position = page.position
            mine += [event.sequence for event in page.events]

    running = asyncio.create_task(feed.run())
    try:
        await feed.wait_beyond(-1, 10)
        async with asyncio.timeout(10), asyncio.TaskGroup() as group:
            for mine in found:
                group.create_task(follow(mine))
            for number in (1, 2):
                await database.write(appending(draft(), draft(), written("intent:i/a", "i")))
                while not all(len(mine) == number for mine in found):  # noqa: ASYNC110 - lists have no event
                    await asyncio.sleep(0.01)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert found == [[3, 6]] * followers
    assert watched.sequences == read
