"""Links: which registered agents have proven that a crawled target is theirs?"""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"

# SQLite numbers rows by itself only where the type is INTEGER.
_ROW_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Store proven claims, and the links that follow from them; a target whose card is another one's."""
    op.create_table(
        "target_claims",
        sa.Column("target", _ROW_NUMBER, nullable=False),
        sa.Column("agent", _ROW_NUMBER, nullable=False),
        sa.Column("registry", sa.String(2048), comment="that the target's card names, with the agent"),
        sa.Column("card_at_s", sa.Double(), comment="when the card last named both; null: it does not"),
        sa.Column("token", sa.String(128), comment="to be served by the target's origin as a proof"),
        sa.Column("asked_at_s", sa.Double(), comment="when the agent asked for the token"),
        sa.Column("checked_at_s", sa.Double(), comment="when the server last looked whether it is served"),
        sa.Column("token_at_s", sa.Double(), comment="when it was last found; null: it is not served"),
        sa.Column("unlinked_at_s", sa.Double(), comment="when the last link of the two ended"),
        sa.Column("proof", sa.String(8), comment="what proves it, as of the last decision"),
        sa.Column("due_at_s", sa.Double(), nullable=False, comment="when the link is to be decided anew"),
        sa.ForeignKeyConstraint(
            ["target"], ["targets.id"], name="fk_target_claims_target", ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["agent"], ["agents.id"], name="fk_target_claims_agent", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("target", "agent", name="pk_target_claims"),
    )
    op.create_index("ix_target_claims_agent", "target_claims", ["agent"])
    op.create_index("ix_target_claims_due_at_s", "target_claims", ["due_at_s"])
    op.create_table(
        "links",
        sa.Column("target", _ROW_NUMBER, nullable=False),
        sa.Column("agent", _ROW_NUMBER, nullable=False),
        sa.Column("linked_at_s", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["target"], ["targets.id"], name="fk_links_target", ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["agent"], ["agents.id"], name="fk_links_agent", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("target", name="pk_links"),
    )
    op.create_index("ix_links_agent", "links", ["agent"])
    op.add_column(
        "targets",
        sa.Column(
            "counts_as", sa.BigInteger(), comment="the target whose card this one leads to; it is counted"
        ),
    )
