"""Commands about agents: list, show and register; `drain.py` and others add commands."""

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lifesign.cli.options.agent_reference import is_url, with_agent_id
from lifesign.cli.options.json_option import AsJson
from lifesign.cli.options.registry_access import (
    DEFAULT_URL,
    USUAL_IN_TABLE,
    KeyFile,
    Limit,
    MaxEvidenceAge,
    PlainHttp,
    RegistryUrl,
    ask,
)
from lifesign.cli.options.secret_file import WriteKey, new_key_file
from lifesign.cli.options.shell_completion import offering
from lifesign.cli.options.suspension_notice import are_decisions_suspended, say_suspended
from lifesign.cli.output.agent_page import (
    health_with_age,
    load_text,
    status_text,
    time_text,
    write_record,
)
from lifesign.cli.output.table import write_json, write_table
from lifesign.domain.net.peer_text import printable
from lifesign.domain.text.counts import plural, pluralize
from lifesign.errors import InvalidValue

if TYPE_CHECKING:
    from lifesign.client import RegistryClient
    from lifesign.domain.models.agents import AgentList, AgentRecord, AgentSummary

PAGE = 1_000
"""Maximum page size of the registry."""
HEALTHS = ("healthy", "degraded", "unhealthy", "unknown")
STATUSES = ("active", "unhealthy", "draining", "dead", "deregistered")
_ALL = frozenset({"all", "any"})

agents = typer.Typer(
    name="agents",
    help="List, show and register agents, and change their state.",
    rich_markup_mode=None,
    no_args_is_help=False,
)


@agents.command("list")
def list_agents(
    *,
    status: Annotated[
        list[str] | None,
        typer.Option(
            "--status",
            metavar="STATUS",
            autocompletion=offering(*STATUSES, "all"),
            help=(
                f"Only agents with this status: {', '.join(STATUSES)} or all; may be repeated. Without it: "
                "active."
            ),
        ),
    ] = None,
    capability: Annotated[
        list[str] | None,
        typer.Option(
            "--capability",
            metavar="CAPABILITY",
            help="Only agents with at least one of these capabilities; may be repeated.",
        ),
    ] = None,
    health: Annotated[
        list[str] | None,
        typer.Option(
            "--health",
            metavar="HEALTH",
            autocompletion=offering(*HEALTHS),
            help=("Only agents with this health: healthy, degraded, unhealthy or unknown; may be repeated."),
        ),
    ] = None,
    pool: Annotated[
        str | None,
        typer.Option(
            "--pool", metavar="POOL", help="Only agents of this pool; also shows the pool's free capacity."
        ),
    ] = None,
    free: Annotated[
        int | None,
        typer.Option(
            "--free", metavar="COUNT", help="Only agents with capacity for at least this many more tasks."
        ),
    ] = None,
    max_evidence_age: MaxEvidenceAge = None,
    least_loaded: Annotated[
        bool, typer.Option("--least-loaded", help="List the least loaded agents first.")
    ] = False,
    limit: Limit = None,
    as_json: AsJson = False,
    registry: RegistryUrl = DEFAULT_URL,
    key_file: KeyFile = None,
    allow_plain_http: PlainHttp = False,
) -> None:
    """List the agents that match the options, and show their number.

    \b
    Examples:
      lifesign agents list
      lifesign agents list --status unhealthy --status dead
      lifesign agents list --capability billing --free 1 --least-loaded
      lifesign agents list --status all --json | jq -r .agents[].agent_id

    \b
    Keys of --json:
      agents               as the registry lists them
      total                number of matches
      pool                 with --pool: its capacity
      not_active           without --status: number of matches that are not active
      decisions_suspended  whether verdicts are suspended; absent if the key may not know
    """  # noqa: D301 - \b keeps the lines of a paragraph apart
    wanted: dict[str, Any] = {
        "status": _statuses(status or ()),
        "capabilities": tuple(capability or ()),
        "health": _healths(health or ()),
        "role_id": pool,
        "min_available_capacity": free,
        "max_evidence_age": max_evidence_age,
        "sort": "least_loaded" if least_loaded else None,
    }
    most = limit if as_json else limit or USUAL_IN_TABLE
    found, not_active, held = ask(
        lambda client: _find_agents(client, most, wanted),
        registry=registry,
        key_file=key_file,
        allow_plain_http=allow_plain_http,
    )
    if as_json:
        members = found.model_dump(mode="json", exclude_none=True, exclude={"cursor"})
        also = {"not_active": not_active, "decisions_suspended": held}
        write_json(
            sys.stdout, {**members, **{name: value for name, value in also.items() if value is not None}}
        )
        return
    say_suspended(is_suspended=held)
    if found.agents:
        write_table(
            sys.stdout,
            ("AGENT", "STATUS", "HEALTH", "LOAD", "POOL", "LAST HEARTBEAT", "NAME"),
            (_row(agent) for agent in found.agents),
        )
    else:
        sys.stdout.write("no agent matches\n" if status else "no active agent matches\n")
    if found.total > len(found.agents):
        sys.stdout.write(f"{len(found.agents)} of {found.total} (see --limit)\n")
    if not_active:
        verb = plural(not_active, "is", "are")
        more = " more" if found.agents else ""
        sys.stdout.write(
            f"{not_active}{more} {verb} not active, such as dead or deregistered (use --status all)\n"
        )
    if found.agents and found.pool is not None:
        sys.stdout.write(
            f"the pool has capacity for {pluralize(found.pool.available_capacity, 'more task')}\n"
        )


def _statuses(given: Sequence[str]) -> tuple[str, ...]:
    """Return the wanted statuses; `any` is the dashboard's word for all of them. Raises InvalidValue."""
    if not _ALL.isdisjoint(given):
        return STATUSES
    for status in given:
        if status not in STATUSES:
            raise InvalidValue("--status", status, f"one of {', '.join(STATUSES)}, or all")
    return tuple(given)


def _healths(given: Sequence[str]) -> tuple[str, ...]:
    for health in given:
        if health not in HEALTHS:
            raise InvalidValue("--health", health, f"one of {', '.join(HEALTHS)}")
    return tuple(given)


async def _find_agents(
    client: "RegistryClient", limit: int | None, wanted: dict[str, Any]
) -> "tuple[AgentList, int | None, bool | None]":
    """Return the matches, the number of hidden inactive ones, and whether verdicts are suspended."""
    found = await _listing(client, limit, wanted)
    if wanted["status"]:
        return found, None, await are_decisions_suspended(client)
    others = await client.agents.list(limit=1, **{**wanted, "status": STATUSES[1:]})
    return found, others.total, await are_decisions_suspended(client)


async def _listing(client: "RegistryClient", limit: int | None, wanted: dict[str, Any]) -> "AgentList":
    """Read as many pages as needed, without a limit all of them; the totals are those of the first page."""
    left = sys.maxsize if limit is None else limit
    first = await client.agents.list(limit=min(left, PAGE), **wanted)
    found, cursor = list(first.agents), first.cursor
    while cursor is not None and len(found) < left:
        page = await client.agents.list(limit=min(left - len(found), PAGE), cursor=cursor, **wanted)
        found += page.agents
        cursor = page.cursor if page.agents else None
    return first.model_copy(update={"agents": found})


def _row(agent: "AgentSummary") -> tuple[str, ...]:
    return (
        agent.agent_id,
        status_text(agent),
        health_with_age(agent, time.time()),
        load_text(agent),
        agent.role_id or "",
        "" if agent.last_heartbeat_at is None else time_text(agent.last_heartbeat_at),
        agent.name or agent.target_url or agent.card_url or "",
    )


@agents.command("show")
def show_agent(
    agent: Annotated[
        str,
        typer.Argument(metavar="AGENT_ID|URL", help="Id of the agent, or the URL under which it is probed."),
    ],
    *,
    as_json: AsJson = False,
    registry: RegistryUrl = DEFAULT_URL,
    key_file: KeyFile = None,
    allow_plain_http: PlainHttp = False,
) -> None:
    """Show the complete record of one agent: what the agent reported, and what probes observed.

    \b
    Examples:
      lifesign agents show billing-1
      lifesign agents show https://agent.example
      lifesign agents show billing-1 --json | jq -r .status
    """  # noqa: D301 - \b keeps the lines of a paragraph apart
    shown, held = ask(
        lambda client: _shown(client, agent),
        registry=registry,
        key_file=key_file,
        allow_plain_http=allow_plain_http,
    )
    if as_json:
        known = {} if held is None else {"decisions_suspended": held}
        write_json(sys.stdout, {**shown.model_dump(mode="json", exclude_none=True), **known})
        return
    say_suspended(is_suspended=held)
    write_record(shown, as_json=False)


async def _shown(client: "RegistryClient", given: str) -> "tuple[AgentRecord, bool | None]":
    """Return an agent's record, and whether verdicts are suspended."""
    from lifesign.client.registry_errors import NotFound  # noqa: PLC0415 - loaded by now
    from lifesign.registry.errors import TargetNotFound  # noqa: PLC0415 - see above

    try:
        return await with_agent_id(client.agents.get, client.targets, given), await are_decisions_suspended(
            client
        )
    except TargetNotFound:
        text = f"no target has the URL {given}; if the agent only sends heartbeats, give its id"
        raise NotFound(text) from None
    except NotFound:
        if not is_url(given):
            raise
        text = f"{given} has not given a liveness signal yet: `lifesign targets list` shows its last result"
        raise NotFound(text) from None


@agents.command("register")
def register_agent(
    agent_id: Annotated[
        str | None,
        typer.Argument(metavar="[AGENT_ID]", help="Id of the agent. Without it: chosen by the registry."),
    ] = None,
    *,
    pool: Annotated[
        str | None,
        typer.Option(
            "--pool", metavar="POOL", help="Pool that the agent joins: agents that do the same work."
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="Name of the agent, for people.")
    ] = None,
    capability: Annotated[
        list[str] | None,
        typer.Option("--capability", metavar="CAPABILITY", help="Capability of the agent; may be repeated."),
    ] = None,
    max_tasks: Annotated[
        int | None, typer.Option("--max-tasks", metavar="COUNT", help="Maximum number of concurrent tasks.")
    ] = None,
    endpoint: Annotated[
        str | None, typer.Option("--endpoint", metavar="URL", help="URL at which the agent takes requests.")
    ] = None,
    card_url: Annotated[
        str | None,
        typer.Option(
            "--card-url",
            metavar="URL",
            help="URL of the agent's A2A card; probers request it if --monitoring is probe or both.",
        ),
    ] = None,
    monitoring: Annotated[
        str | None,
        typer.Option(
            "--monitoring",
            metavar="heartbeat|probe|both",
            autocompletion=offering("heartbeat", "probe", "both"),
            help=(
                "How the registry observes the agent: by heartbeats, by probes, or by both. Without "
                "it: heartbeat."
            ),
        ),
    ] = None,
    supersede: Annotated[
        bool,
        typer.Option(
            "--supersede",
            help="Register even if an agent with this id is alive. Its present incarnation ends.",
        ),
    ] = False,
    write_key: WriteKey = None,
    as_json: AsJson = False,
    registry: RegistryUrl = DEFAULT_URL,
    key_file: KeyFile = None,
    allow_plain_http: PlainHttp = False,
) -> None:
    """Register an agent. If its id is known from an earlier run, its next incarnation begins.

    The agent's own key is shown only once. It can send heartbeats, drain, hold leases and register again, for
    this agent only.

    \b
    Examples:
      lifesign agents register billing-1 --pool billing --capability invoices --write-key billing.key
      lifesign agents register --card-url https://agent.example --monitoring probe
    """  # noqa: D301 - \b keeps the lines of a paragraph apart
    with new_key_file(write_key) as keep:
        shown = ask(
            lambda client: client.agents.register(
                agent_id,
                role_id=pool,
                name=name,
                capabilities=capability or (),
                max_concurrent_tasks=max_tasks,
                endpoint=endpoint,
                card_url=card_url,
                monitoring=monitoring,
                supersede=supersede,
            ),
            registry=registry,
            key_file=key_file,
            allow_plain_http=allow_plain_http,
        )
        key, notice = shown.agent_key, f"{shown.agent_id} has a key already: {write_key} was not written"
        if keep is not None and key is not None:
            keep(key)
            shown, notice = shown.model_copy(update={"agent_key": None}), f"wrote the key to {write_key}"
    write_record(shown, as_json=as_json)
    if keep is not None:
        sys.stderr.write(printable(notice) + "\n")
