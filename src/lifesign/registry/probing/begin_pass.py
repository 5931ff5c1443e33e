"""Start of a pass over all targets, or continuation of a running one.

A caller that starts a pass while one of the same name is running joins it: two crawls that start at the same
moment probe each target once between them.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from lifesign.domain.common.clock_skew import is_in_future, last_not_ahead
from lifesign.domain.models.census import MAX_NOT_READ, Deadlines
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.targets import census_counts
from lifesign.storage.targets.census_counts import StoredPass

RESUMED_SECONDS: Final = 86_400.0
"""A pass that was interrupted longer ago is not continued: its results are too old."""
MAX_RUNS: Final = 100
"""Number of passes among which the last one is searched that is not in the future."""


def begin_or_join(
    transaction: Transaction, run_id: str, name: str, deadlines: Deadlines | None
) -> StoredPass:
    """Return the running pass of this name, or begin a new one with this id."""
    census_counts.lock_runs(transaction)
    transaction = transaction.after_waiting()
    known = census_counts.runs(transaction, name, MAX_RUNS)
    last = last_not_ahead(known, lambda run: run.began_at_s, transaction.now_s)
    if last is not None and may_resume(last.began_at_s, last.ended_at_s, transaction.now_s):
        return join_pass(transaction, last, deadlines)
    return census_counts.begin_run(transaction, run_id, name, deadlines)


def join_pass(transaction: Transaction, run: StoredPass, deadlines: Deadlines | None) -> StoredPass:
    """Return a pass that one more prober joins; if its deadlines differ, the pass loses its own."""
    if run.deadlines is None or run.deadlines == deadlines:
        return run
    census_counts.forget_deadlines(transaction, run.run_id)
    return replace(run, deadlines=None)


def add_not_read(transaction: Transaction, run: StoredPass, names: Iterable[str]) -> StoredPass:
    """Add directories that could not be read to a pass, `MAX_NOT_READ` at most; return the pass."""
    not_read = tuple(sorted({*run.not_read, *names})[:MAX_NOT_READ])
    census_counts.note_not_read(transaction, run.run_id, not_read)
    return replace(run, not_read=not_read)


def may_resume(began_at_s: float, ended_at_s: float | None, now_s: float) -> bool:
    """Return whether a pass has not ended and began not too long ago, nor in the future."""
    return (
        ended_at_s is None and now_s - began_at_s <= RESUMED_SECONDS and not is_in_future(began_at_s, now_s)
    )
