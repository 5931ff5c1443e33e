"""Command that shows an agent's history."""

import sys
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from lifesign.cli.options.agent_reference import with_agent_id
from lifesign.cli.options.json_option import AsJson
from lifesign.cli.options.registry_access import DEFAULT_URL, KeyFile, PlainHttp, RegistryUrl, ask
from lifesign.cli.output.table import write_json, write_table
from lifesign.domain.net.peer_text import printable

if TYPE_CHECKING:
    from lifesign.domain.models.history import AgentHistory, SlotShown, SpreadShown

_HEADS = ("ALIVE", "FAILED", "UNKNOWN", "ANSWER ms", "RATIO", "ERRORS", "P50 ms", "P99 ms")


def history(
    agent: Annotated[
        str,
        typer.Argument(metavar="AGENT_ID|URL", help="Id of the agent, or the URL under which it is probed."),
    ],
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
    """Return both; the mean alone where they are the same."""
    return mean if mean == worst else f"{mean} / {worst}"
