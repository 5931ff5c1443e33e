"""Log lines for the decisions of a server.

Each committed decision gets one line with its reason. Leases, reports and intent states are only in the event
log: there are thousands a second. docs/monitoring.md lists the members of each line. Many decisions or
refusals at once are cut to a few lines and a count, so that requests cannot fill the disk.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

from lifesign.domain.events.agent_payloads import AgentLifecycle
from lifesign.domain.events.event import EventDraft
from lifesign.domain.events.event_type import EventType

MAX_LINES: Final = 50
"""Maximum lines for the decisions of one transaction; the rest is counted."""
MAX_REFUSALS_PER_SECOND: Final = 20
"""Maximum lines for refusals per second."""
UNLOGGED_EVENTS: Final = frozenset({
    EventType.LEASE_ACQUIRED, EventType.LEASE_RELEASED, EventType.LEASE_EXPIRED,
    EventType.SHARDS_GRANTED, EventType.SHARDS_ENDED,
    EventType.STATE_WRITTEN, EventType.TASK_REPORTED,
})  # fmt: skip

_log = logging.getLogger("lifesign.registry")


class DecisionLog:
    """Logs decisions and refused calls of one server process, one line each."""

    def __init__(self, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._monotonic_s = monotonic_s
        self._second = 0
        self._refusals = 0
        """Refusals in this second."""

    def note_events(self, appended: Sequence[EventDraft]) -> None:
        """Log the decisions of one transaction after its commit."""
        if not _log.isEnabledFor(logging.INFO):
            return
        logged = [draft for draft in appended if draft.type not in UNLOGGED_EVENTS]
        for draft in logged[:MAX_LINES]:
            _log.info(draft.type.value, extra={"actor": draft.actor, **_members(draft)})
        for what, count in Counter(map(_kind, logged[MAX_LINES:])).items():
            _log.info("%s: %d more of this kind in the same transaction have no line", what, count)

    def note_refusal(self, method: str, path: str, status: int, code: str, client: str) -> None:
        """Log a refused call; `path` contains the names of its parameters, not their values."""
        if not _log.isEnabledFor(logging.INFO):
            return
        second = int(self._monotonic_s())
        if second != self._second:
            if (more := self._refusals - MAX_REFUSALS_PER_SECOND) > 0:
                _log.info("call.refused: %d more refused calls in the same second have no line", more)
            self._second, self._refusals = second, 0
        self._refusals += 1
        if self._refusals <= MAX_REFUSALS_PER_SECOND:
            members = {"method": method, "path": path, "status": status, "reason": code, "client": client}
            _log.info("call.refused", extra=members)


def _members(draft: EventDraft) -> dict[str, Any]:
    """Return the members of an event, under names that the standard library's log records do not use."""
    given = draft.payload.members()
    given.pop("type", None)
    return {_OTHERWISE.get(name, name): value for name, value in given.items()}


# `logging` keeps these for itself, and refuses them.
_OTHERWISE: Final = {"name": "named", "args": "arguments", "message": "text", "created": "created_at"}


def _kind(draft: EventDraft) -> str:
    if isinstance(draft.payload, AgentLifecycle):
        return f"{draft.type} to {draft.payload.new_status}: {draft.payload.reason}"
    return draft.type.value
