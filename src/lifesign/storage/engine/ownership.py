"""Owner of the tables in a database."""

from sqlalchemy import Connection, text

REVISION_TABLE = "lifesign_revision"
"""Table with the revision of a database of lifesign. Without it, the tables belong to another program."""

TABLES_OF_SQLITE = (
    "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite~_%' ESCAPE '~'"
)
TABLES_OF_POSTGRESQL = """
    SELECT relname FROM pg_class
    WHERE relkind IN ('r', 'p') AND relnamespace = to_regnamespace(quote_ident(current_schema()))
        AND NOT EXISTS (
            SELECT FROM pg_depend
            WHERE classid = 'pg_class'::regclass AND objid = pg_class.oid AND deptype = 'e'
        )
"""
"""The tables of the schema that ours go to, without those that belong to an extension, such as PostGIS's."""


def table_names(connection: Connection) -> frozenset[str]:
    """Return the names of all user tables in the schema of the registry's tables."""
    is_postgresql = connection.dialect.name == "postgresql"
    return frozenset(connection.scalars(text(TABLES_OF_POSTGRESQL if is_postgresql else TABLES_OF_SQLITE)))


def is_foreign(names: frozenset[str]) -> bool:
    """Return whether tables of these names belong to another program: none is lifesign's revision table.

    Tables that another program adds later beside the registry's are ignored.
    """
    return bool(names) and REVISION_TABLE not in names
