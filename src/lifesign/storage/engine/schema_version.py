"""Version of a database, and its upgrade.

The steps are in `migrations/versions`; the newest revision among them is the program's. The name of each file
begins with its revision, so that Alembic is loaded only where a step has to run: it takes a tenth of the time
in which a server starts. A table contains the revision of the database. If there are other tables and this
one is missing, nothing is created.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, func, select, text

from lifesign.storage.engine.ownership import REVISION_TABLE, is_foreign, table_names
from lifesign.storage.engine.table_definitions import metadata
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.errors import ForeignDatabase, SchemaOutdated, SchemaUnknown, StoreUnavailable

if TYPE_CHECKING:
    from alembic.config import Config

MIGRATIONS = Path(__file__).parents[1] / "migrations"
LOCK_NUMBER = 0x61675F68
"""Number of PostgreSQL's advisory lock for upgrades."""


@dataclass(frozen=True, slots=True)
class Upgrade:
    """The revisions of a database before and after an upgrade; equal if nothing had to be done."""

    before: str | None
    """None: the database was empty."""
    after: str


def lock(transaction: Transaction) -> None:
    """Keep every other process from setting up this database until the transaction ends.

    On SQLite every write does so by itself.
    """
    if transaction.is_postgresql:
        transaction.connection.execute(select(func.pg_advisory_xact_lock(LOCK_NUMBER)))


def revision(transaction: Transaction) -> str | None:
    """Return the revision of a database; None if it has no tables of lifesign.

    ForeignDatabase if tables are there and no revision is.
    """
    names = table_names(transaction.connection)
    if REVISION_TABLE in names:
        statement = text(f"SELECT version_num FROM {REVISION_TABLE}")  # noqa: S608 - a constant
        found = transaction.connection.scalar(statement)
        if found is not None:
            return str(found)
    if is_foreign(others := names - {REVISION_TABLE}):
        raise ForeignDatabase(sorted(others))
    return None


def check(transaction: Transaction) -> None:
    """Raise an error unless the database has the revision that this version needs.

    SchemaOutdated, also for an empty database, SchemaUnknown or ForeignDatabase.
    """
    found = revision(transaction)
    if found == newest_revision():
        return
    if found is None or found in known_revisions():
        raise SchemaOutdated(found, newest_revision())
    raise SchemaUnknown(found, newest_revision())


def check_tables(transaction: Transaction) -> None:
    """Raise StoreUnavailable if a table was removed from the database of a running server."""
    missing = metadata.tables.keys() - table_names(transaction.connection)
    if missing:
        raise StoreUnavailable(f"the database lacks the table {min(missing)}")


def is_behind(transaction: Transaction) -> bool:
    """Return whether a database that is not empty needs an upgrade, or has an unknown revision."""
    return revision(transaction) not in {None, newest_revision()}


def upgrade(transaction: Transaction) -> Upgrade:
    """Upgrade a database, or set up an empty one; a failure undoes all changes.

    Of processes that do so at once, one does and the others find it done. SchemaUnknown if a newer
    version has been here, ForeignDatabase if the tables are not ours.
    """
    lock(transaction)
    before = revision(transaction)
    if before is not None and before not in known_revisions():
        raise SchemaUnknown(before, newest_revision())
    if before != newest_revision():
        upgrade_connection(transaction.connection)
    return Upgrade(before, newest_revision())


def set_up_or_check(transaction: Transaction) -> bool:
    """Create the tables in an empty database, else `check`; return whether it was empty."""
    lock(transaction)
    if revision(transaction) is None:
        upgrade(transaction)
        return True
    check(transaction)
    return False


def upgrade_connection(connection: Connection, to: str = "head") -> None:
    """Run the missing migrations up to the revision `to` in the connection's transaction."""
    from alembic import command  # noqa: PLC0415 - see above

    command.upgrade(alembic_config(connection), to)


def alembic_config(connection: Connection | None = None) -> "Config":
    """Return the settings of Alembic; there is no alembic.ini."""
    from alembic.config import Config  # noqa: PLC0415 - see above

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config


@cache
def known_revisions() -> frozenset[str]:
    """Return the revisions from which this version can upgrade."""
    return frozenset(file.name.partition("_")[0] for file in (MIGRATIONS / "versions").glob("[0-9]*_*.py"))


@cache
def newest_revision() -> str:
    """Return the revision that this version needs."""
    return max(known_revisions(), key=int)
