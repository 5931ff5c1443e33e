"""PostgreSQL: each transaction has its own connection, and the server groups the commits."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from pydantic_core import from_json
from sqlalchemy.engine import URL
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from lifesign.storage.engine import postgresql_sessions
from lifesign.storage.engine.database_faults import Retry, translated
from lifesign.storage.engine.transaction import Clock, T, Transaction
from lifesign.storage.engine.write_watch import WriteWatch
from lifesign.storage.errors import StoreUnavailable

if TYPE_CHECKING:
    from lifesign.domain.events.event import EventDraft

POOL_CONNECTIONS = 10
"""Maximum of connections to PostgreSQL per server process."""
POOL_WAIT_SECONDS = 10.0
STATEMENT_SECONDS = 30.0
"""Time limit for one statement on PostgreSQL."""
MAX_TRIES = 5
"""Maximum of tries of a transaction that PostgreSQL aborts because of another one."""


class PostgresqlDatabase:
    """A PostgreSQL server, shared by any number of registry processes."""

    def __init__(self, url: URL, *, clock: Clock | None = None) -> None:
        self.url = url.set(drivername="postgresql+asyncpg")
        self.writes = WriteWatch()
        self._clock = clock
        self._engine: AsyncEngine = create_async_engine(
            self.url,
            pool_size=POOL_CONNECTIONS,
            max_overflow=0,
            pool_timeout=POOL_WAIT_SECONDS,
            # The connection that was used last has our statements cached: ten connections in turn would each
            # prepare every statement.
            pool_use_lifo=True,
            hide_parameters=True,
            json_deserializer=from_json,
            connect_args={
                "timeout": POOL_WAIT_SECONDS,
                "command_timeout": STATEMENT_SECONDS,
                "server_settings": postgresql_sessions.SETTINGS,
            },
        )
        postgresql_sessions.vet_servers(self._engine.sync_engine)
        postgresql_sessions.configure(self._engine.sync_engine)

    async def read(self, function: Callable[[Transaction], T]) -> T:
        """Run a function that only reads; it sees one consistent state."""
        return await self._again(lambda: self._run(function, isolation="REPEATABLE READ"))

    async def write(self, function: Callable[[Transaction], T]) -> T:
        """Run a function and return once it is committed."""
        self.writes.refuse_mismatch()
        try:
            result = await self._again(lambda: self._run(function, isolation="READ COMMITTED"))
        except StoreUnavailable as failure:
            self.writes.failed(failure)
            raise
        self.writes.succeeded()
        return result

    async def check_files(self) -> None:
        """Do nothing: the server owns the files of a PostgreSQL database."""

    async def close(self) -> None:
        """Close all connections."""
        await self._engine.dispose()

    async def _run(self, function: Callable[[Transaction], T], *, isolation: str) -> T:
        appended: list[EventDraft] = []
        async with self._engine.connect() as connection:
            await connection.execution_options(isolation_level=isolation)
            async with connection.begin():
                value = await connection.run_sync(
                    lambda sync: function(Transaction(sync, self._clock, appended=appended))
                )
        if appended:
            self.writes.listener(appended)
        return value

    async def _again(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Repeat the transaction if it conflicted with another one, or if a pooled connection had died."""
        for tries_left in reversed(range(MAX_TRIES)):
            try:
                with translated(is_last=tries_left == 0):
                    return await attempt()
            except Retry:
                continue
        raise AssertionError("the last try returns or raises")  # pragma: no cover
