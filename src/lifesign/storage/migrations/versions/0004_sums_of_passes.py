"""Which probes were those of one pass over all targets?"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Keep the sums of each pass; of those that were begun before, none are known."""
    op.add_column(
        "census_runs",
        sa.Column(
            "sums",
            sa.Text(),
            comment="of its probes, as JSON; until its end: of those of its first hour before it",
        ),
    )
