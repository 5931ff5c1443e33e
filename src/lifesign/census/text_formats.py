"""A census as Markdown, JSON and CSV."""

import csv
import io
import re
from collections.abc import Iterator
from typing import Final

from lifesign.census.document import Census, GroupCounts
from lifesign.census.report_tables import Table, headline, of_groups, tables
from lifesign.domain.models.census import Deadlines
from lifesign.domain.text.safe_text import harmless
from lifesign.domain.text.times import utc_text

CSV_HEADS: Final = ("part", "name", "what", "value")
_MARKDOWN: Final = re.compile(r"([\\`*\[\]<>|~])")
"""Characters that Markdown may interpret. An underscore within a word is none (CommonMark 6.2), and result
classes have many.
"""
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
"""Characters that a spreadsheet reads as the beginning of a formula."""


def as_json(census: Census) -> str:
    """Return the census as `schemas/census.schema.json` describes it, with a line break at its end."""
    return census.model_dump_json(indent=2) + "\n"


def as_markdown(census: Census) -> str:
    """Return a census as Markdown that is also readable as plain text."""
    return "\n".join(_report(census)) + "\n"


def _report(census: Census) -> Iterator[str]:
    yield f"# Census: {plain(census.name)}"
    yield ""
    yield headline(census)
    yield period(census)
    for table in tables(census):
        yield ""
        yield f"## {table.title}"
        yield ""
        if table.note:
            yield table.note
            yield ""
        yield from _table(table)
    yield ""
    yield LIMITS


LIMITS: Final = (
    "Alive means a card, an MCP server or an interface that answers, a health document, or a request for "
    "credentials. A card alone does not prove that an agent works behind it. The census does not assess "
    "whether answers are useful, and cannot see behind firewalls. Unknown and never probed are not down."
)


def period(census: Census) -> str:
    """Return the time of the census, the period of its probes, and their time limits as sentences."""
    text = f"Taken {census.made_at:%Y-%m-%d %H:%M:%S} UTC, each target by its last probe."
    if census.evidence_at is not None:
        text = f"{text} The newest result was measured {census.evidence_at:%Y-%m-%d %H:%M:%S} UTC."
    if census.deadlines is not None:
        text = f"{text} {_too_late(census.deadlines)}"
    if census.since is None or census.until is None:
        return text
    period = f"{census.since:%Y-%m-%d %H:%M:%S} to {census.until:%Y-%m-%d %H:%M:%S} UTC"
    return f"{text} Layers and latencies cover the probes from {period}."


def _too_late(deadlines: Deadlines) -> str:
    """Return the time limits after which a target counts as a timeout."""
    total = f"after {deadlines.total_seconds:g} s in all"
    if deadlines.first_byte_seconds >= deadlines.total_seconds:
        return f"Timeout means that an answer had not ended {total}."
    begun = f"after {deadlines.first_byte_seconds:g} s"
    return f"Timeout means that an answer had not begun {begun}, or had not ended {total}."


def _table(table: Table) -> Iterator[str]:
    """Return a table with aligned columns, readable without a renderer."""
    cells = [tuple(map(plain, row)) for row in (table.heads, *table.rows)]
    widths = [max(3, *map(len, column)) for column in zip(*cells, strict=True)]
    rules = ["-" * width if at < table.words else "-" * (width - 1) + ":" for at, width in enumerate(widths)]
    for row in (cells[0], tuple(rules), *cells[1:]):
        padded = (
            text.ljust(width) if at < table.words else text.rjust(width)
            for at, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        yield f"| {' | '.join(padded)} |"


def plain(text: str) -> str:
    """Return text that Markdown shows as it is, on one line."""
    return _MARKDOWN.sub(r"\\\1", harmless(text))


def as_csv(census: Census) -> str:
    """Return a census as CSV (RFC 4180), one fact per row: its part, subject, name and value."""
    written = io.StringIO()
    writer = csv.writer(written)
    writer.writerow(CSV_HEADS)
    writer.writerows((part, cell(name), what, _value(value)) for part, name, what, value in _facts(census))
    return written.getvalue()


_Fact = tuple[str, str, str, int | float | str | None]


def _facts(census: Census) -> Iterator[_Fact]:
    yield from _of_period(census)
    yield from _of_groups("targets", "", census.groups, census.alive_ratio)
    yield from _of_results(census)
    for part, groups in (
        ("kinds", census.kinds),
        ("platforms", census.platforms),
        ("directories", census.directories),
    ):
        for named in groups:
            yield from _of_groups(part, named.name, named.groups, named.alive_ratio)
    others = census.other_platforms
    if others is not None:
        yield "other_platforms", "", "platforms", others.platforms
        yield from _of_groups("other_platforms", "", others.groups, others.alive_ratio)
    for part, counts in (
        ("generations", census.generations),
        ("health", census.health),
        ("shown", census.shown),
        ("old", census.old),
        ("gone", census.gone),
    ):
        for count in counts:
            yield part, count.name, "count", count.count
            yield part, count.name, "share", count.share
    for run in census.runs:
        yield from _of_groups("runs", utc_text(run.began_at), run.groups, run.alive_ratio)
        if run.other_list_of is not None:
            yield "runs", utc_text(run.began_at), "other_list_of", run.other_list_of


def _of_period(census: Census) -> Iterator[_Fact]:
    moments = {
        "made_at": census.made_at,
        "evidence_at": census.evidence_at,
        "since": census.since,
        "until": census.until,
    }
    for what, at in moments.items():
        yield "period", "", what, None if at is None else utc_text(at)
    if census.deadlines is not None:
        for what, seconds in census.deadlines.model_dump().items():
            yield "deadlines", "", what, seconds
    for name in census.not_read:
        yield "directories", name, "not_read", 1


def _of_results(census: Census) -> Iterator[_Fact]:
    for row in census.results:
        yield "results", row.result, "count", row.count
        yield "results", row.result, "share", row.share
    for layer in census.layers:
        for row in layer.results:
            yield "layers", layer.layer, row.result, row.count
        if layer.not_asked:
            yield "layers", layer.layer, "not_asked", layer.not_asked
        if layer.latency is not None:
            yield "latencies", layer.layer, "count", layer.latency.count
            yield "latencies", layer.layer, "p50_ms", layer.latency.p50_ms
            yield "latencies", layer.layer, "p90_ms", layer.latency.p90_ms
            yield "latencies", layer.layer, "p99_ms", layer.latency.p99_ms


def _of_groups(part: str, name: str, groups: GroupCounts, alive_ratio: float | None) -> Iterator[_Fact]:
    yield part, name, "listed", groups.listed
    for group, count in of_groups(groups):
        yield part, name, group, count
    yield part, name, "alive_ratio", alive_ratio


def cell(text: str) -> str:
    """Return a text for a CSV cell that no spreadsheet takes for a formula."""
    return f"'{text}" if text.startswith(_FORMULA) else text


def _value(value: float | str | None) -> str:
    """Return a number or a time; an empty text if it is unknown."""
    if value is None or isinstance(value, str):
        return value or ""
    return str(round(value, 6))
