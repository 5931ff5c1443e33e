"""Command that runs another command under the lease of a task."""

import os
import signal
import sys
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from lifesign.adapter.errors import CommandFailed
from lifesign.cli.options.duration import duration_option, format_duration
from lifesign.cli.options.json_option import AsJson
from lifesign.cli.options.registry_access import (
    DEFAULT_URL,
    KeyFile,
    PlainHttp,
    RegistryUrl,
    read_key,
)
from lifesign.cli.options.task_id import read_task_id
from lifesign.cli.output.error_lines import complain_of
from lifesign.cli.output.exit_codes import ExitCode, exit_code_of
from lifesign.client.environment_variables import KEY_VARIABLE
from lifesign.errors import InvalidValue
from lifesign.serving.ending_signals import EndRequests, ending_signals, redirect_closed_terminal
from lifesign.serving.state_home import state_home

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from lifesign.adapter.main_loop import Adapter, TaskSelection
    from lifesign.adapter.process.agent_user import AgentUser
    from lifesign.adapter.run_outcome import RunOutcome
    from lifesign.adapter.task_run import OpenTools
    from lifesign.adapter.tools.proxy_context import ToolProxyContext
    from lifesign.adapter.tools.tool_proxy import OpenProxy
    from lifesign.adapter.tools.tools_file import Upstreams
    from lifesign.client.registry_errors import RegistryError

NOT_FOUND: Final = 404
"""Status of the answer to an agent that requests work from other agents."""


def run(  # noqa: PLR0913 - each option is one
    command: Annotated[
        list[str],
        typer.Argument(metavar="COMMAND...", help="Command that works on a task, with its arguments."),
    ],
    *,
    task: Annotated[
        str | None,
        typer.Option(
            "--task",
            metavar="TASK_ID",
            parser=read_task_id,
            help="Id of the only task to work on. If the task belongs to a pool, pass --pool as well.",
        ),
    ] = None,
    pool: Annotated[
        str | None,
        typer.Option("--pool", metavar="POOL", help="Pool that the agent joins and whose tasks it claims."),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Work on one task, then exit.")] = False,
    wait: Annotated[
        float | None,
        duration_option(
            "--wait", help="Exit if no task could be claimed for this time. Without it: wait without a limit."
        ),
    ] = None,
    agent_id: Annotated[
        str | None,
        typer.Option("--agent-id", metavar="AGENT_ID", help="Id of the agent. Without it: a new agent."),
    ] = None,
    capability: Annotated[
        list[str] | None,
        typer.Option("--capability", metavar="CAPABILITY", help="Capability of the agent; may be repeated."),
    ] = None,
    registry: RegistryUrl = DEFAULT_URL,
    key_file: KeyFile = None,
    workspaces: Annotated[
        Path | None,
        typer.Option(
            "--workspaces",
            metavar="DIRECTORY",
            help="Directory for workspaces of runs. Without it: ~/.local/state/lifesign/runs.",
        ),
    ] = None,
    keep: Annotated[
        float | None,
        duration_option("--keep", help="Time for which workspaces of failed runs are kept. Without it: 7d."),
    ] = None,
    user: Annotated[
        str | None,
        typer.Option(
            "--user",
            metavar="USER",
            help="User that runs the command and owns its workspaces; needs root.",
        ),
    ] = None,
    in_workspace: Annotated[
        bool,
        typer.Option(
            "--in-workspace",
            help="Start the command in the workspace of the run, instead of the working directory.",
        ),
    ] = False,
    timeout: Annotated[
        float | None,
        duration_option(
            "--timeout", more_than_s=0, help="Time after which a run is ended. Without it: unlimited."
        ),
    ] = None,
    no_progress_timeout: Annotated[
        float | None,
        duration_option(
            "--no-progress-timeout",
            more_than_s=0,
            help=(
                "Time without output and tool calls after which a run is ended as hung. Without it: "
                "unlimited."
            ),
        ),
    ] = None,
    grace: Annotated[
        float | None,
        duration_option(
            "--grace", help="Time from SIGTERM to SIGKILL when the command is ended. Without it: 10s."
        ),
    ] = None,
    drain_timeout: Annotated[
        float | None,
        duration_option(
            "--drain-timeout",
            help=(
                "After a signal to end: time that the command may still take before it gets SIGTERM. "
                "Without it: 120s."
            ),
        ),
    ] = None,
    tools: Annotated[
        Path | None,
        typer.Option(
            "--tools",
            metavar="FILE",
            help="YAML file with MCP servers whose tools the agent gets, and their prices.",
        ),
    ] = None,
    complete_on_exit: Annotated[
        bool,
        typer.Option(
            "--complete-on-exit/--no-complete-on-exit",
            help=(
                "If the command exits with code 0, submit the content of output.json as the task's result."
            ),
        ),
    ] = True,
    stop_on_budget: Annotated[
        bool,
        typer.Option(
            "--stop-on-budget",
            help="End the command, and ask people for help, if the task's budget is too small for a call.",
        ),
    ] = False,
    as_json: AsJson = False,
    allow_plain_http: PlainHttp = False,
) -> int:
    """Claim one task after another, and run a command under the lease of each task.

    For the registry this command is an agent: it registers, sends heartbeats, and drains on SIGTERM. For each
    granted task it runs COMMAND once, in a process group of its own, with the lease in LIFESIGN_LEASE and
    similar variables. The run ends when COMMAND ends, the lease is lost, or the time is over. All processes
    of COMMAND end with the run, even if this program is killed; docs/adapter.md names the limits. The output
    of COMMAND is passed on. Lines about runs go to standard error.

    Pass the agent's own key, or one that may register the agent. In the second case the agent's own key is
    stored in the directory of the workspaces.

    \b
    Examples:
      lifesign run --agent-id coder-1 --pool coder --key-file key -- ./agent.sh
      lifesign run --pool coder --once --wait 0s --timeout 1h -- python agent.py
      lifesign run --pool coder --no-progress-timeout 15m -- ./agent.sh
      lifesign run --task task_01jd8w3q5t6v7x9zabcdefghjk --pool coder -- opencode run

    \b
    Keys of --json, one object per line on standard output (the agent's output then goes to standard error):
      at    time   what  registered, waiting, granted, started, stopping, completed, help_requested,
                         failed, unreported, registry, tools, pruned, omitted, leaving or left
      text  for people   task_id   run_id   fencing_token   exit_reason   exit_code   workspace
    """  # noqa: D301 - \b keeps the lines of a paragraph apart
    if not sys.platform.startswith("linux"):
        raise InvalidValue(
            "platform", sys.platform, "Linux: only its kernel shows which processes belong to an agent"
        )
    _check(task=task, once=once)
    # aiohttp takes 200 ms, which `--help` does not need.
    import asyncio  # noqa: PLC0415

    from lifesign.adapter.credentials import agent_key_file, agent_lock, forget  # noqa: PLC0415
    from lifesign.adapter.main_loop import DRAIN_SECONDS, SLACK_SECONDS, Adapter, TaskSelection  # noqa: PLC0415
    from lifesign.adapter.process import process_watcher  # noqa: PLC0415
    from lifesign.adapter.task_run import GRACE_SECONDS, RunSettings  # noqa: PLC0415
    from lifesign.adapter.workspaces import RETENTION_SECONDS, Workspaces  # noqa: PLC0415
    from lifesign.agent.credentials import AgentKeys  # noqa: PLC0415
    from lifesign.agent.profile import AgentProfile  # noqa: PLC0415
    from lifesign.agent.registration import RegistrySession  # noqa: PLC0415
    from lifesign.cli.output.adapter_lines import LogForwarder, event_writer  # noqa: PLC0415
    from lifesign.client import RegistryClient  # noqa: PLC0415
    from lifesign.client.registry_errors import RegistryError  # noqa: PLC0415
    from lifesign.serving.log_output import logging_to  # noqa: PLC0415

    grace_s = GRACE_SECONDS if grace is None else grace
    drain_s = DRAIN_SECONDS if drain_timeout is None else drain_timeout
    _check_ending(grace_s, drain_s, slack_s=SLACK_SECONDS)
    runs_as = _as_user(user, in_workspace=in_workspace)
    found = _resolve_command(command, runs_as)
    named: dict[str, Any] = {} if agent_id is None else {"agent_id": agent_id}
    profile = AgentProfile(
        **named,
        role_id=pool,
        capabilities=tuple(capability or ()),
        capacity=1,
        # The registry's time for a draining agent includes the grace period of the process.
        drain_timeout_seconds=drain_s + grace_s,
    )
    process_watcher.hide_memory()
    with ExitStack() as stack:
        emit = stack.enter_context(event_writer(as_json=as_json))
        stack.enter_context(logging_to(LogForwarder(emit)))
        open_tools, hidden = _tools(tools)
        places = stack.enter_context(Workspaces(workspaces or _default_workspaces(), user=runs_as))
        own_key = agent_key_file(places.root, registry, profile.agent_id)
        stack.enter_context(agent_lock(profile.agent_id, own_key))
        keys = AgentKeys(
            key=_read_key(key_file, own_key), key_file=own_key, given_file=key_file, environment={}
        )
        place = RegistrySession(
            profile,
            keys,
            registry,
            allow_plain_http=allow_plain_http,
            works_tasks=True,
            has_fixed_id=agent_id is not None,
        )
        wanted = TaskSelection(task_id=task, role_id=pool, is_once=once or task is not None, wait_s=wait)
        settings = RunSettings(
            command=found,
            environment=dict(os.environ) | ({} if runs_as is None else runs_as.environment()),
            user=runs_as,
            directory=None if in_workspace else Path.cwd(),
            grace_s=grace_s,
            timeout_s=timeout,
            no_progress_s=no_progress_timeout,
            completes_on_exit=complete_on_exit,
            stops_on_budget=stop_on_budget,
            hidden=hidden,
            stdout_to=2 if as_json else 1,
        )

        async def live() -> "RunOutcome | None":
            adapter = Adapter(
                place,
                lambda: RegistryClient(registry, key=keys, allow_plain_http=allow_plain_http),
                wanted=wanted,
                settings=settings,
                workspaces=places,
                emit=emit,
                open_tools=open_tools,
                keep_s=RETENTION_SECONDS if keep is None else keep,
                drain_s=drain_s,
            )
            _drain_by_signal(adapter)
            return await adapter.run()

        try:
            outcome = asyncio.run(live())
        except RegistryError as error:
            # Below all messages.
            stack.close()
            key_hint = "" if agent_id is None else keys.hint(error, agent_id)
            error.hint = _pool_hint(error, wanted) or key_hint or error.hint
            complain_of(error)
            return exit_code_of(error)
        finally:
            if agent_id is None:
                # An agent with a generated name does not return.
                forget(own_key)
    return _exit_code(outcome, wanted_one=wanted.is_once, waits=wait is not None)


def _check(*, task: str | None, once: bool) -> None:
    """Refuse invalid combinations before the agent is registered."""
    if task is not None and once:
        raise InvalidValue("--once", None, "this option without --task, which names a single task")


def _check_ending(grace_s: float, drain_s: float, *, slack_s: float) -> None:
    """Refuse a Linux without /proc, and a grace period that takes longer than the registry waits."""
    from lifesign.domain.models.base import MAX_DURATION_SECONDS  # noqa: PLC0415 - see `run`

    if sys.platform == "linux" and not Path("/proc/self/stat").exists():
        # Some containers have none.
        raise InvalidValue(
            "/proc", None, "a mounted /proc, in which the adapter finds the processes of a run"
        )
    if grace_s + drain_s + slack_s > MAX_DURATION_SECONDS:
        late = "--grace" if grace_s > drain_s else "--drain-timeout"
        got = format_duration(max(grace_s, drain_s))
        most = format_duration(MAX_DURATION_SECONDS)
        raise InvalidValue(late, got, f"less than {most} for --grace and --drain-timeout together")


def _as_user(name: str | None, *, in_workspace: bool) -> "AgentUser | None":
    """Return the user of the command, None for ours; InvalidValue if it cannot enter this directory."""
    if name is None:
        return None
    from lifesign.adapter.process.agent_user import AgentUser  # noqa: PLC0415 - see `run`

    user = AgentUser.named(name)
    if not in_workspace and (why := user.unsearchable_directory(Path.cwd())):
        expected = f"a user who can enter the working directory, or --in-workspace ({why})"
        raise InvalidValue("--user", name, expected)
    return user


def _tools(file: Path | None) -> "tuple[OpenTools | None, set[str]]":
    """Return the tools of a run, None without the extra, and the variables that only the tools get."""
    if find_spec("mcp") is None:
        if file is not None:
            raise InvalidValue("--tools", str(file), "the extra mcp to be installed")
        return None, set()
    from lifesign.adapter.tools.tool_proxy import open_tool_proxy  # noqa: PLC0415 - see `run`

    upstreams = None if file is None else _upstreams_in(file)

    def open_tools(held: "ToolProxyContext") -> "AbstractAsyncContextManager[OpenProxy]":
        return open_tool_proxy(held, upstreams)

    return open_tools, set() if upstreams is None else upstreams.variables()


def _upstreams_in(file: Path) -> "Upstreams":
    # Without a file there is no YAML to be read, and so nothing that can.
    from lifesign.adapter.tools.tools_file_reader import read_upstreams  # noqa: PLC0415

    return read_upstreams(file)


def _default_workspaces() -> Path:
    """Return the directory of the workspaces below the user's state; InvalidValue without a home."""
    try:
        return state_home(os.environ) / "runs"
    except RuntimeError:
        what = "a directory, since this user has no home directory"
        raise InvalidValue("--workspaces", None, what) from None


def _exit_code(outcome: "RunOutcome | None", *, wanted_one: bool, waits: bool) -> int:
    if outcome is None:
        return ExitCode.NO_INPUT if waits else ExitCode.SUCCESS
    failed = not outcome.has_result if wanted_one else not outcome.could_start
    return ExitCode.INCOMPLETE if failed else ExitCode.SUCCESS


def _resolve_command(command: list[str], user: "AgentUser | None") -> list[str]:
    """Return the command with its program's full path; InvalidValue if its user cannot run it."""
    from lifesign.adapter.process.program import program_called  # noqa: PLC0415 - see `run`

    try:
        return [str(program_called(command[0], user)), *command[1:]]
    except CommandFailed as error:
        expected = (
            "a program that can be started" if user is None else f"a program that {user.name} can start"
        )
        why = f" ({error.reason})" if error.reason else ""
        raise InvalidValue("COMMAND", command[0], expected + why) from None


def _pool_hint(error: "RegistryError", wanted: "TaskSelection") -> str:
    """Return a hint at --pool, or an empty text: the registry hides a pool's task from other agents."""
    if error.status != NOT_FOUND or wanted.task_id is None or wanted.role_id is not None:
        return ""
    return "a task that belongs to a pool needs --pool beside --task"


def _read_key(key_file: Path | None, own_key: Path) -> str | None:
    """Return the given key; an agent with a stored key needs none."""
    if key_file is None and own_key.exists():
        return os.environ.get(KEY_VARIABLE) or None
    return read_key(key_file)


def _drain_by_signal(adapter: "Adapter") -> None:
    import asyncio  # noqa: PLC0415 - see `run`

    loop = asyncio.get_running_loop()
    requests = EndRequests()

    def on_signal(number: signal.Signals) -> None:
        if number is signal.SIGHUP:
            redirect_closed_terminal()
        if requests.is_new(number):
            adapter.drain(f"{number.name} came")

    for number in ending_signals():
        loop.add_signal_handler(number, on_signal, number)
