"""Set-up and replacement of connections to PostgreSQL."""

import os
import time
from collections.abc import Iterator, Mapping
from typing import Any

import asyncpg  # type: ignore[import-untyped]
from sqlalchemy import Engine, event
from sqlalchemy.engine.interfaces import AdaptedConnection, DBAPIConnection
from sqlalchemy.exc import DisconnectionError
from sqlalchemy.pool import ConnectionPoolEntry
from sqlalchemy.util.concurrency import await_only

from lifesign.storage.engine.database_faults import SERVER_HINT
from lifesign.storage.engine.postgresql_hosts import vetted
from lifesign.storage.errors import StoreUnavailable

PING_AFTER_SECONDS = 1.0
"""Idle time after which a connection is checked before its next use."""
PING_SECONDS = 2.0
"""Time limit of this check.

A firewall or NAT gateway that no longer knows an idle connection drops its packets, without an error.
"""

DEFAULT_PORT = 5432
_VERIFIED = frozenset({"verify-ca", "verify-full"})
"""Values of `sslmode` with which only the right server gets the password."""

MAX_IDLE_SECONDS = 10
"""Time after which PostgreSQL ends a transaction whose process does not continue.

A process that is stopped, or that lost its connection, would block the other processes of the registry.
"""
# Compiling a statement that takes milliseconds takes longer than that.
SETTINGS = {
    "application_name": "lifesign",
    "jit": "off",
    "idle_in_transaction_session_timeout": f"{MAX_IDLE_SECONDS}s",
    # Firewalls and NAT gateways forget connections that are idle for some minutes. With the default of Linux,
    # the first keepalive packet is sent after two hours.
    "tcp_keepalives_idle": "60",
    "tcp_keepalives_interval": "10",
    "tcp_keepalives_count": "3",
}
# asyncpg reports some of the sessions that ended as a fault of its own state.
_DRIVER_ERRORS = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
# The data is in memory or on flash. With the defaults for spinning disks, whole tables would be read to find
# thirty rows among thousands. A setting of the server, database or user takes precedence.
_ASSUME_FLASH = """
    SELECT set_config('random_page_cost', '1.1', false) FROM pg_settings
    WHERE name = 'random_page_cost' AND source = 'default'
"""


def vet_servers(engine: Engine) -> None:
    """Check the servers on this machine before each connection of an asynchronous engine.

    asyncpg sends the password in clear text to a server that asks for it. So it connects to no server of
    another user than before, unless TLS verifies the server, and to no socket that any user could have
    created: StoreUnavailable. The host `localhost` becomes 127.0.0.1, and then ::1: another user could listen
    on ::1, which many systems return first.
    """

    @event.listens_for(engine, "do_connect")
    def _vet(_dialect: object, _record: object, _arguments: object, parameters: dict[str, Any]) -> None:
        is_verified = (parameters.get("ssl") or os.environ.get("PGSSLMODE")) in _VERIFIED
        passed: list[tuple[str, int]] = []
        refusals: list[str] = []
        for host, port in _places(parameters):
            hosts, refused = await_only(vetted(host, port, is_verified=is_verified))
            passed += [(each, port) for each in hosts]
            refusals += refused
        if not passed:
            unavailable = StoreUnavailable(f"the database cannot be reached: {refusals[0]}")
            unavailable.hint = SERVER_HINT
            raise unavailable
        parameters["host"] = [host for host, _ in passed]
        parameters["port"] = [port for _, port in passed]


def _places(parameters: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Yield the hosts and ports of the URL, in the order in which asyncpg tries them."""
    given, port = parameters["host"], parameters.get("port")
    hosts = [given] if isinstance(given, str) else given
    ports = (
        port if isinstance(port, list) else [port or os.environ.get("PGPORT") or DEFAULT_PORT] * len(hosts)
    )
    for host, each in zip(hosts, ports, strict=True):
        yield host, int(each)


def configure(engine: Engine) -> None:
    """Set up all connections of an engine, and replace those that died while they were idle.

    If a connection dies in use, its transaction is not repeated: it may have been committed. A connection
    that was just in use is not checked: that would cost a round trip per transaction.
    """

    @event.listens_for(engine, "connect")
    def _assume_flash(connection: DBAPIConnection, _record: object) -> None:
        cursor = connection.cursor()
        cursor.execute(_ASSUME_FLASH)
        cursor.close()
        # A setting in a transaction is undone with it.
        connection.commit()

    @event.listens_for(engine, "checkin")
    def _note(_connection: object, record: ConnectionPoolEntry) -> None:
        record.info["idle_since_s"] = time.monotonic()

    @event.listens_for(engine, "checkout")
    def _ask(connection: AdaptedConnection, record: ConnectionPoolEntry, _proxy: object) -> None:
        idle_since_s = record.info.get("idle_since_s")
        if idle_since_s is None or time.monotonic() - idle_since_s < PING_AFTER_SECONDS:
            return
        try:
            connection.run_async(lambda driver: driver.execute("SELECT 1", timeout=PING_SECONDS))
        except (*_DRIVER_ERRORS, OSError) as error:
            # The pool would wait for the server's answer to an orderly close.
            connection.driver_connection.terminate()
            raise DisconnectionError from error
