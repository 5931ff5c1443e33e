"""What does an agent hold that works at a task of the registry, and what may it say? (protocol 6.8)

The object that `on_assignment` is called with. Whatever it says is fenced: once the lease is lost, it raises
Stale and has changed nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lifesign.client.registry import RegistryClient
from lifesign.client.registry_connection import texts
from lifesign.client.registry_tasks import GrantedTask, HeldRun
from lifesign.domain.models.progress_report import ProgressReport


class ClaimedTask:
    """A task that is this agent's own.

        async def work(self, task):
            drafts = task.latest_report["beliefs"] if task.latest_report else []
            await task.report_progress("drafted the hero section", next_step="three variants")
            return {"page": "index.html"}            # the result, which somebody reviews

    Every method raises RegistryError: Stale once the task is somebody else's.
    """

    def __init__(
        self, client: RegistryClient, granted: GrantedTask, run: HeldRun, stop_keeping: Callable[[], None]
    ) -> None:
        self.task_id = run.task_id
        self.title = granted.task.title
        self.input: Mapping[str, Any] = granted.input
        """What the work needs, as whoever created the task wrote it."""
        self.latest_report: Mapping[str, Any] | None = (
            None if granted.latest_report is None else granted.latest_report.report
        )
        """What an earlier holder wrote last: go on from there. None if nobody did."""
        self.comments: Sequence[Mapping[str, Any]] = tuple(
            comment.model_dump(mode="json", exclude_none=True) for comment in granted.comments
        )
        """What earlier holders asked and people answered, newest first: each a mapping with `signal`
        (`help_asked`, `requeued`, `rejected`, ...), `comment`, `written_by`, `written_at`."""
        self.budget = granted.budget
        """As it was when the task was granted."""
        self.run = run
        """What is shown with every write; for `client.tasks`, where metered calls are reserved."""
        self.client = client
        self.has_ended = False
        """Whether it was handed to people."""
        self._stop_keeping = stop_keeping
        self._writes = 0

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
        """Write down what was found, when there is something new to say; return the report's number.

        `attempted` are mappings of `action` and `outcome`. Whoever gets the task next goes on from the
        latest report.
        """
        report = _report(summary, beliefs, attempted, next_step, blockers)
        written = await self.client.tasks.report_progress(
            self.run, report, idempotency_key=self._next("report")
        )
        return written.report or 0

    async def delegate(self, title: str, **members: Any) -> str:
        """Give a part to another agent, and go on; return the child's id. `members` as in `TaskRequest`.

        Its `budget` is taken out of this task's own. A member that is None is not said.
        """
        task = {"title": title, **{name: value for name, value in members.items() if value is not None}}
        written = await self.client.tasks.delegate_subtask(
            self.run, task, idempotency_key=self._next("delegate")
        )
        return written.child_id or ""

    async def request_help(self, reason: str, *, summary: str | None = None) -> None:
        """Hand the task to people; return from the handler then, what it returns is passed over.

        `summary` is that of a last report.
        """
        report = None if summary is None else ProgressReport(summary=summary)
        await self.client.tasks.request_human_help(self.run, reason, report=report)
        self.has_ended = True
        self._stop_keeping()

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
    """Return a report as it travels; what is wrong in it is told when it is sent."""
    members = {
        "summary": summary,
        "beliefs": texts("beliefs", beliefs),
        "attempted": [dict(one) for one in attempted],
        "nextStep": next_step,
        "blockers": texts("blockers", blockers),
    }
    return {name: value for name, value in members.items() if value is not None}


def output_of(result: Any) -> dict[str, Any]:
    """Return what a handler returned as a task's output: an object, or one that holds it as `result`."""
    if result is None:
        return {}
    return dict(result) if isinstance(result, Mapping) else {"result": result}
