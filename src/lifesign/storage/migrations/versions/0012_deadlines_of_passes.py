"""How long might an agent take over its answers in a pass over all targets?"""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    """Add the deadlines of its requests; of a pass that was before nobody knows them."""
    op.add_column(
        "census_runs",
        sa.Column(
            "deadlines", sa.Text(), comment="of its requests, as JSON; null: not known, or different ones"
        ),
    )
