"""Shift of stored times after the clock was set.

Times in the future keep their remaining duration, and no past time lies in the future. Each statement may be
repeated where its docstring says so, since a repair of many agents takes several transactions.
"""

from math import inf
from typing import NamedTuple

from sqlalchemy import bindparam, or_, select, text

from lifesign.domain.lifecycle.observed_facts import Observed, moved_back
from lifesign.storage.agents import agent_rows as stored_agents
from lifesign.storage.engine.table_definitions import agents, observed, targets
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.targets import target_rows

_DRAINING = (
    select(agents.c.id)
    .where(agents.c.status == bindparam("status"), agents.c.drain_deadline_s > bindparam("running_at_s"))
    .order_by(agents.c.id)
    .with_for_update(key_share=True)
)
_MOVE_DRAINS = text("""
    UPDATE agents SET drain_deadline_s = drain_deadline_s + :by_s
    WHERE status = :status AND drain_deadline_s > :running_at_s
""")
_DECIDED = (
    select(agents.c.id)
    .where(
        or_(
            agents.c.maintenance_until_s > bindparam("running_at_s"),
            agents.c.override_until_s > bindparam("running_at_s"),
        )
    )
    .order_by(agents.c.id)
    .with_for_update(key_share=True)
)
_MOVE_MAINTENANCES = text("""
    UPDATE agents SET maintenance_until_s = maintenance_until_s + :by_s
    WHERE maintenance_until_s > :running_at_s
    RETURNING id, agent_id, maintenance_until_s AS until_s, NULL AS override_status
""")
_MOVE_OVERRIDES = text("""
    UPDATE agents SET override_until_s = override_until_s + :by_s
    WHERE override_until_s > :running_at_s
    RETURNING id, agent_id, override_until_s AS until_s, override_status
""")
_WAITING_COMMANDS = text("""
    SELECT id FROM commands WHERE expires_at_s > :running_at_s ORDER BY id FOR NO KEY UPDATE
""")
_MOVE_COMMANDS = text("""
    UPDATE commands SET expires_at_s = expires_at_s + :by_s WHERE expires_at_s > :running_at_s
""")
_RUNNING_LEASES = text("""
    SELECT number FROM leases
    WHERE ended_at_s IS NULL AND expires_at_s > :running_at_s AND acquired_at_s < :acquired_before_s
    ORDER BY number FOR NO KEY UPDATE
""")
_MOVE_LEASES = text("""
    UPDATE leases SET acquired_at_s = acquired_at_s + :by_s, expires_at_s = expires_at_s + :by_s
    WHERE ended_at_s IS NULL AND expires_at_s > :running_at_s AND acquired_at_s < :acquired_before_s
""")
_MOVE_QUEUED = text("""
    UPDATE tasks SET not_before_s = not_before_s + :by_s
    WHERE status = 'queued' AND not_before_s > :running_at_s
""")
_SOME = select(agents.c.id).where(agents.c.id > bindparam("after")).order_by(agents.c.id)
_HEARTBEATS_BACK = text("""
    UPDATE heartbeats SET last_heartbeat_at_s = last_heartbeat_at_s + :by_s
    WHERE agent > :after AND agent <= :last AND last_heartbeat_at_s > :now_s
""")
_STATUSES_BACK = text("""
    UPDATE agents SET status_since_s = status_since_s + :by_s
    WHERE id > :after AND id <= :last AND status_since_s > :now_s
""")
# An early deadline does no harm: it is then computed again.
_DEADLINES_BACK = text("""
    UPDATE agents SET assess_at_s = assess_at_s + :by_s
    WHERE id > :after AND id <= :last AND assess_at_s > :now_s
""")


_SOME_TARGETS = select(targets.c.id).where(targets.c.id > bindparam("after")).order_by(targets.c.id)
_BACK = "{0} = CASE WHEN {0} > :now_s THEN {0} + :by_s ELSE {0} END".format
_RESULTS_BACK = text(f"""
    UPDATE probe_results SET observed_at_s = observed_at_s + :by_s,
        {_BACK("evidence_at_s")}, {_BACK("result_since_s")},
        evidence_until_s = evidence_until_s + :by_s, results_until_s = results_until_s + :by_s
    WHERE target > :after AND target <= :last AND observed_at_s > :now_s
""")  # noqa: S608 - constants only
_ANSWERS_BACK = text(f"""
    UPDATE liveness SET
        {_BACK("answered_at_s")}, {_BACK("silent_since_s")},
        handed_out_at_s = CASE WHEN handed_out_at_s > :now_s THEN NULL ELSE handed_out_at_s END
    WHERE target > :after AND target <= :last
        AND (answered_at_s > :now_s OR silent_since_s > :now_s OR handed_out_at_s > :now_s)
""")  # noqa: S608 - constants only
_WEBHOOKS_BACK = text(f"""
    UPDATE webhooks SET {_BACK("next_try_at_s")}, {_BACK("claimed_until_s")}, {_BACK("failing_since_s")}
    WHERE next_try_at_s > :now_s OR claimed_until_s > :now_s OR failing_since_s > :now_s
""")  # noqa: S608 - constants only
_CONFIRMED_BACK = text("""
    UPDATE targets SET confirmed_at_s = confirmed_at_s + :by_s, version = :version
    WHERE id > :after AND id <= :last AND confirmed_at_s > :now_s
""")


class MovedEnd(NamedTuple):
    """The new end of an agent's maintenance or status override."""

    id: int
    """Our number for the agent."""
    agent_id: str
    until_s: float
    override_status: str | None
    """Status of the override; None for a maintenance."""


def move_drains(transaction: Transaction, by_s: float, running_at_s: float) -> None:
    """Move the end of each drain that had not ended at `running_at_s`; must not be repeated.

    The time of its assessment stays: an early one does no harm, and an agent without leases is due at once.
    """
    moved = {"status": "draining", "running_at_s": running_at_s}
    transaction.connection.execute(_DRAINING, moved)
    transaction.connection.execute(_MOVE_DRAINS, {**moved, "by_s": by_s})


def move_decisions(transaction: Transaction, by_s: float, running_at_s: float) -> list[MovedEnd]:
    """Move the end of each maintenance and override that was current at `running_at_s`; return the new ends.

    Not to be repeated. The time of the next assessment stays: an early one does no harm.
    """
    connection = transaction.connection
    connection.execute(_DECIDED, {"running_at_s": running_at_s})
    moved = {"by_s": by_s, "running_at_s": running_at_s}
    return [
        MovedEnd(*row)
        for statement in (_MOVE_MAINTENANCES, _MOVE_OVERRIDES)
        for row in sorted(connection.execute(statement, moved).all(), key=lambda row: row.id)
    ]


def move_commands(transaction: Transaction, by_s: float, running_at_s: float) -> None:
    """Move the expiry of commands that had not expired at `running_at_s`; must not be repeated."""
    if transaction.is_postgresql:
        transaction.connection.execute(_WAITING_COMMANDS, {"running_at_s": running_at_s})
    transaction.connection.execute(_MOVE_COMMANDS, {"by_s": by_s, "running_at_s": running_at_s})


def move_leases(
    transaction: Transaction, by_s: float, running_at_s: float, acquired_before_s: float = inf
) -> None:
    """Move the expiry of leases that were current at `running_at_s`, and due times of tasks, by `by_s`.

    Leases acquired at `acquired_before_s` or later stay: they were granted by the new clock. Not to be
    repeated.
    """
    moved = {"by_s": by_s, "running_at_s": running_at_s}
    of_leases = {**moved, "acquired_before_s": acquired_before_s}
    if transaction.is_postgresql:
        transaction.connection.execute(_RUNNING_LEASES, of_leases)
    transaction.connection.execute(_MOVE_LEASES, of_leases)
    transaction.connection.execute(_MOVE_QUEUED, moved)


def move_webhooks_back(transaction: Transaction, by_s: float, now_s: float) -> None:
    """Move future times of webhooks back by `by_s`, which is negative; must not be repeated.

    If a delivery is under way, its result is not stored, and the batch is sent again.
    """
    transaction.connection.execute(_WEBHOOKS_BACK, {"by_s": by_s, "now_s": now_s})


def move_agents_back(
    transaction: Transaction, by_s: float, now_s: float, *, after: int, limit: int
) -> int | None:
    """Move future times of some agents back by `by_s` (negative); return the last agent's number.

    `after` is the result of the previous call, 0 at first; None: there are no more. May be repeated.
    """
    numbers = transaction.connection.scalars(
        _SOME.limit(limit).with_for_update(key_share=True), {"after": after}
    ).all()
    if not numbers:
        return None
    moved = {"by_s": by_s, "now_s": now_s, "after": after, "last": numbers[-1]}
    for statement in (_HEARTBEATS_BACK, _STATUSES_BACK, _DEADLINES_BACK):
        transaction.connection.execute(statement, moved)
    stored_facts = transaction.connection.execute(
        select(observed.c.agent, observed.c.facts).where(
            observed.c.agent > after, observed.c.agent <= numbers[-1]
        )
    )
    stored_agents.set_observed(
        transaction,
        [
            stored_agents.observed_row(number, moved_back(Observed.from_json(facts), by_s, now_s))
            for number, facts in stored_facts
        ],
    )
    return int(numbers[-1])


def move_targets_back(
    transaction: Transaction, by_s: float, now_s: float, *, after: int, limit: int
) -> int | None:
    """Move the future times of some targets' results, as `move_agents_back` does."""
    numbers = transaction.connection.scalars(_SOME_TARGETS.limit(limit), {"after": after}).all()
    if not numbers:
        return None
    moved = {"by_s": by_s, "now_s": now_s, "after": after, "last": numbers[-1]}
    for statement in (_RESULTS_BACK, _ANSWERS_BACK):
        transaction.connection.execute(statement, moved)
    is_ahead = (targets.c.id > after, targets.c.id <= numbers[-1], targets.c.confirmed_at_s > now_s)
    if transaction.connection.scalar(select(targets.c.id).where(*is_ahead).limit(1)) is not None:
        # Their probers read them again.
        version = target_rows.next_version(transaction)
        transaction.connection.execute(_CONFIRMED_BACK, {**moved, "version": version})
    return int(numbers[-1])
