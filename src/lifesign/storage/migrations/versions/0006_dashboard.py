"""Who is logged in to the dashboard, and how is an agent found there by a part of its name?"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Create the table of sessions, and the indexes that the table of agents is searched and sorted by."""
    op.create_table(
        "sessions",
        sa.Column("digest", sa.String(64), nullable=False, comment="SHA-256 of the token, hexadecimal"),
        sa.Column("key_id", sa.String(64), nullable=False),
        sa.Column("created_at_s", sa.Double(), nullable=False),
        sa.Column("expires_at_s", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name="pk_sessions"),
    )
    op.create_index("ix_sessions_key_id_created_at_s", "sessions", ["key_id", "created_at_s"])
    op.create_index("ix_agents_agent_id_name", "agents", ["agent_id", "name"])
    op.create_index("ix_agents_status_status_since_s_id", "agents", ["status", "status_since_s", "id"])
