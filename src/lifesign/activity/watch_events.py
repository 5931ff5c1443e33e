"""Events of the watcher: observations and decisions."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum


class WatchEventKind(StrEnum):
    """Kind of an event that `lifesign watch-activity` reports."""

    HEARTBEAT = "heartbeat"
    """A heartbeat was sent, and the registry accepted it."""
    REFUSED = "refused"
    """The registry refuses heartbeats of an agent; reported once, until they are accepted."""
    COMMAND = "command"
    """The registry has a command for an agent, which another program has to deliver."""
    SESSION_ERROR = "session_error"
    SESSION_ABSENT = "session_absent"
    """No heartbeats are sent for a session: the server does not have it, or not at this address."""
    SESSION_UNREADABLE = "session_unreadable"
    """The state of one session cannot be read: its agent sends no heartbeats while idle."""
    UNKNOWN_SESSION = "unknown_session"
    """An event of a session that belongs to no known agent; reported once, then counted."""
    SERVER_UNREACHABLE = "server_unreachable"
    SERVER_REACHABLE = "server_reachable"
    REGISTRY_UNREACHABLE = "registry_unreachable"
    """Heartbeats are dropped: a late one would be wrong."""
    REGISTRY_BACK = "registry_back"
    MAPPING = "mapping"
    """Watched sessions of an agent, or the reason why those in its registration are not watched."""
    OMITTED = "omitted"
    """Earlier lines were dropped because their reader was too slow."""
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchEvent:
    """One event, for people and for programs.

    It may quote text of a server or registry: escape it when you show it.
    """

    what: WatchEventKind
    text: str
    agent_id: str | None = None
    session_id: str | None = None


Emit = Callable[[WatchEvent], None]


class Once:
    """Emits an event about a subject only if the last event about this subject was another one."""

    def __init__(self, emit: Emit) -> None:
        self._tell = emit
        self._last: dict[tuple[str, str | None], str] = {}

    def emit(self, subject: str, event: WatchEvent) -> None:
        """Emit an event, unless it repeats the last event about this subject and this agent."""
        place = (subject, event.agent_id)
        if self._last.get(place) != event.text:
            self._last[place] = event.text
            self._tell(event)

    def is_over(self, subject: str, agent_id: str | None = None) -> bool:
        """Forget the last event about a subject, as its condition is over; return whether there was one."""
        return self._last.pop((subject, agent_id), None) is not None
