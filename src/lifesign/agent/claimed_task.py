"""Task of an agent that works on it, with the writes of its holder (protocol 6.8).

The argument of `on_assignment`. All writes are fenced: once the lease is lost, they raise Stale and change
nothing.
"""

import asyncio
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any, Final

from pydantic import BaseModel

from lifesign import boot_clock
from lifesign.client.lease_keeper import LeaseKeeper
from lifesign.client.registry import RegistryClient
from lifesign.client.registry_connection import build_body, texts
from lifesign.client.registry_errors import (
    RegistryError,
    RegistryRefusal,
    is_final,
    may_have_been_executed,
)
from lifesign.client.registry_tasks import GrantedTask, HeldRun
from lifesign.domain.models.progress_report import ProgressReport
from lifesign.domain.models.tasks import TaskRequest, TaskWriteResult
from lifesign.domain.tasks.lease_renewal import next_try_s
from lifesign.domain.tasks.run_end import ReportAttempts

_log = logging.getLogger("lifesign.agent")

MAX_UNANSWERED: Final = 1_000
"""Maximum number of writes without an answer whose idempotency keys are kept for a repetition."""
MAX_RETRY_AFTER_SECONDS: Final = 15.0
"""Maximum wait that an answer can request: a proxy may name hours for an outage of seconds."""


class ClaimedTask:
    """A task that this agent has claimed and holds, as its handler gets it.

        async def work(self, task):
            drafts = task.latest_report["beliefs"] if task.latest_report else []
            await task.report_progress("drafted the hero section", next_step="three variants")
            return {"page": "index.html"}            # the result, which a person reviews

    Every method raises RegistryError: Stale once another agent holds the task. While the registry is
    unreachable and the lease is held, a call waits and is repeated; it has one effect. After a
    RegistryFailure, such as Unreachable, it may have been executed: call it again with the same arguments.
    """

    def __init__(
        self,
        client: RegistryClient,
        granted: GrantedTask,
        run: HeldRun,
        keeper: LeaseKeeper,
        *,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.task_id = run.task_id
        self.title = granted.task.title
        self.input: Mapping[str, Any] = granted.input
        """Input of the work, as its creator wrote it."""
        self.latest_report: Mapping[str, Any] | None = (
            None if granted.latest_report is None else granted.latest_report.report
        )
        """Last report of an earlier holder: continue from it. None without one."""
        self.comments: Sequence[Mapping[str, Any]] = tuple(
            comment.model_dump(mode="json", exclude_none=True) for comment in granted.comments
        )
        """Questions of earlier holders and answers of people, newest first.

        Each is a mapping with `signal` (`help_asked`, `requeued`, `rejected`, ...), `comment`, `written_by`,
        `written_at`.
        """
        self.budget = granted.budget
        """Budget at the time of the claim."""
        self.run = run
        """Run of every write; `client.tasks` needs it to reserve metered calls."""
        self.client = client
        self.has_ended = False
        """Whether the task was handed to people."""
        self._keeper = keeper
        self._chance = chance
        self._writes = 0
        self._unanswered: deque[tuple[bytes, str]] = deque(maxlen=MAX_UNANSWERED)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.task_id}>"

    async def report_progress(
        self,
        summary: str,
        *,
        beliefs: Sequence[str] = (),
        attempted: Sequence[Mapping[str, str]] = (),
        next_step: str | None = None,
        blockers: Sequence[str] = (),
    ) -> int:
        """Send a progress report to the registry, when there is something new; return the report's number.

        `attempted` are mappings of `action` and `outcome`. The next holder of the task continues from the
        latest report.
        """
        members = _report(summary, beliefs, attempted, next_step, blockers)
        report = build_body(ProgressReport, **members)
        written = await self._write("report", report, self.client.tasks.report_progress)
        return written.report or 0

    async def delegate(self, title: str, **members: Any) -> str:
        """Create a child task, which another agent may claim; return the child's id.

        The work on this task continues. `members` as in `TaskRequest`.

        Its `budget` is taken out of this task's own. Members that are None are not sent.
        """
        given = {name: value for name, value in members.items() if value is not None}
        task = build_body(TaskRequest, title=title, **given)
        written = await self._write("delegate", task, self.client.tasks.delegate_subtask)
        return written.child_id or ""

    async def request_help(self, reason: str, *, summary: str | None = None) -> None:
        """Hand the task to people, which ends this run.

        The handler should then return; its result is ignored. `summary` is that of a last report.
        """
        report = None if summary is None else ProgressReport(summary=summary)
        tasks = self.client.tasks
        await self._repeat(lambda: tasks.request_human_help(self.run, reason, report=report))
        self.has_ended = True
        self._keeper.stop_keeping()

    async def _write(
        self, operation: str, content: BaseModel, write: Callable[..., Awaitable[TaskWriteResult]]
    ) -> TaskWriteResult:
        """Send a write. It gets the key of an earlier one with this content that has had no answer."""
        members = content.model_dump_json(exclude_unset=True)
        digest = sha256(f"{operation} {members}".encode()).digest()
        earlier = self._pop_unanswered(digest)
        key = earlier or self._next(operation)
        try:
            return await self._repeat(lambda: write(self.run, content, idempotency_key=key))
        except BaseException as error:
            # Also if the handler itself stopped waiting. A refusal says nothing about earlier attempts.
            is_first = earlier is None and not (isinstance(error, RegistryError) and error.may_be_repeat)
            if not (is_first and isinstance(error, RegistryRefusal)):
                self._unanswered.append((digest, key))
            raise

    async def _repeat(self, write: Callable[[], Awaitable[TaskWriteResult]]) -> TaskWriteResult:
        """Send a write until it is answered, while the lease is held."""
        attempts, may_have_been_done = ReportAttempts(), False
        while True:
            try:
                return await write()
            except RegistryError as error:
                error.may_be_repeat = error.may_be_repeat or may_have_been_done
                may_have_been_done = error.may_be_repeat or may_have_been_executed(error)
                attempts.note_failure(self._keeper.deadline_s)
                if is_final(error) or attempts.is_hopeless or not self._keeper.is_held():
                    raise
                if attempts.failures == 1:
                    _log.warning("task %s: a write is repeated until it is answered: %s", self.task_id, error)
                wait_s = min(error.retry_after_s or 0.0, MAX_RETRY_AFTER_SECONDS)
            now_s = boot_clock.now_s()
            due_s = next_try_s(now_s, self._keeper.deadline_s, attempts.failures, self._chance(), wait_s)
            await asyncio.sleep(due_s - now_s)

    def _pop_unanswered(self, digest: bytes) -> str | None:
        """Return the idempotency key of the oldest such write without an answer; None if there is none."""
        for earlier in self._unanswered:
            if earlier[0] == digest:
                self._unanswered.remove(earlier)
                return earlier[1]
        return None

    def _next(self, operation: str) -> str:
        self._writes += 1
        return f"{operation}-{self._writes}"


def _report(
    summary: str,
    beliefs: Sequence[str],
    attempted: Sequence[Mapping[str, str]],
    next_step: str | None,
    blockers: Sequence[str],
) -> dict[str, Any]:
    """Return a report for the request; the registry reports its faults."""
    members = {
        "summary": summary,
        "beliefs": texts("beliefs", beliefs),
        "attempted": [dict(one) for one in attempted],
        "nextStep": next_step,
        "blockers": texts("blockers", blockers),
    }
    return {name: value for name, value in members.items() if value is not None}


def output_of(result: Any) -> dict[str, Any]:
    """Return a handler's result as a JSON object: a mapping as it is, other values as the member `result`."""
    if result is None:
        return {}
    return dict(result) if isinstance(result, Mapping) else {"result": result}
