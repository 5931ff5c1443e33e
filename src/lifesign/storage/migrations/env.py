"""Environment of Alembic's migrations; Alembic reads this file."""

from alembic import context

from lifesign.storage.engine.ownership import REVISION_TABLE
from lifesign.storage.engine.table_definitions import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=REVISION_TABLE,
    # SQLite changes little of a table that is there; Alembic then makes a new one and copies the rows.
    render_as_batch=True,
)
context.run_migrations()
