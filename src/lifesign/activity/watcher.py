"""Watcher: follows the server, sends due heartbeats, and reconnects.

Three loops follow the stream, send heartbeats when they are due, and read once a minute the heartbeat
interval of each agent and the sessions in its registration. If the registry does not answer, the third loop
reads them again within seconds.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from typing import Final, Protocol

from lifesign.activity.heartbeat_sink import Dropped, HeartbeatRefused, HeartbeatSink
from lifesign.activity.opencode import NotOpencode, OpencodeUnreachable, SessionStatus
from lifesign.activity.watch_events import Emit, Once, WatchEvent, WatchEventKind
from lifesign.domain.activity.opencode_event import EventMeaning, is_session_id, read_event
from lifesign.domain.activity.passive_heartbeat import (
    MAX_UNKNOWN_SESSIONS,
    MIN_GAP_S,
    DueHeartbeat,
    PassiveHeartbeats,
    WatchedSessionState,
    sessions_in,
)
from lifesign.domain.common.backoff import Backoff
from lifesign.domain.models.agents import AgentRecord, HeartbeatConfig
from lifesign.domain.text.counts import plural, pluralize
from lifesign.errors import InvalidValue, LifesignError

RECORD_EVERY_SECONDS: Final = 60.0
"""Maximum delay until another session or interval of an agent is noticed."""
MAX_GAP_SECONDS: Final = 60.0
"""Maximum time for which no heartbeats are sent for an agent after a refusal; at most its interval. Once it
has registered again, its heartbeats must continue soon.
"""
STEADY_SECONDS: Final = 10.0
"""A stream that lasted so long was no failure: the next wait is the shortest again."""
MAX_NAMED_SESSIONS: Final = 64
"""Maximum of sessions in one registration."""

# For sessions whose state does not allow heartbeats while they are idle.
_EFFECTS: Final = {
    WatchedSessionState.ABSENT: (WatchEventKind.SESSION_ABSENT, "no heartbeats are sent for it"),
    WatchedSessionState.UNKNOWN: (
        WatchEventKind.SESSION_UNREADABLE,
        f"only its events cause heartbeats; it is read again every {RECORD_EVERY_SECONDS:g} s",
    ),
}


class ActivityServer(Protocol):
    """A server that reports which of its sessions are busy, such as opencode."""

    def events(self) -> AbstractAsyncContextManager[AsyncGenerator[list[str], None]]:
        """Open the server's event stream. Raises OpencodeUnreachable, NotOpencode."""

    async def session_statuses(self, sessions: Collection[str]) -> Mapping[str, SessionStatus]:
        """Return the present state of sessions, UNKNOWN for one that cannot be read.

        Raises OpencodeUnreachable, NotOpencode.
        """


class AgentRefused(LifesignError):
    """The registry refused the first requests about an agent, so watching does not start."""

    def __init__(self, agent_id: str, why: str) -> None:
        super().__init__(f"{agent_id}: the registry refused the heartbeat: {why}")
        self.agent_id = agent_id


class Watcher:
    """Sends heartbeats for agents whose sessions on one server are active.

    `mapped` has the sessions of agents that were named beforehand; for an agent without any, its registration
    names them (`metadata.opencode_session`). Every decision is passed to `emit`.
    """

    def __init__(
        self,
        server: ActivityServer,
        heart: HeartbeatSink,
        mapped: Mapping[str, Collection[str]],
        emit: Emit,
        *,
        chance: Callable[[], float],
    ) -> None:
        self.counts: Counter[WatchEventKind] = Counter()
        self._server = server
        self._heart = heart
        self._mapped = mapped
        self._beats = PassiveHeartbeats()
        self._once = Once(self._emit)
        self._notified_on = emit
        self._chance = chance
        self._away = Backoff(chance)
        self._moved = asyncio.Event()
        self._intervals_s: dict[str, float] = {}
        self._was_heard = False
        self._is_streaming = False
        self._is_behind = False
        """Whether the last attempt to read the records got no answer."""
        self._dropped = 0

    async def run(self) -> None:
        """Watch the server and send heartbeats, until cancelled.

        Raise permanent errors that occur at the start: NotOpencode, AgentRefused, InvalidValue. Later ones
        are reported, and the watcher waits.
        """
        for agent_id, sessions in self._mapped.items():
            self._intervals_s[agent_id] = HeartbeatConfig().interval_seconds
            self._beats.watch(agent_id, sessions, self._intervals_s[agent_id])
        await self._learn(is_first=True)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._follow())
                group.create_task(self._send_heartbeat(group))
                group.create_task(self._keep_learning())
        except ExceptionGroup as failed:
            # The loops end together: the first exception is the cause.
            raise failed.exceptions[0] from None
        finally:
            if self._was_heard:
                self._emit(WatchEvent(what=WatchEventKind.ENDED, text=self._summary()))

    # ── the server ──

    async def _follow(self) -> None:
        now_s = asyncio.get_running_loop().time
        while True:
            began_s, text = now_s(), "the stream ended"
            try:
                await self._follow_once()
            except OpencodeUnreachable as error:
                text = str(error)
            except NotOpencode as error:
                if not self._was_heard:
                    raise
                text = str(error)
            finally:
                self._is_streaming = False
                self._beats.note_lost()
            self._once.emit("server", WatchEvent(what=WatchEventKind.SERVER_UNREACHABLE, text=text))
            if now_s() - began_s >= STEADY_SECONDS:
                self._away.over()
            await asyncio.sleep(self._away.wait_s())

    async def _follow_once(self) -> None:
        now_s = asyncio.get_running_loop().time
        async with self._server.events() as pieces:
            # After the opening: later events are in the stream.
            self._beats.note_line(now_s())
            await self._ask_sessions()
            self._is_streaming = self._was_heard = True
            if self._once.is_over("server") or not self.counts[WatchEventKind.SERVER_REACHABLE]:
                self._emit(WatchEvent(what=WatchEventKind.SERVER_REACHABLE, text="the server answers"))
            async for messages in pieces:
                self._beats.note_line(now_s())
                for message in messages:
                    self._take(message, now_s())

    async def _ask_sessions(self) -> None:
        unchecked_sessions = self._beats.unchecked_sessions()
        found = await self._server.session_statuses(unchecked_sessions) if unchecked_sessions else {}
        self._beats.note_states(
            {session_id: standing.state for session_id, standing in found.items()},
            asyncio.get_running_loop().time(),
        )
        for session_id, standing in found.items():
            agent_id = self._beats.agent_of(session_id)
            effect = _EFFECTS.get(standing.state)
            if effect is None:
                self._once.is_over(f"session {session_id}", agent_id)
                continue
            what, consequence = effect
            text = f"{session_id}: {standing.why}: {consequence}"
            notice = WatchEvent(what=what, text=text, agent_id=agent_id, session_id=session_id)
            self._once.emit(f"session {session_id}", notice)
        self._moved.set()

    def _take(self, message: str, now_s: float) -> None:
        event = read_event(message)
        if event is None:
            return
        agent_id = self._beats.agent_of(event.session_id)
        self._beats.note_event(event, now_s)
        if event.meaning is EventMeaning.ERROR and (agent_id is not None or event.session_id is None):
            where = "" if event.session_id is None else f"{event.session_id}: "
            notice = WatchEvent(
                what=WatchEventKind.SESSION_ERROR,
                text=where + event.error,
                agent_id=agent_id,
                session_id=event.session_id,
            )
            self._emit(notice)
        if self._beats.unknown_events and not self.counts[WatchEventKind.UNKNOWN_SESSION]:
            text = f"{event.session_id}: belongs to no watched agent; its events are only counted"
            self._emit(
                WatchEvent(what=WatchEventKind.UNKNOWN_SESSION, text=text, session_id=event.session_id)
            )
        if event.meaning not in {EventMeaning.OTHER, EventMeaning.REPEAT}:
            self._moved.set()

    # ── the heartbeats ──

    async def _send_heartbeat(self, group: asyncio.TaskGroup) -> None:
        now_s = asyncio.get_running_loop().time
        while True:
            self._moved.clear()
            for due in self._beats.due(now_s()):
                group.create_task(self._send(due))
            wait_s = min(self._beats.next_at_s(now_s()) - now_s(), MIN_GAP_S)
            with suppress(TimeoutError):
                async with asyncio.timeout(max(wait_s, 0.0)):
                    await self._moved.wait()

    async def _send(self, due: DueHeartbeat) -> None:
        ending = await self._heart.send_heartbeat(due)
        if isinstance(ending, HeartbeatRefused):
            self._refused(due.agent_id, ending.why)
            return
        if isinstance(ending, Dropped):
            self._dropped += 1
            self._registry_unreachable(ending.why)
            return
        self._once.is_over("refused", due.agent_id)
        self._registry_answers()
        why = f"{due.session_id}: {due.source or 'idle, and the server answers'}"
        message = (
            ""
            if ending.agent_status == "active"
            else f"; its status in the registry is {ending.agent_status}"
        )
        text = f"{why}{message}"
        self._emit(
            WatchEvent(
                what=WatchEventKind.HEARTBEAT, text=text, agent_id=due.agent_id, session_id=due.session_id
            )
        )
        if ending.commands:
            request = f"the registry requests: {', '.join(ending.commands)}. Only you can do that"
            self._once.emit(
                "command", WatchEvent(what=WatchEventKind.COMMAND, text=request, agent_id=due.agent_id)
            )
        else:
            self._once.is_over("command", due.agent_id)

    def _refused(self, agent_id: str, why: str) -> None:
        now_s = asyncio.get_running_loop().time()
        gap_s = min(max(self._intervals_s[agent_id], MIN_GAP_S), MAX_GAP_SECONDS)
        self._beats.hold(agent_id, now_s + gap_s)
        text = f"the registry refused: {why}; the next attempt is in {gap_s:g} s"
        self._once.emit("refused", WatchEvent(what=WatchEventKind.REFUSED, text=text, agent_id=agent_id))

    def _registry_unreachable(self, why: str) -> None:
        self._once.emit(
            "registry",
            WatchEvent(
                what=WatchEventKind.REGISTRY_UNREACHABLE,
                text=f"heartbeats are dropped until it answers: {why}",
            ),
        )

    def _registry_answers(self) -> None:
        if self._once.is_over("registry"):
            self._emit(WatchEvent(what=WatchEventKind.REGISTRY_BACK, text="the registry answers again"))

    # ── records of the registry ──

    async def _keep_learning(self) -> None:
        # An agent of which nothing is known yet can miss a heartbeat with each wait.
        away = Backoff(self._chance, max_wait_s=MIN_GAP_S)
        while True:
            if self._is_behind:
                await asyncio.sleep(away.wait_s())
            else:
                away.over()
                await asyncio.sleep(RECORD_EVERY_SECONDS)
            await self._learn(is_first=False)
            if self._is_streaming and self._beats.unchecked_sessions():
                with suppress(OpencodeUnreachable, NotOpencode):
                    # If the server is unreachable, the stream reports it.
                    await self._ask_sessions()

    async def _learn(self, *, is_first: bool) -> None:
        for agent_id in self._mapped:
            record = await self._heart.record(agent_id)
            self._is_behind = isinstance(record, Dropped)
            if isinstance(record, Dropped):
                self._registry_unreachable(record.why)
                # All have the same registry.
                return
            if isinstance(record, HeartbeatRefused):
                if is_first:
                    raise AgentRefused(agent_id, record.why)
                text = f"the heartbeat interval cannot be read: {record.why}"
                self._once.emit(
                    "record", WatchEvent(what=WatchEventKind.REFUSED, text=text, agent_id=agent_id)
                )
                continue
            self._once.is_over("record", agent_id)
            self._registry_answers()
            self._know(agent_id, record, is_first=is_first)

    def _know(self, agent_id: str, record: AgentRecord, *, is_first: bool) -> None:
        interval_s = record.heartbeat_config.interval_seconds
        self._intervals_s[agent_id] = interval_s
        sessions = list(self._mapped[agent_id]) or self._named(agent_id, record)
        try:
            self._beats.watch(agent_id, sessions, interval_s)
        except InvalidValue as error:
            if is_first:
                raise
            self._mapping(agent_id, str(error))
            return
        if record.heartbeat_config.unhealthy_after_seconds < 2 * MIN_GAP_S:
            text = f"silent after {record.heartbeat_config.unhealthy_after_seconds:g} s"
            self._mapping(agent_id, f"{text}, and a heartbeat is sent every {MIN_GAP_S:g} s at most")
        elif sessions:
            self._mapping(agent_id, f"{', '.join(sessions)}; while idle its interval is {interval_s:g} s")
        else:
            self._mapping(agent_id, "no session: name one by --map or in metadata.opencode_session")

    def _named(self, agent_id: str, record: AgentRecord) -> list[str]:
        named = sessions_in(record.metadata)
        good = [session_id for session_id in named[:MAX_NAMED_SESSIONS] if is_session_id(session_id)]
        if len(good) < len(named):
            expected = f"at most {MAX_NAMED_SESSIONS} names of sessions"
            notice = WatchEvent(
                what=WatchEventKind.MAPPING,
                text=f"metadata.opencode_session: expected {expected}; the rest is ignored",
                agent_id=agent_id,
            )
            self._once.emit("names", notice)
        return [str(session_id) for session_id in good]

    def _mapping(self, agent_id: str, text: str) -> None:
        self._once.emit("mapping", WatchEvent(what=WatchEventKind.MAPPING, text=text, agent_id=agent_id))

    # ── Reports ──

    def _emit(self, event: WatchEvent) -> None:
        self.counts[event.what] += 1
        self._notified_on(event)

    def _summary(self) -> str:
        several = len(self._beats.unknown_sessions)
        # Further ones are not distinguished.
        least = "at least " if several >= MAX_UNKNOWN_SESSIONS else ""
        unknown = f"{least}{several:,} {plural(several, 'session that belongs', 'sessions that belong')}"
        return (
            f"{pluralize(self.counts[WatchEventKind.HEARTBEAT], 'heartbeat')} sent, {self._dropped} dropped; "
            f"{pluralize(self.counts[WatchEventKind.SESSION_ERROR], 'error')} of sessions; "
            f"{pluralize(self._beats.unknown_events, 'event')} of {unknown} to no watched agent"
        )
