"""By which key was a task created, so that a retry creates no other?"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"

# SQLite numbers rows by itself only where the type is INTEGER.
_ROW_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Create the table, and let tasks be found whose work another one repairs."""
    op.create_table(
        "task_creations",
        sa.Column("creator", sa.String(length=160), nullable=False),
        sa.Column("idempotency_key", sa.String(length=128), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False, comment="SHA-256 of what was asked for"),
        sa.Column("task", _ROW_NUMBER, comment="null until it is there, in the same transaction"),
        sa.ForeignKeyConstraint(["task"], ["tasks.number"], name="fk_task_creations_task"),
        sa.PrimaryKeyConstraint("creator", "idempotency_key", name="pk_task_creations"),
    )
    op.create_index("ix_task_creations_task", "task_creations", ["task"])
    op.create_index("ix_tasks_fix_of", "tasks", ["fix_of"])
