"""A census as an HTML page.

One file that needs nothing else: no script, font or picture from elsewhere, and a policy that forbids them.
"""

from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from importlib.resources import files
from itertools import chain, islice
from typing import Final

from markupsafe import Markup

from lifesign.census.document import Census, LayerShares, NamedGroups, ResultCount
from lifesign.census.plots import TEMPLATES, bar, groups_bar, latency_bar, legend, trend
from lifesign.census.report_tables import Table, headline, of_groups, tables
from lifesign.census.result_groups import Group
from lifesign.census.text_formats import LIMITS, period
from lifesign.domain.text.counts import percent_text

STYLE: Final = files("lifesign.census").joinpath("templates/census.css").read_text("utf-8")
POLICY: Final = (
    "default-src 'none'; base-uri 'none'; form-action 'none'; "
    f"style-src 'sha256-{b64encode(sha256(STYLE.encode()).digest()).decode()}'"
)


def as_html(census: Census) -> str:
    """Return a census as an HTML page."""
    return TEMPLATES.get_template("page.html").render(
        name=census.name,
        policy=POLICY,
        style=Markup(STYLE),  # noqa: S704 - a file of this package
        period=period(census),
        alive=None if census.alive_ratio is None else percent_text(census.alive_ratio),
        headline=headline(census),
        bar=groups_bar(census.groups),
        legend=legend(),
        tables=[(table, plots_of(table, census), trend_above(table, census)) for table in tables(census)],
        limits=LIMITS,
    )


def trend_above(table: Table, census: Census) -> Markup:
    """Return the drawing above a table: the trend for the table of runs, nothing for the others."""
    return trend(census.runs[-len(table.rows) :]) if table.key == "runs" else Markup()


def _all_groups(census: Census) -> Iterator[Markup]:
    whole = census.listed or 1
    return (bar([(group, count / whole)]) for group, count in of_groups(census.groups))


def _results(rows: Sequence[ResultCount]) -> Iterator[Markup]:
    return (bar([(row.group, row.share or 0.0)]) for row in rows)


def _layer(layer: LayerShares) -> Iterator[Markup]:
    yield from _results(layer.results)
    if layer.not_asked:
        yield bar([])


def _parts(parts: Sequence[NamedGroups]) -> Iterator[Markup]:
    return (groups_bar(part.groups) for part in parts)


_PLOTS: Final[Mapping[str, Callable[[Census], Iterable[Markup]]]] = {
    "targets": _all_groups,
    "results": lambda census: _results(census.results),
    "layers": lambda census: chain.from_iterable(map(_layer, census.layers)),
    "latencies": lambda census: (
        latency_bar(layer.latency) for layer in census.layers if layer.latency is not None
    ),
    "platforms": lambda census: _parts(census.platforms),
    "directories": lambda census: _parts(census.directories),
    "generations": lambda census: (bar([(Group.ALIVE, row.share or 0.0)]) for row in census.generations),
}
"""Drawing beside each row of a table, by its key; without one, the numbers are sufficient."""


def plots_of(table: Table, census: Census) -> list[Markup]:
    """Return the drawings beside the rows of a table, one per row; empty if the table has none."""
    draw = _PLOTS.get(table.key)
    return [] if draw is None else list(islice(draw(census), len(table.rows)))
