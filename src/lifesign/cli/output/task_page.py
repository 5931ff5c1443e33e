"""Text of a task for people."""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from lifesign.cli.output.agent_page import time_text
from lifesign.cli.output.terminal import Colour, PageLine, listed
from lifesign.domain.access.event_actor import display_actor
from lifesign.domain.text.counts import pluralize
from lifesign.domain.text.durations import duration_text

if TYPE_CHECKING:
    from lifesign.domain.models.tasks import CommentRecord, ReportRecord, RunRecord, TaskRecord
    from lifesign.domain.tasks.budget import AmountRecord, BudgetRecord

_COLOURS = {
    "running": Colour.GREEN,
    "assigned": Colour.GREEN,
    "review": Colour.CYAN,
    "handoff": Colour.YELLOW,
    "cancelled": Colour.FAINT,
}


def page(task: "TaskRecord") -> Iterator[PageLine]:
    """Return a task's record as lines for people."""
    from lifesign.domain.models.tasks import run_end_text  # noqa: PLC0415 - pydantic takes 60 ms

    yield PageLine("task", task.task_id)
    yield PageLine("title", task.title)
    yield PageLine("status", f"{task.status} since {time_text(task.status_since)}", _COLOURS.get(task.status))
    yield from listed("because", _lines([task.explanation] if task.explanation else ()))
    facts = (
        ("held by", task.holder),
        ("not before", None if task.not_before is None else time_text(task.not_before)),
        ("for agent", task.agent_id),
        ("for pool", task.role_id),
        ("needs", ", ".join(task.capabilities)),
        ("part of", task.parent_id),
        ("fix of", task.fix_of),
    )
    yield from (PageLine(label, text) for label, text in facts if text)
    if task.no_progress_seconds is not None:
        yield PageLine("no progress", f"for {duration_text(task.no_progress_seconds)}")
    lost = f", {task.lost_runs} lost" if task.lost_runs else ""
    yield PageLine("attempts", f"{task.attempts} of {task.max_attempts}{lost}")
    yield from _budget(task.budget)
    if task.latest_report is not None:
        yield from _report(task.latest_report)
    yield from listed("comments", _lines(_comment(comment, task.names) for comment in task.comments))
    yield from listed("runs", (_run(run, run_end_text(run, task.comments)) for run in task.runs))
    yield from listed("parts", (f"{child.task_id}  {child.status}  {child.title}" for child in task.children))
    yield from listed("input", (f"{name}: {value}" for name, value in task.input.items()))
    yield from listed("output", (f"{name}: {value}" for name, value in (task.output or {}).items()))
    yield PageLine("created", f"{time_text(task.created_at)} by {_actor_name(task.created_by, task.names)}")


def _lines(texts: Iterable[str]) -> Iterator[str]:
    """Split texts of several lines; all lines but the first are indented further."""
    for text in texts:
        for number, line in enumerate(text.splitlines()):
            yield f"  {line}" if number else line


def _budget(budget: "BudgetRecord") -> Iterator[PageLine]:
    if not _is_any(budget.envelope):
        return
    yield PageLine("budget", f"{_amount(budget.available)} left of {_amount(budget.envelope)}")
    parts = (("reserved", budget.reserved), ("delegated", budget.delegated))
    yield from (PageLine(name, _amount(amount)) for name, amount in parts if _is_any(amount))
    if _is_any(budget.overrun):
        yield PageLine("overrun", _amount(budget.overrun), Colour.RED)


def _report(report: "ReportRecord") -> Iterator[PageLine]:
    progress = report.report
    yield from listed("report", _lines([f"{progress['summary']} ({time_text(report.reported_at)})"]))
    yield from listed("next", _lines([progress["nextStep"]] if "nextStep" in progress else ()))
    yield from listed("blocked by", _lines(progress.get("blockers", ())), Colour.YELLOW)


def _comment(comment: "CommentRecord", names: Mapping[str, str]) -> str:
    with_what = str(comment.signal).replace("_", " ")
    by = _actor_name(comment.written_by, names)
    return f"{with_what}: {comment.comment} ({by}, {time_text(comment.written_at)})"


def _actor_name(actor: str | None, names: Mapping[str, str]) -> str:
    """Return the name of an actor: a key's own name too, if it may be known."""
    return "erased" if actor is None else display_actor(actor, names)


def _run(run: "RunRecord", text: str) -> str:
    begun = (
        f"{run.number}. {run.holder or 'erased'} with token {run.fencing_token}, {time_text(run.began_at)}"
    )
    if run.ended_at is None:
        return begun
    code = "" if run.exit_code is None else f" ({run.exit_code})"
    return f"{begun} to {time_text(run.ended_at)}: {text}{code}"


def _amount(amount: "AmountRecord") -> str:
    return f"{pluralize(amount.tokens, 'token')}, {amount.usd:.6f} USD"


def _is_any(amount: "AmountRecord") -> bool:
    return bool(amount.tokens or amount.usd)
