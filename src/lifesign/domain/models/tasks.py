"""Tasks in requests and answers (lease protocol; protocol 6.7, 6.8).

These are the request bodies and the records in answers.
"""

import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints
from pydantic_core import PydanticCustomError

from lifesign.domain.health.document import INTEGRAL_FLOAT, MAX_DEPTH, Time
from lifesign.domain.models.base import NAME_PATTERN, AgentId, Body, Capability, Name, RoleId
from lifesign.domain.models.leases import LeaseRecord, Token, TtlSeconds
from lifesign.domain.models.progress_report import ProgressReport
from lifesign.domain.parsing.json_limits import check_json_size
from lifesign.domain.tasks.budget import AmountRecord, BudgetRecord, RequestedAmount
from lifesign.domain.tasks.lease import TTL_SECONDS
from lifesign.domain.tasks.task_states import (
    BACKOFF_SECONDS,
    MAX_ATTEMPTS,
    MAX_BACKOFF_SECONDS,
    MOST_ATTEMPTS,
    ExitReason,
    TaskSignal,
    TaskStatus,
)
from lifesign.domain.text.safe_text import REPLACEMENT, harmless

MAX_OBJECT_BYTES = 65_536
"""Maximum size of a task's input, and of its output, as JSON."""
MAX_NEEDS = 16
"""Maximum number of capabilities that a task may require."""
MAX_WAIT_SECONDS = 30
"""Maximum time that a claim waits for work, in seconds."""
MAX_COMMENT_CHARACTERS = 2_000
MAX_DETAIL_CHARACTERS = 500

TASK_ID_PATTERN = r"^task_[0-9a-hjkmnp-tv-z]{26}$"
RUN_ID_PATTERN = r"^run_[0-9a-hjkmnp-tv-z]{26}$"
_BLANK = r"[ \u00a0\u1680\u2000-\u200f\u202a-\u202f\u205f-\u2069\u3000\ufeff]"
"""Invisible characters that a line of text may not consist of; control characters are not allowed at all."""
CALL_ID_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"


def _refuse_blank(value: str) -> str:
    if re.fullmatch(f"{_BLANK}*", value):
        raise PydanticCustomError("blank", "expected text, not only white space")
    return value


def _check_small_object(value: dict[str, Any]) -> dict[str, Any]:
    return check_json_size(value, MAX_DEPTH, MAX_OBJECT_BYTES)


def detail_of(text: str) -> str:
    """Return a program's message about its failure as a `detail`: shortened, and safe to show."""
    return harmless(text[:MAX_DETAIL_CHARACTERS])


def _without_nul(text: str) -> str:
    """Replace NUL, which PostgreSQL cannot store: a request for help that quotes output must arrive."""
    return text.replace("\x00", REPLACEMENT)


JsonObject = Annotated[dict[str, Any], AfterValidator(_check_small_object)]
Needs = Annotated[list[Capability], Field(max_length=MAX_NEEDS)]
Comment = Annotated[
    str,
    StringConstraints(min_length=1, max_length=MAX_COMMENT_CHARACTERS),
    AfterValidator(_without_nul),
]
Detail = Annotated[
    str,
    StringConstraints(min_length=1, max_length=MAX_DETAIL_CHARACTERS),
    AfterValidator(detail_of),
]
Title = Annotated[
    Name,
    Field(json_schema_extra={"not": {"pattern": f"^{_BLANK}*$"}}),
    AfterValidator(_refuse_blank),
]
TaskId = Annotated[str, StringConstraints(pattern=TASK_ID_PATTERN)]
RunId = Annotated[str, StringConstraints(pattern=RUN_ID_PATTERN)]
IdempotencyKey = Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=NAME_PATTERN)]
"""Key that the writer chooses for each write of a run: a repeated write with the same key gets the first
answer.
"""
CallId = Annotated[str, StringConstraints(pattern=CALL_ID_PATTERN)]
"""Id that the caller chooses, unique for each call of a run."""
Attempts = Annotated[int, Field(ge=1, le=MOST_ATTEMPTS, strict=True), INTEGRAL_FLOAT]
BackoffSeconds = Annotated[float, Field(ge=0, le=MAX_BACKOFF_SECONDS, allow_inf_nan=False, strict=True)]


class TaskRequest(Body):
    """Members of a new task: what to do, and which agents may claim it. An agent must match all criteria."""

    title: Title
    input: JsonObject = Field(default_factory=dict)
    """Input of the work; each holder gets it unchanged."""
    agent_id: AgentId | None = None
    """The only agent that may claim the task."""
    role_id: RoleId | None = None
    """The pool whose agents may claim the task."""
    capabilities: Needs = Field(default_factory=list)
    """Capabilities that an agent must declare to claim the task."""
    lease_seconds: TtlSeconds = TTL_SECONDS
    """Maximum duration of a lease without a renewal; a claim or a renewal may request less."""
    max_attempts: Attempts = MAX_ATTEMPTS
    backoff_seconds: BackoffSeconds = BACKOFF_SECONDS
    budget: RequestedAmount = RequestedAmount()
    """Limits of its metered calls; by default no such call is allowed."""


class TaskCreation(TaskRequest):
    """The body of `POST /api/v1/tasks`."""

    idempotency_key: IdempotencyKey | None = None
    """Key that the creator chooses for each task: a repeated request with the same key gets the task created
    first.
    """


class TaskClaim(Body):
    """The body of `POST /api/v1/tasks/claim`."""

    task_id: TaskId | None = None
    """Claim only this task."""
    role_id: RoleId | None = None
    """Pool of the tasks, which must be the agent's own."""
    capabilities: Needs | None = None
    """Capabilities of the agent that tasks may require; the agent must have declared them."""
    wait_seconds: Annotated[float, Field(ge=0, le=MAX_WAIT_SECONDS, allow_inf_nan=False, strict=True)] = 0
    """Time to wait for a task if there is none, in seconds."""
    ttl_seconds: TtlSeconds | None = None
    """Duration of the lease; absent: the task's `lease_seconds`, to which a longer time is cut."""


class RunWrite(Body):
    """Members that every write in the name of a run contains, to prove that the caller holds the task."""

    run_id: RunId
    fencing_token: Token


class FencedWrite(RunWrite):
    """A write in the name of a run. It may be retried with the same `idempotency_key`."""

    idempotency_key: IdempotencyKey


class ProgressWrite(FencedWrite):
    """The body of `POST …/progress`."""

    report: ProgressReport


class CompletionWrite(FencedWrite):
    """The body of `POST …/complete`: the agent reports that the work is done."""

    output: JsonObject = Field(default_factory=dict)
    report: ProgressReport | None = None


class HelpWrite(FencedWrite):
    """The body of `POST …/help`: a human has to take over."""

    reason: Comment
    report: ProgressReport | None = None


class DelegationWrite(FencedWrite):
    """The body of `POST …/delegate`: a child task, whose budget is taken out of the task's own."""

    task: TaskRequest


class RunRelease(FencedWrite):
    """The body of `POST …/release`: the run is over without a result."""

    exit_reason: Literal[
        ExitReason.CRASH, ExitReason.TIMEOUT, ExitReason.NO_PROGRESS, ExitReason.KILLED, ExitReason.AUTH
    ]
    exit_code: Annotated[int, Field(ge=-255, le=255, strict=True), INTEGRAL_FLOAT] | None = None
    """Exit code of the agent's process; negative: number of the signal that ended it."""
    detail: Detail | None = None
    """Failure in one line, for people; it becomes part of the task's `explanation`."""


class CallReservation(RunWrite):
    """The body of `POST …/calls`: the maximum cost of a call."""

    call_id: CallId
    tool: Name
    most: RequestedAmount


class CallSettlement(RunWrite):
    """The body of `POST …/calls/{call_id}/settle`."""

    cost: RequestedAmount
    """Costs."""


class TaskReview(Body):
    """The body of `POST …/review`. An agent may review the children of a task that it holds."""

    verdict: Literal["accept", "reject"]
    comment: Comment | None = None
    fix: TaskRequest | None = None
    """With `reject`: the new task for the fix; absent: the same task is queued again."""
    run_id: RunId | None = None
    """Run of the parent, if an agent reviews, together with `fencing_token`."""
    fencing_token: Token | None = None


class HandoffResolution(Body):
    """The body of `POST …/resolve`: how a task that was handed to people continues."""

    resolution: Literal["requeue", "done"]
    comment: Comment | None = None
    output: JsonObject | None = None
    """With `done`: the result."""


class TaskCancellation(Body):
    """The body of `POST …/cancel`."""

    reason: Name | None = None


class BudgetTopUp(Body):
    """The body of `POST …/budget`."""

    add: RequestedAmount


class RunRecord(BaseModel):
    """One run of a task."""

    run_id: str
    number: int
    """Number of the run, counted from 1."""
    holder: str | None = None
    """Holder; absent once the agent was erased."""
    fencing_token: int
    began_at: Time
    ended_at: Time | None = None
    exit_reason: ExitReason | None = None
    exit_code: int | None = None


def run_end_text(run: RunRecord, comments: Sequence["CommentRecord"]) -> str:
    """Return in words how a run ended; the task's `comments` show whether it asked for help."""
    if run.exit_reason is None:
        return "under way"
    requested_at = {comment.written_at for comment in comments if comment.signal is TaskSignal.HELP_REQUESTED}
    if run.exit_reason is ExitReason.COMPLETED and run.ended_at in requested_at:
        return "asked for help"
    return run.exit_reason.replace("_", " ")


class ReportRecord(BaseModel):
    """One progress report with its position."""

    number: int
    """Number of the report, counted from 1 over all runs."""
    run_id: str
    reported_at: Time
    report: dict[str, Any]
    """Content of the report."""


class CommentRecord(BaseModel):
    """Comment on a decision about a task, or on an agent's request for help."""

    signal: TaskSignal
    """Action that the comment belongs to: `help_asked`, `requeued`, `resolved`, `accepted`, `rejected` or
    `cancelled`.
    """
    comment: str
    written_by: str | None = None
    """Author, as in events: the id of an agent or of a key; absent once the agent was erased."""
    written_at: Time


class TaskSummary(BaseModel):
    """One task in a listing."""

    model_config = ConfigDict(frozen=True)

    task_id: str
    title: str
    status: TaskStatus
    status_since: Time
    explanation: str | None = None
    """Reason for the status, if one was given."""
    agent_id: str | None = None
    role_id: str | None = None
    capabilities: list[str]
    holder: str | None = None
    """Current holder."""
    attempts: int
    """Number of runs since people last queued the task; lost runs do not count."""
    lost_runs: int = 0
    """Number of runs since then that ended as `killed` or `lease_expired`. They are not attempts."""
    not_before: Time | None = None
    """Earliest time of the next claim, while the task is queued."""
    no_progress_seconds: float | None = None
    """While it is held: seconds since its run last reported or began. It has no effect."""
    parent_id: str | None = None
    fix_of: str | None = None
    """Task whose rejected work this task fixes."""
    created_by: str | None = None
    """Creator, as in events; absent once the agent was erased."""
    created_at: Time


class TaskRecord(TaskSummary):
    """The complete record of a task."""

    input: dict[str, Any]
    output: dict[str, Any] | None = None
    lease_seconds: float
    max_attempts: int
    backoff_seconds: float
    budget: BudgetRecord
    latest_report: ReportRecord | None = None
    comments: list[CommentRecord] = Field(default_factory=list)
    """Latest comments, newest first; for a fix, also those of the rejected task."""
    runs: list[RunRecord]
    """Latest runs of the task, the newest first."""
    children: list[TaskSummary]
    """Latest child tasks, the newest first."""
    names: dict[str, str] = Field(default_factory=dict)
    """Names of the keys in `created_by` and `written_by`, for callers that may read all events."""


class TaskList(BaseModel):
    """The answer to `GET /api/v1/tasks`."""

    tasks: list[TaskSummary]
    total: int
    cursor: str | None = None
    """Cursor of the next page; absent on the last one."""


class ReportList(BaseModel):
    """The answer to `GET …/progress`, newest first."""

    reports: list[ReportRecord]
    cursor: str | None = None


class TaskGrant(BaseModel):
    """A task that was granted to the caller of a claim."""

    task: TaskSummary
    input: dict[str, Any]
    run_id: str
    lease: LeaseRecord
    """Lease on the task, renewed like any other. Its `fencing_token` goes with every write."""
    budget: BudgetRecord
    latest_report: ReportRecord | None = None
    """Last report of an earlier holder: continue from it."""
    comments: list[CommentRecord] = Field(default_factory=list)
    """Comments, newest first: questions of earlier holders and answers of people."""


class TaskWriteResult(BaseModel):
    """The answer to a write in the name of a run. A retry with the same `idempotency_key` gets the same."""

    task_id: str
    run_id: str
    status: TaskStatus
    report: int | None = None
    """Number of the report that was sent with the request."""
    child_id: str | None = None
    """The task that was delegated."""


class CallRecord(BaseModel):
    """One tool call that a task's budget pays for, and the budget that is left."""

    task_id: str
    call_id: str
    state: Literal["reserved", "settled", "released"]
    available: AmountRecord
    """Remaining budget, as of this answer, even if the request is repeated."""


class ReviewAnswer(BaseModel):
    """The answer to a review."""

    task: TaskSummary
    """The reviewed task, which is done in both cases."""
    fix: TaskSummary | None = None
    """The new task, if the work was rejected."""
