"""Commands about tasks."""

import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lifesign.cli.options.duration import duration_option
from lifesign.cli.options.json_file import object_in
from lifesign.cli.options.json_option import AsJson
from lifesign.cli.options.registry_access import (
    DEFAULT_URL,
    USUAL_IN_TABLE,
    KeyFile,
    Limit,
    PlainHttp,
    RegistryUrl,
    ask,
)
from lifesign.cli.options.shell_completion import offering
from lifesign.cli.options.task_id import read_task_id
from lifesign.cli.output.agent_page import time_text
from lifesign.cli.output.error_lines import complain
from lifesign.cli.output.table import write_json, write_table
from lifesign.cli.output.task_page import page
from lifesign.cli.output.terminal import has_colours, write_page
from lifesign.domain.tasks.lease import MAX_TTL_SECONDS, MIN_TTL_SECONDS
from lifesign.domain.tasks.task_states import FINISHED, MAX_BACKOFF_SECONDS
from lifesign.domain.text.counts import plural, pluralize
from lifesign.errors import InvalidValue

if TYPE_CHECKING:
    from lifesign.client import RegistryClient
    from lifesign.domain.models.tasks import TaskList, TaskRecord, TaskSummary

PAGE = 1_000
"""Maximum page size of the registry."""
STATUSES = ("queued", "assigned", "running", "handoff", "review", "done", "cancelled")

TaskIdArgument = Annotated[
    str, typer.Argument(metavar="TASK_ID", parser=read_task_id, help="Id of the task.")
]
UNSURE_HINT = (
    "the registry may have executed the command: see `lifesign tasks show TASK_ID` or `lifesign tasks list` "
    "before you repeat it"
)
Comment = Annotated[
    str | None, typer.Option("--comment", metavar="TEXT", help="Reason, which is stored with the task.")
]


def _dollars(text: object) -> float:
    """Return an amount; typer.BadParameter for other texts."""
    with suppress(ValueError):
        amount = float(str(text))
        if 0 <= amount < inf:
            return amount
    raise typer.BadParameter(f"expected US dollars such as 1.50; got {text!r}")


tasks = typer.Typer(
    name="tasks",
    help="Create, list and review tasks.",
    rich_markup_mode=None,
    no_args_is_help=False,
)


@tasks.command("list")
def list_tasks(
    *,
    status: Annotated[
        list[str] | None,
        typer.Option(
            "--status",
            metavar="STATUS",
            autocompletion=offering(*STATUSES),
            help=f"Only tasks with this status: {', '.join(STATUSES)}; may be repeated. Without it: any.",
        ),
    ] = None,
    pool: Annotated[
        str | None, typer.Option("--pool", metavar="POOL", help="Only tasks for this pool.")
    ] = None,
    holder: Annotated[
        str | None,
        typer.Option("--holder", metavar="AGENT_ID", help="Only tasks that this agent holds or has held."),
    ] = None,
    parent: Annotated[
        str | None,
        typer.Option(
            "--parent",
            metavar="TASK_ID",
            parser=read_task_id,
            help="Only tasks that were delegated from this task.",
        ),
    ] = None,
    limit: Limit = None,
    as_json: AsJson = False,
    registry: RegistryUrl = DEFAULT_URL,
    key_file: KeyFile = None,
    allow_plain_http: PlainHttp = False,
) -> None:
    """List the tasks that match the options, the newest first, and show their number.

    \b
    Examples:
      lifesign tasks list
      lifesign tasks list --status handoff --status review
      lifesign tasks list --status queued --json | jq -r .tasks[].task_id

    \b
    Keys of --json:
      tasks    as the registry lists them   total   how many match
    """  # noqa: D301 - \b keeps the lines of a paragraph apart
    for each in status or ():
        if each not in STATUSES:
            raise InvalidValue("--status", each, f"one of {', '.join(STATUSES)}")
    wanted = {"status": tuple(status or ()), "role_id": pool, "holder": holder, "parent_id": parent}
    found = ask(
        lambda client: _listing(client, limit if as_json else limit or USUAL_IN_TABLE, wanted),
        registry=registry,
        key_file=key_file,
        allow_plain_http=allow_plain_http,
    )
    if as_json:
        write_json(sys.stdout, found.model_dump(mode="json", exclude_none=True, exclude={"cursor"}))
        return
    if not found.tasks:
        sys.stdout.write("no task matches\n")
        return
    write_table(
        sys.stdout,
        ("TASK", "STATUS", "SINCE", "HELD BY", "FOR", "TITLE"),
        (_row(task) for task in found.tasks),
    )
    if found.total > len(found.tasks):
        sys.stdout.write(f"{len(found.tasks)} of {found.total} (see --limit)\n")


async def _listing(client: "RegistryClient", limit: int | None, wanted: dict[str, Any]) -> "TaskList":
    """Read as many pages as `limit` requires, or all without a limit. The total is that of the first page."""
    left = sys.maxsize if limit is None else limit
    first = await client.tasks.list(limit=min(left, PAGE), **wanted)
    found, cursor = [*first.tasks], first.cursor
    while cursor is not None and len(found) < left:
        more = await client.tasks.list(limit=min(left - len(found), PAGE), cursor=cursor, **wanted)
        found += more.tasks
        cursor = more.cursor if more.tasks else None
    return first.model_copy(update={"tasks": found})


def _row(task: "TaskSummary") -> tuple[str, ...]:
    meant_for = task.agent_id or task.role_id or ", ".join(task.capabilities)
    since = time_text(task.status_since)
    return task.task_id, task.status, since, task.holder or "", meant_for, task.title


@tasks.command("show")
def show_task(
    task_id: TaskIdArgument,
    *,
    as_json: AsJson = False,
    registry: RegistryUrl = DEFAULT_URL,
    key_file: KeyFile = None,
    allow_plain_http: PlainHttp = False,
) -> None:
    """Show the complete record of one task: its runs, its latest report, its budget and its subtasks.

    \b
    Examples:
      lifesign tasks show task_01jd8w3q5t6v7x9zabcdefghjk
      lifesign tasks show task_01jd8w3q5t6v7x9zabcdefghjk --json | jq .latest_report
    """  # noqa: D301 - \b keeps the lines of a paragraph apart
    _done(
        lambda client: client.tasks.get(task_id),
        as_json=as_json,
        registry=registry,
        key_file=key_file,
        allow_plain_http=allow_plain_http,
    )


@tasks.command("create")
def create_task(
    title: Annotated[str, typer.Argument(metavar="TITLE", help="Description of the work, for people.")],
    *,
    agent: Annotated[
        str | None, typer.Option("--agent", metavar="AGENT_ID", help="Only this agent may claim the task.")
    ] = None,
    pool: Annotated[
        str | None,
        typer.Option("--pool", metavar="POOL", help="Only agents of this pool may claim the task."),
    ] = None,
    capability: Annotated[
        list[str] | None,
        typer.Option(
            "--capability", metavar="CAPABILITY", help="Capability that the agent must have; may be repeated."
        ),
    ] = None,
    given: Annotated[
        Path | None, typer.Option("--input", metavar="FILE", help="Input of the work: a JSON object.")
    ] = None,
    tokens: Annotated[
        int,
        typer.Option("--tokens", metavar="COUNT", min=0, help="Budget for the task's tool calls, in tokens."),
    ] = 0,
    usd: Annotated[
        float,
        typer.Option(
            "--usd",
            metavar="DOLLARS",
            parser=_dollars,
            help="Budget for the task's tool calls, in US dollars.",
        ),
    ] = 0,
    max_attempts: Annotated[
        int | None,
        typer.Option(
            "--max-attempts",
            metavar="COUNT",
            min=1,
            help="Number of attempts before the task is handed to people.",
        ),
    ] = None,
    backoff: Annotated[
        float | None,
        duration_option(
            "--backoff",
            most_s=MAX_BACKOFF_SECONDS,
            help="Delay before the second attempt; doubled for each further attempt.",
        ),
    ] = None,
    lease: Annotated[
        float | None,
        duration_option(
            "--lease",
            least_s=MIN_TTL_SECONDS,
            most_s=MAX_TTL_SECONDS,
            help="Time after which a lease on the task expires unless its holder renews it.",
        ),
    ] = None,
    as_json: AsJson = False,
    registry: RegistryUrl = DEFAULT_URL,
    key_file: KeyFile = None,
    allow_plain_http: PlainHttp = False,
) -> None:
    """Put a task into the queue.

    \b
    Examples:
      lifesign tasks create "Write the landing page" --pool writers --usd 1.50
      lifesign tasks create "Send the invoices" --capability invoicing --input june.json
    """  # noqa: D301 - \b keeps the lines of a paragraph apart
    members: dict[str, Any] = {
        "agent_id": agent,
        "role_id": pool,
        "capabilities": capability,
        "input": None if given is None else object_in(given, "--input"),
        "max_attempts": max_attempts,
        "backoff_seconds": backoff,
        "lease_seconds": lease,
        "budget": {"tokens": tokens, "usd": float(usd)} if tokens or usd else None,
    }
    present = {name: value for name, value in members.items() if value is not None}
    _done(
        lambda client: client.tasks.create(title, **present),
        as_json=as_json,
        registry=registry,
        key_file=key_file,
        allow_plain_http=allow_plain_http,
    )


@tasks.command("cancel")
def cancel_task(
    task_id: TaskIdArgument,
    *,
    reason: Annotated[
        str | None, typer.Option("--reason", metavar="TEXT", help="Reason, which is stored with the task.")
    ] = None,
    as_json: AsJson = False,
    registry: RegistryUrl = DEFAULT_URL,
    key_file: KeyFile = None,
    allow_plain_http: PlainHttp = False,
) -> None:
    """Cancel a task that has not ended. If an agent holds it, the agent's next write is refused.

    The tasks that the agent has delegated continue: cancel each of them as well.

    \b
    Examples:
      lifesign tasks cancel task_01jd8w3q5t6v7x9zabcdefghjk --reason "no longer needed"
    """  # noqa: D301 - \b keeps the lines of a paragraph apart
    task = _done(
        lambda client: client.tasks.cancel(task_id, reason=reason),
        as_json=as_json,
        registry=registry,
        key_file=key_file,
        allow_plain_http=allow_plain_http,
    )
    if parts := sum(child.status not in FINISHED for child in task.children):
        complain(
            f"{pluralize(parts, 'delegated task')} {plural(parts, 'has', 'have')} not ended",
            hint="cancel each of them that is no longer needed",
        )


@tasks.command("review")
def review_task(
    task_id: TaskIdArgument,
    verdict: Annotated[
        str, typer.Argument(metavar="accept|reject", help="Verdict about the result: accept or reject.")
    ],
    *,
    comment: Comment = None,
    as_json: AsJson = False,
    registry: RegistryUrl = DEFAULT_URL,
    key_file: KeyFile = None,
    allow_plain_http: PlainHttp = False,
) -> None:
    """Accept or reject the result of a task, which is then done. A rejection creates a task for the fix.

    \b
    Examples:
      lifesign tasks review task_01jd8w3q5t6v7x9zabcdefghjk accept
      lifesign tasks review task_01jd8w3q5t6v7x9zabcdefghjk reject --comment "last year's logo"
    """  # noqa: D301 - \b keeps the lines of a paragraph apart
    if verdict not in {"accept", "reject"}:
        raise InvalidValue("verdict", verdict, "accept or reject")

    async def reviewed(client: "RegistryClient") -> "TaskRecord":
        review = await client.tasks.review(task_id, verdict, comment=comment)
        return await client.tasks.get(task_id if review.fix is None else review.fix.task_id)

    _done(reviewed, as_json=as_json, registry=registry, key_file=key_file, allow_plain_http=allow_plain_http)


@tasks.command("resolve")
def resolve_task(
    task_id: TaskIdArgument,
    resolution: Annotated[
        str,
        typer.Argument(
            metavar="requeue|done", help="requeue: an agent continues; done: the work is finished."
        ),
    ],
    *,
    comment: Comment = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", metavar="FILE", help="File with the result, a JSON object; only with done."),
    ] = None,
    as_json: AsJson = False,
    registry: RegistryUrl = DEFAULT_URL,
    key_file: KeyFile = None,
    allow_plain_http: PlainHttp = False,
) -> None:
    """Decide how a task that was handed to people continues.

    \b
    Examples:
      lifesign tasks list --status handoff
      lifesign tasks resolve task_01jd8w3q5t6v7x9zabcdefghjk requeue --comment "use logo-2026.svg"
    """  # noqa: D301 - \b keeps the lines of a paragraph apart
    if resolution not in {"requeue", "done"}:
        raise InvalidValue("resolution", resolution, "requeue or done")
    result = None if output is None else object_in(output, "--output")
    _done(
        lambda client: client.tasks.resolve(task_id, resolution, comment=comment, output=result),
        as_json=as_json,
        registry=registry,
        key_file=key_file,
        allow_plain_http=allow_plain_http,
    )


@tasks.command("top-up")
def top_up_task(
    task_id: TaskIdArgument,
    *,
    tokens: Annotated[
        int, typer.Option("--tokens", metavar="COUNT", min=0, help="Tokens to add to the budget.")
    ] = 0,
    usd: Annotated[
        float,
        typer.Option("--usd", metavar="DOLLARS", parser=_dollars, help="US dollars to add to the budget."),
    ] = 0,
    as_json: AsJson = False,
    registry: RegistryUrl = DEFAULT_URL,
    key_file: KeyFile = None,
    allow_plain_http: PlainHttp = False,
) -> None:
    """Increase the budget for a task's tool calls.

    \b
    Examples:
      lifesign tasks top-up task_01jd8w3q5t6v7x9zabcdefghjk --usd 0.50
    """  # noqa: D301 - \b keeps the lines of a paragraph apart
    if not (tokens or usd):
        raise InvalidValue("--tokens, --usd", None, "at least one of them, above 0")
    _done(
        lambda client: client.tasks.top_up(task_id, tokens=tokens, usd=usd),
        as_json=as_json,
        registry=registry,
        key_file=key_file,
        allow_plain_http=allow_plain_http,
    )


def _done(
    function: "Callable[[RegistryClient], Awaitable[TaskRecord]]",
    *,
    as_json: bool,
    registry: str,
    key_file: Path | None,
    allow_plain_http: bool,
) -> "TaskRecord":
    """Call the operation, and show the task after it, which is returned."""
    from lifesign.client.registry_errors import RegistryError, may_have_been_executed  # noqa: PLC0415

    try:
        task = ask(function, registry=registry, key_file=key_file, allow_plain_http=allow_plain_http)
    except RegistryError as error:
        # With a code, the registry itself has refused the request.
        if may_have_been_executed(error) and not error.code:
            error.hint = UNSURE_HINT
        raise
    if as_json:
        write_json(sys.stdout, task.model_dump(mode="json", exclude_none=True))
    else:
        write_page(sys.stdout, page(task), colours=has_colours(sys.stdout))
    return task
