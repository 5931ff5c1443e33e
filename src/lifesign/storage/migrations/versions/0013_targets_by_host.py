"""Which targets come next, by host and URL as people look for them?"""

from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    """Index them so, that nobody sorts a million to see fifty."""
    op.create_index("ix_targets_host_url_id", "targets", ["host", "url", "id"])
