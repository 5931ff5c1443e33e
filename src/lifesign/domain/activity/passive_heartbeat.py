"""Heartbeats that follow from the activity of an agent's sessions (protocol, section 7).

* Activity of a session is a heartbeat of its agent: at once, or MIN_GAP_S after the previous one.
* An idle session on a living server is fine: its agent sends heartbeats at its interval.
* A busy session without events sends none; an idle one beside it does not replace it.
* While the server is unreachable, no heartbeats are sent: nothing is known.
"""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from lifesign.domain.activity.opencode_event import ActivityEvent, EventMeaning
from lifesign.errors import InvalidValue

MIN_GAP_S: Final = 5.0
"""Minimum time between two heartbeats of one agent."""
SERVER_SILENT_S: Final = 30.0
"""Without a line for this long, the server does not count as running; an opencode server sends one every 10
s.
"""
LATE_S: Final = 10.0
"""A heartbeat for an older activity is not sent: it would no longer be true."""
MAX_SESSIONS: Final = 1_000
"""Maximum of watched sessions."""
MAX_UNKNOWN_SESSIONS: Final = 1_000
"""Maximum of unknown sessions that are distinguished; the events of further ones are only counted."""


class WatchedSessionState(StrEnum):
    """State of a watched session."""

    UNKNOWN = "unknown"
    """The state was not read since the stream began, and no event has shown it."""
    IDLE = "idle"
    BUSY = "busy"
    ABSENT = "absent"
    """The server has no such session, or not at this address: no heartbeats are sent for it."""


class HeartbeatCause(StrEnum):
    """Why a heartbeat is due."""

    ACTIVITY = "activity"
    IDLE = "idle"


@dataclass(frozen=True, slots=True, kw_only=True)
class DueHeartbeat:
    """A heartbeat that is to be sent now for an agent."""

    agent_id: str
    cause: HeartbeatCause
    session_id: str
    """Session with the last activity, or one of the idle ones."""
    source: str
    """Type of the event, or of the request after a reconnection; empty if the session is idle."""
    busy_sessions: int
    """Number of busy sessions of this agent: its load."""


@dataclass(slots=True)
class _Session:
    agent_id: str
    state: WatchedSessionState = WatchedSessionState.UNKNOWN
    before: WatchedSessionState = WatchedSessionState.UNKNOWN
    """State before the stream was lost."""


@dataclass(slots=True)
class _Owed:
    """The latest activity for which no heartbeat was sent yet."""

    at_s: float
    session_id: str
    source: str


@dataclass(slots=True)
class _Agent:
    interval_s: float
    sessions: dict[str, _Session] = field(default_factory=dict)
    beaten_s: float = -math.inf
    held_until_s: float = -math.inf
    owed: _Owed | None = None


class PassiveHeartbeats:
    """Decides when to send heartbeats for agents, from the events of the sessions in which they work.

    All times are of one clock that never goes back.
    """

    def __init__(self) -> None:
        self.unknown_events = 0
        """Number of events of sessions without a known agent."""
        self.unknown_sessions: set[str] = set()
        self._agents: dict[str, _Agent] = {}
        self._sessions: dict[str, _Session] = {}
        self._heard_s = -math.inf

    def watch(self, agent_id: str, sessions: Collection[str], interval_s: float) -> None:
        """Watch these sessions for an agent, instead of its earlier ones.

        InvalidValue if another agent has one.

        `interval_s` is the heartbeat interval of an idle agent.
        """
        agent = self._agents.setdefault(agent_id, _Agent(interval_s))
        agent.interval_s = interval_s
        for session_id in [known for known in agent.sessions if known not in sessions]:
            del agent.sessions[session_id], self._sessions[session_id]
        for session_id in sessions:
            owner = self._sessions.get(session_id)
            if owner is not None and owner.agent_id != agent_id:
                raise InvalidValue("session", session_id, f"one agent's; it is {owner.agent_id}'s already")
            if owner is None and len(self._sessions) >= MAX_SESSIONS:
                raise InvalidValue("session", session_id, f"at most {MAX_SESSIONS} sessions")
            if owner is None:
                agent.sessions[session_id] = self._sessions[session_id] = _Session(agent_id)

    def agent_of(self, session_id: str | None) -> str | None:
        """Return the agent of a session; None if unknown."""
        session = self._sessions.get(session_id or "")
        return None if session is None else session.agent_id

    def states(self) -> Mapping[str, WatchedSessionState]:
        """Return the state of each watched session, by its id."""
        return {session_id: session.state for session_id, session in self._sessions.items()}

    def unchecked_sessions(self) -> list[str]:
        """Return the sessions whose state must still be requested from the server."""
        return [
            known for known, session in self._sessions.items() if session.state is WatchedSessionState.UNKNOWN
        ]

    def note_line(self, now_s: float) -> None:
        """Record that the server sent a line of any kind, which shows that it runs."""
        self._heard_s = now_s

    def note_lost(self) -> None:
        """Record that the stream ended, so that states are unknown until the server is asked for them."""
        self._heard_s = -math.inf
        for session in self._sessions.values():
            if session.state is not WatchedSessionState.UNKNOWN:
                session.before, session.state = session.state, WatchedSessionState.UNKNOWN

    def note_states(self, found: Mapping[str, WatchedSessionState], now_s: float) -> None:
        """Record the states that the server returned. Newer facts from events are kept.

        A session that is not as it was before the stream was lost has moved meanwhile: that is activity.
        """
        for session_id, state in found.items():
            session = self._sessions.get(session_id)
            if session is None or session.state is not WatchedSessionState.UNKNOWN:
                continue
            if state is WatchedSessionState.UNKNOWN:
                continue
            session.state = state
            moved = {session.before, state} == {WatchedSessionState.IDLE, WatchedSessionState.BUSY}
            if moved:
                self._owe(session, session_id, "session/status", now_s)
            session.before = state

    def note_event(self, event: ActivityEvent, now_s: float) -> None:
        """Record one event of the server's stream."""
        if event.meaning in {EventMeaning.REPEAT, EventMeaning.OTHER} or event.session_id is None:
            return
        session = self._sessions.get(event.session_id)
        if session is None:
            self.unknown_events += 1
            if len(self.unknown_sessions) < MAX_UNKNOWN_SESSIONS:
                self.unknown_sessions.add(event.session_id)
            return
        if event.meaning is EventMeaning.DELETED:
            session.state = WatchedSessionState.ABSENT
        elif event.is_busy is not None:
            session.state = WatchedSessionState.BUSY if event.is_busy else WatchedSessionState.IDLE
        if event.meaning is EventMeaning.ACTIVITY:
            self._owe(session, event.session_id, event.type, now_s)

    def hold(self, agent_id: str, until_s: float) -> None:
        """Send no heartbeats for an agent until a time. Activity until then causes none later."""
        agent = self._agents.get(agent_id)
        if agent is not None:
            agent.held_until_s, agent.owed = until_s, None

    def due(self, now_s: float) -> list[DueHeartbeat]:
        """Return the heartbeats that are due; they count as sent, whether or not sending succeeds."""
        found = []
        for agent_id, agent in self._agents.items():
            due = self._due_of(agent_id, agent, now_s)
            if due is not None:
                agent.beaten_s = now_s
                found.append(due)
        return found

    def next_at_s(self, now_s: float) -> float:
        """Return the time of the next call of `due`, if nothing else is noted before; infinity for never."""
        return min((self._next_of(agent, now_s) for agent in self._agents.values()), default=math.inf)

    def _due_of(self, agent_id: str, agent: _Agent, now_s: float) -> DueHeartbeat | None:
        if now_s < _not_before_s(agent):
            return None
        busy = sum(session.state is WatchedSessionState.BUSY for session in agent.sessions.values())
        owed, agent.owed = agent.owed, None
        if owed is not None and now_s - owed.at_s <= LATE_S:
            return DueHeartbeat(
                agent_id=agent_id,
                cause=HeartbeatCause.ACTIVITY,
                session_id=owed.session_id,
                source=owed.source,
                busy_sessions=busy,
            )
        idle = _idle_session(agent)
        if idle is None or not self._is_recent(now_s) or now_s < agent.beaten_s + agent.interval_s:
            return None
        return DueHeartbeat(
            agent_id=agent_id, cause=HeartbeatCause.IDLE, session_id=idle, source="", busy_sessions=busy
        )

    def _next_of(self, agent: _Agent, now_s: float) -> float:
        if agent.owed is not None:
            return max(agent.owed.at_s, _not_before_s(agent))
        can_beat = _idle_session(agent) is not None and self._is_recent(now_s)
        return max(agent.beaten_s + agent.interval_s, _not_before_s(agent)) if can_beat else math.inf

    def _is_recent(self, now_s: float) -> bool:
        return now_s - self._heard_s <= SERVER_SILENT_S

    def _owe(self, session: _Session, session_id: str, source: str, now_s: float) -> None:
        agent = self._agents[session.agent_id]
        if now_s >= agent.held_until_s:
            agent.owed = _Owed(now_s, session_id, source)


def sessions_in(metadata: Mapping[str, object]) -> list[object]:
    """Return the sessions that an agent's metadata names: `opencode_session`, one id or a list."""
    named = metadata.get("opencode_session")
    if named is None:
        return []
    return list(named) if isinstance(named, Iterable) and not isinstance(named, str | Mapping) else [named]


def _not_before_s(agent: _Agent) -> float:
    return max(agent.beaten_s + MIN_GAP_S, agent.held_until_s)


def _idle_session(agent: _Agent) -> str | None:
    """Return an idle session, unless one is busy: the state of a busy one must be observed."""
    states = {session_id: session.state for session_id, session in agent.sessions.items()}
    if WatchedSessionState.BUSY in states.values() or WatchedSessionState.UNKNOWN in states.values():
        return None
    return next((known for known, state in states.items() if state is WatchedSessionState.IDLE), None)
