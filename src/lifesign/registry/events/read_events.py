"""List of events (RFC-0016 2.3; `GET /api/v1/events`)."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from lifesign.domain.access.permissions import Permission, Principal, may, require
from lifesign.domain.common.finding import Finding
from lifesign.domain.errors import InvalidRequest
from lifesign.domain.events.chain import Event
from lifesign.domain.events.event_type import EventType
from lifesign.domain.events.payload_fields import Label
from lifesign.domain.health.document import MAX_NUMBER
from lifesign.domain.models.base import AgentId, Body
from lifesign.registry.request_handling.operation import (
    SEPARATED_BY_COMMAS,
    Call,
    Operation,
    OperationReply,
)
from lifesign.registry.serializers.key_names import keys_in, visible_key_names
from lifesign.registry.serializers.target_names import visible_target_names
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.events import event_log

MAX_PAGE = 1_000
_Position = Annotated[int, Field(ge=0, le=MAX_NUMBER)]


class EventQueryFilter(Body):
    """Filter of events; an absent member matches any."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    type: Annotated[tuple[EventType, ...], SEPARATED_BY_COMMAS] = ()
    """Types, separated by commas: only events of one of them."""
    agent_id: AgentId | None = None
    """Only events about this agent. With an agent's own key, only its own events are returned."""
    intent_id: Label | None = None


class EventQuery(EventQueryFilter):
    """The query of `GET /api/v1/events`."""

    after: _Position = 0
    """Only events after this sequence number."""
    limit: Annotated[int, Field(ge=1, le=MAX_PAGE)] = 100


class EventList(BaseModel):
    """The answer to `GET /api/v1/events`."""

    events: list[Event]
    """Events by their sequence number."""
    next_after: int
    """Value of `after` for the next page of the same query."""
    last_sequence: int
    """Last sequence number of the whole log."""
    archived_sequence: int
    """Sequence number up to which events were moved to archives; 0 if none was."""
    names: dict[str, str]
    """Names of the keys that act in these events, and URLs of the targets behind agent ids.

    Only for callers that may read all of them.
    """


def read_events(transaction: Transaction, call: Call) -> OperationReply:
    """Return one page of events."""
    query = call.query_as(EventQuery)
    agent_id = agent_to_read(call.caller, query.agent_id)
    head = event_log.head(transaction)
    check_position(query.after, head.last.sequence)
    found = event_log.after(
        transaction,
        query.after,
        limit=query.limit,
        types=query.type,
        agent_id=agent_id,
        intent_id=query.intent_id,
    )
    is_full = len(found) == query.limit
    answer = EventList(
        events=found,
        next_after=found[-1].sequence if is_full else head.last.sequence,
        last_sequence=head.last.sequence,
        archived_sequence=head.archived.sequence,
        names=visible_key_names(transaction, call.caller, keys_in(found))
        | visible_target_names(transaction, call.caller, found),
    )
    return OperationReply(content=answer)


def agent_to_read(caller: Principal, agent_id: str | None) -> str | None:
    """Return the agent whose events the caller may read; its own if it may read no others.

    Raises NotAllowed.
    """
    if agent_id is None and not may(caller, Permission.READ_EVENTS):
        agent_id = caller.agent_id
    require(caller, Permission.READ_EVENTS, agent_id)
    return agent_id


def check_position(after: int, last_sequence: int) -> None:
    """Refuse a position that the log has not reached: otherwise later events would be missed unnoticed.

    The log may have reached it before the database was restored from an older copy.
    """
    if after > last_sequence:
        expected = f"the log ends at {last_sequence}; an older copy of it may have been restored"
        raise InvalidRequest([Finding("ahead_of_log", "/after", expected)])


OPERATIONS = (
    Operation(
        method="GET",
        path="/api/v1/events",
        summary="Read the event log (RFC-0016 2.3)",
        action=Permission.READ_EVENTS,
        function=read_events,
        is_write=False,
        query=EventQuery,
        answer=EventList,
    ),
)
