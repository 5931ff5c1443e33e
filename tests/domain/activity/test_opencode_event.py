import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.opencode_events import ENVELOPES, Envelope, captured, failed, idle, status, text_of, tool

from lifesign.domain.activity.opencode_event import (
    MAX_ERROR_CHARS,
    MAX_SESSION_ID_CHARS,
    MAX_TYPE_CHARS,
    EventMeaning,
    is_session_id,
    read_event,
    state_is_busy,
)

SESSION = "ses_1"
ACTIVITY, OTHER = EventMeaning.ACTIVITY, EventMeaning.OTHER


@pytest.mark.parametrize("envelope", ENVELOPES)
@pytest.mark.parametrize(
    ("event", "meaning", "is_busy"),
    [
        (status(SESSION, "busy"), ACTIVITY, True),
        (status(SESSION, "retry"), ACTIVITY, True),
        (status(SESSION, "idle"), ACTIVITY, False),
        (status(SESSION, "dreaming"), ACTIVITY, None),
        (idle(SESSION), ACTIVITY, False),
        (("session.updated", {"sessionID": SESSION, "info": {"id": SESSION}}), ACTIVITY, None),
        (tool(SESSION), ACTIVITY, None),
        (tool(SESSION, "running"), OTHER, None),
        (tool(SESSION, "error"), OTHER, None),
        (("message.part.updated", {"sessionID": SESSION, "part": {"type": "text"}}), ACTIVITY, None),
        (("message.part.updated", {"sessionID": SESSION, "part": {"type": "reasoning"}}), ACTIVITY, None),
        (("message.part.delta", {"sessionID": SESSION, "field": "text", "delta": "a"}), ACTIVITY, None),
        (("message.part.updated", {"sessionID": SESSION, "part": {"type": ["text"]}}), OTHER, None),
        (
            (
                "message.part.updated",
                {"sessionID": SESSION, "part": {"type": "step", "state": {"status": "completed"}}},
            ),
            OTHER,
            None,
        ),
        (("message.updated", {"sessionID": SESSION, "info": {"id": "msg_1"}}), OTHER, None),
        (("session.created", {"sessionID": SESSION}), EventMeaning.CREATED, False),
        (("session.deleted", {"sessionID": SESSION}), EventMeaning.DELETED, None),
        (failed(SESSION), EventMeaning.ERROR, None),
        (("a.later.kind", {"sessionID": SESSION}), OTHER, None),
    ],
)  # fmt: skip
def test_event_has_the_same_meaning_in_each_envelope(
    event: tuple[str, Any], meaning: EventMeaning, *, is_busy: bool | None, envelope: Envelope
) -> None:
    read = read_event(text_of(event, envelope))
    assert read is not None
    assert (read.type, read.meaning, read.session_id, read.is_busy) == (event[0], meaning, SESSION, is_busy)


@pytest.mark.parametrize(
    "members",
    [
        {"sessionID": SESSION, "info": {"id": "x"}, "part": {"sessionID": "y"}},
        {"info": {"id": SESSION}, "part": {"sessionID": "y"}},
        {"part": {"sessionID": SESSION}},
    ],
)
def test_the_session_is_named_in_one_of_three_places(members: dict[str, Any]) -> None:
    read = read_event(text_of(("session.updated", members)))
    assert read is not None
    assert read.session_id == SESSION


def test_server_heartbeat_names_no_session() -> None:
    read = read_event(text_of(("server.heartbeat", {})))
    assert read is not None
    assert (read.meaning, read.session_id) == (OTHER, None)


def test_sync_event_that_repeats_another_is_marked_as_repeat() -> None:
    repeat = {"type": "session.updated.1", "data": {"sessionID": SESSION}}
    read = read_event(json.dumps({"payload": {"type": "sync", "syncEvent": repeat}}))
    assert read is not None
    assert (read.meaning, read.session_id) == (EventMeaning.REPEAT, None)


@pytest.mark.parametrize(
    ("members", "message"),
    [
        (failed(None)[1], "UnknownError: no such model"),
        ({"error": {"name": "ProviderAuthError"}}, "ProviderAuthError"),
        ({"error": {"data": {"message": "a\nb\x1b[2J"}}}, "a b\ufffd[2J"),
        ({"error": 7}, "an error without a description"),
        ({}, "an error without a description"),
    ],
)
def test_error_is_reported_as_far_as_known(members: dict[str, Any], message: str) -> None:
    read = read_event(text_of(("session.error", members)))
    assert read is not None
    assert (read.meaning, read.error, read.session_id) == (EventMeaning.ERROR, message, None)


def test_text_of_a_server_is_shortened() -> None:
    read = read_event(text_of(("session.error", {"error": {"name": "x" * 10_000}})))
    assert read is not None
    assert len(read.error) == MAX_ERROR_CHARS
    other = read_event(text_of(("y" * 10_000, {})))
    assert other is not None
    assert len(other.type) == MAX_TYPE_CHARS


@pytest.mark.parametrize(
    "text",
    ["", "hello", "[]", "null", "{}", '{"type": 7}', '{"payload": 7}', '{"payload": []}', "[" * 99_999],
)
def test_other_json_is_no_event(text: str) -> None:
    assert read_event(text) is None


@pytest.mark.parametrize(
    "named", ["", ".", "..", "a/b", "a\\b", "a b", "\n", "\u00e9", "x" * 257, 7, None, ["a"]]
)
def test_invalid_session_id_is_ignored(named: object) -> None:
    assert not is_session_id(named)
    read = read_event(text_of(("session.idle", {"sessionID": named})))
    assert read is not None
    assert read.session_id is None


def test_printable_session_id_within_the_limit_is_valid() -> None:
    assert is_session_id("ses_e07c55ebcffelZcTMxD0DtKdvO")
    assert is_session_id("x" * MAX_SESSION_ID_CHARS)


@pytest.mark.parametrize("status", [None, "busy", [], {}, {"type": None}, {"type": {}}])
def test_unreadable_session_status_is_unknown(status: object) -> None:
    assert state_is_busy(status) is None


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=8),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["type", "payload", "properties", "data", "sessionID", "info", "id", "part", "error"]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    )
)
def test_any_json_raises_no_error(value: object) -> None:
    read = read_event(json.dumps(value))
    assert read is None or read.session_id is None or is_session_id(read.session_id)


@pytest.mark.parametrize(
    ("section", "activity", "errors"),
    [("GET /event", 12, 1), ("GET /global/event", 12, 1), ("GET /api/event (v2)", 4, 0)],
)
def test_a_real_server_is_understood_in_all_three_envelopes(section: str, activity: int, errors: int) -> None:
    data = [line[6:] for line in captured(section).decode().splitlines() if line.startswith("data: ")]
    events = [read_event(text) for text in data]
    assert None not in events
    found = [event for event in events if event is not None and event.meaning is ACTIVITY]
    assert len(found) == activity
    assert {event.session_id for event in found} == {"ses_e07c55ebcffelZcTMxD0DtKdvO"}
    items = [event.error for event in events if event is not None and event.error]
    assert [text.split(": ", 1)[0] for text in items] == ["UnknownError"] * errors
    assert all("nope/nope" in text for text in items)
