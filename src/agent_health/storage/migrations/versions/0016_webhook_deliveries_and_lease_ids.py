"""Webhook deliveries by the Standard Webhooks specification, and lease ids that cannot be guessed."""

from base64 import b64encode, urlsafe_b64decode

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"

_PREFIX = "whsec_"


def upgrade() -> None:
    """Add what both need; write the secrets of webhooks in the specification's form."""
    op.add_column(
        "webhooks",
        sa.Column("previous_secret", sa.String(64), comment="signs beside the new one after a rotation"),
    )
    op.add_column("webhooks", sa.Column("previous_secret_until_s", sa.Double()))
    op.add_column(
        "webhooks",
        sa.Column("message_id", sa.String(64), comment="of the delivery under way; the same over retries"),
    )
    op.add_column(
        "webhooks",
        sa.Column("message_sequence", sa.BigInteger(), comment="of the last event of that delivery"),
    )
    _rewrite_secrets()
    op.add_column(
        "leases",
        sa.Column("id_secret", sa.String(32), comment="from which the ids of its leases follow; hexadecimal"),
    )
    if op.get_bind().dialect.name == "postgresql":
        op.alter_column("leases", "lease_id", comment="of the last grant; see lease_id.py")


def _rewrite_secrets() -> None:
    """Keep the bytes of each secret: they were written in the URL-safe alphabet, without padding."""
    connection = op.get_bind()
    webhooks = sa.table("webhooks", sa.column("id"), sa.column("secret"))
    for webhook_id, secret in connection.execute(sa.select(webhooks.c.id, webhooks.c.secret)).all():
        random_bytes = urlsafe_b64decode(secret.removeprefix(_PREFIX) + "==")
        rewritten = _PREFIX + b64encode(random_bytes).decode("ascii")
        connection.execute(sa.update(webhooks).where(webhooks.c.id == webhook_id).values(secret=rewritten))
