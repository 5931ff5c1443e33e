"""Which lists could not be read for a pass over all targets?"""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    """Add the names of its directories that could not be read; none is known of a pass that was before."""
    op.add_column(
        "census_runs",
        sa.Column("not_read", sa.Text(), comment="directories that could not be read for it, as JSON"),
    )
