"""Hash chain of events: no event can be changed, moved or removed unnoticed.

Each event's hash covers the hash of the previous event. It covers the payload by the payload's own hash: an
erased event, whose payload was replaced by that hash, stays in the chain.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import datetime
from functools import lru_cache
from typing import Annotated, Any, ClassVar

import rfc8785
from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import PydanticCustomError, to_json

from lifesign.domain.access.event_actor import MEMBERS_OF_ACTORS, is_reserved
from lifesign.domain.errors import BrokenChain, InvalidEvent
from lifesign.domain.events.event import EventDraft
from lifesign.domain.events.event_type import PAYLOADS, EventType
from lifesign.domain.events.payload_fields import MOMENT_PATTERN, Actor, Hash, Label, OwnId, Payload, Positive
from lifesign.domain.events.registry_payloads import Erased
from lifesign.domain.health.document import MAX_NUMBER, OrAbsent, Time
from lifesign.domain.models.base import moment


def _check_calendar_date(text: str) -> str:
    if written_time(_TIME.validate_python(text)) != text:
        raise PydanticCustomError("not_a_time", "expected a time in UTC with milliseconds and Z")
    return text


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Position in the hash chain of the event log: sequence and hash of an event."""

    sequence: int
    hash: str


GENESIS_HASH = "0" * 64
"""Previous hash of the first event."""
GENESIS = Checkpoint(0, GENESIS_HASH)
"""Position before the first event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event of the log, with its position. Created by `chain` or `read_event` only."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", hide_input_in_errors=True)

    sequence: Positive
    id: OwnId
    type: EventType
    actor: Actor
    intent_id: OrAbsent[Label] = None
    payload: dict[str, Any]
    created_at: Annotated[
        str, Field(pattern=MOMENT_PATTERN, json_schema_extra={"format": "date-time"}),
        AfterValidator(_check_calendar_date),
    ]  # fmt: skip
    previous_hash: Hash
    hash: Hash

    @property
    def checkpoint(self) -> Checkpoint:
        """Position of this event in the chain."""
        return Checkpoint(self.sequence, self.hash)

    @property
    def is_erased(self) -> bool:
        """Whether the payload was replaced by its hash, to erase an agent."""
        return _erased_hash(self.payload) is not None

    def members(self) -> dict[str, Any]:
        """Return the event as JSON members, as it is sent. `intent_id` is omitted if it is None."""
        members = {name: getattr(self, name) for name in _MEMBERS}
        if self.intent_id is None:
            del members["intent_id"]
        return members


_MEMBERS = tuple(member.name for member in fields(Event))
_NOT_HASHED = frozenset({"hash", "payload"})
_MEMBERS_OF_WHOM = ("agent_id", *MEMBERS_OF_ACTORS)
_TIME: TypeAdapter[Any] = TypeAdapter(Time)
_EVENT = TypeAdapter(Event)


def canonical(value: Any) -> bytes:
    """Return a value as canonical JSON (RFC 8785), the same text for equal values.

    Raises ValueError for values without such a form: integers from 2^53, NaN, half a surrogate pair.
    """
    # Ten times as fast, and an event is hashed twice.
    return to_json(_in_order(value)) if _is_plain(value) else rfc8785.dumps(value)


def _is_plain(value: object) -> bool:
    """Return whether ordinary encoders write the sorted value as RFC 8785 does: no fractions, ASCII names."""
    if isinstance(value, str) or value is None:
        return True
    if isinstance(value, int):
        return -MAX_NUMBER <= value <= MAX_NUMBER
    if isinstance(value, dict):
        for name, inner in value.items():
            is_plain = isinstance(name, str) and name.isascii()
            if not is_plain or not (type(inner) is str or _is_plain(inner)):
                return False
        return True
    return isinstance(value, list) and all(map(_is_plain, value))


def _in_order(value: object) -> object:
    """Return a plain value with the members of all objects sorted by their names."""
    if isinstance(value, dict):
        return {
            name: inner if type(inner) is str else _in_order(inner) for name, inner in sorted(value.items())
        }
    return [*map(_in_order, value)] if isinstance(value, list) else value


def written_time(at: datetime) -> str:
    """Return a time as events write it: RFC 3339, UTC with `Z`, cut off to milliseconds."""
    return str(_TIME.dump_python(at, mode="json"))


@lru_cache(maxsize=16)
def time_text(at_s: float) -> str:
    """Return a time, in seconds since the epoch, as events contain it.

    One transaction uses only a few times.
    """
    return written_time(moment(at_s))


def payload_hash(payload: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a payload in canonical form. For an erased payload, that of the original."""
    return _erased_hash(payload) or hashlib.sha256(canonical(payload)).hexdigest()


def chain(after: Checkpoint, event_id: str, draft: EventDraft, created_at_s: float) -> Event:
    """Create the event that follows the checkpoint `after`, from a draft.

    For the next event, pass the `checkpoint` of the returned one.

    `created_at_s` is in seconds since the epoch, by the database's clock.
    """
    members: dict[str, Any] = {
        "sequence": after.sequence + 1,
        "id": event_id,
        "type": draft.type,
        "actor": draft.actor,
        "payload": draft.payload.members(),
        "created_at": time_text(created_at_s),
        "previous_hash": after.hash,
    }
    if draft.intent_id is not None:
        members["intent_id"] = draft.intent_id
    return Event(**members, hash=_hash_of(members))


def link(after: Checkpoint, event: Event) -> Checkpoint:
    """Verify that an event follows `after` in the chain, and return its position; BrokenChain otherwise.

    BrokenChain if the event does not follow `after`, or was changed.
    """
    expected = after.sequence + 1
    if event.sequence != expected:
        raise BrokenChain(expected, f"expected sequence {expected}; got {event.sequence}")
    if event.previous_hash != after.hash:
        raise BrokenChain(expected, "it does not contain the hash of the event before it")
    try:
        computed = _hash_of(event.members())
    except ValueError as error:
        raise BrokenChain(expected, f"it cannot be hashed: {error}") from error
    if event.hash != computed:
        raise BrokenChain(expected, "its content does not match its hash")
    return event.checkpoint


def link_stored(after: Checkpoint, event: Event, agent_id: str | None) -> Checkpoint:
    """Verify a stored event like `link`, and that it is stored under the agent that it names.

    Also raise BrokenChain if the event is stored under another agent than it names.
    """
    checkpoint = link(after, event)
    if agent_id != agent_of(event):
        raise BrokenChain(event.sequence, "it is stored under another agent_id than its payload has")
    return checkpoint


def erased(event: Event) -> Event:
    """Return the event with its payload replaced by the payload's hash; the event's own hash stays valid."""
    return replace(event, payload={"erased": payload_hash(event.payload)})


def agent_of(event: Event) -> str | None:
    """Return the agent that an event belongs to and is erased with; None if it names none, or is erased."""
    named = (event.payload.get(member) for member in _MEMBERS_OF_WHOM)
    agent_id = next((name for name in named if isinstance(name, str)), None)
    return None if agent_id is None or is_reserved(agent_id) else agent_id


def read_event(members: object) -> Event:
    """Read an event from JSON; InvalidEvent unless it has exactly the form that `members` returns.

    `link` checks its position in the chain.
    """
    try:
        event = _EVENT.validate_python(members)
    except ValidationError as error:
        raise InvalidEvent(None, _first_fault(error)) from error
    payload_of(event)
    return event


def payload_of(event: Event) -> Payload:
    """Return an event's payload as the model of the event's type, or `Erased`; InvalidEvent if invalid."""
    model = Erased if event.is_erased else PAYLOADS.get(event.type)
    if model is None:
        raise InvalidEvent(event.sequence, f"unknown event type: {event.type}")
    try:
        payload = model.model_validate(event.payload)
    except ValidationError as error:
        raise InvalidEvent(event.sequence, f"payload of {event.type}: {_first_fault(error)}") from error
    # A time in another zone, or a null for an absent member, has the same meaning but another hash.
    if payload.members() != event.payload:
        raise InvalidEvent(event.sequence, f"payload of {event.type}: not as the registry writes it")
    return payload


def _erased_hash(payload: object) -> str | None:
    match payload:
        case {"erased": str(digest), **others} if not others:
            return digest
        case _:
            return None


def _hash_of(members: Mapping[str, Any]) -> str:
    """Return the hash of an event with these members; `hash` itself may be among them."""
    hashed = {name: value for name, value in members.items() if name not in _NOT_HASHED}
    hashed["payload_hash"] = payload_hash(members["payload"])
    return hashlib.sha256(canonical(hashed)).hexdigest()


def _first_fault(error: ValidationError) -> str:
    fault = error.errors(include_input=False, include_url=False, include_context=False)[0]
    where = "/".join(str(part) for part in fault["loc"])
    return f"{where}: {fault['msg']}" if where else str(fault["msg"])
