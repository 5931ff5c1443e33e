"""Commands about the event log."""

import json
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lifesign.cli.options.json_option import AsJson
from lifesign.cli.options.key_names import KeyNames
from lifesign.cli.options.registry_access import (
    DEFAULT_URL,
    USUAL_IN_TABLE,
    KeyFile,
    Limit,
    PlainHttp,
    RegistryUrl,
    ask,
)
from lifesign.cli.options.server_database import (
    DEFAULT_DATABASE,
    DatabaseUrl,
    ServerConfig,
    run_in_transaction,
)
from lifesign.cli.output.broken_pipe import ignore_broken_pipe
from lifesign.cli.output.exit_codes import ExitCode
from lifesign.cli.output.table import write_json, write_table
from lifesign.cli.output.terminal import Colour, PageLine, has_colours, listed, write_page
from lifesign.domain.access.event_actor import display_actor
from lifesign.domain.lifecycle.status_table import Reason
from lifesign.domain.net.peer_text import printable
from lifesign.domain.tasks.task_states import end_text
from lifesign.domain.text.counts import pluralize

if TYPE_CHECKING:
    from lifesign.client import RegistryClient
    from lifesign.client.registry_events import EventPage, LoggedEvent
    from lifesign.registry.events.verify_events import LogReport
    from lifesign.storage.engine.transaction import Transaction

PAGE = 1_000
"""Maximum page size of the registry."""

Types = Annotated[
    list[str] | None,
    typer.Option(
        "--type",
        metavar="EVENT_TYPE",
        help="Only events of this type, such as agent.lifecycle; may be repeated.",
    ),
]
OfAgent = Annotated[
    str | None, typer.Option("--agent", metavar="AGENT_ID", help="Only events about this agent.")
]

events = typer.Typer(name="events", help="List, follow and verify the event log.", rich_markup_mode=None)


@events.command("list")
def list_events(
    *,
    after: Annotated[
        int,
        typer.Option("--after", metavar="SEQUENCE", min=0, help="Only events after this sequence number."),
    ] = 0,
    types: Types = None,
    agent: OfAgent = None,
    is_all: Annotated[
        bool, typer.Option("--all", help="Also events of the shards of crawls, of which there are many.")
    ] = False,
    limit: Limit = None,
    as_json: AsJson = False,
    registry: RegistryUrl = DEFAULT_URL,
    key_file: KeyFile = None,
    allow_plain_http: PlainHttp = False,
) -> None:
    """List events from the log, the oldest first.

    Without --type, --all or --json, events of shards are left out, and a line at the end says so.

    \b
    Examples:
      lifesign events list --after 1200
      lifesign events list --type agent.lifecycle --agent billing-1
      lifesign events list --json | jq -r .events[].type

    \b
    Keys of --json:
      events             as the registry sends them
      next_after         value of --after for the next page
      last_sequence      last sequence number of the log
      archived_sequence  events up to this sequence number are in archives
      names              names of the keys that acted, and of targets, if the key may read all events
    """  # noqa: D301 - \b keeps the lines of a paragraph apart
    most = limit if as_json else limit or USUAL_IN_TABLE
    is_short = not (is_all or as_json or types)
    found, is_hidden = ask(
        lambda client: _listing(client, after, most, _event_query(types, agent), is_short=is_short),
        registry=registry,
        key_file=key_file,
        allow_plain_http=allow_plain_http,
    )
    if as_json:
        members = found.model_dump(mode="json", exclude={"events"})
        write_json(sys.stdout, {"events": [event.members() for event in found.events], **members})
        return
    rows = (
        (str(event.sequence), event.created_at, event.type, event_line(event, found.names))
        for event in found.events
    )
    write_table(sys.stdout, ("SEQUENCE", "TIME", "TYPE", "WHAT"), rows)
    if found.next_after < found.last_sequence:
        sys.stdout.write(f"more: --after {found.next_after}, up to {found.last_sequence}\n")
    if is_hidden:
        sys.stdout.write("events of shards are not shown (use --all)\n")


async def _listing(
    client: "RegistryClient", after: int, limit: int | None, wanted: dict[str, Any], *, is_short: bool
) -> "tuple[EventPage, bool]":
    """Return the events, and whether events of shards were left out. `is_short`: leave these out."""
    from lifesign.domain.events.event_type import EventType  # noqa: PLC0415 - pydantic takes 60 ms

    if not is_short:
        return await _pages(client, after, limit, wanted), False
    of_shards = (EventType.SHARDS_GRANTED, EventType.SHARDS_ENDED)
    others = [kind for kind in EventType if kind not in of_shards]
    found = await _pages(client, after, limit, {**wanted, "types": others})
    hidden = await client.events.list(after=after, limit=1, **{**wanted, "types": of_shards})
    return found, any(event.sequence <= found.next_after for event in hidden.events)


async def _pages(
    client: "RegistryClient", after: int, limit: int | None, wanted: dict[str, Any]
) -> "EventPage":
    """Read as many pages as needed, without a limit all of them."""
    left = sys.maxsize if limit is None else limit
    found = await client.events.list(after=after, limit=min(left, PAGE), **wanted)
    events, names = list(found.events), dict(found.names)
    while len(events) < left and after < found.next_after < found.last_sequence:
        after = found.next_after
        found = await client.events.list(after=after, limit=min(left - len(events), PAGE), **wanted)
        events += found.events
        names |= found.names
    return found.model_copy(update={"events": events, "names": names})


@events.command("tail")
def tail_events(
    *,
    after: Annotated[
        int | None,
        typer.Option(
            "--after",
            metavar="SEQUENCE",
            min=0,
            help="First show the logged events after this sequence number. Without it: only new events.",
        ),
    ] = None,
    types: Types = None,
    agent: OfAgent = None,
    as_json: AsJson = False,
    registry: RegistryUrl = DEFAULT_URL,
    key_file: KeyFile = None,
    allow_plain_http: PlainHttp = False,
) -> None:
    """Show events as they happen, until Ctrl-C or SIGTERM. No event is left out after a lost connection.

    \b
    Examples:
      lifesign events tail
      lifesign events tail --after 0 --type agent.lifecycle
      lifesign events tail --json | jq -r .payload.new_status

    \b
    --json prints one event per line, as the registry sends it.
    """  # noqa: D301 - \b keeps the lines of a paragraph apart
    from asyncio import CancelledError  # noqa: PLC0415 - `--help` need not load it

    wanted = _event_query(types, agent)
    try:
        ask(
            lambda client: _follow(client, after, wanted, as_json=as_json),
            registry=registry,
            key_file=key_file,
            allow_plain_http=allow_plain_http,
        )
    except (KeyboardInterrupt, CancelledError):
        return


async def _follow(
    client: "RegistryClient", after: int | None, wanted: dict[str, Any], *, as_json: bool
) -> None:
    import asyncio  # noqa: PLC0415 - it is loaded by now, and not before
    from contextlib import aclosing  # noqa: PLC0415 - as above

    watching = asyncio.current_task()
    if watching is not None and threading.current_thread() is threading.main_thread():
        # As Ctrl-C does: between two lines, and never within one.
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, watching.cancel)
    names = KeyNames(client)
    async with aclosing(client.events.stream(after=after, **wanted)) as following:
        async for event in following:
            if as_json:
                write_json(sys.stdout, event.members(), indent=None)
            else:
                sys.stdout.write(_line(event, await names.of(event)))
            # A reader of a pipe needs each line immediately.
            sys.stdout.flush()


def _line(event: "LoggedEvent", names: Mapping[str, str]) -> str:
    """Return one event as a line with columns of fixed width: the widths of later events are unknown."""
    summary = printable(event_line(event, names))
    return f"{event.sequence:>8}  {printable(event.created_at):24}  {printable(event.type):25}  {summary}\n"


@events.command("verify")
def verify_events(
    *,
    _config: ServerConfig = None,
    database: DatabaseUrl = DEFAULT_DATABASE,
    as_json: AsJson = False,
) -> int:
    """Verify the hash chain of the event log, and that the stored states match the logged events.

    The command reads the database itself; the registry may keep running. A hash chain alone cannot show that
    the end of the log was cut off, or that all of it was rewritten: store the printed checkpoint elsewhere.

    \b
    Examples:
      lifesign events verify --database sqlite:///lifesign.db
      lifesign events verify --json | jq -r .checkpoint.hash

    \b
    Keys of --json:
      good        true if log and states are unchanged
      fault       first break of the chain, or null   differences  between the log and the stored states
      events, erased, agents, leases, tasks, keys     counts
      archive_erasures                                erased agents that archived files may still contain
      archived, checkpoint                            sequence and hash where the database begins and ends
    """  # noqa: D301 - \b keeps the lines of a paragraph apart
    report = _verified(database)
    with ignore_broken_pipe():
        if as_json:
            write_json(sys.stdout, {
                "good": report.is_good, "fault": report.fault, "differences": list(report.differences),
                "events": report.events, "erased": report.erased, "agents": report.agents,
                "leases": report.leases, "tasks": report.tasks, "keys": report.keys,
                "archive_erasures": report.archive_erasures,
                "archived": asdict(report.archived), "checkpoint": asdict(report.last),
            })  # fmt: skip
        else:
            write_page(sys.stdout, _report(report), colours=has_colours(sys.stdout))
    return ExitCode.SUCCESS if report.is_good else ExitCode.FAILED


def _verified(url: str) -> "LogReport":
    from lifesign.registry.events.verify_events import verify_log  # noqa: PLC0415 - SQLAlchemy takes 150 ms
    from lifesign.storage.engine import schema_version  # noqa: PLC0415 - see above

    def verify(transaction: "Transaction") -> "LogReport":
        schema_version.check(transaction)
        return verify_log(transaction)

    return run_in_transaction(url, verify, is_write=False)


def _report(report: "LogReport") -> Iterator[PageLine]:
    if report.fault is not None:
        yield PageLine("the log", "has CHANGED since it was written", Colour.RED)
        yield PageLine("because", report.fault)
    else:
        yield PageLine("the log", "is unchanged", Colour.GREEN)
        follows = "does NOT follow from it" if report.differences else "follows from it"
        yield PageLine("the store", follows, Colour.RED if report.differences else Colour.GREEN)
    yield from listed("because", report.differences)
    yield PageLine(
        "events",
        f"{report.events} in the database, "
        + (f"{report.erased} erased with archived ones" if report.erased else "all with their payload"),
    )
    numbers = {
        "agent": report.agents, "leased resource": report.leases, "task": report.tasks, "key": report.keys,
    }  # fmt: skip
    yield PageLine("contain", ", ".join(pluralize(count, noun) for noun, count in numbers.items()))
    if report.archived.sequence:
        yield PageLine("archived", f"up to {report.archived.sequence} {report.archived.hash}")
    if report.archive_erasures:
        yield PageLine("archives", f"may still contain {pluralize(report.archive_erasures, 'erased agent')}")
    yield PageLine("checkpoint", f"{report.last.sequence} {report.last.hash}")


def _event_query(types: list[str] | None, agent: str | None) -> dict[str, Any]:
    wanted: dict[str, Any] = {}
    if types:
        wanted["types"] = types
    if agent is not None:
        wanted["agent_id"] = agent
    return wanted


# An ended lease only shows its holder.
_ENDED = {"agent.maintenance_changed": "maintenance ended", "agent.override_changed": "override ended"}


def event_line(event: "LoggedEvent", names: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return an event on one line; `names` are those of keys, and of agents whose ids are not readable."""
    actor = display_actor(event.actor, names)
    match event.payload:
        case {"previous_status": before, "new_status": now, "agent_id": agent_id, **rest}:
            who = names.get(agent_id, agent_id)
            return f"{who}: {before} -> {now} ({_reason(rest)}) by {actor}"
        case {"task_id": task_id, "previous_status": before, "new_status": now, **rest}:
            why = end_text(str(rest.get("signal", "")), rest.get("exit_reason")) or "no reason"
            return f"{task_id}: {before} -> {now} ({why}) by {actor}"
        case {"previous_health": before, "new_health": now, "agent_id": agent_id}:
            return f"{names.get(agent_id, agent_id)}: {before} -> {now}"
        case {"agent_id": agent_id, **rest} if not rest and event.type in _ENDED:
            return f"{names.get(agent_id, agent_id)}: {_ENDED[event.type]} by {actor}"
        case {"erased": _}:
            return "(erased)"
        case payload:
            return f"{_members(payload, names)} by {actor}"


def _reason(payload: Mapping[str, Any]) -> str:
    """Return the reason of a change, with the explanation if an assertion failed."""
    reason = str(payload.get("reason", "no reason"))
    explanation = payload.get("explanation") if reason == Reason.ASSERTION_FAILED else None
    return f"{reason}: {explanation}" if explanation else reason


def _members(payload: Mapping[str, Any], names: Mapping[str, str]) -> str:
    subject = payload.get("agent_id") or payload.get("resource") or payload.get("task_id")
    named = [
        f"{name} {_LISTS[name](value) if name in _LISTS else display_actor(_text(value), names)}"
        for name, value in payload.items()
        if name not in {"agent_id", "resource", "task_id", "fingerprint"} and value not in ([], {})
    ]
    if isinstance(subject, str):
        subject = names.get(subject, subject)
    return ": ".join(filter(None, (subject and _text(subject), "; ".join(named))))


def _text(value: object) -> str:
    """Return text unchanged, the items of a plain list separated by commas, and other values as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and not any(isinstance(item, list | dict) for item in value):
        return ", ".join(map(_text, value))
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _shards(leases: Any) -> str:
    """Return the numbers of the leased shards, such as `0-7, 9`; --json has their tokens."""
    parts = leases if isinstance(leases, list) else []
    found = [one.get("shard") for one in parts if isinstance(one, dict)]
    numbers = {number for number in found if type(number) is int}
    if not parts or len(numbers) < len(parts):
        return _text(leases)
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(f"{first}-{last}" if last > first else f"{first}" for first, last in runs)


def _changes(changes: Any) -> str:
    """Return the changes of an interface, such as `/skills/add removed (breaking)`."""
    parts = changes if isinstance(changes, list) else []
    if not all(isinstance(one, dict) and {"pointer", "change"} <= one.keys() for one in parts):
        return _text(changes)
    return ", ".join(
        f"{one['pointer']} {one['change']}{' (breaking)' if one.get('breaking') else ''}" for one in parts
    )


_LISTS: Mapping[str, Callable[[Any], str]] = MappingProxyType({"shards": _shards, "changes": _changes})
