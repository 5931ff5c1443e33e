"""What are the targets of probes, and what is kept of their results?"""

import sqlalchemy as sa
from alembic import op

from lifesign.domain.net.target import host_of, read_target, shard_of
from lifesign.domain.net.target_address import AddressRefused

revision = "0002"
down_revision = "0001"

# SQLite numbers rows by itself only where the type is INTEGER.
_ROW_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_PAGE = 1_000
"""Of agents that are in memory at once."""


def upgrade() -> None:
    """Create the tables, and make targets of the agents that wanted to be probed."""
    _create_census_runs()
    _create_directories()
    _create_opt_outs()
    _create_probers()
    _create_result_sums()
    _create_target_log()
    _create_targets()
    _create_imports()
    _create_listings()
    _create_probed()
    _create_result_changes()
    _create_import_pages()
    _add_probed_agents()


def _create_census_runs() -> None:
    op.create_table(
        "census_runs",
        sa.Column("run_id", sa.String(64), nullable=False, comment="as whoever runs it calls it"),
        sa.Column("name", sa.String(128), nullable=False, comment="of the probe definition"),
        sa.Column("began_at_s", sa.Double(), nullable=False),
        sa.Column("ended_at_s", sa.Double()),
        sa.Column("counts", sa.Text(), comment="targets by result at its end, as JSON"),
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
        sa.PrimaryKeyConstraint("id", name="pk_directories"),
        sa.UniqueConstraint("name", name="uq_directories_name"),
    )


def _create_opt_outs() -> None:
    op.create_table(
        "opt_outs",
        sa.Column("origin", sa.String(512), nullable=False),
        sa.Column("token", sa.String(128), nullable=False, comment="to be served by the origin as a proof"),
        sa.Column("asked_at_s", sa.Double(), nullable=False),
        sa.Column("checked_at_s", sa.Double(), comment="when somebody last looked whether it is served"),
        sa.Column("proven_at_s", sa.Double(), comment="since when it is probed no more"),
        sa.PrimaryKeyConstraint("origin", name="pk_opt_outs"),
    )


def _create_probers() -> None:
    op.create_table(
        "probers",
        sa.Column(
            "holder", sa.String(128), nullable=False, comment="as its leases name it: key, slash, worker"
        ),
        sa.Column("joined_at_s", sa.Double(), nullable=False),
        sa.Column("expires_at_s", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("holder", name="pk_probers"),
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
            "version", sa.BigInteger(), nullable=False, comment="rises with what its prober has to be told"
        ),
        sa.Column("is_registered", sa.Boolean(), nullable=False, comment="no directory has to list it"),
        sa.Column("added_at_s", sa.Double(), nullable=False),
        sa.Column("recheck_at_s", sa.Double(), comment="when somebody last asked for a look"),
        sa.Column("gone_at_s", sa.Double(), comment="since when it is no target any more"),
        sa.Column("gone_reason", sa.String(16)),
        sa.PrimaryKeyConstraint("id", name="pk_targets"),
        sa.UniqueConstraint("subject_id", name="uq_targets_subject_id"),
    )
    op.create_index(
        "ix_targets_left_shard_version",
        "targets",
        ["left_shard", "version"],
        sqlite_where=sa.text("left_shard IS NOT NULL"),
        postgresql_where=sa.text("left_shard IS NOT NULL"),
    )
    op.create_index("ix_targets_shard_version", "targets", ["shard", "version"])


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
        sa.Column("pages", sa.Integer(), nullable=False, comment="how many have come"),
        sa.Column("place", sa.BigInteger(), nullable=False, comment="the page added last, then the target"),
        sa.Column("size_before", sa.BigInteger(), nullable=False),
        sa.Column("added", sa.BigInteger(), nullable=False),
        sa.Column("removed", sa.BigInteger(), nullable=False),
        sa.Column(
            "counts", sa.Text(), nullable=False, comment="of what came and of what was refused, as JSON"
        ),
        sa.Column("explanation", sa.String(500), comment="why it is held"),
        sa.UniqueConstraint("directory", "import_id", name="uq_imports_directory_import_id"),
        sa.ForeignKeyConstraint(
            ["directory"], ["directories.id"], name="fk_imports_directory", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_imports"),
    )


def _create_listings() -> None:
    op.create_table(
        "listings",
        sa.Column("target", _ROW_NUMBER, nullable=False),
        sa.Column("directory", _ROW_NUMBER, nullable=False),
        sa.Column("in_import", sa.BigInteger(), nullable=False, comment="the last one that named it"),
        sa.ForeignKeyConstraint(["target"], ["targets.id"], name="fk_listings_target", ondelete="CASCADE"),
        sa.ForeignKeyConstraint(
            ["directory"], ["directories.id"], name="fk_listings_directory", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("target", "directory", name="pk_listings"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_listings_directory_target", "listings", ["directory", "target"])


def _create_probed() -> None:
    op.create_table(
        "probed",
        sa.Column("target", _ROW_NUMBER, nullable=False),
        sa.Column(
            "observed_at_s",
            sa.Double(),
            nullable=False,
            comment="the time of the last observation that counted",
        ),
        sa.Column("result", sa.String(24), comment="of the last that told anything; null: never measured"),
        sa.Column("result_since_s", sa.Double()),
        sa.Column("layers", sa.String(128), comment="the last result of each layer that told anything"),
        sa.Column("memory", sa.Text(), comment="probe_memory.ProbeMemory as JSON"),
        sa.Column("seen", sa.Text(), comment="the last observation that told anything, as JSON"),
        sa.Column("protocol_version", sa.String(64), comment="as its card says it, for counting"),
        sa.ForeignKeyConstraint(["target"], ["targets.id"], name="fk_probed_target", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("target", name="pk_probed"),
        postgresql_with={"fillfactor": 70},
    )
    op.create_index("ix_probed_result_target", "probed", ["result", "target"])


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
        sa.ForeignKeyConstraint(
            ["target"], ["targets.id"], name="fk_result_changes_target", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_result_changes"),
    )
    op.create_index("ix_result_changes_target_id", "result_changes", ["target", "id"])


def _create_import_pages() -> None:
    op.create_table(
        "import_pages",
        sa.Column("in_import", _ROW_NUMBER, nullable=False),
        sa.Column("page", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("urls", sa.Text(), nullable=False, comment="as target.read_target spells them, as JSON"),
        sa.ForeignKeyConstraint(
            ["in_import"], ["imports.id"], name="fk_import_pages_in_import", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("in_import", "page", name="pk_import_pages"),
    )


def _add_probed_agents() -> None:
    connection = op.get_bind()
    found = sa.text("""
        SELECT id, agent_id, card_url FROM agents
        WHERE id > :after AND monitoring <> 'heartbeat' AND status <> 'deregistered' AND card_url IS NOT NULL
        ORDER BY id LIMIT :limit
    """)
    add = sa.text("""
        INSERT INTO targets (subject_id, url, host, shard, version, is_registered, added_at_s)
        SELECT agent_id, :url, :host, :shard, 1, true, registered_at_s FROM agents WHERE id = :id
    """)
    after = 0
    while rows := connection.execute(found, {"after": after, "limit": _PAGE}).all():
        after = rows[-1].id
        for row in rows:
            url = read_target(row.card_url)
            if not isinstance(url, AddressRefused):
                host = host_of(url)
                where = {"id": row.id, "url": url, "host": host, "shard": shard_of(host)}
                connection.execute(add, where)
    if after:
        connection.execute(sa.text("INSERT INTO target_log (id, version) VALUES (1, 1)"))
