"""Evidence: how old is what was seen, which targets fell silent together, and what does each prober reach?"""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"

# SQLite numbers rows by itself only where the type is INTEGER.
_ROW_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Store the evidence's moments; what was seen before counts as old until it is seen again."""
    for table in ("observed", "probed"):
        moments = {
            "evidence_at_s": "the last measured result",
            "evidence_until_s": "until when it counts",
            "results_until_s": "then a prober would have sent another result",
        }
        if table == "observed":
            moments["health_until_s"] = "until when the last health document counts"
        for name, comment in moments.items():
            op.add_column(
                table, sa.Column(name, sa.Double(), comment=comment if table == "observed" else None)
            )
        why = "why the last result measured nothing" if table == "observed" else None
        op.add_column(table, sa.Column("unmeasured", sa.String(16), comment=why))
    op.create_index("ix_observed_evidence_until_s", "observed", ["evidence_until_s"])
    op.execute("UPDATE observed SET evidence_until_s = 0, results_until_s = 0, health_until_s = 0")
    op.execute("UPDATE probed SET evidence_until_s = 0, results_until_s = 0")

    op.add_column(
        "probed",
        sa.Column("token", sa.BigInteger(), comment="of its shard, under which the last result was measured"),
    )
    op.add_column("probed", sa.Column("number", sa.BigInteger(), comment="of that result, counted per token"))
    op.add_column(
        "targets",
        sa.Column("confirmed_at_s", sa.Double(), comment="when an operator last said that it may be down"),
    )
    op.add_column(
        "keys",
        sa.Column("max_workers", sa.Integer(), comment="that may probe with it at a time; null: the default"),
    )
    op.create_table(
        "liveness",
        sa.Column("target", _ROW_NUMBER, nullable=False),
        sa.Column("network_class", sa.String(64), nullable=False),
        sa.Column("address", sa.String(64), nullable=False, comment="IPv6: its /64 network"),
        sa.Column("answered_at_s", sa.Double(), nullable=False, comment="the last liveness signal"),
        sa.Column("silent_since_s", sa.Double(), comment="its first failure since, witnessed or not"),
        sa.Column(
            "handed_out_at_s",
            sa.Double(),
            comment="when a prober of another shard last got it as a witness",
        ),
        sa.ForeignKeyConstraint(["target"], ["targets.id"], name="fk_liveness_target", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("target", name="pk_liveness"),
        postgresql_with={"fillfactor": 70},
    )
    probers = {
        "interval_s": (sa.Double(), "of its crawl"),
        "reached": (sa.Text(), "network classes in which a witness answered it, as JSON"),
        "offset_s": (sa.Double(), "its wall clock minus ours"),
    }
    for name, (kind, comment) in probers.items():
        op.add_column("probers", sa.Column(name, kind, comment=comment))
    op.create_table(
        "prober_reports",
        sa.Column(
            "holder",
            sa.String(128),
            nullable=False,
            comment="as in probers; the key alone: workers that left",
        ),
        sa.Column("reported_at_s", sa.Double(), nullable=False, comment="its last result of any kind"),
        sa.Column(
            "answered", sa.BigInteger(), nullable=False, comment="results of living agents, like the next two"
        ),
        sa.Column("failed", sa.BigInteger(), nullable=False),
        sa.Column("unmeasured", sa.BigInteger(), nullable=False),
        sa.Column("idle", sa.Text(), comment="prober_standing.Idleness as JSON"),
        sa.PrimaryKeyConstraint("holder", name="pk_prober_reports"),
    )
    op.create_table(
        "agent_requests",
        sa.Column("process", sa.String(64), nullable=False, comment="of a server; each notes its own"),
        sa.Column("at_s", sa.Double(), nullable=False, comment="the last authenticated request of any agent"),
        sa.PrimaryKeyConstraint("process", name="pk_agent_requests"),
    )
    texts = {
        "mass_silence": "mass_silence.Silence as JSON",
        "confirmed": "network classes, each with when, as JSON",
        "watched": "monitor_watch.Watched as JSON",
    }
    for name, comment in texts.items():
        op.add_column("registry", sa.Column(name, sa.Text(), comment=comment))
    # What it said was about one state machine; there are two now. A suspension ends with the upgrade.
    op.execute("UPDATE registry SET monitor = ''")
