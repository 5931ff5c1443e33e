"""The tables.

Times are seconds since the epoch by the database's clock. Columns that grow with the number of agents and
change with every heartbeat are separate in `heartbeats`: narrow rows, no index but the key.
"""

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    text,
)

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

# SQLite numbers rows by itself only where the type is INTEGER.
RowNumber = BigInteger().with_variant(Integer, "sqlite")

agents = Table(
    "agents",
    metadata,
    Column("id", RowNumber, primary_key=True, comment="ours; small, and ascending with the registration"),
    Column("agent_id", String(128), nullable=False, unique=True),
    Column("role_id", String(128)),
    Column("name", String(256)),
    Column("endpoint", String(2048)),
    Column("card_url", String(2048)),
    Column("capabilities", JSON, nullable=False),
    Column("metadata", JSON, nullable=False),
    Column("monitoring", String(16), nullable=False),
    Column("interval_s", Double, nullable=False),
    Column("unhealthy_after_s", Double, nullable=False),
    Column("dead_after_s", Double, nullable=False),
    Column("drain_timeout_s", Double, nullable=False),
    Column("status", String(16), nullable=False),
    Column("reason", String(32), nullable=False),
    Column("status_since_s", Double, nullable=False),
    Column("explanation", String(500), nullable=False),
    Column("health", String(16), nullable=False),
    Column("incarnation", BigInteger, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("registered_at_s", Double, nullable=False),
    Column("assess_at_s", Double, comment="never later than when the verdict could change"),
    Column("drain_deadline_s", Double),
    Column("maintenance_until_s", Double),
    Column("override_status", String(16)),
    Column("override_until_s", Double),
    Column("recoveries_s", JSON, nullable=False, comment="when it last came back, latest last"),
    Column("target_url", String(2048), comment="of a record that began with what a prober found"),
    # A listing names a status first, so that the dead cost nothing.
    Index(None, "status", "id"),
    Index(None, "role_id", "status", "id"),
    Index(None, "health", "status", "id"),
    Index(None, "assess_at_s"),
    # A part of a name is looked for here, not in the rows, which are ten times as wide.
    Index(None, "agent_id", "name"),
    Index(None, "status", "status_since_s", "id"),
)

capabilities = Table(
    "capabilities",
    metadata,
    Column("capability", String(128), primary_key=True),
    Column("status", String(16), primary_key=True, comment="as in agents"),
    Column("agent", RowNumber, ForeignKey("agents.id", ondelete="CASCADE"), primary_key=True),
    Index(None, "agent"),
    sqlite_with_rowid=False,
)

heartbeats = Table(
    "heartbeats",
    metadata,
    Column("agent", RowNumber, ForeignKey("agents.id", ondelete="CASCADE"), primary_key=True),
    Column("last_heartbeat_at_s", Double, nullable=False),
    Column("current_load", Integer, nullable=False, server_default=text("0")),
    Column("max_concurrent_tasks", Integer),
    Column("tasks", Text, comment="as last reported by the agent, JSON; null: compare at the next heartbeat"),
    Column("is_drifting", Boolean, nullable=False, server_default=text("false")),
    Column(
        "has_lost_tasks",
        Boolean,
        nullable=False,
        server_default=text("false"),
        comment="whether the reported tasks include one whose lease it has lost",
    ),
    Column("extended_interval_s", Double, comment="these three: until the next heartbeat"),
    Column("extended_unhealthy_after_s", Double),
    Column("extended_dead_after_s", Double),
    # Room for the next version of each row in its own page (heap-only tuples).
    postgresql_with={"fillfactor": 60},
)

observed = Table(
    "observed",
    metadata,
    Column("agent", RowNumber, ForeignKey("agents.id", ondelete="CASCADE"), primary_key=True),
    Column("facts", Text, nullable=False, comment="observed.Observed as JSON"),
    # As evidence_age.Evidence; of it, so that searches can compare the moments.
    Column("evidence_at_s", Double, comment="the last measured result"),
    Column("evidence_until_s", Double, comment="until when it counts"),
    Column("results_until_s", Double, comment="then a prober would have sent another result"),
    Column("health_until_s", Double, comment="until when the last health document counts"),
    Column("inconclusive_reason", String(16), comment="why the last result measured nothing"),
    Index(None, "evidence_until_s"),
)

# Written once per half hour: the current one is in `observed`.
agent_history = Table(
    "agent_history",
    metadata,
    Column("agent", RowNumber, ForeignKey("agents.id", ondelete="CASCADE"), primary_key=True),
    Column("half_hours", Text, nullable=False, comment="as agent_history.packed writes them"),
    Column("days", Text, nullable=False, comment="likewise; those that are over"),
)

commands = Table(
    "commands",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("agent", RowNumber, ForeignKey("agents.id", ondelete="CASCADE"), nullable=False, index=True),
    Column("command", String(16), nullable=False),
    Column("reason", String(256)),
    Column("drain_timeout_s", Double),
    Column("created_at_s", Double, nullable=False),
    Column("expires_at_s", Double, nullable=False),
)

leases = Table(
    "leases",
    metadata,
    Column("number", RowNumber, primary_key=True),
    Column("resource", String(512), nullable=False, unique=True),
    Column("lease_id", String(64), comment="of the last grant; see lease_id.py"),
    Column("holder", String(128)),
    Column("holder_incarnation", BigInteger),
    Column("token", BigInteger, nullable=False, comment="last granted token; never decreases"),
    Column("acquired_at_s", Double),
    Column("expires_at_s", Double),
    Column("ended_at_s", Double),
    Column("end_reason", String(32)),
    Column("id_secret", String(32), comment="from which the ids of its leases follow; hexadecimal"),
    Index(None, "holder", "ended_at_s"),
    Index("ix_leases_running", "expires_at_s", sqlite_where=text("ended_at_s IS NULL"),
          postgresql_where=text("ended_at_s IS NULL")),
)  # fmt: skip

fenced_states = Table(
    "fenced_states",
    metadata,
    Column("resource", String(512), primary_key=True),
    Column("state", JSON, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("token", BigInteger, nullable=False),
    Column("holder", String(128), nullable=False),
    Column("written_at_s", Double, nullable=False),
)

events = Table(
    "events",
    metadata,
    Column("sequence", RowNumber, primary_key=True, autoincrement=False),
    Column("id", String(64), nullable=False),
    Column("type", String(64), nullable=False),
    Column("actor", String(160), nullable=False),
    Column("agent_id", String(128)),
    Column("intent_id", String(128)),
    Column("payload", Text, nullable=False, comment="JSON"),
    Column("created_at", String(32), nullable=False, comment="RFC 3339"),
    Column("previous_hash", String(64), nullable=False),
    Column("hash", String(64), nullable=False),
    Index(None, "agent_id", "sequence"),
    Index(None, "type", "sequence"),
    Index("ix_events_intent_id_sequence", "intent_id", "sequence",
          sqlite_where=text("intent_id IS NOT NULL"), postgresql_where=text("intent_id IS NOT NULL")),
)  # fmt: skip

event_log = Table(
    "event_log",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False, comment="always 1"),
    Column("sequence", BigInteger, nullable=False, comment="of the last event"),
    Column("hash", String(64), nullable=False, comment="of the last event"),
    Column("archived_sequence", BigInteger, nullable=False),
    Column("archived_hash", String(64), nullable=False),
    Column("archived_states", Text, comment="what a replay knows at the end of what was archived"),
)

archive_erasures = Table(
    "archive_erasures",
    metadata,
    Column("sequence", BigInteger, primary_key=True, autoincrement=False, comment="of its agent.erased"),
    Column("agent_id", String(128), nullable=False),
    Column(
        "remaining",
        Text,
        nullable=False,
        comment="ranges of sequences in archives that may contain its events, as JSON",
    ),
    Column("erased_at_s", Double, nullable=False, comment="kept, so that a restore erases it again"),
)

keys = Table(
    "keys",
    metadata,
    Column("key_id", String(64), primary_key=True),
    Column("name", String(256), nullable=False),
    Column("role", String(16), nullable=False),
    Column("agent_id", String(128), index=True),
    Column("digest", String(64), nullable=False, unique=True, comment="SHA-256, hexadecimal"),
    Column("created_at_s", Double, nullable=False),
    Column("expires_at_s", Double),
    Column("revoked_at_s", Double),
    Column("max_workers", Integer, comment="that may probe with it at a time; null: the default"),
    Column(
        "is_suspended",
        Boolean,
        nullable=False,
        server_default=text("false"),
        comment="revoked by a restore, unless it is confirmed",
    ),
    Column("successor_id", String(64), comment="key that replaced it in a rotation"),
)

sessions = Table(
    "sessions",
    metadata,
    Column("digest", String(64), primary_key=True, comment="SHA-256 of the token, hexadecimal"),
    Column("key_id", String(64), nullable=False),
    Column("created_at_s", Double, nullable=False),
    Column("expires_at_s", Double, nullable=False),
    Index(None, "key_id", "created_at_s"),
)

registry = Table(
    "registry",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False, comment="always 1"),
    Column("token_floor", BigInteger, nullable=False),
    Column("swept_at_s", Double, comment="when a sweep last ran"),
    Column("monitor", Text, nullable=False, comment="monitor_health.Monitor as JSON"),
    Column(
        "excluded_downtime",
        Text,
        nullable=False,
        comment="time that does not count as missed heartbeats, as JSON",
    ),
    Column("sweeper", String(64), comment="which server process sweeps"),
    Column("sweeper_until_s", Double, comment="then another one may"),
    Column("installation_id", String(64), comment="ins_...; null: no server yet"),
    Column("mass_silence", Text, comment="mass_silence.Silence as JSON"),
    Column("confirmed", Text, comment="network classes, each with when, as JSON"),
    Column("watched", Text, comment="monitor_watch.Watched as JSON"),
)

agent_requests = Table(
    "agent_requests",
    metadata,
    Column("process", String(64), primary_key=True, comment="of a server; each notes its own"),
    Column("at_s", Double, comment="the last authenticated request of any agent"),
    Column("refused_at_s", Double, comment="the last connection that was refused: too many were open"),
)

webhooks = Table(
    "webhooks",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("url", String(2048), nullable=False),
    Column("types", JSON, nullable=False),
    Column("agent_id", String(128)),
    Column("secret", String(64), nullable=False, comment="it signs, so it cannot be a digest"),
    Column("created_by", String(64), nullable=False),
    Column("created_at_s", Double, nullable=False),
    Column("delivered_sequence", BigInteger, nullable=False),
    Column("failures", Integer, nullable=False),
    Column("failing_since_s", Double, comment="the first of these failures"),
    Column("last_error", String(256)),
    Column("next_try_at_s", Double, nullable=False),
    Column("claimed_until_s", Double, comment="a server process is delivering"),
    Column("is_disabled", Boolean, nullable=False),
    Column("previous_secret", String(64), comment="signs beside the new one after a rotation"),
    Column("previous_secret_until_s", Double),
    Column("message_id", String(64), comment="of the delivery under way; the same over retries"),
    Column("message_sequence", BigInteger, comment="of the last event of that delivery"),
)

# Targets of probes. Columns that change with every probe are separate in `probe_results`. Ids ascend with the
# shard within a page of an import, so that the results of one shard are in few pages of the file.
targets = Table(
    "targets",
    metadata,
    Column("id", RowNumber, primary_key=True),
    Column("subject_id", String(128), nullable=False, unique=True, comment="tgt_..., or the agent's id"),
    Column("url", String(2048), nullable=False, comment="as target.read_target spells it"),
    Column("host", String(255), nullable=False),
    Column("shard", Integer, nullable=False, comment="of the host"),
    Column("left_shard", Integer, comment="where it lay before its host became another one"),
    Column("version", BigInteger, nullable=False, comment="rises with each change that its prober needs"),
    Column("is_registered", Boolean, nullable=False, comment="no directory has to list it"),
    Column("added_at_s", Double, nullable=False),
    Column("entered_at_s", Double, comment="when its URL or agent became another one"),
    Column("recheck_at_s", Double, comment="when a recheck was last requested"),
    Column("gone_at_s", Double, comment="since when it is no target any more"),
    Column("gone_reason", String(16)),
    Column("confirmed_at_s", Double, comment="when an operator last confirmed that it may be down"),
    Column("counts_as", BigInteger, comment="the target whose card this one leads to; it is counted"),
    Column("kind", String(8), comment="by its listings: a2a, mcp or disputed; null: unknown"),
    Index(None, "shard", "version"),
    Index(None, "host", "url", "id"),
    Index("ix_targets_left_shard_version", "left_shard", "version",
          sqlite_where=text("left_shard IS NOT NULL"), postgresql_where=text("left_shard IS NOT NULL")),
    Index("ix_targets_gone_at_s", "gone_at_s",
          sqlite_where=text("gone_at_s IS NOT NULL"), postgresql_where=text("gone_at_s IS NOT NULL")),
)  # fmt: skip

# Claims that were proven once, or that wait for a token. A claim without either is stored nowhere.
target_claims = Table(
    "target_claims",
    metadata,
    Column("target", RowNumber, ForeignKey("targets.id", ondelete="CASCADE"), primary_key=True),
    Column("agent", RowNumber, ForeignKey("agents.id", ondelete="CASCADE"), primary_key=True),
    Column("registry", String(2048), comment="that the target's card names, with the agent"),
    Column("card_at_s", Double, comment="when the card last named both; null: it does not"),
    Column("token", String(128), comment="to be served by the target's origin as a proof"),
    Column("requested_at_s", Double, comment="when the agent asked for the token"),
    Column("checked_at_s", Double, comment="when the server last looked whether it is served"),
    Column("token_at_s", Double, comment="when it was last found; null: it is not served"),
    Column("unlinked_at_s", Double, comment="when the last link of the two ended"),
    Column("proof", String(8), comment="what proves it, as of the last decision"),
    Column("due_at_s", Double, nullable=False, comment="when the link is to be decided again"),
    Index(None, "agent"),
    Index(None, "due_at_s"),
)

links = Table(
    "links",
    metadata,
    Column("target", RowNumber, ForeignKey("targets.id", ondelete="CASCADE"), primary_key=True),
    Column("agent", RowNumber, ForeignKey("agents.id", ondelete="CASCADE"), nullable=False),
    Column("linked_at_s", Double, nullable=False),
    Index(None, "agent"),
)

target_log = Table(
    "target_log",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False, comment="always 1"),
    Column("version", BigInteger, nullable=False, comment="the highest in targets"),
)

probe_results = Table(
    "probe_results",
    metadata,
    Column("target", RowNumber, ForeignKey("targets.id", ondelete="CASCADE"), primary_key=True),
    Column("observed_at_s", Double, nullable=False, comment="the time of the last observation that counted"),
    Column("result", String(24), comment="of the last conclusive probe; null: never probed"),
    Column("result_since_s", Double),
    Column("layers", String(128), comment="the last conclusive result of each layer"),
    Column("memory", Text, comment="probe_memory.ProbeMemory as JSON"),
    Column("observed", Text, comment="the last conclusive observation, as JSON"),
    Column("protocol_version", String(64), comment="from its card, for counting"),
    # As in `observed`.
    Column("evidence_at_s", Double),
    Column("evidence_until_s", Double),
    Column("results_until_s", Double),
    Column("inconclusive_reason", String(16)),
    Column("token", BigInteger, comment="of its shard, under which the last result was measured"),
    Column("number", BigInteger, comment="of that result, counted per token"),
    Index(None, "result", "target"),
    # Room for the next version of each row in its own page (heap-only tuples).
    postgresql_with={"fillfactor": 70},
)

# Narrow rows, only for targets that answered: they are counted, and given out as witnesses.
liveness = Table(
    "liveness",
    metadata,
    Column("target", RowNumber, ForeignKey("targets.id", ondelete="CASCADE"), primary_key=True),
    Column("network_class", String(64), nullable=False),
    Column("address", String(64), nullable=False, comment="IPv6: its /64 network"),
    Column("answered_at_s", Double, nullable=False, comment="the last liveness signal"),
    Column("silent_since_s", Double, comment="its first failure since, witnessed or not"),
    Column("handed_out_at_s", Double, comment="when a prober of another shard last got it as a witness"),
    Column("prober_key", String(128), comment="whose prober reported its last answer or failure"),
    # Room for the next version of each row in its own page (heap-only tuples).
    postgresql_with={"fillfactor": 70},
)

directories = Table(
    "directories",
    metadata,
    Column("id", RowNumber, primary_key=True),
    Column("name", String(128), nullable=False, unique=True),
    Column("size", BigInteger, nullable=False, comment="how many targets it lists"),
    Column("applied_import", BigInteger, comment="the last one that was applied whole"),
    Column("owner", String(64), comment="the prober's key whose imports may remove targets"),
)

imports = Table(
    "imports",
    metadata,
    Column("id", RowNumber, primary_key=True, comment="ascending: a later one overrules"),
    Column("directory", RowNumber, ForeignKey("directories.id", ondelete="CASCADE"), nullable=False),
    Column("import_id", String(64), nullable=False, comment="as its sender calls it"),
    Column("source", String(2048)),
    Column("etag", String(512)),
    Column("state", String(16), nullable=False),
    Column("state_since_s", Double, nullable=False),
    Column("began_at_s", Double, nullable=False),
    Column("allow_shrink", Boolean, nullable=False),
    Column("keep_missing", Boolean, nullable=False),
    Column("importer", String(64), comment="the prober's key that sends it; null: an operator"),
    Column("pages", Integer, nullable=False, comment="how many have come"),
    Column("place", BigInteger, nullable=False, comment="the page added last, then the target"),
    Column("size_before", BigInteger, nullable=False),
    Column("added", BigInteger, nullable=False),
    Column("removed", BigInteger, nullable=False),
    Column("counts", Text, nullable=False, comment="of what came and of what was refused, as JSON"),
    Column("explanation", String(500), comment="why it is held"),
    UniqueConstraint("directory", "import_id"),
    Index(None, "importer", "state"),
)

import_pages = Table(
    "import_pages",
    metadata,
    Column("in_import", RowNumber, ForeignKey("imports.id", ondelete="CASCADE"), primary_key=True),
    Column("page", Integer, primary_key=True, autoincrement=False),
    Column("urls", Text, nullable=False, comment="as target.read_target spells them, as JSON"),
    Column("kind", String(8), comment="of all its targets, if the directory states it"),
)

listings = Table(
    "listings",
    metadata,
    Column("target", RowNumber, ForeignKey("targets.id", ondelete="CASCADE"), primary_key=True),
    Column("directory", RowNumber, ForeignKey("directories.id", ondelete="CASCADE"), primary_key=True),
    Column("in_import", BigInteger, nullable=False, comment="the last one that named it"),
    Column("kind", String(8), comment="a2a, mcp or disputed, if the directory states it"),
    Index(None, "directory", "target"),
    sqlite_with_rowid=False,
)

interface_versions = Table(
    "interface_versions",
    metadata,
    Column("target", RowNumber, ForeignKey("targets.id", ondelete="CASCADE"), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False, comment="counted from 1"),
    Column("seen_at_s", Double, nullable=False, comment="when a probe read it"),
    Column("until_s", Double, comment="when the next version took its place; null: it is the newest"),
    Column("digest", String(64), nullable=False, comment="SHA-256 of the body"),
    Column("body", Text, nullable=False, comment="published.Interface as canonical JSON"),
    Index("ix_interface_versions_until_s", "until_s", sqlite_where=text("until_s IS NOT NULL"),
          postgresql_where=text("until_s IS NOT NULL")),
)  # fmt: skip

interface_states = Table(
    "interface_states",
    metadata,
    Column("target", RowNumber, ForeignKey("targets.id", ondelete="CASCADE"), primary_key=True),
    Column("newest", Integer, nullable=False, comment="number of the newest version"),
    Column("baseline", Integer, nullable=False, comment="version that the next event is compared with"),
    Column("notified_at_s", Double, comment="when the last event was made"),
    Column("due_at_s", Double, comment="when the next event is due; null: nothing has changed since"),
    Index("ix_interface_states_due_at_s", "due_at_s", sqlite_where=text("due_at_s IS NOT NULL"),
          postgresql_where=text("due_at_s IS NOT NULL")),
)  # fmt: skip

result_changes = Table(
    "result_changes",
    metadata,
    Column("id", RowNumber, primary_key=True),
    Column("target", RowNumber, ForeignKey("targets.id", ondelete="CASCADE"), nullable=False),
    Column("at_s", Double, nullable=False),
    Column("layer", String(16), nullable=False, comment="or overall"),
    Column("previous", String(24), nullable=False),
    Column("result", String(24), nullable=False),
    Column("evidence", String(64), comment="SHA-256 under which the prober keeps the bytes"),
    Index(None, "target", "id"),
)

result_sums = Table(
    "result_sums",
    metadata,
    Column("hour", Integer, primary_key=True, autoincrement=False, comment="since the epoch"),
    Column("directory", RowNumber, primary_key=True, autoincrement=False, comment="0: every target once"),
    Column("layer", String(16), primary_key=True, comment="or overall"),
    Column("result", String(24), primary_key=True),
    Column("bucket", Integer, primary_key=True, autoincrement=False, comment="of the latency; -1: none"),
    Column("count", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)

census_runs = Table(
    "census_runs",
    metadata,
    Column("run_id", String(64), primary_key=True, comment="name of the definition"),
    Column("name", String(128), nullable=False, comment="of the probe definition"),
    Column("began_at_s", Double, nullable=False),
    Column("ended_at_s", Double),
    Column("counts", Text, comment="targets by result at its end, as JSON"),
    Column(
        "sums", Text, comment="of its probes, as JSON; until its end: of those of its first hour before it"
    ),
    Column("deadlines", Text, comment="of its requests, as JSON; null: not known, or different ones"),
    Column("not_read", Text, comment="directories that could not be read for it, as JSON"),
    Index(None, "name", "began_at_s"),
)

probers = Table(
    "probers",
    metadata,
    Column("holder", String(128), primary_key=True, comment="as its leases name it: key, slash, worker"),
    Column("joined_at_s", Double, nullable=False),
    Column("expires_at_s", Double, nullable=False),
    Column("interval_s", Double, comment="of its crawl"),
    Column("reached", Text, comment="network classes in which a witness answered it, as JSON"),
    Column("offset_s", Double, comment="its wall clock minus ours"),
    Column("credentials", Text, comment="names and places of its credentials, as JSON"),
)

# Separate from `probers`, which a claim locks as a whole: reports do not wait for claims. The row of a key
# contains the sums of its former workers.
prober_reports = Table(
    "prober_reports",
    metadata,
    Column(
        "holder", String(128), primary_key=True, comment="as in probers; the key alone: workers that left"
    ),
    Column("reported_at_s", Double, nullable=False, comment="its last result of any kind"),
    Column("answered", BigInteger, nullable=False, comment="results of living agents, like the next two"),
    Column("failed", BigInteger, nullable=False),
    Column("inconclusive", BigInteger, nullable=False),
    Column("idle", Text, comment="shard_eligibility.Idleness as JSON"),
)

opt_outs = Table(
    "opt_outs",
    metadata,
    Column("origin", String(512), primary_key=True),
    Column("token", String(128), nullable=False, comment="to be served by the origin as a proof"),
    Column("requested_at_s", Double, nullable=False),
    Column("checked_at_s", Double, comment="time of the last check for the token"),
    Column("proven_at_s", Double, comment="since when it is probed no more"),
)

# Tasks. A task's number is that of its lease's row. A transaction that changes the task has locked that row,
# so that the other rows need no locks; the exception are budgets, which the end of a child changes too.
tasks = Table(
    "tasks",
    metadata,
    Column("number", RowNumber, ForeignKey("leases.number"), primary_key=True, autoincrement=False),
    Column("task_id", String(32), nullable=False, unique=True),
    Column("title", String(256), nullable=False),
    Column("status", String(16), nullable=False),
    Column("status_since_s", Double, nullable=False),
    Column("explanation", Text, comment="why it has this status, if a reason was given"),
    Column("agent_id", String(128), comment="who alone may have it"),
    Column("role_id", String(128), comment="whose members alone may have it"),
    Column("capabilities", JSON, nullable=False, comment="as in task_needs"),
    Column("input", Text, nullable=False, comment="JSON"),
    Column("output", Text, comment="JSON"),
    Column("lease_s", Double, nullable=False),
    Column("max_attempts", Integer, nullable=False),
    Column("backoff_s", Double, nullable=False),
    Column("attempts", Integer, nullable=False, comment="runs since people last queued it"),
    Column("runs", Integer, nullable=False, comment="the number of the last one"),
    Column("reports", Integer, nullable=False, comment="the number of the last one"),
    Column("writes", Integer, nullable=False, comment="number of rows in task_writes"),
    Column("not_before_s", Double, comment="while it is queued"),
    Column("progress_at_s", Double, comment="when the last run began, or last reported"),
    Column("parent", RowNumber, ForeignKey("tasks.number")),
    Column("fix_of", RowNumber, ForeignKey("tasks.number")),
    Column("created_by", String(160), nullable=False),
    Column("created_at_s", Double, nullable=False),
    Column(
        "lost_runs",
        Integer,
        nullable=False,
        server_default="0",
        comment="of the attempts, those whose run was lost",
    ),
    Index(None, "status", "number"),
    Index(None, "parent", "number"),
    Index(None, "fix_of"),
    Index(None, "status", "status_since_s"),
)

task_creations = Table(
    "task_creations",
    metadata,
    Column("creator", String(160), primary_key=True),
    Column("idempotency_key", String(128), primary_key=True),
    Column("digest", String(64), nullable=False, comment="SHA-256 of what was asked for"),
    Column(
        "task",
        RowNumber,
        ForeignKey("tasks.number"),
        comment="null until it is there, in the same transaction",
    ),
    Index(None, "task"),
)

task_needs = Table(
    "task_needs",
    metadata,
    Column("task", RowNumber, ForeignKey("tasks.number"), primary_key=True, autoincrement=False),
    Column("capability", String(128), primary_key=True),
    sqlite_with_rowid=False,
)

task_runs = Table(
    "task_runs",
    metadata,
    Column("task", RowNumber, ForeignKey("tasks.number"), primary_key=True, autoincrement=False),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("run_id", String(32), nullable=False, unique=True),
    Column("holder", String(128), comment="null: erased"),
    Column("token", BigInteger, nullable=False),
    Column("began_at_s", Double, nullable=False),
    Column("ended_at_s", Double),
    Column("exit_reason", String(16)),
    Column("exit_code", Integer),
    Column("calls", Integer, nullable=False, comment="how many it has reserved for"),
    Index(None, "holder", "task"),
)

task_reports = Table(
    "task_reports",
    metadata,
    Column("task", RowNumber, ForeignKey("tasks.number"), primary_key=True, autoincrement=False),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("run_id", String(32), nullable=False),
    Column("reported_at_s", Double, nullable=False),
    Column("report", Text, nullable=False, comment="JSON"),
)

# Only the latest are kept. Those of a task whose result was rejected are also stored with its fix.
task_comments = Table(
    "task_comments",
    metadata,
    Column("task", RowNumber, ForeignKey("tasks.number"), primary_key=True, autoincrement=False),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("signal", String(16), nullable=False, comment="what was decided, or asked for, with it"),
    Column("comment", Text, nullable=False),
    Column("written_by", String(160), comment="null once the agent is erased"),
    Column("written_at_s", Double, nullable=False),
    Index(None, "written_by"),
)

task_writes = Table(
    "task_writes",
    metadata,
    Column("task", RowNumber, ForeignKey("tasks.number"), primary_key=True, autoincrement=False),
    Column("run_id", String(32), primary_key=True),
    Column("idempotency_key", String(128), primary_key=True),
    Column("digest", String(64), nullable=False, comment="SHA-256 of what was written"),
    Column("answer", Text, nullable=False, comment="JSON"),
)

task_budgets = Table(
    "task_budgets",
    metadata,
    Column("task", RowNumber, ForeignKey("tasks.number"), primary_key=True, autoincrement=False),
    Column("carved_tokens", BigInteger, nullable=False, comment="out of the parent's envelope"),
    Column("carved_micro_usd", BigInteger, nullable=False),
    Column("envelope_tokens", BigInteger, nullable=False),
    Column("envelope_micro_usd", BigInteger, nullable=False),
    Column("settled_tokens", BigInteger, nullable=False),
    Column("settled_micro_usd", BigInteger, nullable=False),
    Column("reserved_tokens", BigInteger, nullable=False),
    Column("reserved_micro_usd", BigInteger, nullable=False),
    Column("delegated_tokens", BigInteger, nullable=False),
    Column("delegated_micro_usd", BigInteger, nullable=False),
    Column("overrun_tokens", BigInteger, nullable=False),
    Column("overrun_micro_usd", BigInteger, nullable=False),
)

task_calls = Table(
    "task_calls",
    metadata,
    Column("task", RowNumber, ForeignKey("tasks.number"), primary_key=True, autoincrement=False),
    Column("call_id", String(64), primary_key=True),
    Column("tool", String(256), nullable=False),
    Column("state", String(16), nullable=False),
    Column("reserved_tokens", BigInteger, nullable=False),
    Column("reserved_micro_usd", BigInteger, nullable=False),
    Column("cost_tokens", BigInteger, comment="once it is settled"),
    Column("cost_micro_usd", BigInteger),
)
