"""How much of a body is kept, and what is looked into? (B11)"""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.support.scripted import EVENTS, JSON, PLAIN, start

from agent_health.a2a_answer import NotJson
from agent_health.middleware.body import ShortBody, StreamedBody, content_of, header, outcome_of_body
from agent_health.outcome import Outcome

FAULT = b'{"jsonrpc":"2.0","id":1,"error":{"code":-32603}}'
EVENT = b"data: " + FAULT + b"\n\n"


@given(parts=st.lists(st.binary(max_size=20), max_size=20), most_bytes=st.integers(0, 100))
@example(parts=[b"x" * 100], most_bytes=100)
@example(parts=[b"x" * 101], most_bytes=100)
@example(parts=[b"x" * 101, b""], most_bytes=100)
@example(parts=[], most_bytes=0)
@example(parts=[b""], most_bytes=0)
@example(parts=[b"x"], most_bytes=0)
def test_a_short_body_is_kept_whole_and_a_longer_one_not_at_all(parts: list[bytes], most_bytes: int) -> None:
    body = ShortBody(most_bytes)
    for part in parts:
        body.append(part)
    whole = b"".join(parts)
    assert body.read() == (whole if len(whole) <= most_bytes else None)


@given(parts=st.lists(st.binary(max_size=40), max_size=20), most_bytes=st.integers(0, 100))
def test_never_is_more_kept_than_may_be(parts: list[bytes], most_bytes: int) -> None:
    body = ShortBody(most_bytes)
    for part in parts:
        body.append(part)
        assert sum(map(len, body._pieces)) <= most_bytes


def test_a_message_without_a_body_is_an_empty_one() -> None:
    body = ShortBody(10)
    body.append(None)
    body.append(b"x")
    assert body.read() == b"x"


def answer(headers: dict[str, str], *parts: bytes, most_bytes: int = 32_768, status: int = 200) -> Outcome:
    begin = start(status, headers)
    content = content_of(begin)
    kept = StreamedBody(begin, content, most_bytes)
    for part in parts:
        kept.append(part)
    body, is_whole = kept.read(b"")
    return outcome_of_body(begin, content, body, is_whole=is_whole)


@pytest.mark.parametrize(
    ("content_type", "is_seen"),
    [
        ("application/json", True),
        ("application/json; charset=utf-8", True),
        ("application/json;charset=utf-8", True),
        (" APPLICATION/JSON ", True),
        ("application/problem+json", True),
        ("application/a2a+json; v=1", True),
        ("text/plain", False),
        ("application/jsonl", False),
        ("application/json-seq", False),
        ("text/html; charset=utf-8", False),
        ("application/octet-stream", False),
        ("json", False),
        ("", False),
        (";", False),
    ],
)
def test_json_is_looked_into_and_nothing_else(content_type: str, is_seen: bool) -> None:  # noqa: FBT001
    seen = answer({"content-type": content_type}, FAULT)
    assert seen == (Outcome.SERVER_FAULT if is_seen else Outcome.ANSWERED)


@pytest.mark.parametrize(
    "content_type", ["text/event-stream", "text/event-stream; charset=utf-8", "Text/Event-Stream;x=y"]
)
def test_events_are_looked_into(content_type: str) -> None:
    assert answer({"content-type": content_type}, EVENT) == Outcome.SERVER_FAULT


@pytest.mark.parametrize("parts", [[EVENT], [EVENT[:9], EVENT[9:]], [b": ping\n\n"] * 1000 + [EVENT]])
def test_the_end_of_a_stream_is_kept(parts: list[bytes]) -> None:
    assert answer(EVENTS, *parts) == Outcome.SERVER_FAULT


@given(parts=st.lists(st.sampled_from([b"x" * 1000, EVENT, b"\n\n", b": ping\n\n"]), max_size=60))
def test_of_a_stream_only_its_last_messages_are_kept(parts: list[bytes]) -> None:
    body = StreamedBody(start(headers=EVENTS), "events", 100)
    for part in parts:
        body.append(part)
    kept: Any = body._kept
    assert len(kept) <= 16


@pytest.mark.parametrize(("declared", "is_whole"), [("6", True), ("7", False), ("x", False), ("", False)])
def test_an_answer_is_whole_if_it_is_as_long_as_declared(declared: str, is_whole: bool) -> None:  # noqa: FBT001
    body = StreamedBody(start(headers={"content-length": declared}), "other", 100)
    body.append(b"abc")
    body.append(None)
    assert body.is_as_long_as_declared(b"def") is is_whole


def test_a_stream_whose_kept_end_holds_no_whole_event_was_not_inspected() -> None:
    assert answer(EVENTS, b"data: " + b"x" * 200, EVENT, most_bytes=20) == Outcome.UNINSPECTED


@pytest.mark.parametrize("headers", [JSON, EVENTS])
@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd", "gzip, identity", "x"])
def test_what_is_encoded_was_not_inspected(headers: dict[str, str], encoding: str) -> None:
    assert answer(headers | {"content-encoding": encoding}, FAULT) == Outcome.UNINSPECTED


@pytest.mark.parametrize("encoding", ["", "identity"])
def test_what_is_not_encoded_was(encoding: str) -> None:
    assert answer(JSON | {"content-encoding": encoding}, FAULT) == Outcome.SERVER_FAULT


@pytest.mark.parametrize("status", [201, 202, 203, 204, 205, 206])
def test_only_a_200_must_have_a_body(status: int) -> None:
    assert answer(JSON, status=status) == Outcome.ANSWERED
    with pytest.raises(NotJson):
        answer(JSON)


def test_what_is_no_json_is_told() -> None:
    with pytest.raises(NotJson):
        answer(JSON, b"<html>")
    with pytest.raises(NotJson):
        answer(EVENTS, b"data: <html>\n\n")


@pytest.mark.parametrize("headers", [PLAIN, {}, {"content-type": "text/html; charset=utf-8"}])
def test_text_and_what_has_no_type_claims_to_be_nothing_that_is_looked_into(headers: dict[str, str]) -> None:
    assert content_of(start(headers=headers)) == "other"
    assert content_of({"type": "http.response.start", "status": 200}) == "other"


@pytest.mark.parametrize("name", ["content-type", "Content-Type", "CONTENT-TYPE"])
@pytest.mark.parametrize(
    ("value", "content"), [("application/json", "json"), ("text/event-stream", "events")]
)
def test_a_type_is_found_however_its_header_is_written(name: str, value: str, content: str) -> None:
    assert content_of(start(headers={name: value})) == content


def test_a_header_is_found_and_the_first_one_counts() -> None:
    pairs = [(b"a", b"1"), (b"b", b"2"), (b"b", b"3")]
    message = {"type": "http.response.start", "status": 200, "headers": pairs}
    assert [header(message, name) for name in (b"a", b"b", b"c")] == [b"1", b"2", b""]
    as_lists = {**message, "headers": [list(pair) for pair in pairs]}
    assert header(as_lists, b"b") == b"2"


@given(
    document=st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=8,
    ),
    cuts=st.lists(st.integers(0, 60), max_size=5),
)
def test_how_an_answer_is_cut_into_messages_changes_nothing(document: object, cuts: list[int]) -> None:
    whole = json.dumps(document).encode()
    edges = [0, *sorted(min(cut, len(whole)) for cut in cuts), len(whole)]
    parts = [whole[begin:end] for begin, end in pairwise(edges)]
    assert answer(JSON, *parts) == answer(JSON, whole)
