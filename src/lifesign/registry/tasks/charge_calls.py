"""Reservation and settlement of metered calls (protocol 6.9).

Costs are reserved, the call is made, and the costs are settled. A reservation is freed when the call fails,
or when its run ends first: a lost holder pays nothing more, and the cost of its last call is unknown.
"""

from collections.abc import Callable
from dataclasses import replace

from lifesign.domain.access.permissions import Permission
from lifesign.domain.models.tasks import CallRecord, CallReservation, CallSettlement, RunWrite
from lifesign.domain.tasks.budget import Amount, Budget, amount_record
from lifesign.errors import LifesignError
from lifesign.registry.errors import CallNotFound, CallOver, KeyReused, TooMany
from lifesign.registry.request_handling.operation import Call, Operation, OperationReply
from lifesign.registry.tasks.create_task import PATH
from lifesign.registry.tasks.run_guard import EXAMPLE_OF_A_RUN, AuthorizedRun, enter_run
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.tasks import task_budgets, task_runs
from lifesign.storage.tasks.task_budgets import StoredCall

MAX_OPEN_CALLS = 1_000
"""Maximum of open calls per run."""
MAX_CALLS = 100_000
"""Maximum of calls per run."""


def reserve_call(transaction: Transaction, call: Call) -> OperationReply | LifesignError:
    """Reserve the maximum cost of a call. BudgetExceeded if too little is left; then nothing is charged."""
    entered = enter_run(transaction, call)
    if not isinstance(entered, AuthorizedRun):
        return entered
    transaction, number = entered.transaction, entered.task.number
    body = call.body_as(CallReservation)
    amount = body.most.amount()
    stored = task_budgets.find(transaction, number, to_change=True)
    known = task_budgets.find_call(transaction, number, body.call_id)
    if known is not None:
        if (known.tool, known.reserved) != (body.tool, amount):
            raise KeyReused(body.call_id)
        return _shown(entered, known, stored.budget, status=201)
    if entered.run.calls >= MAX_CALLS:
        raise TooMany(f"calls of {entered.run.run_id}", MAX_CALLS)
    if task_budgets.count_open_calls(transaction, number) >= MAX_OPEN_CALLS:
        raise TooMany(f"open calls of {entered.run.run_id}", MAX_OPEN_CALLS)
    budget = stored.budget.reserve(amount)
    task_budgets.store(transaction, replace(stored, budget=budget))
    task_runs.count_call(transaction, entered.run)
    made = StoredCall(task=number, call_id=body.call_id, tool=body.tool, state="reserved", reserved=amount)
    task_budgets.add_call(transaction, made)
    return _shown(entered, made, budget, status=201)


def settle_call(transaction: Transaction, call: Call) -> OperationReply | LifesignError:
    """Charge the actual cost of a call, and release the rest of its reservation."""
    cost = call.body_as(CallSettlement).cost.amount()
    return _end_call(
        transaction, call, "settled", cost, lambda budget, reserved: budget.settle(reserved, cost)
    )


def release_call(transaction: Transaction, call: Call) -> OperationReply | LifesignError:
    """Release the reservation of a call that failed. Nothing is charged."""
    return _end_call(transaction, call, "released", None, lambda budget, reserved: budget.release(reserved))


def _end_call(
    transaction: Transaction,
    call: Call,
    state: str,
    cost: Amount | None,
    ended: Callable[[Budget, Amount], Budget],
) -> OperationReply | LifesignError:
    entered = enter_run(transaction, call)
    if not isinstance(entered, AuthorizedRun):
        return entered
    transaction, number = entered.transaction, entered.task.number
    stored = task_budgets.find(transaction, number, to_change=True)
    made = task_budgets.find_call(transaction, number, call.path["call_id"])
    if made is None:
        raise CallNotFound(call.path["call_id"])
    if made.state != "reserved":
        if (made.state, made.cost) != (state, cost):
            raise CallOver(made.call_id, made.state)
        return _shown(entered, made, stored.budget)
    budget = ended(stored.budget, made.reserved)
    task_budgets.store(transaction, replace(stored, budget=budget))
    made = replace(made, state=state, cost=cost)
    task_budgets.store_call(transaction, made)
    return _shown(entered, made, budget)


def _shown(entered: AuthorizedRun, made: StoredCall, budget: Budget, *, status: int = 200) -> OperationReply:
    answer = CallRecord.model_validate({
        "task_id": entered.task.task_id,
        "call_id": made.call_id,
        "state": made.state,
        "available": amount_record(budget.room),
    })  # fmt: skip
    return OperationReply(content=answer, status=status)


OPERATIONS = (
    Operation(
        method="POST",
        path=f"{PATH}/{{task_id}}/calls",
        summary="Reserve the maximum cost of a metered call",
        action=Permission.WORK_TASKS,
        function=reserve_call,
        body=CallReservation,
        example={
            **EXAMPLE_OF_A_RUN,
            "call_id": "call-1",
            "tool": "fetch",
            "most": {"tokens": 0, "usd": 0.01},
        },
        answer=CallRecord,
        status=201,
        errors=(402, 404, 409, 410, 412),
        headers=("X-Agent-Incarnation",),
    ),
    Operation(
        method="POST",
        path=f"{PATH}/{{task_id}}/calls/{{call_id}}/settle",
        summary="Report the actual cost of a call",
        action=Permission.WORK_TASKS,
        function=settle_call,
        body=CallSettlement,
        example={
            **EXAMPLE_OF_A_RUN,
            "cost": {"tokens": 0, "usd": 0.004},
        },
        answer=CallRecord,
        errors=(404, 409, 410, 412),
        headers=("X-Agent-Incarnation",),
    ),
    Operation(
        method="POST",
        path=f"{PATH}/{{task_id}}/calls/{{call_id}}/release",
        summary="Release the reservation of a call that failed",
        action=Permission.WORK_TASKS,
        function=release_call,
        body=RunWrite,
        example=dict(EXAMPLE_OF_A_RUN),
        answer=CallRecord,
        errors=(404, 409, 410, 412),
        headers=("X-Agent-Incarnation",),
    ),
)
