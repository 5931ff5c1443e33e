"""How is each connection to PostgreSQL set up, and replaced when it has died?"""

import time

from sqlalchemy import Engine, event
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import DisconnectionError
from sqlalchemy.pool import ConnectionPoolEntry

PING_AFTER_SECONDS = 1.0
"""How long a connection must have been idle before it is asked whether it is still alive."""

# To compile what takes milliseconds takes longer than that.
SETTINGS = {"application_name": "lifesign", "jit": "off"}
# What is asked for lies in memory or on flash: as for disks that turn, whole tables would be read to find
# thirty rows among thousands. Whoever has set it for this server, database or user knows better.
_ASSUME_FLASH = """
    SELECT set_config('random_page_cost', '1.1', false) FROM pg_settings
    WHERE name = 'random_page_cost' AND source = 'default'
"""


def configure(engine: Engine) -> None:
    """Set up all connections that an engine makes, and replace unseen those that died while they were idle.

    One that dies at work is not tried again: its transaction may have been committed. One that was at
    work just now is not asked: that would be three ways to the server and back for each transaction.
    """

    @event.listens_for(engine, "connect")
    def _assume_flash(connection: DBAPIConnection, _record: object) -> None:
        cursor = connection.cursor()
        cursor.execute(_ASSUME_FLASH)
        cursor.close()
        # What is set in a transaction that is undone is undone with it.
        connection.commit()

    @event.listens_for(engine, "checkin")
    def _note(_connection: object, record: ConnectionPoolEntry) -> None:
        record.info["idle_since_s"] = time.monotonic()

    @event.listens_for(engine, "checkout")
    def _ask(connection: DBAPIConnection, record: ConnectionPoolEntry, _proxy: object) -> None:
        idle_since_s = record.info.get("idle_since_s")
        if idle_since_s is None or time.monotonic() - idle_since_s < PING_AFTER_SECONDS:
            return
        try:
            engine.dialect.do_ping(connection)
        except (engine.dialect.loaded_dbapi.Error, OSError) as error:
            raise DisconnectionError from error
