"""What was said with decisions about a task, and how many of its runs were lost?"""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"

# SQLite numbers rows by itself only where the type is INTEGER.
_ROW_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Create the table, and count lost runs from now on: those of before were attempts."""
    op.create_table(
        "task_comments",
        sa.Column("task", _ROW_NUMBER, autoincrement=False, nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column(
            "signal", sa.String(length=16), nullable=False, comment="what was decided, or asked for, with it"
        ),
        sa.Column("comment", sa.Text(), nullable=False),
        sa.Column("said_by", sa.String(length=160), comment="null once the agent is erased"),
        sa.Column("said_at_s", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["task"], ["tasks.number"], name="fk_task_comments_task"),
        sa.PrimaryKeyConstraint("task", "number", name="pk_task_comments"),
    )
    op.create_index("ix_task_comments_said_by", "task_comments", ["said_by"])
    op.add_column(
        "tasks",
        sa.Column(
            "lost_runs",
            sa.Integer(),
            nullable=False,
            server_default="0",
            comment="of the attempts, those whose run was lost",
        ),
    )
