"""Commands that show an agent's history, and the versions of its published interface."""

import sys
from collections.abc import Iterator
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from lifesign.cli.options.agent_reference import with_agent_id
from lifesign.cli.options.json_option import AsJson
from lifesign.cli.options.registry_access import DEFAULT_URL, KeyFile, PlainHttp, RegistryUrl, ask
from lifesign.cli.output.table import write_json, write_table
from lifesign.domain.net.peer_text import printable

if TYPE_CHECKING:
    from lifesign.domain.models.history import AgentHistory, SlotShown, SpreadShown
    from lifesign.domain.models.interface_versions import (
        InterfaceComparison,
        InterfaceVersions,
        ListedVersion,
    )

_Agent = Annotated[
    str,
    typer.Argument(metavar="AGENT_ID|URL", help="Id of the agent, or the URL under which it is probed."),
]
_HEADS = ("ALIVE", "FAILED", "UNKNOWN", "ANSWER ms", "RATIO", "ERRORS", "P50 ms", "P99 ms")


def history(
    agent: _Agent,
    *,
    by_day: Annotated[
        bool,
        typer.Option(
            "--days", help="Show the last 30 days by day, instead of the last 24 hours by half hour."
        ),
    ] = False,
    as_json: AsJson = False,
    registry: RegistryUrl = DEFAULT_URL,
    key_file: KeyFile = None,
    allow_plain_http: PlainHttp = False,
) -> None:
    """Show an agent's probe results and health documents over the last day or month.

    A half hour without a probe has no line. ALIVE, FAILED and UNKNOWN count probes. Latencies are shown as
    mean and maximum, the share of answered requests as mean and minimum, that of errors as mean and maximum.

    \b
    Examples:
      lifesign agents history billing-1
      lifesign agents history https://agent.example --days
      lifesign agents history billing-1 --json | jq '.half_hours[-1].latency_p99_ms.highest'

    \b
    Keys of --json:
      half_hours   of the last 24 hours, the oldest first   days   of the last 30
      notes        what is missing, and why
    """  # noqa: D301 - \b keeps the lines of a paragraph apart
    found: AgentHistory = ask(
        lambda client: with_agent_id(client.agents.history, client.targets, agent),
        registry=registry,
        key_file=key_file,
        allow_plain_http=allow_plain_http,
    )
    if as_json:
        write_json(sys.stdout, found.model_dump(mode="json", exclude_none=True))
        return
    slots = found.days if by_day else found.half_hours
    if slots:
        head = "DAY (UTC)" if by_day else "FROM (UTC)"
        write_table(sys.stdout, (head, *_HEADS), (_row(slot, by_day=by_day) for slot in slots))
    elif found.days:
        sys.stdout.write("no probe counted in the last 24 hours (see --days)\n")
    for note in found.notes:
        sys.stdout.write(f"{printable(note)}\n")


def _row(slot: "SlotShown", *, by_day: bool) -> tuple[str, ...]:
    return (_begin(slot.begins_at, by_day=by_day), *map(str, _counts(slot)), *_numbers(slot))


def _begin(at: datetime, *, by_day: bool) -> str:
    return f"{at:%Y-%m-%d}" if by_day else f"{at:%Y-%m-%d %H:%M}"


def _counts(slot: "SlotShown") -> tuple[int, int, int]:
    return slot.alive, slot.failed, slot.inconclusive


def _numbers(slot: "SlotShown") -> Iterator[str]:
    yield _milliseconds(slot.answer_ms)
    yield _ratio(slot.response_ratio, None if slot.response_ratio is None else slot.response_ratio.lowest)
    yield _ratio(slot.error_ratio, None if slot.error_ratio is None else slot.error_ratio.highest)
    yield _milliseconds(slot.latency_p50_ms)
    yield _milliseconds(slot.latency_p99_ms)


def _milliseconds(spread: "SpreadShown | None") -> str:
    return "" if spread is None else _pair(_ms(spread.mean), _ms(spread.highest))


def _ratio(spread: "SpreadShown | None", worst: float | None) -> str:
    return "" if spread is None or worst is None else _pair(f"{spread.mean:.4g}", f"{worst:.4g}")


def _ms(milliseconds: float) -> str:
    return f"{milliseconds:.0f}" if milliseconds >= 1_000 else f"{milliseconds:.4g}"


def _pair(mean: str, worst: str) -> str:
    """Return both values; only the mean if they are the same."""
    return mean if mean == worst else f"{mean} / {worst}"


def versions(
    agent: _Agent,
    *,
    as_json: AsJson = False,
    registry: RegistryUrl = DEFAULT_URL,
    key_file: KeyFile = None,
    allow_plain_http: PlainHttp = False,
) -> None:
    """List the versions of an agent's published interface, the newest first.

    CHANGES counts the differences from the version before. BREAKING says whether any of them breaks callers.

    \b
    Examples:
      lifesign agents versions billing-1
      lifesign agents versions https://agent.example --json | jq '.versions[] | select(.breaking)'

    \b
    Keys of --json:
      versions      version, seen_at, until, digest, changes, breaking
      is_unstable   whether each of the latest readings found another interface
    """  # noqa: D301 - \b keeps the lines of a paragraph apart
    found: InterfaceVersions = ask(
        lambda client: with_agent_id(client.targets.interface_versions, client.targets, agent),
        registry=registry,
        key_file=key_file,
        allow_plain_http=allow_plain_http,
    )
    if as_json:
        write_json(sys.stdout, found.model_dump(mode="json", exclude_none=True))
        return
    if not found.versions:
        sys.stdout.write("no probe has read its interface\n")
        return
    write_table(
        sys.stdout,
        ("VERSION", "SEEN (UTC)", "CHANGES", "BREAKING", "DIGEST"),
        map(_version_row, found.versions),
    )
    if found.is_unstable:
        sys.stdout.write("unstable: each of the latest readings found another interface\n")


def _version_row(version: "ListedVersion") -> tuple[str, ...]:
    return (
        str(version.version),
        f"{version.seen_at:%Y-%m-%d %H:%M}",
        "-" if version.changes is None else str(version.changes),
        "-" if version.breaking is None else ("yes" if version.breaking else "no"),
        version.digest[:16],
    )


def compare(
    agent: _Agent,
    *,
    previous: Annotated[
        int | None,
        typer.Option(
            "--previous",
            metavar="NUMBER",
            min=1,
            help="Number of the older version. Without it: the version before --version.",
        ),
    ] = None,
    version: Annotated[
        int | None,
        typer.Option(
            "--version",
            metavar="NUMBER",
            min=1,
            help="Number of the newer version. Without it: the newest version.",
        ),
    ] = None,
    as_json: AsJson = False,
    registry: RegistryUrl = DEFAULT_URL,
    key_file: KeyFile = None,
    allow_plain_http: PlainHttp = False,
) -> None:
    """Compare two versions of an agent's published interface.

    \b
    Examples:
      lifesign agents compare billing-1
      lifesign agents compare billing-1 --previous 2 --version 5
      lifesign agents compare billing-1 --json | jq '.changes[] | select(.breaking)'

    \b
    Keys of --json:
      changes    pointer, change (added, changed or removed), breaking
      breaking   whether any change breaks callers   omitted   number of further changes
    """  # noqa: D301 - \b keeps the lines of a paragraph apart
    found: InterfaceComparison = ask(
        lambda client: with_agent_id(
            partial(client.targets.compare_interfaces, previous_version=previous, version=version),
            client.targets,
            agent,
        ),
        registry=registry,
        key_file=key_file,
        allow_plain_http=allow_plain_http,
    )
    if as_json:
        write_json(sys.stdout, found.model_dump(mode="json", exclude_none=True))
        return
    if found.previous_version == found.version:
        sys.stdout.write(
            f"version {found.version} is compared with itself: there is no other one to compare\n"
        )
        return
    if not found.changes:
        sys.stdout.write(f"versions {found.previous_version} and {found.version} do not differ\n")
        return
    write_table(
        sys.stdout,
        ("CHANGE", "BREAKING", "POINTER"),
        ((each.change, "yes" if each.breaking else "no", each.pointer) for each in found.changes),
    )
    if found.omitted:
        sys.stdout.write(f"and {found.omitted} more\n")
