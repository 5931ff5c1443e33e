"""Requests about tasks, and the writes of their holders (lease protocol).

Writes in the name of a run are repeated when there is no answer: the registry executes each once, by its
`idempotency_key`.
"""

import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Self, TypeVar

from pydantic import AfterValidator, BaseModel
from pydantic_core import PydanticCustomError

from lifesign.client.registry_connection import (
    Question,
    RegistryConnection,
    build_body,
    incarnation_header,
    path_of,
    query_of,
    read_answer,
    texts,
)
from lifesign.domain.health.document import MAX_NUMBER
from lifesign.domain.models.leases import LeaseRecord
from lifesign.domain.models.progress_report import ProgressReport
from lifesign.domain.models.tasks import (
    BudgetTopUp,
    CallRecord,
    CallReservation,
    CallSettlement,
    CompletionWrite,
    DelegationWrite,
    HandoffResolution,
    HelpWrite,
    ProgressWrite,
    ReportList,
    ReviewAnswer,
    RunId,
    RunRelease,
    RunWrite,
    TaskCancellation,
    TaskClaim,
    TaskCreation,
    TaskGrant,
    TaskList,
    TaskRecord,
    TaskRequest,
    TaskReview,
    TaskWriteResult,
)
from lifesign.domain.tasks.budget import RequestedAmount
from lifesign.domain.tasks.lease import MAX_TTL_SECONDS, MIN_TTL_SECONDS, TTL_SECONDS, read_window_s
from lifesign.domain.tasks.task_states import TaskStatus

KEY_BYTES = 16
"""Size of a generated idempotency key."""

A = TypeVar("A", bound=BaseModel)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldRun:
    """Identifies a run of a task that the caller holds; sent with every write in its name."""

    task_id: str
    run_id: str
    fencing_token: int
    incarnation: int | None = None
    """The agent's incarnation; the registry refuses requests of another one."""

    @classmethod
    def of(cls, grant: TaskGrant, incarnation: int | None = None) -> Self:
        """Return the members that identify the run of a granted task."""
        return cls(
            task_id=grant.task.task_id,
            run_id=grant.run_id,
            fencing_token=grant.lease.fencing_token,
            incarnation=incarnation,
        )


def _require_renewable(lease: LeaseRecord) -> LeaseRecord:
    """Refuse a lease that no registry grants: it could not be renewed, or its deadline would never come."""
    if read_window_s(_lasts_s(lease)) is None:
        what = f"expires_at {MIN_TTL_SECONDS} to {MAX_TTL_SECONDS} s after acquired_at"
        raise PydanticCustomError("lease", f"expected {what}, not {_lasts_s(lease):.1f} s")
    if not 1 <= lease.fencing_token <= MAX_NUMBER:
        raise PydanticCustomError("lease", f"expected a fencing_token of 1 to {MAX_NUMBER}")
    if lease.lease_id in {"", ".", ".."}:
        raise PydanticCustomError("lease", "expected a lease_id that is valid in a path")
    return lease


def _lasts_s(lease: LeaseRecord) -> float:
    return (lease.expires_at - lease.acquired_at).total_seconds()


class GrantedTask(TaskGrant):
    """A task that the caller has claimed, with its lease and the caller's own deadline."""

    run_id: RunId
    lease: Annotated[LeaseRecord, AfterValidator(_require_renewable)]
    window_s: float = TTL_SECONDS
    """Duration of the lease, also at each renewal."""
    deadline_s: float = -math.inf
    """When to have stopped unless the lease was renewed, by `boot_clock.now_s`: counted from the latest
    moment at which the registry cannot have granted it yet."""


class RegistryTasks:
    """Requests about tasks (`client.tasks`)."""

    def __init__(self, connection: RegistryConnection) -> None:
        self._connection = connection

    async def create(self, title: str, **members: Any) -> TaskRecord:
        """Put a task into the queue. `members` are those of `TaskCreation`; None omits one.

        Tried again when no answer comes: a key, `idempotency_key` or one of our own, has it created once.
        """
        keyed = {"idempotency_key": secrets.token_hex(KEY_BYTES), **_given(**members)}
        body = _written(TaskCreation, title=title, **keyed)
        question = Question(method="POST", path=path_of("tasks"), body=body, may_repeat=True)
        return await self._connection.ask_for(TaskRecord, question)

    async def claim(
        self,
        *,
        task_id: str | None = None,
        role_id: str | None = None,
        capabilities: Sequence[str] | None = None,
        wait_seconds: float = 0,
        ttl_seconds: float | None = None,
        incarnation: int | None = None,
    ) -> GrantedTask | None:
        """Claim a task to work on; None if there is none within `wait_seconds`, at most 30.

        `task_id`: only this task; NotFound, Conflict if it is finished, Unprocessable if it is for others. A
        claim that may have been executed is not repeated: a task that is held without being known returns to
        the queue by itself.
        """
        given = {
            "task_id": task_id,
            "role_id": role_id,
            "capabilities": None if capabilities is None else texts("capabilities", capabilities),
            "wait_seconds": float(wait_seconds),
            "ttl_seconds": None if ttl_seconds is None else float(ttl_seconds),
        }
        body = _written(TaskClaim, **{name: value for name, value in given.items() if value is not None})
        question = Question(
            method="POST",
            path=path_of("tasks", "claim"),
            body=body,
            headers=incarnation_header(incarnation),
            waits_s=float(wait_seconds),
        )
        reply = await self._connection.ask(question)
        if reply.status == 204:
            return None
        grant = read_answer(GrantedTask, reply)
        # The time of the grant within that period is unknown: the registry's clock shows the remaining
        # duration.
        deadline_s = reply.sent_at_s + _lasts_s(grant.lease)
        window_s = read_window_s(_lasts_s(grant.lease))
        return grant.model_copy(update={"deadline_s": deadline_s, "window_s": window_s})

    async def list(
        self,
        *,
        status: Sequence[TaskStatus | str] = (),
        agent_id: str | None = None,
        role_id: str | None = None,
        parent_id: str | None = None,
        holder: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> TaskList:
        """Return one page of tasks, at most 1000, the newest first. `cursor` comes from the page before."""
        query = query_of(
            status=texts("status", status),
            agent_id=agent_id,
            role_id=role_id,
            parent_id=parent_id,
            holder=holder,
            limit=limit,
            cursor=cursor,
        )
        question = Question(method="GET", path=path_of("tasks"), query=query, may_repeat=True)
        return await self._connection.ask_for(TaskList, question)

    async def get(self, task_id: str) -> TaskRecord:
        """Return the complete record of a task. Raises NotFound."""
        question = Question(method="GET", path=path_of("tasks", task_id), may_repeat=True)
        return await self._connection.ask_for(TaskRecord, question)

    async def reports(self, task_id: str, *, limit: int = 20, cursor: str | None = None) -> ReportList:
        """Return one page of a task's progress reports, at most 100, the newest first."""
        question = Question(
            method="GET",
            path=path_of("tasks", task_id, "progress"),
            query=query_of(limit=limit, cursor=cursor),
            may_repeat=True,
        )
        return await self._connection.ask_for(ReportList, question)

    # By coordinators

    async def cancel(self, task_id: str, *, reason: str | None = None) -> TaskRecord:
        """Cancel a task; Conflict if it is finished, or waits for its review."""
        body = _written(TaskCancellation, **_given(reason=reason))
        return await self._steer(TaskRecord, task_id, "cancel", body)

    async def review(
        self,
        task_id: str,
        verdict: str,
        *,
        comment: str | None = None,
        fix: Mapping[str, Any] | None = None,
        parent: HeldRun | None = None,
    ) -> ReviewAnswer:
        """Accept or reject a task's result. An agent proves with `parent` that it holds the parent task."""
        shown = {} if parent is None else {"run_id": parent.run_id, "fencing_token": parent.fencing_token}
        body = _written(TaskReview, verdict=verdict, **_given(comment=comment, fix=fix), **shown)
        return await self._steer(ReviewAnswer, task_id, "review", body)

    async def resolve(
        self,
        task_id: str,
        resolution: str,
        *,
        comment: str | None = None,
        output: Mapping[str, Any] | None = None,
    ) -> TaskRecord:
        """Decide how a task that was handed to people continues: `requeue` or `done`."""
        body = _written(HandoffResolution, resolution=resolution, **_given(comment=comment, output=output))
        return await self._steer(TaskRecord, task_id, "resolve", body)

    async def top_up(self, task_id: str, *, tokens: int = 0, usd: float = 0) -> TaskRecord:
        """Add to a task's budget. Not retried if it may have been executed."""
        body = _written(BudgetTopUp, add=build_body(RequestedAmount, tokens=tokens, usd=float(usd)))
        return await self._steer(TaskRecord, task_id, "budget", body)

    # By the holder of the task

    async def report_progress(
        self, run: HeldRun, report: ProgressReport | Mapping[str, Any], *, idempotency_key: str
    ) -> TaskWriteResult:
        """Write a progress report; Stale if the task is no longer the caller's.

        The same holds for the next methods.
        """
        body = _of_run(ProgressWrite, run, idempotency_key=idempotency_key, report=report)
        return await self._write(TaskWriteResult, run, body, "progress")

    async def mark_complete(
        self,
        run: HeldRun,
        output: Mapping[str, Any],
        *,
        idempotency_key: str = "complete",
        report: ProgressReport | Mapping[str, Any] | None = None,
    ) -> TaskWriteResult:
        """Submit the task's result. This ends the run and its lease."""
        body = _of_run(
            CompletionWrite, run, idempotency_key=idempotency_key, output=output, **_given(report=report)
        )
        return await self._write(TaskWriteResult, run, body, "complete")

    async def request_human_help(
        self,
        run: HeldRun,
        reason: str,
        *,
        idempotency_key: str = "help",
        report: ProgressReport | Mapping[str, Any] | None = None,
    ) -> TaskWriteResult:
        """Hand the task to people. This ends the run and its lease."""
        body = _of_run(
            HelpWrite, run, idempotency_key=idempotency_key, reason=reason, **_given(report=report)
        )
        return await self._write(TaskWriteResult, run, body, "help")

    async def delegate_subtask(
        self, run: HeldRun, task: TaskRequest | Mapping[str, Any], *, idempotency_key: str
    ) -> TaskWriteResult:
        """Create a child task in the queue. The caller keeps its own task.

        The answer has the child's id as `child_id`.
        """
        body = _of_run(DelegationWrite, run, idempotency_key=idempotency_key, task=task)
        return await self._write(TaskWriteResult, run, body, "delegate")

    async def release(
        self,
        run: HeldRun,
        exit_reason: str,
        *,
        exit_code: int | None = None,
        detail: str | None = None,
        idempotency_key: str = "release",
    ) -> TaskWriteResult:
        """End the run without a result: `crash`, `timeout`, `no_progress`, `killed` or `auth`.

        `detail` is for people.
        """
        body = _of_run(
            RunRelease,
            run,
            idempotency_key=idempotency_key,
            exit_reason=exit_reason,
            **_given(exit_code=exit_code, detail=detail),
        )
        return await self._write(TaskWriteResult, run, body, "release")

    async def reserve_call(self, run: HeldRun, call_id: str, tool: str, most: RequestedAmount) -> CallRecord:
        """Reserve the maximum cost of a tool call in the task's budget.

        RegistryRefusal with `budget_exceeded` if the budget is too small.
        """
        body = _of_run(CallReservation, run, call_id=call_id, tool=tool, most=most)
        return await self._write(CallRecord, run, body, "calls")

    async def settle_call(self, run: HeldRun, call_id: str, cost: RequestedAmount) -> CallRecord:
        """Report the actual cost of a call, which replaces the reserved amount."""
        return await self._write(
            CallRecord, run, _of_run(CallSettlement, run, cost=cost), "calls", call_id, "settle"
        )

    async def release_call(self, run: HeldRun, call_id: str) -> CallRecord:
        """Release the amount reserved for a call that failed. Nothing is charged."""
        return await self._write(CallRecord, run, _of_run(RunWrite, run), "calls", call_id, "release")

    async def _write(self, answer: type[A], run: HeldRun, body: bytes, *function: str) -> A:
        question = Question(
            method="POST",
            path=path_of("tasks", run.task_id, *function),
            body=body,
            headers=incarnation_header(run.incarnation),
            may_repeat=True,
        )
        return await self._connection.ask_for(answer, question)

    async def _steer(self, answer: type[A], task_id: str, function: str, body: bytes) -> A:
        question = Question(method="POST", path=path_of("tasks", task_id, function), body=body)
        return await self._connection.ask_for(answer, question)


def _given(**members: object) -> dict[str, Any]:
    return {name: value for name, value in members.items() if value is not None}


def _of_run(model: type[RunWrite], run: HeldRun, **members: object) -> bytes:
    return _written(model, run_id=run.run_id, fencing_token=run.fencing_token, **members)


def _written(model: type[BaseModel], **members: object) -> bytes:
    """Return a checked body with the names that travel, and nothing that was not given."""
    return build_body(model, **members).model_dump_json(exclude_unset=True, by_alias=True).encode()
