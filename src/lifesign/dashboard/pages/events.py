"""Page of past and present events (`/events`)."""

from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import urlencode

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request

from lifesign.dashboard.event_lines import GROUPS, lines_of
from lifesign.dashboard.page_handler import RequestContext, query_in
from lifesign.domain.common.finding import Finding
from lifesign.domain.errors import InvalidRequest
from lifesign.domain.events.event_type import EventType
from lifesign.domain.events.payload_fields import AgentId
from lifesign.domain.health.document import MAX_NUMBER
from lifesign.storage.events import event_log

PAGE_SIZE = 100


class EventsQuery(BaseModel):
    """The query of `/events`."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    group: str | None = None
    """Part of the event types before the dot."""
    agent: AgentId | None = None
    before: Annotated[int, Field(ge=1, le=MAX_NUMBER)] | None = None


def show_events(context: RequestContext, request: Request) -> Mapping[str, Any]:
    """Return one page of events, the latest first."""
    query = query_in(request, EventsQuery)
    if query.group is not None and query.group not in GROUPS:
        raise InvalidRequest([Finding("unknown_group", "/group", f"expected one of {', '.join(GROUPS)}")])
    types = [] if query.group is None else types_of(query.group)
    found = event_log.latest(
        context.transaction, limit=PAGE_SIZE + 1, before=query.before, types=types, agent_id=query.agent
    )
    if query.agent is not None and types:
        found = [event for event in found if event.type.value in types]
    page = found[:PAGE_SIZE]
    query_values = query.model_dump(exclude_none=True, exclude={"before"})
    older = {**query_values, "before": page[-1].sequence} if len(found) > len(page) else None
    archived = event_log.archived_sequence(context.transaction)
    return {
        "lines": lines_of(context.transaction, page),
        "query": query,
        "groups": GROUPS,
        "newest": "/events?" + urlencode(query_values),
        "older": None if older is None else "/events?" + urlencode(older),
        "archived": archived,
        "position": event_log.last_sequence(context.transaction),
    }


def types_of(group: str) -> list[str]:
    """Return the event types of a group, which is their prefix, such as `agent`."""
    return [kind.value for kind in EventType if kind.value.partition(".")[0] == group]
