"""Draft of the next migration: the changes in tables.py since the last one, to be read and corrected."""

import sys
import tempfile
from pathlib import Path

from alembic import command
from sqlalchemy import create_engine

from lifesign.storage.engine import schema_version


def write_migration(message: str) -> None:
    """Compare tables.py with the result of the migrations, and write the difference into a new file."""
    with tempfile.TemporaryDirectory() as directory:
        engine = create_engine(f"sqlite:///{Path(directory) / 'scratch.db'}")
        with engine.begin() as connection:
            schema_version.upgrade_connection(connection)
            config = schema_version.alembic_config(connection)
            number = f"{int(schema_version.newest_revision()) + 1:04}"
            command.revision(config, message, autogenerate=True, rev_id=number)
        engine.dispose()


if __name__ == "__main__":
    write_migration(" ".join(sys.argv[1:]) or "Unnamed")
