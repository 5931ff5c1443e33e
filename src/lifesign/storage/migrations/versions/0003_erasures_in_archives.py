"""Of which erased agents may archived files still tell?"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Create the table, and let archives forget whoever was erased before they could."""
    op.create_table(
        "archive_erasures",
        sa.Column(
            "sequence", sa.BigInteger(), nullable=False, autoincrement=False, comment="of its agent.erased"
        ),
        sa.Column("agent_id", sa.String(128), nullable=False),
        sa.Column(
            "remaining",
            sa.Text(),
            nullable=False,
            comment="from and to which sequence archives may tell of it, as JSON",
        ),
        sa.PrimaryKeyConstraint("sequence", name="pk_archive_erasures"),
    )
    op.execute("""
        INSERT INTO archive_erasures (sequence, agent_id, remaining)
        SELECT events.sequence, events.agent_id, '[[1,' || event_log.archived_sequence || ']]'
        FROM events, event_log
        WHERE events.type = 'agent.erased' AND events.agent_id IS NOT NULL AND event_log.archived_sequence > 0
    """)
