"""Notification about new events in the log.

PostgreSQL notifies every listening server process; SQLite's file has to be polled. Both may wake a client
without need, and neither is relied on: a client wakes after `POLL_SECONDS` at the latest.
"""

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from sqlalchemy import text
from sqlalchemy.engine import URL
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

from lifesign.storage.engine.transaction import Database, Transaction
from lifesign.storage.errors import DatabaseInUse, StoreUnavailable
from lifesign.storage.events.event_log import CHANNEL

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

POLL_SECONDS = 1.0
"""Interval of polls on PostgreSQL, in case notifications do not arrive."""
POLL_SQLITE_SECONDS = 0.1
CONNECT_SECONDS = 5.0
MIN_WAIT_SECONDS = 0.05
"""Minimum time between two reads: at most 20 a second."""

NAME_OF_LISTENERS = "lifesign-news"
"""Name of the connection that each server process has as long as it runs."""

_log = logging.getLogger("lifesign.registry")
_ANYBODY = text("""
    SELECT EXISTS (
        SELECT FROM pg_stat_activity WHERE datname = current_database() AND application_name = :name
    )
""")


class EventNews(Protocol):
    """Wakes a waiter when there are new events."""

    async def wait(self) -> None:
        """Return when there may be new events; for one waiter at a time."""

    async def rest(self, until: asyncio.Event) -> None:
        """Return once `until` is set; keep the connection by which `check_unserved` finds this process."""

    async def close(self) -> None:
        """Stop listening."""


def check_unserved(transaction: Transaction) -> None:
    """Raise DatabaseInUse if a server process listens to this PostgreSQL database.

    Sessions of other users are not visible. For an SQLite file, see file_use.py.
    """
    if transaction.is_postgresql and transaction.connection.scalar(_ANYBODY, {"name": NAME_OF_LISTENERS}):
        raise DatabaseInUse("the database")


def event_news(database: Database) -> EventNews:
    """Return the object that wakes a waiter when this database has new events."""
    is_postgresql = database.url.get_backend_name() == "postgresql"
    return _Listening(database.url) if is_postgresql else _Polling()


class _Polling:
    async def wait(self) -> None:
        await asyncio.sleep(POLL_SQLITE_SECONDS)

    async def rest(self, until: asyncio.Event) -> None:
        await until.wait()

    async def close(self) -> None:
        pass


class _Listening:
    """A separate connection, outside the pool; reconnected whenever it is broken."""

    def __init__(self, url: URL) -> None:
        from sqlalchemy.ext.asyncio import create_async_engine  # noqa: PLC0415 - brings the ORM

        from lifesign.storage.engine.postgresql_sessions import vet_servers  # noqa: PLC0415 - brings asyncpg

        self._engine = create_async_engine(
            url,
            poolclass=NullPool,
            connect_args={
                "timeout": CONNECT_SECONDS,
                "server_settings": {"application_name": NAME_OF_LISTENERS},
            },
        )
        vet_servers(self._engine.sync_engine)
        self._connection: AsyncConnection | None = None
        self._driver: Any = None
        self._notified = asyncio.Event()
        self._is_unreachable = False

    async def wait(self) -> None:
        await asyncio.sleep(MIN_WAIT_SECONDS)
        await self._listen_until(self._notified)
        self._notified.clear()

    async def rest(self, until: asyncio.Event) -> None:
        while not until.is_set():
            await self._listen_until(until)

    async def close(self) -> None:
        connection, self._connection, self._driver = self._connection, None, None
        if connection is not None:
            try:
                # Not returned to a pool: it must not listen there.
                await connection.invalidate()
                await connection.close()
            except (SQLAlchemyError, OSError):
                _log.debug(
                    "the connection for event notifications was already broken when it was closed",
                    exc_info=True,
                )
        await self._engine.dispose()

    async def _listen_until(self, event: asyncio.Event) -> None:
        """Return once the event is set, or after POLL_SECONDS. Connect first if the connection is broken."""
        if self._driver is None or self._driver.is_closed():
            await self._connect()
        with suppress(TimeoutError):
            async with asyncio.timeout(POLL_SECONDS):
                await event.wait()

    async def _connect(self) -> None:
        """Try once to connect; the next poll tries again."""
        await self.close()
        try:
            self._connection = await self._engine.connect()
            raw = await self._connection.get_raw_connection()
            driver: Any = raw.driver_connection
            await driver.add_listener(CHANNEL, self._on_notify)
        except (SQLAlchemyError, OSError, TimeoutError, StoreUnavailable) as error:
            if not self._is_unreachable:
                _log.warning(
                    "cannot listen for event notifications, so the server polls for new events: %s",
                    error if isinstance(error, StoreUnavailable) else type(error).__name__,
                )
            self._is_unreachable = True
            return
        self._driver, self._is_unreachable = driver, False
        # Notifications from before the connection are not repeated.
        self._notified.set()

    def _on_notify(self, *_arguments: object) -> None:
        self._notified.set()
