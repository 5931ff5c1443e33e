"""What is to be done, by whom, and what may it cost?"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

# SQLite numbers rows by itself only where the type is INTEGER.
_ROW_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Create the tables of tasks."""
    _create_tasks()
    _create_task_budgets()
    _create_task_calls()
    _create_task_needs()
    _create_task_reports()
    _create_task_runs()
    _create_task_writes()


def _create_tasks() -> None:
    op.create_table(
        "tasks",
        sa.Column("number", _ROW_NUMBER, autoincrement=False, nullable=False),
        sa.Column("task_id", sa.String(length=32), nullable=False),
        sa.Column("title", sa.String(length=256), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("status_since_s", sa.Double(), nullable=False),
        sa.Column("explanation", sa.Text(), comment="why it has this status, where somebody said so"),
        sa.Column("agent_id", sa.String(length=128), comment="who alone may have it"),
        sa.Column("role_id", sa.String(length=128), comment="whose members alone may have it"),
        sa.Column("capabilities", sa.JSON(), nullable=False, comment="as in task_needs"),
        sa.Column("input", sa.Text(), nullable=False, comment="JSON"),
        sa.Column("output", sa.Text(), comment="JSON"),
        sa.Column("lease_s", sa.Double(), nullable=False),
        sa.Column("max_attempts", sa.Integer(), nullable=False),
        sa.Column("backoff_s", sa.Double(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False, comment="runs since people last queued it"),
        sa.Column("runs", sa.Integer(), nullable=False, comment="the number of the last one"),
        sa.Column("reports", sa.Integer(), nullable=False, comment="the number of the last one"),
        sa.Column("writes", sa.Integer(), nullable=False, comment="how many stand in task_writes"),
        sa.Column("not_before_s", sa.Double(), comment="while it is queued"),
        sa.Column("progress_at_s", sa.Double(), comment="when the last run began, or last reported"),
        sa.Column("parent", _ROW_NUMBER),
        sa.Column("fix_of", _ROW_NUMBER),
        sa.Column("created_by", sa.String(length=160), nullable=False),
        sa.Column("created_at_s", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("number", name="pk_tasks"),
        sa.ForeignKeyConstraint(["number"], ["leases.number"], name="fk_tasks_number"),
        sa.UniqueConstraint("task_id", name="uq_tasks_task_id"),
        sa.ForeignKeyConstraint(["parent"], ["tasks.number"], name="fk_tasks_parent"),
        sa.ForeignKeyConstraint(["fix_of"], ["tasks.number"], name="fk_tasks_fix_of"),
    )
    op.create_index("ix_tasks_parent_number", "tasks", ["parent", "number"])
    op.create_index("ix_tasks_status_number", "tasks", ["status", "number"])


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
        sa.ForeignKeyConstraint(["task"], ["tasks.number"], name="fk_task_budgets_task"),
        sa.PrimaryKeyConstraint("task", name="pk_task_budgets"),
    )


def _create_task_calls() -> None:
    op.create_table(
        "task_calls",
        sa.Column("task", _ROW_NUMBER, autoincrement=False, nullable=False),
        sa.Column("call_id", sa.String(length=64), nullable=False),
        sa.Column("tool", sa.String(length=256), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("reserved_tokens", sa.BigInteger(), nullable=False),
        sa.Column("reserved_micro_usd", sa.BigInteger(), nullable=False),
        sa.Column("cost_tokens", sa.BigInteger(), comment="once it is settled"),
        sa.Column("cost_micro_usd", sa.BigInteger()),
        sa.ForeignKeyConstraint(["task"], ["tasks.number"], name="fk_task_calls_task"),
        sa.PrimaryKeyConstraint("task", "call_id", name="pk_task_calls"),
    )


def _create_task_needs() -> None:
    op.create_table(
        "task_needs",
        sa.Column("task", _ROW_NUMBER, autoincrement=False, nullable=False),
        sa.Column("capability", sa.String(length=128), nullable=False),
        sa.ForeignKeyConstraint(["task"], ["tasks.number"], name="fk_task_needs_task"),
        sa.PrimaryKeyConstraint("task", "capability", name="pk_task_needs"),
        sqlite_with_rowid=False,
    )


def _create_task_reports() -> None:
    op.create_table(
        "task_reports",
        sa.Column("task", _ROW_NUMBER, autoincrement=False, nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("run_id", sa.String(length=32), nullable=False),
        sa.Column("reported_at_s", sa.Double(), nullable=False),
        sa.Column("report", sa.Text(), nullable=False, comment="JSON"),
        sa.ForeignKeyConstraint(["task"], ["tasks.number"], name="fk_task_reports_task"),
        sa.PrimaryKeyConstraint("task", "number", name="pk_task_reports"),
    )


def _create_task_runs() -> None:
    op.create_table(
        "task_runs",
        sa.Column("task", _ROW_NUMBER, autoincrement=False, nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("run_id", sa.String(length=32), nullable=False),
        sa.Column("holder", sa.String(length=128), comment="null: erased"),
        sa.Column("token", sa.BigInteger(), nullable=False),
        sa.Column("began_at_s", sa.Double(), nullable=False),
        sa.Column("ended_at_s", sa.Double()),
        sa.Column("exit_reason", sa.String(length=16)),
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
        sa.Column("run_id", sa.String(length=32), nullable=False),
        sa.Column("idempotency_key", sa.String(length=128), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False, comment="SHA-256 of what was written"),
        sa.Column("answer", sa.Text(), nullable=False, comment="JSON"),
        sa.ForeignKeyConstraint(["task"], ["tasks.number"], name="fk_task_writes_task"),
        sa.PrimaryKeyConstraint("task", "run_id", "idempotency_key", name="pk_task_writes"),
    )
