"""Lists of tasks, their progress and their reports."""

from typing import Annotated

from pydantic import Field

from lifesign.domain.access.permissions import Permission, Principal, may, require
from lifesign.domain.errors import NotAllowed
from lifesign.domain.events.payload_fields import AgentId
from lifesign.domain.models.base import Body, RoleId
from lifesign.domain.models.tasks import TASK_ID_PATTERN, ReportList, TaskList, TaskRecord
from lifesign.domain.tasks.task_states import TaskStatus
from lifesign.registry.errors import TaskNotFound
from lifesign.registry.request_handling.cursors import Cursor, cursor_at, numbers_in
from lifesign.registry.request_handling.operation import (
    SEPARATED_BY_COMMAS,
    Call,
    Operation,
    OperationReply,
)
from lifesign.registry.serializers.task_records import (
    record,
    report_record,
    summaries,
    with_names,
)
from lifesign.registry.tasks.create_task import PATH
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.tasks import task_rows, task_runs
from lifesign.storage.tasks.task_rows import StoredTask, TaskFilter

MAX_PAGE = 1_000
MAX_REPORTS_PAGE = 100
"""Maximum of reports per page, each of up to 64 KiB."""

_LISTED, _REPORTED = "tasks", "task_reports"


class TaskListing(Body):
    """The query of `GET /api/v1/tasks`."""

    status: Annotated[tuple[TaskStatus, ...], SEPARATED_BY_COMMAS] = ()
    """Statuses, separated by commas: only tasks with one of them. Absent: any."""
    agent_id: AgentId | None = None
    """Only tasks that are reserved for this agent."""
    role_id: RoleId | None = None
    """Only tasks that are reserved for agents of this pool."""
    parent_id: Annotated[str, Field(pattern=TASK_ID_PATTERN)] | None = None
    holder: AgentId | None = None
    """Only tasks that this agent holds or has held."""
    limit: Annotated[int, Field(ge=1, le=MAX_PAGE)] = 100
    cursor: Cursor | None = None
    """`cursor` of the previous page. Send it with the same query."""


class ReportListing(Body):
    """The query of `GET /api/v1/tasks/{task_id}/progress`."""

    limit: Annotated[int, Field(ge=1, le=MAX_REPORTS_PAGE)] = 20
    cursor: Cursor | None = None


def list_tasks(transaction: Transaction, call: Call) -> OperationReply:
    """Return one page of the matching tasks, the newest first. An agent gets only its own."""
    query = call.query_as(TaskListing)
    holder = query.holder
    if holder is None and not may(call.caller, Permission.READ_TASKS):
        holder = call.caller.agent_id
    require(call.caller, Permission.READ_TASKS, holder)
    parent = None
    if query.parent_id is not None:
        parent = task_rows.number_of(transaction, query.parent_id)
        if parent is None or not _is_readable(transaction, call.caller, task_rows.find(transaction, parent)):
            raise TaskNotFound(query.parent_id)
    wanted = TaskFilter(
        statuses=query.status,
        agent_id=query.agent_id,
        role_id=query.role_id,
        parent=parent,
        holder=holder,
    )
    before = None if query.cursor is None else numbers_in(query.cursor, _LISTED, 1)[0]
    found = task_rows.listing(transaction, wanted, before=before, limit=query.limit + 1)
    page = found[: query.limit]
    answer = TaskList(
        tasks=summaries(transaction, page),
        total=task_rows.count(transaction, wanted),
        cursor=cursor_at(_LISTED, page[-1].number) if len(found) > len(page) else None,
    )
    return OperationReply(content=answer)


def show_task(transaction: Transaction, call: Call) -> OperationReply:
    """Return the complete record of a task."""
    shown = record(transaction, _readable(transaction, call))
    return OperationReply(content=with_names(transaction, shown, call.caller))


def list_reports(transaction: Transaction, call: Call) -> OperationReply:
    """Return one page of a task's progress reports, the newest first."""
    task = _readable(transaction, call)
    query = call.query_as(ReportListing)
    before = None if query.cursor is None else numbers_in(query.cursor, _REPORTED, 1)[0]
    found = task_runs.reports(transaction, task.number, before=before, limit=query.limit + 1)
    page = found[: query.limit]
    answer = ReportList(
        reports=[report_record(report) for report in page],
        cursor=cursor_at(_REPORTED, page[-1].number) if len(found) > len(page) else None,
    )
    return OperationReply(content=answer)


def _readable(transaction: Transaction, call: Call) -> StoredTask:
    """Return the task of the path; an agent may read what it has worked at, and the children of that.

    Of others it does not learn whether they are there.
    """
    task_id = call.path["task_id"]
    number = task_rows.number_of(transaction, task_id)
    may_read_all = may(call.caller, Permission.READ_TASKS)
    if number is None:
        raise (
            TaskNotFound(task_id)
            if may_read_all
            else NotAllowed(call.caller.role, Permission.READ_TASKS, None)
        )
    task = task_rows.find(transaction, number)
    if not _is_readable(transaction, call.caller, task):
        raise NotAllowed(call.caller.role, Permission.READ_TASKS, None)
    return task


def _is_readable(transaction: Transaction, caller: Principal, task: StoredTask) -> bool:
    if may(caller, Permission.READ_TASKS):
        return True
    numbers = [task.number] if task.parent is None else [task.number, task.parent]
    return task_runs.has_worked(transaction, caller.agent_id or "", numbers)


OPERATIONS = (
    Operation(
        method="GET",
        path=PATH,
        summary="List tasks by status, pool, parent and holder",
        action=Permission.READ_TASKS,
        function=list_tasks,
        is_write=False,
        query=TaskListing,
        answer=TaskList,
        errors=(404,),
    ),
    Operation(
        method="GET",
        path=f"{PATH}/{{task_id:task}}",
        summary="Show one task with all details",
        action=Permission.READ_TASKS,
        function=show_task,
        is_write=False,
        answer=TaskRecord,
        errors=(404,),
    ),
    Operation(
        method="GET",
        path=f"{PATH}/{{task_id}}/progress",
        summary="List the progress reports of a task",
        action=Permission.READ_TASKS,
        function=list_reports,
        is_write=False,
        query=ReportListing,
        answer=ReportList,
        errors=(404,),
    ),
)
