"""Page of all agents (`/agents`)."""

from collections.abc import Mapping
from math import isfinite
from typing import Annotated, Any
from urllib.parse import urlencode

from pydantic import BaseModel, ConfigDict, StringConstraints
from starlette.requests import Request
from starlette.responses import Response

from lifesign.dashboard.fleet_facts import SHOWN_HEALTH, SHOWN_STATUSES, FleetCountCache, FleetCounts
from lifesign.dashboard.labels import EVIDENCE_AGES_S, EvidenceAge, agent_probe_label, failing_text
from lifesign.dashboard.maintenance_facts import is_maintained
from lifesign.dashboard.page_handler import PageHandler, RequestContext, query_in
from lifesign.dashboard.pages.pool_maintenance import pool_shown
from lifesign.domain.common.finding import Finding
from lifesign.domain.errors import InvalidRequest
from lifesign.domain.health.document import HealthStatus
from lifesign.domain.lifecycle.status_table import Status
from lifesign.domain.models.base import PART_OF_NAME_PATTERN, Capability, RoleId
from lifesign.registry.request_handling.cursors import (
    Cursor,
    cursor_at,
    numbers_in,
    text_in,
)
from lifesign.registry.serializers.agent_records import record
from lifesign.registry.targets.list_targets import Host
from lifesign.storage.agents import dashboard_table
from lifesign.storage.agents.agent_rows import StoredAgent
from lifesign.storage.agents.dashboard_table import Order, Place, TableFilter, place_of
from lifesign.storage.events import event_log

PAGE_SIZE = 50
MAX_TEXT_CHARACTERS = 128
COMMON = 20_000
"""Number of matches from which a walk in the order of names is faster than a sort of the matches."""

MAX_NAME_CHARACTERS = 128
"""Maximum length of an agent's id."""
MAX_ROW_NUMBER = 2**63

_LISTED = {order: f"dashboard_{order}" for order in Order}
ORDER_WORDS = {
    Order.NEWEST: "newest first",
    Order.OLDEST: "oldest first",
    Order.NAME: "by id",
    Order.CHANGED: "status changed last",
}


class TableQuery(BaseModel):
    """The query of `/agents`; a form sends its empty fields too."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    q: Annotated[
        str,
        StringConstraints(
            strip_whitespace=True, max_length=MAX_TEXT_CHARACTERS, pattern=PART_OF_NAME_PATTERN
        ),
    ] = ""
    """Part of the id or name, or the URL under which it is probed."""
    status: Status | None = None
    health: HealthStatus | None = None
    pool: RoleId | None = None
    capability: Capability | None = None
    host: Host | None = None
    evidence: EvidenceAge | None = None
    """Maximum age of the last measured probe."""
    sort: Order = Order.NEWEST
    after: Cursor | None = None

    @property
    def table_filter(self) -> TableFilter:
        """Filter of the table."""
        return TableFilter(
            text=self.q,
            status=self.status,
            health=self.health,
            role_id=self.pool,
            capability=self.capability,
            host=self.host,
            max_evidence_age_s=None if self.evidence is None else EVIDENCE_AGES_S[self.evidence],
        )

    @property
    def is_counted(self) -> bool:
        """Whether the counts of the fleet contain the number of matches."""
        return not (self.q or self.pool or self.capability or self.host or self.evidence)


class AgentsTable:
    """Answers at `/agents`."""

    def __init__(self, desk: PageHandler, facts: FleetCountCache) -> None:
        self._desk = desk
        self._facts = facts

    async def answer(self, request: Request) -> Response:
        """Show one page of the agents that match."""

        async def show() -> Response:
            self._desk.count(request)
            fleet = await self._facts.agents.get()
            visitor, shown = await self._desk.context(request, lambda context: _read(context, request, fleet))
            return self._desk.page(request, "agents.html", visitor, fleet=fleet, **shown)

        return await self._desk.guarded(request, show)


def _read(context: RequestContext, request: Request, fleet: FleetCounts) -> Mapping[str, Any]:
    query = query_in(request, TableQuery)
    alike = fleet.of(status=query.status, health=query.health)
    after = None if query.after is None else _place_in(query.after, query.sort)
    found = dashboard_table.listing(
        context.transaction,
        query.table_filter,
        query.sort,
        after=after,
        limit=PAGE_SIZE + 1,
        is_common=alike > COMMON,
    )
    page = found[:PAGE_SIZE]
    now_s = context.transaction.now_s
    records = [record(agent, now_s) for agent in page]
    return {
        "query": query,
        "total": alike if query.is_counted else None,
        "rows": [
            {
                "agent": agent,
                "probe_label": agent_probe_label(agent, now_s),
                "failing": failing_text(agent),
                "is_maintained": is_maintained(agent),
            }
            for agent in records
        ],
        "next_page": _next_page(query, page[-1]) if len(found) > len(page) else None,
        "first_page": _page_of(query),
        "statuses": SHOWN_STATUSES,
        "healths": SHOWN_HEALTH,
        "evidence_ages": EVIDENCE_AGES_S,
        "orders": ORDER_WORDS,
        "pool": None if query.pool is None else pool_shown(context, query.pool),
        "position": event_log.last_sequence(context.transaction),
    }


def _next_page(query: TableQuery, last: StoredAgent) -> str:
    """Return the URL of the next page: the same query after the last agent of this one."""
    place = place_of(last, query.sort)
    packed = f"{place[0]!r}/{place[-1]}" if query.sort is Order.CHANGED else place[0]
    assert not isinstance(packed, float)  # noqa: S101 - only an order by time begins with one
    return _page_of(query, after=cursor_at(_LISTED[query.sort], packed))


def _page_of(query: TableQuery, **more: str) -> str:
    query_values = query.model_dump(mode="json", exclude_defaults=True, exclude={"after"})
    return "/agents?" + urlencode(query_values | more)


def _place_in(cursor: str, order: Order) -> Place:
    """Return the place that a cursor of this order names; InvalidRequest for any other text."""
    listed = _LISTED[order]
    if order is Order.NAME:
        return (text_in(cursor, listed, MAX_NAME_CHARACTERS),)
    if order is not Order.CHANGED:
        return (numbers_in(cursor, listed, 1)[0],)
    since, _, number = text_in(cursor, listed).partition("/")
    try:
        place = float(since), int(number)
    except ValueError:
        place = (float("nan"), 0)
    if not isfinite(place[0]) or not 0 <= place[1] < MAX_ROW_NUMBER:
        expected = "expected the cursor of an earlier page of the same query"
        raise InvalidRequest([Finding("invalid_cursor", "/after", expected)])
    return place
