"""Reports of probers: the time of each worker's last result, and the results of living agents."""

from collections.abc import Collection
from dataclasses import asdict
from math import inf
from typing import NamedTuple

from pydantic import TypeAdapter
from pydantic_core import to_json
from sqlalchemy import delete, select, text

from lifesign.domain.probing.shard_eligibility import HOLDER_SEPARATOR, Idleness, is_before_jump, key_of
from lifesign.storage.engine.table_definitions import prober_reports
from lifesign.storage.engine.transaction import Transaction


class Reported(NamedTuple):
    """Number of results about living agents: answered, failed, and inconclusive."""

    answered: int = 0
    failed: int = 0
    inconclusive: int = 0

    def plus(self, other: "Reported") -> "Reported":
        """Return the sum of two counts."""
        return Reported(*(one + another for one, another in zip(self, other, strict=True)))


class WorkerReports(NamedTuple):
    """Sums of the results that one worker reported, or the former workers of a key."""

    holder: str
    reported_at_s: float
    reported: Reported
    idle: Idleness | None
    """State after its last claim; for a key, of all its workers together."""


_ADD = text("""
    INSERT INTO prober_reports (holder, reported_at_s, answered, failed, inconclusive)
    VALUES (:holder, :at_s, :answered, :failed, :inconclusive)
    ON CONFLICT (holder) DO UPDATE SET
        reported_at_s = CASE
            WHEN excluded.reported_at_s > prober_reports.reported_at_s THEN excluded.reported_at_s
            ELSE prober_reports.reported_at_s
        END,
        answered = prober_reports.answered + excluded.answered,
        failed = prober_reports.failed + excluded.failed,
        inconclusive = prober_reports.inconclusive + excluded.inconclusive
""")


_NOTE = text("""
    INSERT INTO prober_reports (holder, reported_at_s, answered, failed, inconclusive, idle)
    VALUES (:holder, 0, 0, 0, 0, :idle)
    ON CONFLICT (holder) DO UPDATE SET idle = excluded.idle
""")
_MOVE = text("UPDATE prober_reports SET reported_at_s = reported_at_s + :by_s WHERE holder = :holder")
_IDLENESS = TypeAdapter(Idleness)


def note_idle(transaction: Transaction, holder: str, idle: Idleness) -> None:
    """Store how long a worker or a key has held shards without a result."""
    members = {name: value for name, value in asdict(idle).items() if value != -inf}
    transaction.connection.execute(_NOTE, {"holder": holder, "idle": to_json(members).decode()})


def move(transaction: Transaction, by_s: float, now_s: float) -> None:
    """Move times of before the clock was set by `by_s`; must not be repeated."""
    for each in all_of(transaction):
        if each.reported_at_s > 0 and is_before_jump(each.reported_at_s, by_s, now_s):
            transaction.connection.execute(_MOVE, {"by_s": by_s, "holder": each.holder})
        if each.idle is not None and (moved := each.idle.moved(by_s, now_s)) != each.idle:
            note_idle(transaction, each.holder, moved)


def add(transaction: Transaction, holder: str, at_s: float, reported: Reported) -> None:
    """Add the results that a worker reported at this time to its sums."""
    transaction.connection.execute(_ADD, {"holder": holder, "at_s": at_s, **reported._asdict()})


def all_of(transaction: Transaction) -> list[WorkerReports]:
    """Return the sums of all workers, including former ones."""
    wanted = select(prober_reports).order_by(prober_reports.c.holder)
    return [
        WorkerReports(
            row.holder,
            row.reported_at_s,
            Reported(row.answered, row.failed, row.inconclusive),
            None if row.idle is None else _IDLENESS.validate_json(row.idle),
        )
        for row in transaction.connection.execute(wanted)
    ]


def by_key(transaction: Transaction) -> dict[str, Reported]:
    """Return the sums of all workers of each key, including former ones."""
    sums: dict[str, Reported] = {}
    for each in all_of(transaction):
        key = key_of(each.holder)
        sums[key] = sums.get(key, Reported()).plus(each.reported)
    return sums


def fold_left(transaction: Transaction, living: Collection[str]) -> None:
    """Add the sums of former workers to those of their keys, so that no sum decreases."""
    left = [
        each for each in all_of(transaction) if HOLDER_SEPARATOR in each.holder and each.holder not in living
    ]
    for each in left:
        add(transaction, key_of(each.holder), each.reported_at_s, each.reported)
    holders = [each.holder for each in left]
    if holders:
        transaction.connection.execute(delete(prober_reports).where(prober_reports.c.holder.in_(holders)))
