"""Page with the share of living targets, by platform and over time (`/census`).

It has the texts and plots of `lifesign census`. The census reads every target, so that it is cached for
minutes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response

from lifesign.census.document import Census
from lifesign.census.page import plots_of, trend_above
from lifesign.census.plots import groups_bar, legend
from lifesign.census.report_tables import Table, headline, share_heading, tables
from lifesign.census.stored_counts import census_of
from lifesign.census.text_formats import LIMITS, period
from lifesign.dashboard.fleet_facts import CachedFact
from lifesign.dashboard.page_handler import PageHandler, RequestContext
from lifesign.domain.text.counts import percent_text
from lifesign.storage.engine.transaction import Database

FRESH_SECONDS: Final = 120.0
MAX_ROWS: Final = 50
"""Maximum number of rows per table; the command shows all."""


@dataclass(frozen=True, slots=True)
class ShownTable:
    """A table of the census page, with a drawing beside each row."""

    table: Table
    rows: list[tuple[tuple[str, ...], Markup]]
    left_out: int
    above: Markup


class CensusPage:
    """Answers at `/census`."""

    def __init__(self, desk: PageHandler, database: Database) -> None:
        self._desk = desk
        self._kept: CachedFact[Mapping[str, Any]] = CachedFact(
            database, lambda transaction: _shown(census_of(transaction, None)), FRESH_SECONDS
        )

    async def answer(self, request: Request) -> Response:
        """Show the census."""

        async def show() -> Response:
            self._desk.count(request)
            # Nothing is counted for a visitor without permission.
            visitor, _ = await self._desk.context(request, _check)
            return self._desk.page(request, "census.html", visitor, **await self._kept.get())

        return await self._desk.guarded(request, show)


def _check(context: RequestContext) -> None:
    """The permission is that of the API."""
    context.ask("GET", "/api/v1/directories")


def _shown(census: Census) -> dict[str, Any]:
    return {
        "census": census,
        "alive": None if census.alive_ratio is None else percent_text(census.alive_ratio),
        "heading": share_heading(census),
        "headline": headline(census),
        "period": period(census),
        "limits": LIMITS,
        "bar": groups_bar(census.groups),
        "legend": legend(),
        "tables": [_table(table, census) for table in tables(census)],
    }


def _table(table: Table, census: Census) -> ShownTable:
    plots = plots_of(table, census) or [Markup()] * len(table.rows)
    rows = list(zip(table.rows[:MAX_ROWS], plots, strict=False))
    return ShownTable(table, rows, max(0, len(table.rows) - MAX_ROWS), trend_above(table, census))
