"""Budgets of tasks: limits, spending and reservations.

A budget is changed by its own task's holder, by coordinators, and by the end of a child. Therefore it is
locked when it is read for a change: a child's before its parent's, always after the leases.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import delete, func, insert, select, update

from lifesign.domain.tasks.budget import NO_AMOUNT, Amount, Budget
from lifesign.storage.engine.table_definitions import task_budgets, task_calls
from lifesign.storage.engine.transaction import Transaction

_PARTS = ("envelope", "settled", "reserved", "delegated", "overrun")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredBudget:
    """A task's budget, and the amount that was taken from its parent's budget (`carved`)."""

    task: int
    budget: Budget
    carved: Amount = NO_AMOUNT


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCall:
    """A metered tool call of the run that has the task now."""

    task: int
    call_id: str
    tool: str
    state: str
    reserved: Amount
    cost: Amount | None = None
    """Once it is settled."""


def add(transaction: Transaction, stored: StoredBudget) -> None:
    """Store the budget of a new task."""
    transaction.connection.execute(insert(task_budgets), _columns(stored))


def store(transaction: Transaction, stored: StoredBudget) -> None:
    """Store a budget that the caller has locked."""
    columns = _columns(stored)
    transaction.connection.execute(
        update(task_budgets).where(task_budgets.c.task == columns.pop("task")).values(**columns)
    )


def find(transaction: Transaction, task: int, *, to_change: bool = False) -> StoredBudget:
    """Return the budget of an existing task; `to_change` locks it."""
    wanted = select(task_budgets).where(task_budgets.c.task == task)
    if to_change:
        wanted = wanted.with_for_update(key_share=True)
    return _stored(transaction.connection.execute(wanted).mappings().one())


def find_reserving(transaction: Transaction, numbers: Sequence[int]) -> list[StoredBudget]:
    """Return and lock the budgets of those of these tasks that have reservations."""
    has_reserved = (task_budgets.c.reserved_tokens > 0) | (task_budgets.c.reserved_micro_usd > 0)
    wanted = (
        select(task_budgets)
        .where(task_budgets.c.task.in_(numbers), has_reserved)
        # Children are younger than their parents.
        .order_by(task_budgets.c.task.desc())
        .with_for_update(key_share=True)
    )
    return [_stored(row) for row in transaction.connection.execute(wanted).mappings()] if numbers else []


def add_call(transaction: Transaction, call: StoredCall) -> None:
    """Store a metered call and its reservation."""
    transaction.connection.execute(insert(task_calls), _call_columns(call))


def store_call(transaction: Transaction, call: StoredCall) -> None:
    """Store the state of a call."""
    columns = _call_columns(call)
    transaction.connection.execute(
        update(task_calls)
        .where(task_calls.c.task == call.task, task_calls.c.call_id == call.call_id)
        .values(**columns)
    )


def find_call(transaction: Transaction, task: int, call_id: str) -> StoredCall | None:
    """Return a call of the task's present run by its id; None if unknown. Calls of ended runs are deleted."""
    wanted = select(task_calls).where(task_calls.c.task == task, task_calls.c.call_id == call_id)
    row = transaction.connection.execute(wanted).mappings().one_or_none()
    if row is None:
        return None
    is_settled = row["cost_tokens"] is not None
    return StoredCall(
        task=row["task"],
        call_id=row["call_id"],
        tool=row["tool"],
        state=row["state"],
        reserved=Amount(row["reserved_tokens"], row["reserved_micro_usd"]),
        cost=Amount(row["cost_tokens"], row["cost_micro_usd"]) if is_settled else None,
    )


def count_open_calls(transaction: Transaction, task: int) -> int:
    """Return the number of calls of a task that have a reservation now."""
    wanted = select(func.count()).where(task_calls.c.task == task, task_calls.c.state == "reserved")
    return transaction.connection.scalar(wanted) or 0


def forget_calls(transaction: Transaction, numbers: Sequence[int]) -> None:
    """Delete the calls of these tasks, whose runs have ended; the budgets contain the costs."""
    if numbers:
        transaction.connection.execute(delete(task_calls).where(task_calls.c.task.in_(numbers)))


def _columns(stored: StoredBudget) -> dict[str, Any]:
    amounts = {"carved": stored.carved, **{name: getattr(stored.budget, name) for name in _PARTS}}
    columns: dict[str, Any] = {"task": stored.task}
    for name, amount in amounts.items():
        columns[f"{name}_tokens"], columns[f"{name}_micro_usd"] = amount.tokens, amount.micro_usd
    return columns


def _stored(row: Any) -> StoredBudget:
    carved, *parts = (Amount(row[f"{name}_tokens"], row[f"{name}_micro_usd"]) for name in ("carved", *_PARTS))
    return StoredBudget(
        task=row["task"], carved=carved, budget=Budget(**dict(zip(_PARTS, parts, strict=True)))
    )


def _call_columns(call: StoredCall) -> dict[str, Any]:
    return {
        "task": call.task,
        "call_id": call.call_id,
        "tool": call.tool,
        "state": call.state,
        "reserved_tokens": call.reserved.tokens,
        "reserved_micro_usd": call.reserved.micro_usd,
        "cost_tokens": None if call.cost is None else call.cost.tokens,
        "cost_micro_usd": None if call.cost is None else call.cost.micro_usd,
    }
