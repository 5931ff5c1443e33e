"""Does anybody have an SQLite file open?

Whoever has opened a file with a write-ahead log holds a lock for as long as the connection is there, and
the log cannot be given up meanwhile: SQLite itself knows, also of processes that were killed.
"""

import sqlite3
import time
from contextlib import closing
from pathlib import Path

from agent_health.errors import DatabaseInUse, StoreUnavailable
from agent_health.storage.database_faults import PRIMARY_CODE

WAIT_SECONDS = 1.0
"""For a command that is just at its end: it has the file open for a moment only."""
LOOK_AGAIN_SECONDS = 0.05

_IN_USE = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})


def check_unused(file: Path) -> None:
    """Return if nobody else has the file open; DatabaseInUse else, StoreUnavailable if it is no database.

    Takes up to WAIT_SECONDS. Nobody is kept from opening it afterwards.
    """
    give_up_s = time.monotonic() + WAIT_SECONDS
    while _is_used(file):
        if time.monotonic() >= give_up_s:
            raise DatabaseInUse(str(file))
        time.sleep(LOOK_AGAIN_SECONDS)


def _is_used(file: Path) -> bool:
    try:
        with closing(sqlite3.connect(file, timeout=0, isolation_level=None)) as connection:
            # Only the last one who has it open may give up the log; the next one begins a new log.
            connection.execute("PRAGMA journal_mode=DELETE")
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & PRIMARY_CODE in _IN_USE:
            return True
        raise StoreUnavailable(f"the database does not answer ({error})") from error
    return False
