"""What is kept of an agent's numbers over time?"""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"

# SQLite numbers rows by itself only where the type is INTEGER.
_ROW_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Create the table; histories begin now, since nothing of them was kept."""
    op.create_table(
        "agent_history",
        sa.Column("agent", _ROW_NUMBER, nullable=False),
        sa.Column("half_hours", sa.Text(), nullable=False, comment="as agent_history.packed writes them"),
        sa.Column("days", sa.Text(), nullable=False, comment="likewise; those that are over"),
        sa.ForeignKeyConstraint(["agent"], ["agents.id"], name="fk_agent_history_agent", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("agent", name="pk_agent_history"),
    )
