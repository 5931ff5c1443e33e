"""Run of one task, from its grant to its end (lease protocol; protocol 6.10).

The agent's process runs while the lease is held. For any end it is asked to stop, gets its grace period, and
is killed with all its descendants. Only then is the end of the run reported: no process of a run continues
once its lease is released.
"""

import asyncio
import random
import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from lifesign import boot_clock
from lifesign.adapter.process.agent_process import AgentProcess, Job
from lifesign.adapter.process.agent_user import AgentUser
from lifesign.adapter.process.lease_environment import ToolProxyAddress, environment_of
from lifesign.adapter.process.output import OutputCopy
from lifesign.adapter.process.progress_watch import ProgressWatch
from lifesign.adapter.process.run_deadline import RunDeadline
from lifesign.adapter.run_events import Emit, RunEventKind
from lifesign.adapter.run_outcome import RunOutcome, RunReporter, ended_with
from lifesign.adapter.tools.proxy_context import EndRequest, ToolProxyContext
from lifesign.adapter.workspaces import COMMENTS_FILE, INPUT_FILE, REPORT_FILE, Workspace, Workspaces
from lifesign.client.lease_keeper import LeaseKeeper, LossKind
from lifesign.client.registry import RegistryClient
from lifesign.client.registry_tasks import GrantedTask, HeldRun
from lifesign.domain.tasks.lease_renewal import grace_left_s
from lifesign.domain.tasks.run_end import RunEnd, RunReport, Stop, decide_end
from lifesign.domain.tasks.task_states import ExitReason
from lifesign.errors import LifesignError
from lifesign.mcp.request_human_help import NAME as HELP_TOOL

GRACE_SECONDS: Final = 10.0
"""Default time between SIGTERM and SIGKILL."""
POLL_SECONDS: Final = 0.05
"""Interval at which the end of the process is checked, in case its notification was missed."""
BUDGET_GONE: Final = "a metered call was refused: the budget is used up"

OpenTools = Callable[[ToolProxyContext], AbstractAsyncContextManager[ToolProxyAddress]]

_STOPS: Final[Mapping[LossKind, Stop]] = MappingProxyType({
    LossKind.REFUSED:      Stop.LOST,
    LossKind.UNAUTHORIZED: Stop.UNAUTHORIZED,
    LossKind.EXPIRED:      Stop.EXPIRED,
    LossKind.STOPPED:       Stop.OVER,
})  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """Settings that apply to each run: command, user, time limits and more."""

    command: Sequence[str]
    environment: Mapping[str, str]
    """Our environment; the agent gets it without our own variables."""
    user: AgentUser | None = None
    """User of the agent, who also owns the workspaces; None: the adapter's."""
    directory: Path | None = None
    """Working directory; None: the workspace."""
    grace_s: float = GRACE_SECONDS
    timeout_s: float | None = None
    """Maximum duration of a run; None for no limit."""
    no_progress_s: float | None = None
    """Time without output and without a call, after which the agent counts as hung; None for never."""
    completes_on_exit: bool = True
    """Whether exit code 0 submits the task, with the content of `output.json`."""
    stops_on_budget: bool = False
    """Whether an agent is ended when its budget is used up, and its task handed to people."""
    hidden: Collection[str] = ()
    """Variables that the agent does not get."""
    stdout_to: int = 1
    stderr_to: int = 2
    """Descriptors to which its output is passed on."""


class TaskRun:
    """One run of a task, and the process that works on it."""

    def __init__(
        self,
        client: RegistryClient,
        granted: GrantedTask,
        settings: RunSettings,
        workspaces: Workspaces,
        emit: Emit,
        *,
        open_tools: OpenTools | None = None,
        tool_client: RegistryClient | None = None,
        incarnation: int | None = None,
        hurry: asyncio.Event | None = None,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """`tool_client`: for the requests of tool calls; `client` if None."""
        self._tool_client = tool_client or client
        self._granted = granted
        self._settings = settings
        self._workspaces = workspaces
        self._open_tools = open_tools
        self._hurry = hurry or asyncio.Event()
        self._run = HeldRun.of(granted, incarnation)
        self._keeper = LeaseKeeper.of_task(
            client.leases,
            granted,
            incarnation=incarnation,
            grace_s=settings.grace_s,
            renewed=self._set_timer,
        )
        self._reporter = RunReporter(client.tasks, self._run, self._keeper, emit, chance)
        self._run_deadline: RunDeadline | None = None
        self._process: AgentProcess | None = None
        self._stop: Stop | None = None
        self._why = ""
        self._is_asked = asyncio.Event()
        self._was_signalled = False
        self._progress = ProgressWatch()
        self._written: RunReport | None = None
        self._end_request: EndRequest | None = None
        self._ends_s = 0.0

    @property
    def task_id(self) -> str:
        """Id of the task."""
        return self._run.task_id

    def stop(self, stop: Stop, why: str) -> None:
        """End the agent's process for this reason. If it is called again, the first reason stays."""
        if self._stop is None:
            self._stop, self._why = stop, why
            self._is_asked.set()

    def renew_now(self) -> None:
        """Renew the task's lease at once, to learn whether this run still holds the task."""
        self._keeper.renew_now()

    async def work(self) -> RunOutcome:
        """Run the command on the task and return the outcome. Errors are part of it, and not raised."""
        keeping = asyncio.create_task(self._keeper.run())
        try:
            if not await self._keeper.wait_until_held():
                loss = await self._keeper.wait_lost()
                outcome = RunOutcome(RunEnd(ExitReason.LEASE_EXPIRED, RunReport.NOTHING), None, loss.why)
                return await self._reporter.report(outcome)
            return await self._work()
        finally:
            self._keeper.stop_keeping()
            await asyncio.gather(keeping, return_exceptions=True)

    async def _work(self) -> RunOutcome:
        task, run = self._granted.task, self._run
        try:
            workspace = self._workspaces.prepare(
                run.run_id, task_id=task.task_id, title=task.title, fencing_token=run.fencing_token
            )
        except (OSError, ValueError) as error:
            outcome = _not_started(f"could not create a workspace: {error}")
            return await self._reporter.report(outcome)
        outcome = _not_started("it was given up")
        try:
            outcome = await self._in_workspace(workspace)
            outcome = await self._reporter.report(outcome, workspace)
        finally:
            # In a thread, since removing a large workspace takes long and heartbeats must continue; one at a
            # time, since no further task is claimed before.
            await asyncio.to_thread(
                self._workspaces.finish,
                workspace,
                keep=not outcome.has_result,
                exit_reason=outcome.end.exit_reason,
                exit_code=outcome.exit_code,
            )
        return outcome

    async def _in_workspace(self, workspace: Workspace) -> RunOutcome:
        """Run the agent; return the result before it is reported."""
        try:
            workspace.put(INPUT_FILE, self._granted.input)
            if self._granted.latest_report is not None:
                workspace.put(REPORT_FILE, self._granted.latest_report.report)
            if self._granted.comments:
                comments = [
                    comment.model_dump(mode="json", exclude_none=True) for comment in self._granted.comments
                ]
                workspace.put(COMMENTS_FILE, comments)
            exit_code = await self._run_agent(workspace)
        except (LifesignError, OSError) as error:
            if self._process is None or self._process.is_gone:
                return _not_started(str(error))
            return await self._unclear(str(error), None)
        if self._process is not None and self._process.uncertainty and self._written is None:
            return await self._unclear(self._process.uncertainty, exit_code)
        return self._outcome(workspace, exit_code)

    def _outcome(self, workspace: Workspace, exit_code: int) -> RunOutcome:
        """Return the result of a run whose processes have ended."""
        request = self._end_request
        end = decide_end(
            self._stop,
            exit_code,
            written=self._written,
            completes_on_exit=self._settings.completes_on_exit,
            was_signalled=self._was_signalled,
            has_output=workspace.has_output(),
            requested=None if request is None else _report_by(request.tool),
            was_refused=request is not None and bool(request.refusal),
        )
        if request is not None and end.repeats_request:
            text = f"{ended_with(exit_code)}; its call of {request.tool} was not confirmed, and was repeated"
            return RunOutcome(end, exit_code, text, request=request)
        if end.report is not RunReport.COMPLETE:
            why = self._why
            if request is not None and request.refusal and exit_code == 0:
                why = why or f"its call of {request.tool} was refused: {request.refusal}"
            return RunOutcome(end, exit_code, why or ended_with(exit_code))
        result = workspace.result()
        if result.output is None:
            return RunOutcome(RunEnd(ExitReason.CRASH, RunReport.RELEASE), exit_code, result.fault)
        return RunOutcome(end, exit_code, ended_with(exit_code), output=result.output)

    async def _unclear(self, why: str, exit_code: int | None) -> RunOutcome:
        """Return the result of a run whose processes may continue, once its lease has ended or time is short.

        An agent that drains releases its leases. Without permission to look at processes, nothing can be
        started either.
        """
        self._keeper.stop_keeping()
        text = f"the task is not released, since processes of it may still run: {why}"
        left_s = max(0.0, self._keeper.deadline_s - boot_clock.now_s())
        self._reporter.emit(RunEventKind.STOPPING, f"{text}; its lease expires in {left_s:.0f} s")
        with suppress(TimeoutError):
            async with boot_clock.timeout_at(self._keeper.deadline_s):
                await self._hurry.wait()
        end = RunEnd(ExitReason.LEASE_EXPIRED, RunReport.NOTHING)
        return RunOutcome(end, exit_code, text, could_start=False)

    async def _run_agent(self, workspace: Workspace) -> int:
        """Return the exit code of the agent's process, once all processes of the agent have ended."""
        settings = self._settings
        async with AsyncExitStack() as stack:
            tools, run_deadline = None, self._start_run_deadline()
            if self._open_tools is not None:
                tools = await stack.enter_async_context(
                    self._open_tools(self._tool_proxy_context(run_deadline))
                )
            job = Job(
                command=settings.command,
                environment=environment_of(
                    self._granted,
                    workspace.path,
                    settings.environment,
                    tools=tools,
                    hidden=settings.hidden,
                ),
                directory=settings.directory or workspace.path,
                user=settings.user,
                run_deadline=run_deadline,
            )
            output = OutputCopy(
                workspace.fd,
                stdout_to=settings.stdout_to,
                stderr_to=settings.stderr_to,
                progress=self._progress.busy,
            )
            stack.push_async_callback(asyncio.to_thread, output.finish)
            if settings.user is not None:
                workspace.hand_over(settings.user)
            process = self._process = await AgentProcess.start(job, output)
            stack.push_async_callback(process.kill)
            self._reporter.emit(
                RunEventKind.STARTED, f"process {process.pid} works in {workspace.path}", workspace=workspace
            )
            await self._watch(process)
            if not await process.end(self._grace_s(), self._hurry) and not process.uncertainty:
                self._reporter.emit(
                    RunEventKind.STOPPING,
                    "some of its processes still run: they belong to another user or hang in the kernel",
                )
            if process.outside_signal is not None and self._stop is None:
                name, self._was_signalled = signal.Signals(process.outside_signal).name, True
                self.stop(Stop.SIGNALLED, f"its processes got {name}, which the adapter did not send")
            self._why = self._why or process.fault
            return await process.wait()

    async def _watch(self, process: AgentProcess) -> None:
        """Wait until the process has ended by itself, or there is a reason to end it."""
        exited = asyncio.ensure_future(process.wait())
        lost = asyncio.ensure_future(self._keeper.wait_lost())
        end_requested = asyncio.ensure_future(self._is_asked.wait())
        stalled = asyncio.ensure_future(self._stalled())
        try:
            await asyncio.wait(
                {exited, lost, end_requested, stalled},
                timeout=self._settings.timeout_s,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if self._written is not None:
                # The agent has submitted its task and may end by itself; then it is asked to.
                wait_s = self._settings.grace_s / 2.0
                await asyncio.wait(
                    {exited, end_requested}, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED
                )
            await asyncio.wait({exited}, timeout=POLL_SECONDS)
            if exited.done():
                is_killed = exited.result() == -signal.SIGKILL and self._written is None
                if is_killed and self._run_deadline is not None and self._run_deadline.is_due:
                    self.stop(Stop.EXPIRED, "the lease's deadline passed, so the process was killed")
                return
            if self._written is not None:
                self.stop(Stop.OVER, f"{self._why}, and goes on")
            elif lost.done():
                self.stop(_STOPS[lost.result().kind], lost.result().why)
            elif stalled.done() and not end_requested.done():
                what = "it has written nothing and called no tool"
                self.stop(Stop.NO_PROGRESS, f"{what} for {self._settings.no_progress_s:g} s")
            elif not end_requested.done():
                self.stop(Stop.TIMEOUT, f"it has run for {self._settings.timeout_s:g} s")
            self._was_signalled = True
            self._reporter.emit(RunEventKind.STOPPING, f"the agent gets a signal to end: {self._why}")
        finally:
            for waiting in (exited, lost, end_requested, stalled):
                waiting.cancel()

    async def _stalled(self) -> None:
        """Wait until the agent counts as hung."""
        with self._progress.busy():
            # Its start is progress, however long ago the run began.
            pass
        if self._settings.no_progress_s is None:
            await asyncio.Event().wait()
        else:
            await self._progress.wait_stalled(self._settings.no_progress_s)

    def _start_run_deadline(self) -> RunDeadline:
        """Return the deadline with which the watchers kill the agent at the lease's deadline."""
        self._run_deadline = RunDeadline(self._keeper.deadline_s - boot_clock.now_s())
        return self._run_deadline

    def _set_timer(self, deadline_s: float) -> None:
        if self._run_deadline is not None:
            self._run_deadline.set(deadline_s - boot_clock.now_s())

    def _grace_s(self) -> float:
        """Return how long the agent may continue after the request to end, within its own lease."""
        loss, grace_s = self._keeper.loss, self._settings.grace_s
        if self._written is not None:
            return grace_left_s(boot_clock.now_s(), self._ends_s, grace_s)
        if loss is None or loss.kind is LossKind.STOPPED:
            return grace_s
        return grace_left_s(boot_clock.now_s(), self._keeper.deadline_s, grace_s)

    def _tool_proxy_context(self, run_deadline: RunDeadline) -> ToolProxyContext:
        return ToolProxyContext(
            registry=self._tool_client,
            run=self._run,
            is_held=self._keeper.is_held,
            ending=self._note_end_request,
            ended=self._ended_by_tool,
            budget_gone=self._end_for_budget,
            progress=self._progress.busy,
            run_deadline=run_deadline,
            agent_uid=None if self._settings.user is None else self._settings.user.uid,
        )

    def _note_end_request(self, request: EndRequest) -> None:
        self._end_request = request

    def _ended_by_tool(self, tool: str) -> None:
        self._written = _report_by(tool)
        self._why = f"it has called {tool}"
        self._keeper.stop_keeping()
        # Others may have the task from now on: it has one grace, half of it to end by itself.
        self._ends_s = boot_clock.now_s() + self._settings.grace_s
        self._set_timer(self._ends_s)

    def _end_for_budget(self) -> None:
        if self._settings.stops_on_budget:
            self.stop(Stop.BUDGET, BUDGET_GONE)


def _report_by(tool: str) -> RunReport:
    return RunReport.HELP if tool == HELP_TOOL else RunReport.COMPLETE


def _not_started(text: str) -> RunOutcome:
    """Return the result of a run without a process: no fault of the task, others may succeed."""
    return RunOutcome(RunEnd(ExitReason.KILLED, RunReport.RELEASE), None, text, could_start=False)
