"""Serves the event log over real sockets.

`python -m uvicorn --factory tests.support.event_server:app` serves the log of LIFESIGN_SERVER_DATABASE
in a process of its own; `serving` does it in the test's own loop.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import uvicorn
from pydantic_core import from_json
from starlette.applications import Starlette
from starlette.routing import Route
from tests.support.keys_without_events import add_without_event
from tests.support.servers import PATIENCE_SECONDS

from lifesign.domain.access.permissions import Role, StoredKey, digest_of, key_of
from lifesign.domain.access.rate_limit import RateLimit, RateLimiter
from lifesign.registry.events.event_feed import EventFeed
from lifesign.registry.events.stream_events import STREAM_PATH, EventStreams
from lifesign.registry.request_handling.execution import OperationDispatcher
from lifesign.storage.engine.database import open_database
from lifesign.storage.engine.transaction import Database

READER_KEY = key_of(b"r" * 32)


def streams_of(database: Database) -> EventStreams:
    """Return event streams over a database."""
    dispatcher = OperationDispatcher(database, RateLimiter(RateLimit(1_000, 1_000), 100), time.monotonic)
    return EventStreams(dispatcher, EventFeed(database))


def app_of(streams: EventStreams) -> Starlette:
    """An app with the stream and nothing else."""

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        following = asyncio.create_task(streams.feed.run())
        yield
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)

    return Starlette(routes=[Route(STREAM_PATH, streams.answer)], lifespan=lifespan)


def app() -> Starlette:
    """The app of a separate process."""
    return app_of(streams_of(open_database(os.environ["LIFESIGN_SERVER_DATABASE"])))


@dataclass(frozen=True)
class Serving:
    """A server in the test's own loop."""

    url: str
    streams: EventStreams
    server: uvicorn.Server
    task: "asyncio.Task[None]"

    async def stop(self) -> None:
        """Ask it to end, and see that it does."""
        self.server.should_exit = True
        await asyncio.wait_for(asyncio.shield(self.task), PATIENCE_SECONDS)


@asynccontextmanager
async def serving(database: Database) -> AsyncIterator[Serving]:
    """Serve the log of a database until the block ends."""
    streams = streams_of(database)
    server = uvicorn.Server(uvicorn.Config(app_of(streams), port=0, log_level="warning", ws="none"))
    task = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    served = Serving(f"http://127.0.0.1:{port}", streams, server, task)
    try:
        yield served
    finally:
        await served.stop()


async def add_key(
    database: Database, key: str, role: Role = Role.READER, agent_id: str | None = None
) -> None:
    """Store a key."""
    stored = StoredKey(
        key_id=f"key_{digest_of(key).hex()[:12]}",
        name="test",
        role=role,
        agent_id=agent_id,
        digest=digest_of(key),
        created_at_s=0.0,
    )
    await database.write(lambda transaction: add_without_event(transaction, stored))


@dataclass(frozen=True)
class Told:
    """One event of a stream."""

    id: int
    type: str
    data: dict[str, Any]


class Follower:
    """A client of a stream, as the standard describes one (HTML, 9.2.6)."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response
        self.last_event_id: int | None = None
        self.comments = 0

    async def __aiter__(self) -> AsyncIterator[Told]:
        fields: dict[str, str] = {}
        async for line in self.response.content:
            name, _, value = line.decode().rstrip("\n").partition(": ")
            if name or value:
                self.comments += not name
                fields[name] = value
                continue
            if "id" in fields:
                self.last_event_id = int(fields["id"])
            if "data" in fields:
                yield Told(int(fields["id"]), fields["event"], from_json(fields["data"]))
            fields = {}

    async def take(self, number: int) -> list[Told]:
        """Return the next events."""
        found: list[Told] = []
        async with asyncio.timeout(PATIENCE_SECONDS):
            async for result in self:
                found.append(result)
                if len(found) == number:
                    break
        return found

    async def end(self) -> list[Told]:
        """Return the rest of the stream until the server ends it."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            return [result async for result in self]

    async def begin(self) -> int:
        """Wait until the stream reports its start position, and return that."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            line = await self.response.content.readuntil(b"\n\n")
        return int(line.decode().split("id: ")[1])


@asynccontextmanager
async def following(
    url: str, *, key: str = READER_KEY, query: str = "", last_event_id: int | None = None
) -> AsyncIterator[Follower]:
    """Follow the stream of a server until the block ends."""
    headers = {"x-api-key": key}
    if last_event_id is not None:
        headers["last-event-id"] = str(last_event_id)
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=PATIENCE_SECONDS)
    async with (
        aiohttp.ClientSession(timeout=timeout) as session,
        session.get(f"{url}{STREAM_PATH}{query}", headers=headers) as response,
    ):
        yield Follower(response)
