"""Requests about the event log, and its continuous reading (RFC-0016 2.3)."""

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, TypedDict, Unpack

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from lifesign.client.event_stream import EventStreamParser, Message
from lifesign.client.registry_connection import Question, RegistryConnection, path_of, query_of, texts
from lifesign.client.registry_errors import (
    InvalidAnswer,
    RateLimited,
    RegistryError,
    Unavailable,
    Unreachable,
)
from lifesign.domain.health.document import MAX_NUMBER
from lifesign.errors import InvalidValue

PATIENCE_SECONDS = 3600.0
"""Time for which a stream that worked once tries to reconnect."""
STEADY_SECONDS = 10.0
"""A stream that lasted so long was no failure: the next wait is the shortest again."""
MAX_RETRY_MS = 60_000
"""Maximum wait that a stream may request before a reconnection."""
MAX_DIGITS = 16


class EventSelection(TypedDict, total=False):
    """Filter of events; an absent member matches any."""

    types: Sequence[str]
    """Type of the event, such as `agent.lifecycle`."""
    agent_id: str
    """Agent of the events; an agent's own key sees only its own events."""
    intent_id: str


class LoggedEvent(BaseModel):
    """One event of the log. Events of unknown types, from a newer registry, are passed on unchanged.

    `lifesign.domain.events.chain.read_event` reads `members()` and refuses events in any other form.
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    sequence: int = Field(ge=1, le=MAX_NUMBER)
    id: str
    type: str
    actor: str
    intent_id: str | None = None
    payload: Mapping[str, Any]
    created_at: str
    """RFC 3339; text, since the hash covers it."""
    previous_hash: str
    hash: str

    def members(self) -> dict[str, Any]:
        """Return the event as JSON values, unchanged."""
        return self.model_dump(mode="json", exclude_unset=True)


class EventPage(BaseModel):
    """One page of the event log."""

    events: list[LoggedEvent]
    """In the order of their sequence."""
    next_after: int
    """Sequence for the next page of the same filter: nothing up to here is missing."""
    last_sequence: int
    """Last sequence of the whole log."""
    archived_sequence: int = 0
    """Events up to here have left the database; 0 if none has."""
    names: dict[str, str] = Field(default_factory=dict)
    """Names of the keys in these events, by `key:` and their ids; empty unless the caller may read all."""


class RegistryEvents:
    """Requests about the event log (`client.events`)."""

    def __init__(self, connection: RegistryConnection) -> None:
        self._connection = connection

    async def list(self, *, after: int = 0, limit: int = 100, **wanted: Unpack[EventSelection]) -> EventPage:
        """Return the next events after sequence `after`, at most 1000."""
        query = {**_query(wanted), "after": str(after), "limit": str(limit)}
        question = Question(method="GET", path=path_of("events"), query=query, may_repeat=True)
        return await self._connection.ask_for(EventPage, question)

    async def each(
        self, *, after: int = 0, page: int = 500, **wanted: Unpack[EventSelection]
    ) -> AsyncIterator[LoggedEvent]:
        """Yield the events after sequence `after`, up to the end of the log, in requests of `page` events."""
        while True:
            found = await self.list(after=after, limit=page, **wanted)
            for event in found.events:
                yield event
            if found.next_after >= found.last_sequence:
                return
            if found.next_after <= after:
                raise InvalidAnswer("the list of events does not continue")
            after = found.next_after

    async def stream(
        self,
        *,
        after: int | None = None,
        patience_seconds: float = PATIENCE_SECONDS,
        **wanted: Unpack[EventSelection],
    ) -> AsyncGenerator[LoggedEvent, None]:
        """Yield events as they happen, after sequence `after`; None: only new ones.

        A broken stream is continued at its position (Last-Event-ID), on any server: no event is missing or
        repeated. Raise permanent errors such as NotAuthorized at once; raise the last Unreachable,
        Unavailable or RateLimited if there is no answer within the client's timeout at the start, or for
        `patience_seconds` later (math.inf: forever). Close it when leaving early (`contextlib.aclosing`).
        """
        if math.isnan(patience_seconds) or patience_seconds < 0:
            raise InvalidValue("patience_seconds", patience_seconds, "seconds from 0")
        now_s = asyncio.get_running_loop().time
        following = _Following(after)
        give_up_at_s = now_s() + self._connection.timeout_seconds
        tries = 0
        while True:
            began_s = now_s()
            failure: RegistryError | None = None
            parser = EventStreamParser()
            try:
                async with aclosing(self._connection.stream(following.question(_query(wanted)))) as pieces:
                    async for piece in pieces:
                        for message in parser.feed(piece):
                            event = following.take(message)
                            if event is not None:
                                yield event
                        give_up_at_s = now_s() + patience_seconds
            except (Unreachable, Unavailable, RateLimited) as error:
                failure = error
            tries = 1 if now_s() - began_s >= STEADY_SECONDS else tries + 1
            ending = failure or Unreachable("the stream ended", was_sent=False)
            wait_s = self._connection.wait_s(ending, tries)
            wait_s = max(wait_s, min(parser.retry_ms or 0, MAX_RETRY_MS) / 1000)
            if now_s() + wait_s >= give_up_at_s:
                raise ending
            await self._connection.sleep(wait_s)


class _Following:
    """Position of one reader of the log."""

    def __init__(self, after: int | None) -> None:
        self._after = after
        self._has_id = False
        """Whether the stream sent the position, which is then sent as Last-Event-ID, else as `after`."""

    def question(self, query: Mapping[str, str]) -> Question:
        headers = {"Accept": "text/event-stream", "Cache-Control": "no-store"}
        if self._has_id:
            headers["Last-Event-ID"] = str(self._after)
        elif self._after is not None:
            query = {**query, "after": str(self._after)}
        return Question(method="GET", path=path_of("events", "stream"), query=query, headers=headers)

    def take(self, message: Message) -> LoggedEvent | None:
        """Store a message's position in the stream; return its event, None if it is known or a keep-alive."""
        event = None
        if message.data:
            event = _read(message.data)
            if self._after is not None and event.sequence <= self._after:
                return None
            self._after, self._has_id = event.sequence, True
        elif message.last_id.isascii() and message.last_id.isdecimal() and len(message.last_id) <= MAX_DIGITS:
            self._after, self._has_id = max(int(message.last_id), self._after or 0), True
        return event


def _query(wanted: EventSelection) -> dict[str, str]:
    types = wanted.get("types")
    return query_of(
        type=None if types is None else texts("types", types),
        agent_id=wanted.get("agent_id"),
        intent_id=wanted.get("intent_id"),
    )


def _read(data: str) -> LoggedEvent:
    try:
        return LoggedEvent.model_validate_json(data)
    except ValidationError as error:
        what = error.errors(include_url=False, include_context=False, include_input=False)[0]["msg"]
    raise InvalidAnswer(f"the stream contains something that is not an event: {what[:200]}")
