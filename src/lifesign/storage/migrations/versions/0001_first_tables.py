"""Create all tables of the first release.

Until that release, change this file with `storage/engine/table_definitions.py`. After the release, write
another step.
"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

# SQLite numbers rows by itself only where the type is INTEGER.
_ROW_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Create all tables, in the order of their references."""
    _create_agent_requests()
    _create_agents()
    _create_archive_erasures()
    _create_census_runs()
    _create_directories()
    _create_event_log()
    _create_events()
    _create_keys()
    _create_leases()
    _create_opt_outs()
    _create_prober_reports()
    _create_probers()
    _create_registry()
    _create_result_sums()
    _create_sessions()
    _create_fenced_states()
    _create_target_log()
    _create_targets()
    _create_webhooks()
    _create_agent_history()
    _create_heartbeats()
    _create_capabilities()
    _create_commands()
    _create_imports()
    _create_links()
    _create_listings()
    _create_liveness()
    _create_observed()
    _create_probe_results()
    _create_interface_versions()
    _create_interface_states()
    _create_result_changes()
    _create_target_claims()
    _create_tasks()
    _create_import_pages()
    _create_task_budgets()
    _create_task_calls()
    _create_task_comments()
    _create_task_creations()
    _create_task_needs()
    _create_task_reports()
    _create_task_runs()
    _create_task_writes()


def _create_agent_requests() -> None:
    op.create_table(
        "agent_requests",
        sa.Column("process", sa.String(64), nullable=False, comment="of a server; each notes its own"),
        sa.Column("at_s", sa.Double(), comment="the last authenticated request of any agent"),
        sa.Column(
            "refused_at_s", sa.Double(), comment="the last connection that was refused: too many were open"
        ),
        sa.PrimaryKeyConstraint("process", name="pk_agent_requests"),
    )


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
        sa.Column("assess_at_s", sa.Double(), comment="never later than when the verdict could change"),
        sa.Column("drain_deadline_s", sa.Double()),
        sa.Column("maintenance_until_s", sa.Double()),
        sa.Column("override_status", sa.String(16)),
        sa.Column("override_until_s", sa.Double()),
        sa.Column("recoveries_s", sa.JSON(), nullable=False, comment="when it last came back, latest last"),
        sa.Column("target_url", sa.String(2048), comment="of a record that began with what a prober found"),
        sa.PrimaryKeyConstraint("id", name="pk_agents"),
        sa.UniqueConstraint("agent_id", name="uq_agents_agent_id"),
    )
    op.create_index("ix_agents_agent_id_name", "agents", ["agent_id", "name"])
    op.create_index("ix_agents_health_status_id", "agents", ["health", "status", "id"])
    op.create_index("ix_agents_assess_at_s", "agents", ["assess_at_s"])
    op.create_index("ix_agents_role_id_status_id", "agents", ["role_id", "status", "id"])
    op.create_index("ix_agents_status_id", "agents", ["status", "id"])
    op.create_index("ix_agents_status_status_since_s_id", "agents", ["status", "status_since_s", "id"])


def _create_archive_erasures() -> None:
    op.create_table(
        "archive_erasures",
        sa.Column(
            "sequence", sa.BigInteger(), autoincrement=False, nullable=False, comment="of its agent.erased"
        ),
        sa.Column("agent_id", sa.String(128), nullable=False),
        sa.Column(
            "remaining",
            sa.Text(),
            nullable=False,
            comment="ranges of sequences in archives that may contain its events, as JSON",
        ),
        sa.Column(
            "erased_at_s", sa.Double(), nullable=False, comment="kept, so that a restore erases it again"
        ),
        sa.PrimaryKeyConstraint("sequence", name="pk_archive_erasures"),
    )


def _create_census_runs() -> None:
    op.create_table(
        "census_runs",
        sa.Column("run_id", sa.String(64), nullable=False, comment="name of the definition"),
        sa.Column("name", sa.String(128), nullable=False, comment="of the probe definition"),
        sa.Column("began_at_s", sa.Double(), nullable=False),
        sa.Column("ended_at_s", sa.Double()),
        sa.Column("counts", sa.Text(), comment="targets by result at its end, as JSON"),
        sa.Column(
            "sums",
            sa.Text(),
            comment="of its probes, as JSON; until its end: of those of its first hour before it",
        ),
        sa.Column(
            "deadlines", sa.Text(), comment="of its requests, as JSON; null: not known, or different ones"
        ),
        sa.Column("not_read", sa.Text(), comment="directories that could not be read for it, as JSON"),
        sa.PrimaryKeyConstraint("run_id", name="pk_census_runs"),
    )
    op.create_index("ix_census_runs_name_began_at_s", "census_runs", ["name", "began_at_s"])


def _create_directories() -> None:
    op.create_table(
        "directories",
        sa.Column("id", _ROW_NUMBER, nullable=False),
        sa.Column("name", sa.String(128), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False, comment="how many targets it lists"),
        sa.Column("applied_import", sa.BigInteger(), comment="the last one that was applied whole"),
        sa.Column("owner", sa.String(64), comment="the prober's key whose imports may remove targets"),
        sa.PrimaryKeyConstraint("id", name="pk_directories"),
        sa.UniqueConstraint("name", name="uq_directories_name"),
    )


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
        sa.Column("max_workers", sa.Integer(), comment="that may probe with it at a time; null: the default"),
        sa.Column(
            "is_suspended",
            sa.Boolean(),
            nullable=False,
            server_default=sa.text("false"),
            comment="revoked by a restore, unless it is confirmed",
        ),
        sa.Column("successor_id", sa.String(64), comment="key that replaced it in a rotation"),
        sa.PrimaryKeyConstraint("key_id", name="pk_keys"),
        sa.UniqueConstraint("digest", name="uq_keys_digest"),
    )
    op.create_index("ix_keys_agent_id", "keys", ["agent_id"])


def _create_leases() -> None:
    op.create_table(
        "leases",
        sa.Column("number", _ROW_NUMBER, nullable=False),
        sa.Column("resource", sa.String(512), nullable=False),
        sa.Column("lease_id", sa.String(64), comment="of the last grant; see lease_id.py"),
        sa.Column("holder", sa.String(128)),
        sa.Column("holder_incarnation", sa.BigInteger()),
        sa.Column("token", sa.BigInteger(), nullable=False, comment="last granted token; never decreases"),
        sa.Column("acquired_at_s", sa.Double()),
        sa.Column("expires_at_s", sa.Double()),
        sa.Column("ended_at_s", sa.Double()),
        sa.Column("end_reason", sa.String(32)),
        sa.Column("id_secret", sa.String(32), comment="from which the ids of its leases follow; hexadecimal"),
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


def _create_opt_outs() -> None:
    op.create_table(
        "opt_outs",
        sa.Column("origin", sa.String(512), nullable=False),
        sa.Column("token", sa.String(128), nullable=False, comment="to be served by the origin as a proof"),
        sa.Column("requested_at_s", sa.Double(), nullable=False),
        sa.Column("checked_at_s", sa.Double(), comment="time of the last check for the token"),
        sa.Column("proven_at_s", sa.Double(), comment="since when it is probed no more"),
        sa.PrimaryKeyConstraint("origin", name="pk_opt_outs"),
    )


def _create_prober_reports() -> None:
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
        sa.Column("inconclusive", sa.BigInteger(), nullable=False),
        sa.Column("idle", sa.Text(), comment="shard_eligibility.Idleness as JSON"),
        sa.PrimaryKeyConstraint("holder", name="pk_prober_reports"),
    )


def _create_probers() -> None:
    op.create_table(
        "probers",
        sa.Column(
            "holder", sa.String(128), nullable=False, comment="as its leases name it: key, slash, worker"
        ),
        sa.Column("joined_at_s", sa.Double(), nullable=False),
        sa.Column("expires_at_s", sa.Double(), nullable=False),
        sa.Column("interval_s", sa.Double(), comment="of its crawl"),
        sa.Column("reached", sa.Text(), comment="network classes in which a witness answered it, as JSON"),
        sa.Column("offset_s", sa.Double(), comment="its wall clock minus ours"),
        sa.Column(
            "credentials",
            sa.Text(),
            comment="names and places of its credentials, as JSON",
        ),
        sa.PrimaryKeyConstraint("holder", name="pk_probers"),
    )


def _create_registry() -> None:
    op.create_table(
        "registry",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False, comment="always 1"),
        sa.Column("token_floor", sa.BigInteger(), nullable=False),
        sa.Column("swept_at_s", sa.Double(), comment="when a sweep last ran"),
        sa.Column("monitor", sa.Text(), nullable=False, comment="monitor_health.Monitor as JSON"),
        sa.Column(
            "excluded_downtime",
            sa.Text(),
            nullable=False,
            comment="time that does not count as missed heartbeats, as JSON",
        ),
        sa.Column("sweeper", sa.String(64), comment="which server process sweeps"),
        sa.Column("sweeper_until_s", sa.Double(), comment="then another one may"),
        sa.Column("installation_id", sa.String(64), comment="ins_...; null: no server yet"),
        sa.Column("mass_silence", sa.Text(), comment="mass_silence.Silence as JSON"),
        sa.Column("confirmed", sa.Text(), comment="network classes, each with when, as JSON"),
        sa.Column("watched", sa.Text(), comment="monitor_watch.Watched as JSON"),
        sa.PrimaryKeyConstraint("id", name="pk_registry"),
    )


def _create_result_sums() -> None:
    op.create_table(
        "result_sums",
        sa.Column("hour", sa.Integer(), autoincrement=False, nullable=False, comment="since the epoch"),
        sa.Column(
            "directory", _ROW_NUMBER, autoincrement=False, nullable=False, comment="0: every target once"
        ),
        sa.Column("layer", sa.String(16), nullable=False, comment="or overall"),
        sa.Column("result", sa.String(24), nullable=False),
        sa.Column(
            "bucket", sa.Integer(), autoincrement=False, nullable=False, comment="of the latency; -1: none"
        ),
        sa.Column("count", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("hour", "directory", "layer", "result", "bucket", name="pk_result_sums"),
        sqlite_with_rowid=False,
    )


def _create_sessions() -> None:
    op.create_table(
        "sessions",
        sa.Column("digest", sa.String(64), nullable=False, comment="SHA-256 of the token, hexadecimal"),
        sa.Column("key_id", sa.String(64), nullable=False),
        sa.Column("created_at_s", sa.Double(), nullable=False),
        sa.Column("expires_at_s", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name="pk_sessions"),
    )
    op.create_index("ix_sessions_key_id_created_at_s", "sessions", ["key_id", "created_at_s"])


def _create_fenced_states() -> None:
    op.create_table(
        "fenced_states",
        sa.Column("resource", sa.String(512), nullable=False),
        sa.Column("state", sa.JSON(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("token", sa.BigInteger(), nullable=False),
        sa.Column("holder", sa.String(128), nullable=False),
        sa.Column("written_at_s", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("resource", name="pk_fenced_states"),
    )


def _create_target_log() -> None:
    op.create_table(
        "target_log",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False, comment="always 1"),
        sa.Column("version", sa.BigInteger(), nullable=False, comment="the highest in targets"),
        sa.PrimaryKeyConstraint("id", name="pk_target_log"),
    )


def _create_targets() -> None:
    op.create_table(
        "targets",
        sa.Column("id", _ROW_NUMBER, nullable=False),
        sa.Column("subject_id", sa.String(128), nullable=False, comment="tgt_..., or the agent's id"),
        sa.Column("url", sa.String(2048), nullable=False, comment="as target.read_target spells it"),
        sa.Column("host", sa.String(255), nullable=False),
        sa.Column("shard", sa.Integer(), nullable=False, comment="of the host"),
        sa.Column("left_shard", sa.Integer(), comment="where it lay before its host became another one"),
        sa.Column(
            "version", sa.BigInteger(), nullable=False, comment="rises with each change that its prober needs"
        ),
        sa.Column("is_registered", sa.Boolean(), nullable=False, comment="no directory has to list it"),
        sa.Column("added_at_s", sa.Double(), nullable=False),
        sa.Column("entered_at_s", sa.Double(), comment="when its URL or agent became another one"),
        sa.Column("recheck_at_s", sa.Double(), comment="when a recheck was last requested"),
        sa.Column("gone_at_s", sa.Double(), comment="since when it is no target any more"),
        sa.Column("gone_reason", sa.String(16)),
        sa.Column(
            "confirmed_at_s", sa.Double(), comment="when an operator last confirmed that it may be down"
        ),
        sa.Column(
            "counts_as", sa.BigInteger(), comment="the target whose card this one leads to; it is counted"
        ),
        sa.Column("kind", sa.String(8), comment="by its listings: a2a, mcp or disputed; null: unknown"),
        sa.PrimaryKeyConstraint("id", name="pk_targets"),
        sa.UniqueConstraint("subject_id", name="uq_targets_subject_id"),
    )
    op.create_index(
        "ix_targets_gone_at_s",
        "targets",
        ["gone_at_s"],
        sqlite_where=sa.text("gone_at_s IS NOT NULL"),
        postgresql_where=sa.text("gone_at_s IS NOT NULL"),
    )
    op.create_index("ix_targets_host_url_id", "targets", ["host", "url", "id"])
    op.create_index(
        "ix_targets_left_shard_version",
        "targets",
        ["left_shard", "version"],
        sqlite_where=sa.text("left_shard IS NOT NULL"),
        postgresql_where=sa.text("left_shard IS NOT NULL"),
    )
    op.create_index("ix_targets_shard_version", "targets", ["shard", "version"])


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
        sa.Column("previous_secret", sa.String(64), comment="signs beside the new one after a rotation"),
        sa.Column("previous_secret_until_s", sa.Double()),
        sa.Column("message_id", sa.String(64), comment="of the delivery under way; the same over retries"),
        sa.Column("message_sequence", sa.BigInteger(), comment="of the last event of that delivery"),
        sa.PrimaryKeyConstraint("id", name="pk_webhooks"),
    )


def _create_agent_history() -> None:
    op.create_table(
        "agent_history",
        sa.Column("agent", _ROW_NUMBER, nullable=False),
        sa.Column("half_hours", sa.Text(), nullable=False, comment="as agent_history.packed writes them"),
        sa.Column("days", sa.Text(), nullable=False, comment="likewise; those that are over"),
        sa.PrimaryKeyConstraint("agent", name="pk_agent_history"),
        sa.ForeignKeyConstraint(["agent"], ["agents.id"], name="fk_agent_history_agent", ondelete="CASCADE"),
    )


def _create_heartbeats() -> None:
    op.create_table(
        "heartbeats",
        sa.Column("agent", _ROW_NUMBER, nullable=False),
        sa.Column("last_heartbeat_at_s", sa.Double(), nullable=False),
        sa.Column("current_load", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("max_concurrent_tasks", sa.Integer()),
        sa.Column(
            "tasks",
            sa.Text(),
            comment="as last reported by the agent, JSON; null: compare at the next heartbeat",
        ),
        sa.Column("is_drifting", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column(
            "has_lost_tasks",
            sa.Boolean(),
            server_default=sa.text("false"),
            nullable=False,
            comment="whether the reported tasks include one whose lease it has lost",
        ),
        sa.Column(
            "extended_interval_s",
            sa.Double(),
            comment="these three: until the next heartbeat",
        ),
        sa.Column("extended_unhealthy_after_s", sa.Double()),
        sa.Column("extended_dead_after_s", sa.Double()),
        sa.PrimaryKeyConstraint("agent", name="pk_heartbeats"),
        sa.ForeignKeyConstraint(["agent"], ["agents.id"], name="fk_heartbeats_agent", ondelete="CASCADE"),
        postgresql_with={"fillfactor": 60},
    )


def _create_capabilities() -> None:
    op.create_table(
        "capabilities",
        sa.Column("capability", sa.String(128), nullable=False),
        sa.Column("status", sa.String(16), nullable=False, comment="as in agents"),
        sa.Column("agent", _ROW_NUMBER, nullable=False),
        sa.PrimaryKeyConstraint("capability", "status", "agent", name="pk_capabilities"),
        sa.ForeignKeyConstraint(["agent"], ["agents.id"], name="fk_capabilities_agent", ondelete="CASCADE"),
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
        sa.PrimaryKeyConstraint("id", name="pk_commands"),
        sa.ForeignKeyConstraint(["agent"], ["agents.id"], name="fk_commands_agent", ondelete="CASCADE"),
    )
    op.create_index("ix_commands_agent", "commands", ["agent"])


def _create_imports() -> None:
    op.create_table(
        "imports",
        sa.Column("id", _ROW_NUMBER, nullable=False, comment="ascending: a later one overrules"),
        sa.Column("directory", _ROW_NUMBER, nullable=False),
        sa.Column("import_id", sa.String(64), nullable=False, comment="as its sender calls it"),
        sa.Column("source", sa.String(2048)),
        sa.Column("etag", sa.String(512)),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("state_since_s", sa.Double(), nullable=False),
        sa.Column("began_at_s", sa.Double(), nullable=False),
        sa.Column("allow_shrink", sa.Boolean(), nullable=False),
        sa.Column("keep_missing", sa.Boolean(), nullable=False),
        sa.Column("importer", sa.String(64), comment="the prober's key that sends it; null: an operator"),
        sa.Column("pages", sa.Integer(), nullable=False, comment="how many have come"),
        sa.Column("place", sa.BigInteger(), nullable=False, comment="the page added last, then the target"),
        sa.Column("size_before", sa.BigInteger(), nullable=False),
        sa.Column("added", sa.BigInteger(), nullable=False),
        sa.Column("removed", sa.BigInteger(), nullable=False),
        sa.Column(
            "counts", sa.Text(), nullable=False, comment="of what came and of what was refused, as JSON"
        ),
        sa.Column("explanation", sa.String(500), comment="why it is held"),
        sa.PrimaryKeyConstraint("id", name="pk_imports"),
        sa.UniqueConstraint("directory", "import_id", name="uq_imports_directory_import_id"),
        sa.ForeignKeyConstraint(
            ["directory"], ["directories.id"], name="fk_imports_directory", ondelete="CASCADE"
        ),
    )
    op.create_index("ix_imports_importer_state", "imports", ["importer", "state"])


def _create_links() -> None:
    op.create_table(
        "links",
        sa.Column("target", _ROW_NUMBER, nullable=False),
        sa.Column("agent", _ROW_NUMBER, nullable=False),
        sa.Column("linked_at_s", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("target", name="pk_links"),
        sa.ForeignKeyConstraint(["target"], ["targets.id"], name="fk_links_target", ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["agent"], ["agents.id"], name="fk_links_agent", ondelete="CASCADE"),
    )
    op.create_index("ix_links_agent", "links", ["agent"])


def _create_listings() -> None:
    op.create_table(
        "listings",
        sa.Column("target", _ROW_NUMBER, nullable=False),
        sa.Column("directory", _ROW_NUMBER, nullable=False),
        sa.Column("in_import", sa.BigInteger(), nullable=False, comment="the last one that named it"),
        sa.Column("kind", sa.String(8), comment="a2a, mcp or disputed, if the directory states it"),
        sa.PrimaryKeyConstraint("target", "directory", name="pk_listings"),
        sa.ForeignKeyConstraint(["target"], ["targets.id"], name="fk_listings_target", ondelete="CASCADE"),
        sa.ForeignKeyConstraint(
            ["directory"], ["directories.id"], name="fk_listings_directory", ondelete="CASCADE"
        ),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_listings_directory_target", "listings", ["directory", "target"])


def _create_liveness() -> None:
    op.create_table(
        "liveness",
        sa.Column("target", _ROW_NUMBER, nullable=False),
        sa.Column("network_class", sa.String(64), nullable=False),
        sa.Column("address", sa.String(64), nullable=False, comment="IPv6: its /64 network"),
        sa.Column("answered_at_s", sa.Double(), nullable=False, comment="the last liveness signal"),
        sa.Column("silent_since_s", sa.Double(), comment="its first failure since, witnessed or not"),
        sa.Column(
            "handed_out_at_s", sa.Double(), comment="when a prober of another shard last got it as a witness"
        ),
        sa.Column("prober_key", sa.String(128), comment="whose prober reported its last answer or failure"),
        sa.PrimaryKeyConstraint("target", name="pk_liveness"),
        sa.ForeignKeyConstraint(["target"], ["targets.id"], name="fk_liveness_target", ondelete="CASCADE"),
        postgresql_with={"fillfactor": 70},
    )


def _create_observed() -> None:
    op.create_table(
        "observed",
        sa.Column("agent", _ROW_NUMBER, nullable=False),
        sa.Column("facts", sa.Text(), nullable=False, comment="observed.Observed as JSON"),
        sa.Column("evidence_at_s", sa.Double(), comment="the last measured result"),
        sa.Column("evidence_until_s", sa.Double(), comment="until when it counts"),
        sa.Column("results_until_s", sa.Double(), comment="then a prober would have sent another result"),
        sa.Column("health_until_s", sa.Double(), comment="until when the last health document counts"),
        sa.Column("inconclusive_reason", sa.String(16), comment="why the last result measured nothing"),
        sa.PrimaryKeyConstraint("agent", name="pk_observed"),
        sa.ForeignKeyConstraint(["agent"], ["agents.id"], name="fk_observed_agent", ondelete="CASCADE"),
    )
    op.create_index("ix_observed_evidence_until_s", "observed", ["evidence_until_s"])


def _create_probe_results() -> None:
    op.create_table(
        "probe_results",
        sa.Column("target", _ROW_NUMBER, nullable=False),
        sa.Column(
            "observed_at_s",
            sa.Double(),
            nullable=False,
            comment="the time of the last observation that counted",
        ),
        sa.Column("result", sa.String(24), comment="of the last conclusive probe; null: never probed"),
        sa.Column("result_since_s", sa.Double()),
        sa.Column("layers", sa.String(128), comment="the last conclusive result of each layer"),
        sa.Column("memory", sa.Text(), comment="probe_memory.ProbeMemory as JSON"),
        sa.Column("observed", sa.Text(), comment="the last conclusive observation, as JSON"),
        sa.Column("protocol_version", sa.String(64), comment="from its card, for counting"),
        sa.Column("evidence_at_s", sa.Double()),
        sa.Column("evidence_until_s", sa.Double()),
        sa.Column("results_until_s", sa.Double()),
        sa.Column("inconclusive_reason", sa.String(16)),
        sa.Column("token", sa.BigInteger(), comment="of its shard, under which the last result was measured"),
        sa.Column("number", sa.BigInteger(), comment="of that result, counted per token"),
        sa.PrimaryKeyConstraint("target", name="pk_probe_results"),
        sa.ForeignKeyConstraint(
            ["target"], ["targets.id"], name="fk_probe_results_target", ondelete="CASCADE"
        ),
        postgresql_with={"fillfactor": 70},
    )
    op.create_index("ix_probe_results_result_target", "probe_results", ["result", "target"])


def _create_interface_versions() -> None:
    op.create_table(
        "interface_versions",
        sa.Column("target", _ROW_NUMBER, nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False, comment="counted from 1"),
        sa.Column("seen_at_s", sa.Double(), nullable=False, comment="when a probe read it"),
        sa.Column(
            "until_s", sa.Double(), comment="when the next version took its place; null: it is the newest"
        ),
        sa.Column("digest", sa.String(64), nullable=False, comment="SHA-256 of the body"),
        sa.Column("body", sa.Text(), nullable=False, comment="published.Interface as canonical JSON"),
        sa.PrimaryKeyConstraint("target", "number", name="pk_interface_versions"),
        sa.ForeignKeyConstraint(
            ["target"], ["targets.id"], name="fk_interface_versions_target", ondelete="CASCADE"
        ),
    )
    op.create_index(
        "ix_interface_versions_until_s",
        "interface_versions",
        ["until_s"],
        sqlite_where=sa.text("until_s IS NOT NULL"),
        postgresql_where=sa.text("until_s IS NOT NULL"),
    )


def _create_interface_states() -> None:
    op.create_table(
        "interface_states",
        sa.Column("target", _ROW_NUMBER, nullable=False),
        sa.Column("newest", sa.Integer(), nullable=False, comment="number of the newest version"),
        sa.Column(
            "baseline", sa.Integer(), nullable=False, comment="version that the next event is compared with"
        ),
        sa.Column("notified_at_s", sa.Double(), comment="when the last event was made"),
        sa.Column(
            "due_at_s", sa.Double(), comment="when the next event is due; null: nothing has changed since"
        ),
        sa.PrimaryKeyConstraint("target", name="pk_interface_states"),
        sa.ForeignKeyConstraint(
            ["target"], ["targets.id"], name="fk_interface_states_target", ondelete="CASCADE"
        ),
    )
    op.create_index(
        "ix_interface_states_due_at_s",
        "interface_states",
        ["due_at_s"],
        sqlite_where=sa.text("due_at_s IS NOT NULL"),
        postgresql_where=sa.text("due_at_s IS NOT NULL"),
    )


def _create_result_changes() -> None:
    op.create_table(
        "result_changes",
        sa.Column("id", _ROW_NUMBER, nullable=False),
        sa.Column("target", _ROW_NUMBER, nullable=False),
        sa.Column("at_s", sa.Double(), nullable=False),
        sa.Column("layer", sa.String(16), nullable=False, comment="or overall"),
        sa.Column("previous", sa.String(24), nullable=False),
        sa.Column("result", sa.String(24), nullable=False),
        sa.Column("evidence", sa.String(64), comment="SHA-256 under which the prober keeps the bytes"),
        sa.PrimaryKeyConstraint("id", name="pk_result_changes"),
        sa.ForeignKeyConstraint(
            ["target"], ["targets.id"], name="fk_result_changes_target", ondelete="CASCADE"
        ),
    )
    op.create_index("ix_result_changes_target_id", "result_changes", ["target", "id"])


def _create_target_claims() -> None:
    op.create_table(
        "target_claims",
        sa.Column("target", _ROW_NUMBER, nullable=False),
        sa.Column("agent", _ROW_NUMBER, nullable=False),
        sa.Column("registry", sa.String(2048), comment="that the target's card names, with the agent"),
        sa.Column("card_at_s", sa.Double(), comment="when the card last named both; null: it does not"),
        sa.Column("token", sa.String(128), comment="to be served by the target's origin as a proof"),
        sa.Column("requested_at_s", sa.Double(), comment="when the agent asked for the token"),
        sa.Column("checked_at_s", sa.Double(), comment="when the server last looked whether it is served"),
        sa.Column("token_at_s", sa.Double(), comment="when it was last found; null: it is not served"),
        sa.Column("unlinked_at_s", sa.Double(), comment="when the last link of the two ended"),
        sa.Column("proof", sa.String(8), comment="what proves it, as of the last decision"),
        sa.Column("due_at_s", sa.Double(), nullable=False, comment="when the link is to be decided again"),
        sa.PrimaryKeyConstraint("target", "agent", name="pk_target_claims"),
        sa.ForeignKeyConstraint(
            ["target"], ["targets.id"], name="fk_target_claims_target", ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["agent"], ["agents.id"], name="fk_target_claims_agent", ondelete="CASCADE"),
    )
    op.create_index("ix_target_claims_agent", "target_claims", ["agent"])
    op.create_index("ix_target_claims_due_at_s", "target_claims", ["due_at_s"])


def _create_tasks() -> None:
    op.create_table(
        "tasks",
        sa.Column("number", _ROW_NUMBER, autoincrement=False, nullable=False),
        sa.Column("task_id", sa.String(32), nullable=False),
        sa.Column("title", sa.String(256), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("status_since_s", sa.Double(), nullable=False),
        sa.Column("explanation", sa.Text(), comment="why it has this status, if a reason was given"),
        sa.Column("agent_id", sa.String(128), comment="who alone may have it"),
        sa.Column("role_id", sa.String(128), comment="whose members alone may have it"),
        sa.Column("capabilities", sa.JSON(), nullable=False, comment="as in task_needs"),
        sa.Column("input", sa.Text(), nullable=False, comment="JSON"),
        sa.Column("output", sa.Text(), comment="JSON"),
        sa.Column("lease_s", sa.Double(), nullable=False),
        sa.Column("max_attempts", sa.Integer(), nullable=False),
        sa.Column("backoff_s", sa.Double(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False, comment="runs since people last queued it"),
        sa.Column("runs", sa.Integer(), nullable=False, comment="the number of the last one"),
        sa.Column("reports", sa.Integer(), nullable=False, comment="the number of the last one"),
        sa.Column("writes", sa.Integer(), nullable=False, comment="number of rows in task_writes"),
        sa.Column("not_before_s", sa.Double(), comment="while it is queued"),
        sa.Column("progress_at_s", sa.Double(), comment="when the last run began, or last reported"),
        sa.Column("parent", _ROW_NUMBER),
        sa.Column("fix_of", _ROW_NUMBER),
        sa.Column("created_by", sa.String(160), nullable=False),
        sa.Column("created_at_s", sa.Double(), nullable=False),
        sa.Column(
            "lost_runs",
            sa.Integer(),
            server_default="0",
            nullable=False,
            comment="of the attempts, those whose run was lost",
        ),
        sa.PrimaryKeyConstraint("number", name="pk_tasks"),
        sa.ForeignKeyConstraint(["number"], ["leases.number"], name="fk_tasks_number"),
        sa.UniqueConstraint("task_id", name="uq_tasks_task_id"),
        sa.ForeignKeyConstraint(["parent"], ["tasks.number"], name="fk_tasks_parent"),
        sa.ForeignKeyConstraint(["fix_of"], ["tasks.number"], name="fk_tasks_fix_of"),
    )
    op.create_index("ix_tasks_fix_of", "tasks", ["fix_of"])
    op.create_index("ix_tasks_parent_number", "tasks", ["parent", "number"])
    op.create_index("ix_tasks_status_number", "tasks", ["status", "number"])
    op.create_index("ix_tasks_status_status_since_s", "tasks", ["status", "status_since_s"])


def _create_import_pages() -> None:
    op.create_table(
        "import_pages",
        sa.Column("in_import", _ROW_NUMBER, nullable=False),
        sa.Column("page", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("urls", sa.Text(), nullable=False, comment="as target.read_target spells them, as JSON"),
        sa.Column("kind", sa.String(8), comment="of all its targets, if the directory states it"),
        sa.PrimaryKeyConstraint("in_import", "page", name="pk_import_pages"),
        sa.ForeignKeyConstraint(
            ["in_import"], ["imports.id"], name="fk_import_pages_in_import", ondelete="CASCADE"
        ),
    )


def _create_task_budgets() -> None:
    op.create_table(
        "task_budgets",
        sa.Column("task", _ROW_NUMBER, autoincrement=False, nullable=False),
        sa.Column("carved_tokens", sa.BigInteger(), nullable=False, comment="out of the parent's envelope"),
        sa.Column("carved_micro_usd", sa.BigInteger(), nullable=False),
        sa.Column("envelope_tokens", sa.BigInteger(), nullable=False),
        sa.Column("envelope_micro_usd", sa.BigInteger(), nullable=False),
        sa.Column("settled_tokens", sa.BigInteger(), nullable=False),
        sa.Column("settled_micro_usd", sa.BigInteger(), nullable=False),
        sa.Column("reserved_tokens", sa.BigInteger(), nullable=False),
        sa.Column("reserved_micro_usd", sa.BigInteger(), nullable=False),
        sa.Column("delegated_tokens", sa.BigInteger(), nullable=False),
        sa.Column("delegated_micro_usd", sa.BigInteger(), nullable=False),
        sa.Column("overrun_tokens", sa.BigInteger(), nullable=False),
        sa.Column("overrun_micro_usd", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("task", name="pk_task_budgets"),
        sa.ForeignKeyConstraint(["task"], ["tasks.number"], name="fk_task_budgets_task"),
    )


def _create_task_calls() -> None:
    op.create_table(
        "task_calls",
        sa.Column("task", _ROW_NUMBER, autoincrement=False, nullable=False),
        sa.Column("call_id", sa.String(64), nullable=False),
        sa.Column("tool", sa.String(256), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("reserved_tokens", sa.BigInteger(), nullable=False),
        sa.Column("reserved_micro_usd", sa.BigInteger(), nullable=False),
        sa.Column("cost_tokens", sa.BigInteger(), comment="once it is settled"),
        sa.Column("cost_micro_usd", sa.BigInteger()),
        sa.PrimaryKeyConstraint("task", "call_id", name="pk_task_calls"),
        sa.ForeignKeyConstraint(["task"], ["tasks.number"], name="fk_task_calls_task"),
    )


def _create_task_comments() -> None:
    op.create_table(
        "task_comments",
        sa.Column("task", _ROW_NUMBER, autoincrement=False, nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("signal", sa.String(16), nullable=False, comment="what was decided, or asked for, with it"),
        sa.Column("comment", sa.Text(), nullable=False),
        sa.Column("written_by", sa.String(160), comment="null once the agent is erased"),
        sa.Column("written_at_s", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("task", "number", name="pk_task_comments"),
        sa.ForeignKeyConstraint(["task"], ["tasks.number"], name="fk_task_comments_task"),
    )
    op.create_index("ix_task_comments_written_by", "task_comments", ["written_by"])


def _create_task_creations() -> None:
    op.create_table(
        "task_creations",
        sa.Column("creator", sa.String(160), nullable=False),
        sa.Column("idempotency_key", sa.String(128), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False, comment="SHA-256 of what was asked for"),
        sa.Column("task", _ROW_NUMBER, comment="null until it is there, in the same transaction"),
        sa.PrimaryKeyConstraint("creator", "idempotency_key", name="pk_task_creations"),
        sa.ForeignKeyConstraint(["task"], ["tasks.number"], name="fk_task_creations_task"),
    )
    op.create_index("ix_task_creations_task", "task_creations", ["task"])


def _create_task_needs() -> None:
    op.create_table(
        "task_needs",
        sa.Column("task", _ROW_NUMBER, autoincrement=False, nullable=False),
        sa.Column("capability", sa.String(128), nullable=False),
        sa.PrimaryKeyConstraint("task", "capability", name="pk_task_needs"),
        sa.ForeignKeyConstraint(["task"], ["tasks.number"], name="fk_task_needs_task"),
        sqlite_with_rowid=False,
    )


def _create_task_reports() -> None:
    op.create_table(
        "task_reports",
        sa.Column("task", _ROW_NUMBER, autoincrement=False, nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("run_id", sa.String(32), nullable=False),
        sa.Column("reported_at_s", sa.Double(), nullable=False),
        sa.Column("report", sa.Text(), nullable=False, comment="JSON"),
        sa.PrimaryKeyConstraint("task", "number", name="pk_task_reports"),
        sa.ForeignKeyConstraint(["task"], ["tasks.number"], name="fk_task_reports_task"),
    )


def _create_task_runs() -> None:
    op.create_table(
        "task_runs",
        sa.Column("task", _ROW_NUMBER, autoincrement=False, nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("run_id", sa.String(32), nullable=False),
        sa.Column("holder", sa.String(128), comment="null: erased"),
        sa.Column("token", sa.BigInteger(), nullable=False),
        sa.Column("began_at_s", sa.Double(), nullable=False),
        sa.Column("ended_at_s", sa.Double()),
        sa.Column("exit_reason", sa.String(16)),
        sa.Column("exit_code", sa.Integer()),
        sa.Column("calls", sa.Integer(), nullable=False, comment="how many it has reserved for"),
        sa.PrimaryKeyConstraint("task", "number", name="pk_task_runs"),
        sa.ForeignKeyConstraint(["task"], ["tasks.number"], name="fk_task_runs_task"),
        sa.UniqueConstraint("run_id", name="uq_task_runs_run_id"),
    )
    op.create_index("ix_task_runs_holder_task", "task_runs", ["holder", "task"])


def _create_task_writes() -> None:
    op.create_table(
        "task_writes",
        sa.Column("task", _ROW_NUMBER, autoincrement=False, nullable=False),
        sa.Column("run_id", sa.String(32), nullable=False),
        sa.Column("idempotency_key", sa.String(128), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False, comment="SHA-256 of what was written"),
        sa.Column("answer", sa.Text(), nullable=False, comment="JSON"),
        sa.PrimaryKeyConstraint("task", "run_id", "idempotency_key", name="pk_task_writes"),
        sa.ForeignKeyConstraint(["task"], ["tasks.number"], name="fk_task_writes_task"),
    )
    # ### end Alembic commands ###
