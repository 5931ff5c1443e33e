"""The id of the installation, by which a server recognises its database."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    """Add the column; the next server that starts fills it."""
    column = sa.Column("installation_id", sa.String(64), comment="ins_...; null: no server yet")
    op.add_column("registry", column)
