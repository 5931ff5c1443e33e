"""Webhooks by the Standard Webhooks specification, lease ids that cannot be guessed, whole seconds."""

import math
from base64 import b64encode, urlsafe_b64decode

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"

_PREFIX = "whsec_"


def upgrade() -> None:
    """Add what all need; write the secrets of webhooks in the specification's form."""
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
    _round_thresholds()
    op.add_column(
        "leases",
        sa.Column("id_secret", sa.String(32), comment="from which the ids of its leases follow; hexadecimal"),
    )
    if op.get_bind().dialect.name == "postgresql":
        op.alter_column("leases", "lease_id", comment="of the last grant; see lease_id.py")


def _round_thresholds() -> None:
    """Make the thresholds of heartbeats whole seconds, as RFC-0016 has them; nobody goes down earlier."""
    connection = op.get_bind()
    names = ("interval_s", "unhealthy_after_s", "dead_after_s")
    agents = sa.table("agents", sa.column("id"), *(sa.column(name, sa.Double()) for name in names))
    has_fraction = sa.or_(*(agents.c[name] != sa.cast(agents.c[name], sa.BigInteger()) for name in names))
    for number, interval_s, unhealthy_s, dead_s in connection.execute(
        sa.select(agents).where(has_fraction)
    ).all():
        # Each stays at least twice the one before.
        unhealthy = math.ceil(unhealthy_s)
        thresholds = (math.floor(interval_s), unhealthy, max(math.ceil(dead_s), 2 * unhealthy))
        connection.execute(
            sa.update(agents).where(agents.c.id == number).values(dict(zip(names, thresholds, strict=True)))
        )


def _rewrite_secrets() -> None:
    """Keep the bytes of each secret: they were written in the URL-safe alphabet, without padding."""
    connection = op.get_bind()
    webhooks = sa.table("webhooks", sa.column("id"), sa.column("secret"))
    for webhook_id, secret in connection.execute(sa.select(webhooks.c.id, webhooks.c.secret)).all():
        random_bytes = urlsafe_b64decode(secret.removeprefix(_PREFIX) + "==")
        rewritten = _PREFIX + b64encode(random_bytes).decode("ascii")
        connection.execute(sa.update(webhooks).where(webhooks.c.id == webhook_id).values(secret=rewritten))
