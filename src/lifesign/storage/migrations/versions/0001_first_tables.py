"""What did the first version's tables look like?"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

# SQLite numbers rows by itself only where the type is INTEGER.
_ROW_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Create all tables."""
    _create_agents()
    _create_event_log()
    _create_events()
    _create_keys()
    _create_leases()
    _create_registry()
    _create_states()
    _create_webhooks()
    _create_beats()
    _create_capabilities()
    _create_commands()
    _create_observed()


def _create_agents() -> None:
    op.create_table(
        "agents",
        sa.Column(
            "id", _ROW_NUMBER, nullable=False, comment="ours; small, and ascending with the registration"
        ),
        sa.Column("agent_id", sa.String(128), nullable=False),
        sa.Column("role_id", sa.String(128)),
        sa.Column("name", sa.String(256)),
        sa.Column("endpoint", sa.String(2048)),
        sa.Column("card_url", sa.String(2048)),
        sa.Column("capabilities", sa.JSON(), nullable=False),
        sa.Column("metadata", sa.JSON(), nullable=False),
        sa.Column("monitoring", sa.String(16), nullable=False),
        sa.Column("interval_s", sa.Double(), nullable=False),
        sa.Column("unhealthy_after_s", sa.Double(), nullable=False),
        sa.Column("dead_after_s", sa.Double(), nullable=False),
        sa.Column("drain_timeout_s", sa.Double(), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("reason", sa.String(32), nullable=False),
        sa.Column("status_since_s", sa.Double(), nullable=False),
        sa.Column("explanation", sa.String(500), nullable=False),
        sa.Column("health", sa.String(16), nullable=False),
        sa.Column("incarnation", sa.BigInteger(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("registered_at_s", sa.Double(), nullable=False),
        sa.Column("judge_at_s", sa.Double(), comment="never later than when the verdict could change"),
        sa.Column("drain_deadline_s", sa.Double()),
        sa.Column("maintenance_until_s", sa.Double()),
        sa.Column("override_status", sa.String(16)),
        sa.Column("override_until_s", sa.Double()),
        sa.Column("recoveries_s", sa.JSON(), nullable=False, comment="when it last came back, latest last"),
        sa.PrimaryKeyConstraint("id", name="pk_agents"),
        sa.UniqueConstraint("agent_id", name="uq_agents_agent_id"),
    )
    op.create_index("ix_agents_health_status_id", "agents", ["health", "status", "id"])
    op.create_index("ix_agents_judge_at_s", "agents", ["judge_at_s"])
    op.create_index("ix_agents_role_id_status_id", "agents", ["role_id", "status", "id"])
    op.create_index("ix_agents_status_id", "agents", ["status", "id"])


def _create_event_log() -> None:
    op.create_table(
        "event_log",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False, comment="always 1"),
        sa.Column("sequence", sa.BigInteger(), nullable=False, comment="of the last event"),
        sa.Column("hash", sa.String(64), nullable=False, comment="of the last event"),
        sa.Column("archived_sequence", sa.BigInteger(), nullable=False),
        sa.Column("archived_hash", sa.String(64), nullable=False),
        sa.Column(
            "archived_states", sa.Text(), comment="what a replay knows at the end of what was archived"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_event_log"),
    )


def _create_events() -> None:
    op.create_table(
        "events",
        sa.Column("sequence", _ROW_NUMBER, autoincrement=False, nullable=False),
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("type", sa.String(64), nullable=False),
        sa.Column("actor", sa.String(160), nullable=False),
        sa.Column("agent_id", sa.String(128)),
        sa.Column("intent_id", sa.String(128)),
        sa.Column("payload", sa.Text(), nullable=False, comment="JSON"),
        sa.Column("created_at", sa.String(32), nullable=False, comment="RFC 3339"),
        sa.Column("previous_hash", sa.String(64), nullable=False),
        sa.Column("hash", sa.String(64), nullable=False),
        sa.PrimaryKeyConstraint("sequence", name="pk_events"),
    )
    op.create_index("ix_events_agent_id_sequence", "events", ["agent_id", "sequence"])
    op.create_index(
        "ix_events_intent_id_sequence",
        "events",
        ["intent_id", "sequence"],
        sqlite_where=sa.text("intent_id IS NOT NULL"),
        postgresql_where=sa.text("intent_id IS NOT NULL"),
    )
    op.create_index("ix_events_type_sequence", "events", ["type", "sequence"])


def _create_keys() -> None:
    op.create_table(
        "keys",
        sa.Column("key_id", sa.String(64), nullable=False),
        sa.Column("name", sa.String(256), nullable=False),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("agent_id", sa.String(128)),
        sa.Column("digest", sa.String(64), nullable=False, comment="SHA-256, hexadecimal"),
        sa.Column("created_at_s", sa.Double(), nullable=False),
        sa.Column("expires_at_s", sa.Double()),
        sa.Column("revoked_at_s", sa.Double()),
        sa.PrimaryKeyConstraint("key_id", name="pk_keys"),
        sa.UniqueConstraint("digest", name="uq_keys_digest"),
    )
    op.create_index("ix_keys_agent_id", "keys", ["agent_id"])


def _create_leases() -> None:
    op.create_table(
        "leases",
        sa.Column("number", _ROW_NUMBER, nullable=False),
        sa.Column("resource", sa.String(512), nullable=False),
        sa.Column("lease_id", sa.String(64), comment="of the last grant: lease_<number>_<token>"),
        sa.Column("holder", sa.String(128)),
        sa.Column("holder_incarnation", sa.BigInteger()),
        sa.Column("token", sa.BigInteger(), nullable=False, comment="the last one granted; rises for ever"),
        sa.Column("acquired_at_s", sa.Double()),
        sa.Column("expires_at_s", sa.Double()),
        sa.Column("ended_at_s", sa.Double()),
        sa.Column("end_reason", sa.String(32)),
        sa.PrimaryKeyConstraint("number", name="pk_leases"),
        sa.UniqueConstraint("resource", name="uq_leases_resource"),
    )
    op.create_index("ix_leases_holder_ended_at_s", "leases", ["holder", "ended_at_s"])
    op.create_index(
        "ix_leases_running",
        "leases",
        ["expires_at_s"],
        sqlite_where=sa.text("ended_at_s IS NULL"),
        postgresql_where=sa.text("ended_at_s IS NULL"),
    )


def _create_registry() -> None:
    op.create_table(
        "registry",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False, comment="always 1"),
        sa.Column("token_floor", sa.BigInteger(), nullable=False),
        sa.Column("swept_at_s", sa.Double(), comment="when a sweep last ran"),
        sa.Column("monitor", sa.Text(), nullable=False, comment="monitor_health.Monitor as JSON"),
        sa.Column("excused", sa.Text(), nullable=False, comment="time that is nobody's silence, as JSON"),
        sa.Column("sweeper", sa.String(64), comment="which server process sweeps"),
        sa.Column("sweeper_until_s", sa.Double(), comment="then another one may"),
        sa.PrimaryKeyConstraint("id", name="pk_registry"),
    )


def _create_states() -> None:
    op.create_table(
        "states",
        sa.Column("resource", sa.String(512), nullable=False),
        sa.Column("state", sa.JSON(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("token", sa.BigInteger(), nullable=False),
        sa.Column("holder", sa.String(128), nullable=False),
        sa.Column("written_at_s", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("resource", name="pk_states"),
    )


def _create_webhooks() -> None:
    op.create_table(
        "webhooks",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("url", sa.String(2048), nullable=False),
        sa.Column("types", sa.JSON(), nullable=False),
        sa.Column("agent_id", sa.String(128)),
        sa.Column("secret", sa.String(64), nullable=False, comment="it signs, so it cannot be a digest"),
        sa.Column("created_by", sa.String(64), nullable=False),
        sa.Column("created_at_s", sa.Double(), nullable=False),
        sa.Column("delivered_sequence", sa.BigInteger(), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("failing_since_s", sa.Double(), comment="the first of these failures"),
        sa.Column("last_error", sa.String(256)),
        sa.Column("next_try_at_s", sa.Double(), nullable=False),
        sa.Column("claimed_until_s", sa.Double(), comment="a server process is delivering"),
        sa.Column("is_disabled", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_webhooks"),
    )


def _create_beats() -> None:
    op.create_table(
        "beats",
        sa.Column("agent", _ROW_NUMBER, nullable=False),
        sa.Column("last_heartbeat_at_s", sa.Double(), nullable=False),
        sa.Column("current_load", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("max_concurrent_tasks", sa.Integer()),
        sa.Column(
            "tasks",
            sa.Text(),
            comment="as the agent last said, as JSON; null: to be compared at the next beat",
        ),
        sa.Column("is_drifting", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.ForeignKeyConstraint(["agent"], ["agents.id"], name="fk_beats_agent", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("agent", name="pk_beats"),
        postgresql_with={"fillfactor": 60},
    )


def _create_capabilities() -> None:
    op.create_table(
        "capabilities",
        sa.Column("capability", sa.String(128), nullable=False),
        sa.Column("status", sa.String(16), nullable=False, comment="as in agents"),
        sa.Column("agent", _ROW_NUMBER, nullable=False),
        sa.ForeignKeyConstraint(["agent"], ["agents.id"], name="fk_capabilities_agent", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("capability", "status", "agent", name="pk_capabilities"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_capabilities_agent", "capabilities", ["agent"])


def _create_commands() -> None:
    op.create_table(
        "commands",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("agent", _ROW_NUMBER, nullable=False),
        sa.Column("command", sa.String(16), nullable=False),
        sa.Column("reason", sa.String(256)),
        sa.Column("drain_timeout_s", sa.Double()),
        sa.Column("created_at_s", sa.Double(), nullable=False),
        sa.Column("expires_at_s", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["agent"], ["agents.id"], name="fk_commands_agent", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_commands"),
    )
    op.create_index("ix_commands_agent", "commands", ["agent"])


def _create_observed() -> None:
    op.create_table(
        "observed",
        sa.Column("agent", _ROW_NUMBER, nullable=False),
        sa.Column("facts", sa.Text(), nullable=False, comment="observed.Observed as JSON"),
        sa.ForeignKeyConstraint(["agent"], ["agents.id"], name="fk_observed_agent", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("agent", name="pk_observed"),
    )
