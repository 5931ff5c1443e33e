"""Set-up and replacement of connections to PostgreSQL."""

import time

import asyncpg  # type: ignore[import-untyped]
from sqlalchemy import URL, Engine, event
from sqlalchemy.engine.interfaces import AdaptedConnection, DBAPIConnection
from sqlalchemy.exc import DisconnectionError
from sqlalchemy.pool import ConnectionPoolEntry

PING_AFTER_SECONDS = 1.0
"""Idle time after which a connection is checked before its next use."""
PING_SECONDS = 2.0
"""Time limit of this check.

A firewall or NAT gateway that no longer knows an idle connection drops its packets, without an error.
"""

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


def host_of(url: URL) -> dict[str, list[str]]:
    """Return asyncpg's argument `host`, if it differs from the URL's.

    The host `localhost` becomes 127.0.0.1, and then `localhost`. Another user could listen on ::1, which many
    systems return first for `localhost`, and ask for the password. With `verify-full`, asyncpg compares the
    name with that in the certificate first.
    """
    is_localhost = url.query.get("host", url.host) == "localhost"
    is_verified = url.query.get("ssl") == "verify-full"
    return {"host": ["127.0.0.1", "localhost"]} if is_localhost and not is_verified else {}


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
