"""Events of an opencode server about its sessions (protocol, section 7).

Three envelopes are in use: `properties` (GET /event), `payload.properties` (GET /global/event) and `data`
(GET /api/event). `passive_heartbeat` decides what follows from an event.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from lifesign.domain.parsing.bounded_json import parse_or_none
from lifesign.domain.text.safe_text import harmless

MAX_SESSION_ID_CHARS: Final = 256
MAX_TYPE_CHARS: Final = 64
MAX_ERROR_CHARS: Final = 300
"""Maximum stored length of an error's name and text."""


class EventMeaning(StrEnum):
    """What an event shows about whether an agent works."""

    ACTIVITY = "activity"
    """The session does something, or has just ended doing it."""
    ERROR = "error"
    """The current work of the session failed; the session itself continues."""
    CREATED = "created"
    DELETED = "deleted"
    REPEAT = "repeat"
    """Repeats another event: `sync` of /global/event."""
    OTHER = "other"
    """Any other event, which only shows that the server is alive."""


_MEANINGS: Final[Mapping[str, EventMeaning]] = {
    "session.idle": EventMeaning.ACTIVITY,
    "session.updated": EventMeaning.ACTIVITY,
    "session.status": EventMeaning.ACTIVITY,
    "message.part.delta": EventMeaning.ACTIVITY,
    "session.error": EventMeaning.ERROR,
    "session.created": EventMeaning.CREATED,
    "session.deleted": EventMeaning.DELETED,
    "sync": EventMeaning.REPEAT,
}
"""Meaning of types. `message.part.updated` depends on its part; all other types are OTHER."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityEvent:
    """One event of an opencode server, and its meaning."""

    type: str
    """Type as the server sends it, cut to MAX_TYPE_CHARS; safe to show."""
    meaning: EventMeaning
    session_id: str | None = None
    """None if the event concerns no session, or has no valid session id."""
    is_busy: bool | None = None
    """Whether the session is busy from now on; None if the event does not show it."""
    error: str = ""
    """Name and message of an error, shortened and safe to show; empty without an error."""


def read_event(text: str) -> ActivityEvent | None:
    """Return the opencode event in a message's data; None if the data is no such event."""
    inner = parse_or_none(text.encode("utf-8", "replace"))
    if isinstance(inner, dict) and "type" not in inner:
        inner = _object(inner, "payload")
    kind = inner.get("type") if isinstance(inner, dict) else None
    if not isinstance(kind, str):
        return None
    members = _object(inner, "properties") or _object(inner, "data") or {}
    meaning = EventMeaning.ACTIVITY if _is_work(kind, members) else _MEANINGS.get(kind, EventMeaning.OTHER)
    return ActivityEvent(
        type=_safe(kind, MAX_TYPE_CHARS),
        meaning=meaning,
        session_id=_session_id(members),
        is_busy=_is_busy(kind, members),
        error=_error(members) if meaning is EventMeaning.ERROR else "",
    )


def is_session_id(text: object) -> bool:
    """Return whether a value can be a session id: visible ASCII, limited length, no path separators."""
    return (
        isinstance(text, str)
        and 0 < len(text) <= MAX_SESSION_ID_CHARS
        and text.isascii()
        and text.isprintable()
        and not any(character in " /\\" for character in text)
        and text not in {".", ".."}
    )


def state_is_busy(status: object) -> bool | None:
    """Return whether a session's status means busy: `busy`, or `retry` (it waits for its model).

    None: unknown.
    """
    match status:
        case {"type": "busy" | "retry"}:
            return True
        case {"type": "idle"}:
            return False
    return None


def _session_id(members: Mapping[str, Any]) -> str | None:
    found = members.get("sessionID")
    if found is None:
        found = (_object(members, "info") or {}).get("id")
    if found is None:
        found = (_object(members, "part") or {}).get("sessionID")
    return found if is_session_id(found) else None


def _is_work(kind: str, members: Mapping[str, Any]) -> bool:
    """Return whether a part of a message shows activity: a finished tool, or text of the model.

    `tool.execute.after`, which the heartbeat tool's contract names, never appears on the wire.
    """
    if kind != "message.part.updated":
        return False
    match _object(members, "part"):
        case {"type": "tool", "state": {"status": "completed"}} | {"type": "text" | "reasoning"}:
            return True
    return False


def _is_busy(kind: str, members: Mapping[str, Any]) -> bool | None:
    if kind == "session.status":
        return state_is_busy(members.get("status"))
    return False if kind in {"session.idle", "session.created"} else None


def _error(members: Mapping[str, Any]) -> str:
    """Return the description of an error, all of whose members are optional."""
    error = _object(members, "error") or {}
    name = error.get("name")
    words = (_object(error, "data") or {}).get("message")
    text = ": ".join(part for part in (name, words) if isinstance(part, str) and part)
    return _safe(text, MAX_ERROR_CHARS) or "an error without a description"


def _object(value: object, name: str) -> dict[str, Any] | None:
    member = value.get(name) if isinstance(value, dict) else None
    return member if isinstance(member, dict) else None


def _safe(text: str, most: int) -> str:
    """Return text on one line that moves no cursor; longer text is cut."""
    line = " ".join(text[: 4 * most].split())[:most]
    return harmless(line)
