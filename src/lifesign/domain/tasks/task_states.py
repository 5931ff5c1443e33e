"""States of tasks, from queue to review (lease protocol; protocol 6.7).

A task is worked on in runs. Each grant of its lease is a run; the end of the lease is the end of the run, for
any reason. A finished task never changes: a fix is a new task.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from lifesign.domain.errors import InvalidTaskTransition
from lifesign.domain.tasks.lease import EndReason, ResourceKind
from lifesign.errors import InvalidValue

MAX_ATTEMPTS = 3
"""Default number of attempts before a task is handed to people."""
MOST_ATTEMPTS = 100
MAX_LOST_RUNS = 10
"""Maximum number of lost runs, which are not attempts, before a task is handed to people.

`max_attempts` if that is higher.

Otherwise a task that kills its holders would be retried forever.
"""
BACKOFF_SECONDS = 10.0
"""Before the second attempt after a crash; each one after that waits twice as long."""
MAX_BACKOFF_SECONDS = 3_600.0
"""However often it was tried."""

_TASK_ID = re.compile(r"task_[0-9a-hjkmnp-tv-z]{26}")


class TaskStatus(StrEnum):
    """Status of a task."""

    QUEUED = "queued"
    """Any matching agent may claim it, perhaps not before a time. It may wait forever."""
    ASSIGNED = "assigned"
    """Leased to an agent that has not reported yet."""
    RUNNING = "running"
    """Leased to an agent that has reported."""
    FAILED = "failed"
    """The run ended without a result. The next status is decided at once."""
    HANDOFF = "handoff"
    """Waits for the decision of a person."""
    REVIEW = "review"
    """The agent has submitted a result, which a reviewer must accept."""
    DONE = "done"
    CANCELLED = "cancelled"


HELD = frozenset({TaskStatus.ASSIGNED, TaskStatus.RUNNING})
"""Just these have a lease that runs."""
FINISHED = frozenset({TaskStatus.DONE, TaskStatus.CANCELLED})


class TaskSignal(StrEnum):
    """Something that happens to a task and may change its status."""

    GRANTED = "granted"
    REPORTED = "reported"
    """Its holder reported progress."""
    COMPLETED = "completed"
    HELP_REQUESTED = "help_asked"
    """The holder requests a person."""
    RUN_FAILED = "run_failed"
    RETRIED = "retried"
    ESCALATED = "escalated"
    """The maximum number of attempts is reached, or another attempt would not help."""
    CANCELLED = "cancelled"
    ACCEPTED = "accepted"
    REJECTED = "rejected"
    """The reviewer wants it otherwise: this one is done, a new task is for the fix."""
    REQUEUED = "requeued"
    """A person has helped: an agent may continue; attempts start at 0."""
    RESOLVED = "resolved"
    """A person has done the task, or decides that nothing is left to do."""


# A pair absent from this table is refused. docs/task-lifecycle.md is drawn from it.
TRANSITIONS: Mapping[tuple[TaskStatus, TaskSignal], TaskStatus] = MappingProxyType({
    (TaskStatus.QUEUED,   TaskSignal.GRANTED):    TaskStatus.ASSIGNED,
    (TaskStatus.QUEUED,   TaskSignal.CANCELLED):  TaskStatus.CANCELLED,

    (TaskStatus.ASSIGNED, TaskSignal.REPORTED):   TaskStatus.RUNNING,
    (TaskStatus.ASSIGNED, TaskSignal.COMPLETED):  TaskStatus.REVIEW,
    (TaskStatus.ASSIGNED, TaskSignal.HELP_REQUESTED): TaskStatus.HANDOFF,
    (TaskStatus.ASSIGNED, TaskSignal.RUN_FAILED): TaskStatus.FAILED,
    (TaskStatus.ASSIGNED, TaskSignal.CANCELLED):  TaskStatus.CANCELLED,

    (TaskStatus.RUNNING,  TaskSignal.REPORTED):   TaskStatus.RUNNING,
    (TaskStatus.RUNNING,  TaskSignal.COMPLETED):  TaskStatus.REVIEW,
    (TaskStatus.RUNNING,  TaskSignal.HELP_REQUESTED): TaskStatus.HANDOFF,
    (TaskStatus.RUNNING,  TaskSignal.RUN_FAILED): TaskStatus.FAILED,
    (TaskStatus.RUNNING,  TaskSignal.CANCELLED):  TaskStatus.CANCELLED,

    (TaskStatus.FAILED,   TaskSignal.RETRIED):    TaskStatus.QUEUED,
    (TaskStatus.FAILED,   TaskSignal.ESCALATED):  TaskStatus.HANDOFF,

    (TaskStatus.HANDOFF,  TaskSignal.REQUEUED):   TaskStatus.QUEUED,
    (TaskStatus.HANDOFF,  TaskSignal.CANCELLED):  TaskStatus.CANCELLED,
    (TaskStatus.HANDOFF,  TaskSignal.RESOLVED):   TaskStatus.DONE,

    # Submitted work is not discarded: it is rejected.
    (TaskStatus.REVIEW,   TaskSignal.ACCEPTED):   TaskStatus.DONE,
    (TaskStatus.REVIEW,   TaskSignal.REJECTED):   TaskStatus.DONE,
})  # fmt: skip


class ExitReason(StrEnum):
    """Reason why a run ended, from a closed list (protocol 6.10)."""

    COMPLETED = "completed"
    """The holder submitted the task or asked for a person: the run did what it could."""
    CRASH = "crash"
    """The agent's process ended without a result, whatever its exit code."""
    TIMEOUT = "timeout"
    """The adapter gave it up: it took too long."""
    NO_PROGRESS = "no_progress"
    """The adapter gave it up: the agent's process showed no sign of progress for too long."""
    LEASE_EXPIRED = "lease_expired"
    """The lease was not renewed, or the holder is dead."""
    KILLED = "killed"
    """The run was ended from outside: the lease was released or revoked, or the agent was deregistered."""
    AUTH = "auth"
    """The agent lacks a permission: a key is wrong, and further attempts would fail too."""


_BACKED_OFF = frozenset({ExitReason.CRASH, ExitReason.TIMEOUT, ExitReason.NO_PROGRESS})
"""Ends that suggest a fault of the task. After a lost holder, another agent may start at once."""
_LOST = frozenset({ExitReason.LEASE_EXPIRED, ExitReason.KILLED})
"""The task is not at fault, and the run is no attempt."""
_EXIT_REASONS: Mapping[EndReason, ExitReason] = MappingProxyType({
    EndReason.RELEASED:           ExitReason.KILLED,
    EndReason.REVOKED:            ExitReason.KILLED,
    EndReason.EXPIRED:            ExitReason.LEASE_EXPIRED,
    EndReason.AGENT_DEAD:         ExitReason.LEASE_EXPIRED,
    EndReason.AGENT_DEREGISTERED: ExitReason.KILLED,
    EndReason.EPOCH_RAISED:       ExitReason.LEASE_EXPIRED,
})  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often a failed task is tried again, and the waits in between."""

    max_attempts: int = MAX_ATTEMPTS
    """1 to 100; counted from 0 when a person queues the task again. A lost run does not count."""
    backoff_seconds: float = BACKOFF_SECONDS
    """0 to 3600, before the second attempt."""

    def __post_init__(self) -> None:
        if not 1 <= self.max_attempts <= MOST_ATTEMPTS:
            raise InvalidValue("max_attempts", self.max_attempts, f"1 to {MOST_ATTEMPTS}")
        if not 0 <= self.backoff_seconds <= MAX_BACKOFF_SECONDS:
            raise InvalidValue("backoff_seconds", self.backoff_seconds, f"0 to {MAX_BACKOFF_SECONDS:g}")


@dataclass(frozen=True, slots=True)
class AfterFailure:
    """What happens to a task after a failed run: queued again, or handed to people."""

    signal: TaskSignal
    """RETRIED or ESCALATED."""
    wait_s: float = 0.0
    """Time before the task can be claimed, in seconds."""


def status_after(status: TaskStatus, signal: TaskSignal) -> TaskStatus:
    """Return the status after a signal; InvalidTaskTransition if it is not allowed in this status."""
    try:
        return TRANSITIONS[status, signal]
    except KeyError:
        raise InvalidTaskTransition(status, signal) from None


def is_never_queued_again(status: TaskStatus) -> bool:
    """Return whether a task in this status cannot return to the queue."""
    seen, ways = {status}, [status]
    while ways:
        before = ways.pop()
        following = {to for (at, _), to in TRANSITIONS.items() if at is before} - seen
        seen |= following
        ways += following
    return TaskStatus.QUEUED not in seen


def exit_reason_of(end_reason: EndReason) -> ExitReason:
    """Return the exit reason of a run whose lease ended without a write of its holder."""
    return _EXIT_REASONS[end_reason]


def end_text(signal: str, exit_reason: str | None) -> str:
    """Return in words what last happened to a task, with the exit reason if that adds something.

    A run that asked for help also ends as `completed`, which must not look like a success.
    """
    parts = [signal] if exit_reason in {None, ExitReason.COMPLETED} else [signal, exit_reason]
    return ", ".join(word.replace("_", " ") for word in parts if word)


def is_lost(exit_reason: ExitReason | None) -> bool:
    """Return whether a run does not count as an attempt: its holder was lost, or others ended it."""
    return exit_reason in _LOST


def most_lost_runs(policy: RetryPolicy) -> int:
    """Return how many runs of a task may be lost before it is handed to people."""
    return max(MAX_LOST_RUNS, policy.max_attempts)


def after_failure(
    exit_reason: ExitReason, attempts: int, policy: RetryPolicy, *, lost_runs: int = 0
) -> AfterFailure:
    """Decide what happens to a task after a failed run: queued again, or handed to people.

    `attempts` and `lost_runs` are its runs since people last queued it, including this one: each run is one
    of the two.
    """
    used, most = (
        (lost_runs, most_lost_runs(policy)) if is_lost(exit_reason) else (attempts, policy.max_attempts)
    )
    if exit_reason is ExitReason.AUTH or used >= most:
        return AfterFailure(TaskSignal.ESCALATED)
    if exit_reason not in _BACKED_OFF:
        return AfterFailure(TaskSignal.RETRIED)
    # MOST_ATTEMPTS keeps the power small enough for a float.
    wait_s = policy.backoff_seconds * 2.0 ** (max(1, attempts) - 1)
    return AfterFailure(TaskSignal.RETRIED, min(wait_s, MAX_BACKOFF_SECONDS))


def task_resource(task_id: str) -> str:
    """Return the resource name of a task's lease."""
    return f"{ResourceKind.TASK}:{task_id}"


def is_task_id(text: str) -> bool:
    """Return whether a text has the form of the registry's ids: `task_` and a ULID in lower case."""
    return _TASK_ID.fullmatch(text) is not None


def task_in(resource: str) -> str | None:
    """Return the id of the task whose lease has this resource name; None for another resource.

    `task:anything` is an ordinary resource of a client with tasks of its own.
    """
    kind, _, task_id = resource.partition(":")
    return task_id if kind == ResourceKind.TASK and is_task_id(task_id) else None
