"""Page of tasks: open ones, their holders, and those that wait for people (`/tasks`)."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from pydantic import BaseModel, ConfigDict
from starlette.requests import Request

from lifesign.dashboard.fleet_facts import WAITING
from lifesign.dashboard.page_handler import RequestContext, check_sure, query_in
from lifesign.domain.access.permissions import Permission
from lifesign.domain.events.payload_fields import AgentId
from lifesign.domain.models.base import RoleId
from lifesign.domain.models.tasks import ReportList, TaskList, TaskRecord, TaskSummary, run_end_text
from lifesign.domain.tasks.task_states import FINISHED, TaskStatus
from lifesign.registry.errors import TaskNotFound
from lifesign.registry.request_handling.cursors import Cursor
from lifesign.storage.events import event_log

PAGE_SIZE = 50
WAITING_SHOWN = 50
"""Maximum number of tasks on the page that wait for people."""
REPORTS_SHOWN = 20
MAX_ANCESTORS = 10
MAX_DESCENDANTS = 100
"""Maximum number of tasks of the delegation tree on the page."""
MAX_DEPTH = 5

_REJECT = "reject"
_TASK = "/api/v1/tasks/{task_id:task}"
_TASK_PATH = "/api/v1/tasks/{task_id}"


class TasksQuery(BaseModel):
    """The query of `/tasks`."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    status: TaskStatus | None = None
    pool: RoleId | None = None
    holder: AgentId | None = None
    cursor: Cursor | None = None


def show_tasks(context: RequestContext, request: Request) -> Mapping[str, Any]:
    """Return one page of tasks, and those that wait for people."""
    query = query_in(request, TasksQuery)
    parameters: dict[str, object] = {"limit": PAGE_SIZE}
    names = {"status": "status", "pool": "role_id", "holder": "holder", "cursor": "cursor"}
    query_values = query.model_dump(mode="json", exclude_none=True)
    parameters |= {names[name]: value for name, value in query_values.items()}
    page: TaskList = context.ask("GET", "/api/v1/tasks", query=parameters)
    waiting: TaskList = context.ask(
        "GET", "/api/v1/tasks", query={"status": ",".join(WAITING), "limit": WAITING_SHOWN}
    )
    query_values.pop("cursor", None)
    return {
        "page": page,
        "waiting": waiting,
        "query": query,
        "statuses": [*TaskStatus],
        "next_page": None
        if page.cursor is None
        else "/tasks?" + urlencode({**query_values, "cursor": page.cursor}),
        "first_page": "/tasks?" + urlencode(query_values),
        "position": event_log.last_sequence(context.transaction),
    }


def show_task(context: RequestContext, request: Request) -> Mapping[str, Any]:
    """Return all that the page of a task shows."""
    task_id = request.path_params["task_id"]
    task: TaskRecord = context.ask("GET", _TASK, task_id=task_id)
    reports: ReportList = context.ask(
        "GET", "/api/v1/tasks/{task_id}/progress", task_id=task_id, query={"limit": REPORTS_SHOWN}
    )
    may = context.visitor.may(Permission.CREATE_TASKS)
    return {
        "task": task,
        "run_end_text": run_end_text,
        "reports": reports.reports,
        "ancestors": _ancestors(context, task),
        "children": _tree(context, task.children, MAX_DEPTH, [MAX_DESCENDANTS]),
        "may": {
            "review": may and task.status is TaskStatus.REVIEW,
            "resolve": may and task.status is TaskStatus.HANDOFF,
            "cancel": may and task.status not in FINISHED and task.status is not TaskStatus.REVIEW,
        },
        "position": event_log.last_sequence(context.transaction),
    }


def review(context: RequestContext, request: Request, form: Mapping[str, str]) -> str:
    """Accept the result of a task, or reject it."""
    task_id = request.path_params["task_id"]
    if form.get("verdict") == _REJECT:
        check_sure(form)
    body = {"verdict": form.get("verdict", ""), **_comment(form, "comment")}
    context.ask("POST", f"{_TASK_PATH}/review", task_id=task_id, body=body)
    return "review"


def resolve(context: RequestContext, request: Request, form: Mapping[str, str]) -> str:
    """Decide how a task that was handed to people continues."""
    task_id = request.path_params["task_id"]
    body = {"resolution": form.get("resolution", ""), **_comment(form, "comment")}
    context.ask("POST", f"{_TASK_PATH}/resolve", task_id=task_id, body=body)
    return "resolve"


def cancel(context: RequestContext, request: Request, form: Mapping[str, str]) -> str:
    """Cancel a task."""
    task_id = request.path_params["task_id"]
    check_sure(form)
    context.ask("POST", f"{_TASK_PATH}/cancel", task_id=task_id, body=_comment(form, "reason"))
    return "cancel"


def _comment(form: Mapping[str, str], name: str) -> dict[str, object]:
    return {name: form["comment"]} if "comment" in form else {}


def _ancestors(context: RequestContext, task: TaskRecord) -> list[TaskSummary]:
    """Return the tasks from which a task was delegated, the first one first."""
    found: list[TaskSummary] = []
    parent_id = task.parent_id
    while parent_id is not None and len(found) < MAX_ANCESTORS:
        parent: TaskRecord = context.ask("GET", _TASK, task_id=parent_id)
        found.append(parent)
        parent_id = parent.parent_id
    return found[::-1]


def _tree(
    context: RequestContext, children: list[TaskSummary], depth: int, left: list[int]
) -> list[dict[str, Any]]:
    """Return tasks with the tasks that were delegated from them.

    `left` counts how many may still be drawn.
    """
    drawn = []
    for child in children:
        if left[0] <= 0:
            break
        left[0] -= 1
        below: list[TaskSummary] = []
        if depth > 0:
            try:
                below = context.ask("GET", _TASK, task_id=child.task_id).children
            except TaskNotFound:
                below = []
        drawn.append({"task": child, "below": _tree(context, below, depth - 1, left)})
    return drawn
