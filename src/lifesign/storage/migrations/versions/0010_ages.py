"""Which finished tasks and which targets that left are old enough to be forgotten?"""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    """Index both by their ages, so that nobody reads all there are once an hour."""
    op.create_index("ix_tasks_status_status_since_s", "tasks", ["status", "status_since_s"])
    is_gone = sa.text("gone_at_s IS NOT NULL")
    op.create_index(
        "ix_targets_gone_at_s", "targets", ["gone_at_s"], sqlite_where=is_gone, postgresql_where=is_gone
    )
