"""Outcome of a run, and its report to the registry and to people (protocol 6.10)."""

import asyncio
import random
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from lifesign import boot_clock
from lifesign.adapter.run_events import Emit, RunEvent, RunEventKind
from lifesign.adapter.tools.proxy_context import EndRequest
from lifesign.adapter.workspaces import Workspace
from lifesign.client.lease_keeper import LeaseKeeper
from lifesign.client.registry_errors import RegistryError, is_final, is_run_over
from lifesign.client.registry_tasks import HeldRun, RegistryTasks
from lifesign.domain.models.tasks import detail_of
from lifesign.domain.tasks.lease_renewal import next_try_s
from lifesign.domain.tasks.run_end import ReportAttempts, RunEnd, RunReport
from lifesign.domain.tasks.task_states import ExitReason


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """Result of one run of the agent's command on a task."""

    end: RunEnd
    exit_code: int | None
    """Exit code of the agent's process, negative for a signal; None without a process."""
    text: str
    """Text for people."""
    output: dict[str, Any] | None = None
    """Result to submit."""
    request: EndRequest | None = None
    """Call of the agent that is repeated as the report; None for a report of the adapter's own."""
    could_start: bool = True
    """False: the command is not there, which no other task would change."""
    was_notified: bool = False
    """Whether the registry knows that the run ended."""

    @property
    def detail(self) -> str | None:
        """Text about the end for the registry; None if it would only repeat the exit code."""
        is_all = self.exit_code is not None and self.text == ended_with(self.exit_code)
        return None if is_all else detail_of(self.text)

    @property
    def is_done(self) -> bool:
        """Whether the run succeeded and its end was reported to the registry."""
        return self.end.is_done and self.was_notified

    @property
    def has_result(self) -> bool:
        """Whether the run gave a result that the registry knows, so that its workspace need not be kept."""
        return self.end.has_result and self.was_notified


class RunReporter:
    """Reports the events of one run to people, and its end to the registry."""

    def __init__(
        self,
        tasks: RegistryTasks,
        run: HeldRun,
        keeper: LeaseKeeper,
        emit: Emit,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """`keeper`: of the lease. While it is held, a failed report is repeated; `chance` varies the wait."""
        self._tasks = tasks
        self._run = run
        self._keeper = keeper
        self._emit = emit
        self._chance = chance

    async def report(self, outcome: RunOutcome, workspace: Workspace | None = None) -> RunOutcome:
        """Report the run's end to the registry and as an event; return the outcome with `was_notified`.

        If the registry is reachable, but does not accept the report, the outcome is a run that was released
        without its result.
        """
        failure = await self._write(outcome)
        if failure is not None and self._keeper.is_held() and not is_run_over(failure):
            refused, outcome = outcome, _without_content(outcome, failure)
            failure = await self._write(outcome)
            outcome = replace(outcome, text=f"{refused.text}; {outcome.text}")
        if failure is not None:
            what, text = RunEventKind.UNREPORTED, f"{outcome.text}; the registry was not notified: {failure}"
        else:
            what, text = _event_kind(outcome.end), outcome.text
        self.emit(what, text, outcome, workspace)
        return replace(outcome, was_notified=failure is None)

    async def _write(self, outcome: RunOutcome) -> RegistryError | None:
        """Return why it could not be reported; None if it was."""
        attempts = ReportAttempts()
        while outcome.end.report is not RunReport.NOTHING:
            try:
                await self._write_once(outcome)
                break
            except RegistryError as error:
                attempts.note_failure(self._keeper.deadline_s)
                if is_final(error) or attempts.is_hopeless or not self._keeper.is_held():
                    return error
                wait_s = error.retry_after_s
            now_s = boot_clock.now_s()
            due_s = next_try_s(now_s, self._keeper.deadline_s, attempts.failures, self._chance(), wait_s)
            await asyncio.sleep(due_s - now_s)
        return None

    async def _write_once(self, outcome: RunOutcome) -> None:
        tasks, run, end, request = self._tasks, self._run, outcome.end, outcome.request
        if request is not None:
            key, report = request.idempotency_key, request.report
            if request.output is None:
                await tasks.request_human_help(run, request.reason, idempotency_key=key, report=report)
            else:
                await tasks.mark_complete(run, request.output, idempotency_key=key, report=report)
        elif end.report is RunReport.COMPLETE:
            await tasks.mark_complete(run, outcome.output or {}, idempotency_key="adapter:complete")
        elif end.report is RunReport.HELP:
            await tasks.request_human_help(run, outcome.text, idempotency_key="adapter:help")
        else:
            await tasks.release(
                run,
                end.exit_reason,
                exit_code=outcome.exit_code,
                detail=outcome.detail,
                idempotency_key="adapter:release",
            )

    def emit(
        self,
        what: RunEventKind,
        text: str,
        outcome: RunOutcome | None = None,
        workspace: Workspace | None = None,
    ) -> None:
        """Emit an event of this run."""
        run = self._run
        self._emit(
            RunEvent(
                what=what,
                text=text,
                task_id=run.task_id,
                run_id=run.run_id,
                fencing_token=run.fencing_token,
                exit_reason=None if outcome is None else outcome.end.exit_reason,
                exit_code=None if outcome is None else outcome.exit_code,
                workspace=None if workspace is None else str(workspace.path),
            )
        )


def ended_with(exit_code: int) -> str:
    """Return a phrase for people that says how a process ended: by which exit code or signal."""
    if exit_code >= 0:
        return f"it ended with exit code {exit_code}"
    with suppress(ValueError):
        return f"it was ended by {signal.Signals(-exit_code).name}"
    return f"it was ended by signal {-exit_code}"


def _without_content(outcome: RunOutcome, refusal: RegistryError) -> RunOutcome:
    """Return the outcome with a report that has neither the result nor the texts of the agent."""
    end = outcome.end
    if end.report is not RunReport.RELEASE:
        end = RunEnd(ExitReason.CRASH, RunReport.RELEASE)
    return replace(
        outcome, end=end, text=f"the report of its end was refused: {refusal}", output=None, request=None
    )


def _event_kind(end: RunEnd) -> RunEventKind:
    if not end.is_done:
        return RunEventKind.FAILED
    return RunEventKind.HELP_REQUESTED if end.needs_help else RunEventKind.COMPLETED
