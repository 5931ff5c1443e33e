import itertools
import json
import math
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.opencode_events import captured, failed, idle, status, text_of, tool
from tests.support.properties import examples

from lifesign.client.event_stream import EventStreamParser
from lifesign.domain.activity import passive_heartbeat
from lifesign.domain.activity.opencode_event import EventMeaning, read_event
from lifesign.domain.activity.passive_heartbeat import (
    LATE_S,
    MIN_GAP_S,
    SERVER_SILENT_S,
    DueHeartbeat,
    HeartbeatCause,
    PassiveHeartbeats,
    WatchedSessionState,
    sessions_in,
)
from lifesign.errors import InvalidValue

BUSY, IDLE, ABSENT = WatchedSessionState.BUSY, WatchedSessionState.IDLE, WatchedSessionState.ABSENT
INTERVAL_S = 30.0
Event = tuple[str, dict[str, object]]


class Watched:
    """Heartbeats of agents, and a clock that is wound by hand."""

    def __init__(self, **sessions: WatchedSessionState) -> None:
        """Each session belongs to the agent of its first letter: `a1` to `a`."""
        self.beats = PassiveHeartbeats()
        self.now_s = 1_000.0
        self.sent: list[tuple[float, DueHeartbeat]] = []
        for agent_id in sorted({session_id[0] for session_id in sessions}):
            owned = [session_id for session_id in sessions if session_id[0] == agent_id]
            self.beats.watch(agent_id, owned, INTERVAL_S)
        self.hears()
        self.beats.note_states(sessions, self.now_s)

    def hears(self, *events: Event) -> list[DueHeartbeat]:
        """Process a line of the server, and events; return the heartbeats that are due now."""
        self.beats.note_line(self.now_s)
        for event in events:
            read = read_event(text_of(event))
            assert read is not None
            self.beats.note_event(read, self.now_s)
        return self.look()

    def look(self) -> list[DueHeartbeat]:
        due = self.beats.due(self.now_s)
        self.sent += [(self.now_s, due) for due in due]
        return due

    def wind(self, seconds: float, *, is_server_heard: bool = True) -> list[DueHeartbeat]:
        """Let time pass, in which all that becomes due is sent when it is."""
        end_s = self.now_s + seconds
        found = []
        while self.now_s < end_s:
            next_s = self.beats.next_at_s(self.now_s)
            self.now_s = min(end_s, max(next_s, self.now_s), self.now_s + 10)
            if is_server_heard:
                self.beats.note_line(self.now_s)
            found += self.look()
        return found


def test_activity_is_a_heartbeat_at_once() -> None:
    watched = Watched(a1=BUSY)
    (due,) = watched.hears(tool("a1"))
    assert due == DueHeartbeat(
        agent_id="a",
        cause=HeartbeatCause.ACTIVITY,
        session_id="a1",
        source="message.part.updated",
        busy_sessions=1,
    )


def test_activity_within_five_seconds_causes_one_delayed_heartbeat() -> None:
    watched = Watched(a1=BUSY)
    watched.hears(tool("a1"))
    watched.now_s += 1
    assert watched.hears(tool("a1"), status("a1", "busy")) == []
    assert watched.beats.next_at_s(watched.now_s) == watched.now_s + MIN_GAP_S - 1
    watched.now_s += MIN_GAP_S - 1
    assert [due.source for due in watched.look()] == ["session.status"]
    assert watched.wind(60) == []


def test_idle_session_keeps_its_agent_alive_while_the_server_runs() -> None:
    watched = Watched(a1=IDLE)
    watched.wind(95)
    assert [round(at_s) for at_s, _ in watched.sent] == [1_000, 1_030, 1_060, 1_090]
    assert {due.cause for _, due in watched.sent} == {HeartbeatCause.IDLE}


def test_unreachable_server_sends_no_heartbeat() -> None:
    watched = Watched(a1=IDLE)
    watched.look()
    assert len(watched.wind(SERVER_SILENT_S + 300, is_server_heard=False)) <= 2
    assert watched.wind(300, is_server_heard=False) == []
    watched.beats.note_lost()
    watched.beats.note_line(watched.now_s)
    assert watched.wind(60) == [], "the server has not confirmed the session yet"


def test_busy_session_without_events_is_silent() -> None:
    watched = Watched(a1=IDLE)
    watched.look()
    watched.hears(status("a1", "busy"))
    watched.wind(10)
    assert watched.wind(600) == []
    assert watched.hears(failed("a1")) == [], "an error is not a liveness signal"
    assert [due.source for due in watched.hears(idle("a1"))] == ["session.idle"]
    assert len(watched.wind(90)) == 3


def test_idle_session_sends_no_heartbeat_while_another_session_is_busy() -> None:
    watched = Watched(a1=IDLE, a2=BUSY, b1=IDLE)
    assert {due.agent_id for due in watched.wind(300)} == {"b"}


def test_load_is_the_number_of_busy_sessions() -> None:
    watched = Watched(a1=BUSY, a2=BUSY, a3=IDLE)
    assert [due.busy_sessions for due in watched.hears(tool("a2"))] == [2]


def test_absent_session_sends_no_heartbeat_until_it_is_created() -> None:
    watched = Watched(a1=ABSENT)
    assert watched.wind(300) == []
    watched.hears(("session.created", {"sessionID": "a1"}))
    assert watched.wind(31) != []
    watched.hears(("session.deleted", {"sessionID": "a1"}))
    watched.wind(10)
    assert watched.wind(300) == []


def test_events_of_unknown_sessions_are_counted_without_an_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passive_heartbeat, "MAX_UNKNOWN_SESSIONS", 2)
    watched = Watched(a1=IDLE)
    watched.look()
    watched.hears(idle("x1"), idle("x2"), idle("x3"), idle("x1"), tool("x1", "running"))
    assert watched.beats.unknown_events == 4
    assert watched.beats.unknown_sessions == {"x1", "x2"}
    assert watched.beats.agent_of("x1") is None
    assert watched.beats.agent_of(None) is None


def test_suspended_agent_sends_no_heartbeats_and_makes_none_up_later() -> None:
    watched = Watched(a1=BUSY, b1=BUSY)
    watched.hears(tool("a1"), tool("b1"))
    watched.hears(tool("a1"))
    watched.beats.hold("a", watched.now_s + 60)
    watched.beats.hold("nobody", watched.now_s + 60)
    watched.now_s += 20
    assert [due.agent_id for due in watched.hears(tool("a1"), tool("b1"))] == ["b"]
    watched.now_s += 39
    watched.hears(tool("a1"))
    assert watched.wind(60) == []
    assert [due.agent_id for due in watched.hears(tool("a1"))] == ["a"]


def test_late_heartbeat_is_dropped() -> None:
    watched = Watched(a1=BUSY)
    watched.beats.note_line(watched.now_s)
    read = read_event(text_of(tool("a1")))
    assert read is not None
    watched.beats.note_event(read, watched.now_s)
    watched.now_s += LATE_S + 1
    assert watched.look() == []
    assert watched.beats.next_at_s(watched.now_s) == math.inf


def test_session_whose_state_changed_during_a_lost_stream_counts_as_active() -> None:
    watched = Watched(a1=BUSY, b1=BUSY, c1=IDLE, d1=IDLE)
    watched.wind(6)
    watched.beats.note_lost()
    assert watched.beats.unchecked_sessions() == ["a1", "b1", "c1", "d1"]
    assert set(watched.beats.states().values()) == {WatchedSessionState.UNKNOWN}
    watched.beats.note_line(watched.now_s)
    watched.beats.note_states({"a1": IDLE, "b1": BUSY, "c1": BUSY, "d1": IDLE}, watched.now_s)
    assert [(due.agent_id, due.source) for due in watched.look()] == [
        ("a", "session/status"), ("c", "session/status"),
    ]  # fmt: skip


def test_event_overrides_an_older_status_answer() -> None:
    watched = Watched(a1=IDLE)
    watched.beats.note_lost()
    watched.hears(status("a1", "busy"))
    watched.beats.note_states({"a1": IDLE, "nobodys": IDLE}, watched.now_s)
    assert watched.beats.states() == {"a1": BUSY}


def test_the_sessions_of_an_agent_may_change() -> None:
    watched = Watched(a1=BUSY, b1=IDLE)
    watched.beats.watch("a", ["a2"], 10.0)
    assert watched.beats.unchecked_sessions() == ["a2"]
    assert watched.beats.agent_of("a1") is None
    watched.beats.note_states({"a2": IDLE}, watched.now_s)
    assert len([due for due in watched.wind(35) if due.agent_id == "a"]) == 4
    with pytest.raises(InvalidValue, match="b's already") as refused:
        watched.beats.watch("a", ["b1"], 10.0)
    assert (refused.value.name, refused.value.given) == ("session", "b1")


def test_too_many_watched_sessions_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passive_heartbeat, "MAX_SESSIONS", 1)
    with pytest.raises(InvalidValue, match="at most 1 sessions"):
        Watched(a1=BUSY, b1=BUSY)


def test_a_registration_names_one_session_or_several() -> None:
    assert sessions_in({}) == []
    assert sessions_in({"opencode_session": "ses_1"}) == ["ses_1"]
    assert sessions_in({"opencode_session": ["ses_1", "ses_2"]}) == ["ses_1", "ses_2"]
    assert sessions_in({"opencode_session": 7}) == [7]
    assert sessions_in({"opencode_session": {"a": 1}}) == [{"a": 1}]


# ── rules ──

SESSIONS = ("a1", "a2", "b1", "c1")
EVENTS = st.one_of(
    st.builds(status, st.sampled_from(SESSIONS), st.sampled_from(["busy", "idle", "retry"])),
    st.builds(idle, st.sampled_from(SESSIONS)),
    st.builds(tool, st.sampled_from(SESSIONS)),
    st.builds(failed, st.sampled_from(SESSIONS)),
    st.just(("server.heartbeat", {})),
)
STEPS = st.lists(
    st.tuples(st.floats(0, 20, allow_nan=False), st.lists(EVENTS, max_size=4), st.booleans()), max_size=25
)


@settings(max_examples=examples(40))
@given(STEPS)
def test_heartbeats_of_an_agent_are_five_seconds_apart(steps: list[tuple[float, list[Event], bool]]) -> None:
    watched = Watched(a1=IDLE, a2=IDLE, b1=BUSY, c1=IDLE)
    for seconds, events, is_lost in steps:
        watched.wind(seconds)
        watched.hears(*events)
        if is_lost:
            watched.beats.note_lost()
            watched.beats.note_line(watched.now_s)
            watched.beats.note_states(dict.fromkeys(SESSIONS, IDLE), watched.now_s)
            watched.look()
    for agent_id in "abc":
        times = [at_s for at_s, due in watched.sent if due.agent_id == agent_id]
        assert all(later >= earlier + MIN_GAP_S for earlier, later in itertools.pairwise(times))


@settings(max_examples=examples(40))
@given(STEPS)
def test_each_activity_is_followed_by_a_heartbeat_within_five_seconds(
    steps: list[tuple[float, list[Event], bool]],
) -> None:
    watched = Watched(a1=BUSY, a2=BUSY, b1=BUSY, c1=BUSY)
    active: list[tuple[float, str]] = []
    for seconds, events, _ in steps:
        watched.wind(seconds)
        watched.hears(*events)
        active += [
            (watched.now_s, str(members["sessionID"])[0])
            for kind, members in events
            if kind not in {"session.error", "server.heartbeat"}
        ]
    watched.wind(MIN_GAP_S)
    for at_s, agent_id in active:
        assert any(
            at_s <= sent_s <= at_s + MIN_GAP_S for sent_s, due in watched.sent if due.agent_id == agent_id
        )


def states_after(
    events: Iterable[Event], begin: dict[str, WatchedSessionState]
) -> dict[str, WatchedSessionState]:
    """Return the states of a server with these events."""
    states = dict(begin)
    for kind, members in events:
        session_id = str(members.get("sessionID"))
        if kind == "session.idle":
            states[session_id] = IDLE
        elif kind == "session.status":
            states[session_id] = IDLE if members["status"] == {"type": "idle"} else BUSY
    return states


@settings(max_examples=examples(40))
@given(st.lists(EVENTS, max_size=20), st.data())
def test_status_answer_restores_the_states_after_a_cut_stream(
    events: list[Event], data: st.DataObject
) -> None:
    """Whatever is missing between two places: the states equal those of a complete reader."""
    begin = data.draw(st.integers(0, len(events)))
    end = data.draw(st.integers(begin, len(events)))
    whole, cut = (
        Watched(**dict.fromkeys(SESSIONS, IDLE)),
        Watched(**dict.fromkeys(SESSIONS, IDLE)),
    )
    whole.hears(*events)
    cut.hears(*events[:begin])
    before = cut.beats.states()
    cut.beats.note_lost()
    cut.beats.note_line(cut.now_s)
    found = states_after(events[:end], dict.fromkeys(SESSIONS, IDLE))
    cut.beats.note_states(found, cut.now_s)
    cut.hears(*events[end:])
    assert cut.beats.states() == whole.beats.states()
    moved = {session_id[0] for session_id in SESSIONS if found[session_id] != before[session_id]}
    cut.wind(MIN_GAP_S)
    assert moved <= {due.agent_id for _, due in cut.sent}
    # From now on both are due at the same times, but for what the one has sent later than the other.
    whole.wind(INTERVAL_S + MIN_GAP_S)
    cut.wind(INTERVAL_S)
    assert {due.agent_id for _, due in whole.sent} == {due.agent_id for _, due in cut.sent} | {
        due.agent_id for _, due in whole.sent if due.cause is HeartbeatCause.ACTIVITY
    }


# ── recorded events of a real server ──

REAL_SESSION = "ses_e07c55ebcffelZcTMxD0DtKdvO"


def id_of(text: str) -> str:
    """An event's id, whose first nine digits are the time in milliseconds, without its highest bits."""
    outer = json.loads(text)
    return str(outer.get("payload", outer)["id"])


@pytest.mark.parametrize(
    ("section", "created_s", "last"),
    [
        ("GET /event", 1.687, "session.idle"),
        ("GET /global/event", 2.004, "session.idle"),
        ("GET /api/event (v2)", 1.996, "session.updated"),
    ],
)
def test_a_capture_replays_to_exactly_the_expected_heartbeats(
    section: str, created_s: float, last: str
) -> None:
    """Each event at its time: the session is created idle, and all that it does is over a second later."""
    watched = Watched(a1=ABSENT)
    watched.beats.watch("a", [REAL_SESSION], INTERVAL_S)
    watched.beats.note_states({REAL_SESSION: ABSENT}, watched.now_s)
    began_s = watched.now_s
    began_ms = None
    for message in EventStreamParser().feed(captured(section)):
        event = read_event(message.data) if message.data else None
        if event is None:
            continue
        if event.meaning is not EventMeaning.REPEAT:
            at_ms = int(id_of(message.data)[4:13], 16)
            began_ms = began_ms or at_ms
            watched.wind(began_s + (at_ms - began_ms) / 1000 - watched.now_s)
        watched.beats.note_event(event, watched.now_s)
        watched.look()
    watched.wind(began_s + 25 - watched.now_s)
    assert [(round(at_s - began_s, 3), due.cause, due.source) for at_s, due in watched.sent] == [
        (created_s, HeartbeatCause.IDLE, ""),
        (round(created_s + MIN_GAP_S, 3), HeartbeatCause.ACTIVITY, last),
    ]
    assert watched.beats.unknown_events == 0
