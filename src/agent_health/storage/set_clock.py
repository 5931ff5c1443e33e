"""Which stored times move when the clock was set?

What is still to come keeps its remaining time, and no past lies ahead of now. Each statement may be
repeated where it says so, since a repair of many agents takes several transactions.
"""

from sqlalchemy import bindparam, select, text

from agent_health.observed import Observed, moved_back
from agent_health.storage import agents as stored_agents
from agent_health.storage.database import Transaction
from agent_health.storage.tables import agents, observed

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
_RUNNING_LEASES = text("""
    SELECT number FROM leases WHERE ended_at_s IS NULL AND expires_at_s > :running_at_s
    ORDER BY number FOR NO KEY UPDATE
""")
_MOVE_LEASES = text("""
    UPDATE leases SET acquired_at_s = acquired_at_s + :by_s, expires_at_s = expires_at_s + :by_s
    WHERE ended_at_s IS NULL AND expires_at_s > :running_at_s
""")
_MOVE_QUEUED = text("""
    UPDATE tasks SET not_before_s = not_before_s + :by_s
    WHERE status = 'queued' AND not_before_s > :running_at_s
""")
_SOME = select(agents.c.id).where(agents.c.id > bindparam("after")).order_by(agents.c.id)
_BEATS_BACK = text("""
    UPDATE beats SET last_heartbeat_at_s = last_heartbeat_at_s + :by_s
    WHERE agent > :after AND agent <= :last AND last_heartbeat_at_s > :now_s
""")
_STATUSES_BACK = text("""
    UPDATE agents SET status_since_s = status_since_s + :by_s
    WHERE id > :after AND id <= :last AND status_since_s > :now_s
""")
# Sooner than need be does no harm: then the deadline is computed anew.
_DEADLINES_BACK = text("""
    UPDATE agents SET judge_at_s = judge_at_s + :by_s
    WHERE id > :after AND id <= :last AND judge_at_s > :now_s
""")


def move_drains(transaction: Transaction, by_s: float, running_at_s: float) -> None:
    """Move the end of each drain that was not over at `running_at_s`; not to be repeated.

    When it is judged stays: sooner than need be does no harm, and who holds nothing is due at once.
    """
    moved = {"status": "draining", "running_at_s": running_at_s}
    transaction.connection.execute(_DRAINING, moved)
    transaction.connection.execute(_MOVE_DRAINS, {**moved, "by_s": by_s})


def move_leases(transaction: Transaction, by_s: float, running_at_s: float) -> None:
    """Move each lease that was not over at `running_at_s`, and when tasks may be had; not to be repeated."""
    if transaction.is_postgresql:
        transaction.connection.execute(_RUNNING_LEASES, {"running_at_s": running_at_s})
    for statement in (_MOVE_LEASES, _MOVE_QUEUED):
        transaction.connection.execute(statement, {"by_s": by_s, "running_at_s": running_at_s})


def move_agents_back(
    transaction: Transaction, by_s: float, now_s: float, *, after: int, limit: int
) -> int | None:
    """Move the times of some agents that lie ahead of now by `by_s`, below 0; return the last one's number.

    `after` is what the call before returned, 0 at first; None: there are no more. May be repeated.
    """
    numbers = transaction.connection.scalars(
        _SOME.limit(limit).with_for_update(key_share=True), {"after": after}
    ).all()
    if not numbers:
        return None
    moved = {"by_s": by_s, "now_s": now_s, "after": after, "last": numbers[-1]}
    for statement in (_BEATS_BACK, _STATUSES_BACK, _DEADLINES_BACK):
        transaction.connection.execute(statement, moved)
    seen = transaction.connection.execute(
        select(observed.c.agent, observed.c.facts).where(
            observed.c.agent > after, observed.c.agent <= numbers[-1]
        )
    )
    stored_agents.set_observed(
        transaction,
        {number: moved_back(Observed.from_json(facts), by_s, now_s).to_json() for number, facts in seen},
    )
    return int(numbers[-1])
