"""Answer bodies: what they claim, and how much of them is kept and read (B11)."""

import json
import subprocess
import sys
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.support.scripted import EVENTS, JSON, PLAIN, call, start

from lifesign.domain.a2a.response_outcome import MAX_CALL_BYTES, OTHER_JSON, UNKNOWN_BODY, JsonAnswer
from lifesign.domain.health.inspection import Inspection
from lifesign.domain.health.outcome import Outcome
from lifesign.domain.parsing.bounded_json import NotJson
from lifesign.middleware import body as body_module
from lifesign.middleware.body import (
    EventsBody,
    JsonBody,
    KeptBytes,
    RequestBody,
    StreamedBody,
    content_of,
    header,
    is_compressed,
    read_json,
)

FAULT = b'{"jsonrpc":"2.0","id":1,"error":{"code":-32603}}'
EVENT = b"data: " + FAULT + b"\n\n"


MEBIBYTE = 1 << 20


@pytest.fixture(autouse=True)
def kept(monkeypatch: pytest.MonkeyPatch) -> KeptBytes:
    """The bytes kept for inspection by one test."""
    counter = KeptBytes()
    monkeypatch.setattr(body_module, "KEPT", counter)
    return counter


def json_body(parts: list[bytes], max_bytes: int) -> JsonBody:
    body = JsonBody(max_bytes)
    for part in parts:
        body.append(part)
        assert body_module.KEPT.held == len(body._bytes) <= max_bytes
    return body


@given(parts=st.lists(st.binary(max_size=20), max_size=20), max_bytes=st.integers(0, 100))
@example(parts=[b"x" * 100], max_bytes=100)
@example(parts=[b"x" * 101], max_bytes=100)
@example(parts=[b"x" * 101, b""], max_bytes=100)
@example(parts=[], max_bytes=0)
@example(parts=[b"x"], max_bytes=0)
def test_json_body_is_kept_completely_or_not_at_all(parts: list[bytes], max_bytes: int) -> None:
    body = json_body(parts, max_bytes)
    whole = b"".join(parts)
    if len(whole) <= max_bytes:
        assert (bytes(body._bytes), body.missed) == (whole, None)
    else:
        assert (bytes(body._bytes), body.missed) == (b"", Inspection.OVERSIZED)
        assert body.read(b"{}") is Inspection.OVERSIZED
    body.close()
    assert body_module.KEPT.held == 0


def test_last_chunk_counts_towards_the_size_limit() -> None:
    body = json_body([b'{"a":'], 8)
    assert body.read(b"10}") is OTHER_JSON
    assert body.read(b"100}") is Inspection.OVERSIZED


def test_bytes_of_all_bodies_together_are_bounded(kept: KeptBytes) -> None:
    kept.max_bytes = 100
    one, other = JsonBody(MEBIBYTE), EventsBody(MEBIBYTE)
    one.append(b'{"a":"' + b"x" * 54)
    other.append(b"data: " + b"x" * 34)
    assert kept.held == 100
    one.append(b"y")
    assert one.read(b'"}') is Inspection.NO_ROOM
    assert kept.held == 40
    other.append(b"x" * 61)
    assert kept.held == 0
    assert other.end(b"\n\n").missed is Inspection.NO_ROOM
    one.close()
    other.close()
    assert kept.held == 0
    # There is room again.
    third = json_body([b"[1,", b"2"], 100)
    assert third.read(b"]") is OTHER_JSON


def test_process_keeps_at_most_64_mebibytes_of_bodies() -> None:
    assert KeptBytes().max_bytes == 64 * MEBIBYTE
    bodies = [JsonBody(16 * MEBIBYTE) for _ in range(5)]
    for body in bodies:
        body.append(b"x" * 16 * MEBIBYTE)
    assert [body.missed for body in bodies] == [None] * 4 + [Inspection.NO_ROOM]


def test_forked_child_starts_with_zero_kept_bytes() -> None:
    code = (
        "import os, sys; from lifesign.middleware.body import KEPT; KEPT.take(1000); child = os.fork();"
        "os._exit(KEPT.held) if not child else sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("size", [1, 1000, 70_000])
def test_stream_keeps_one_event_at_most(kept: KeptBytes, size: int) -> None:
    body = EventsBody(2 * MEBIBYTE)
    event = b'data: {"a":"%s"}\n\n' % (b"x" * MEBIBYTE)
    for _ in range(20):
        for at in range(0, len(event), max(size, 1000)):
            body.append(event[at : at + max(size, 1000)])
            assert kept.held <= len(event)
        assert kept.held == 0
    for at in range(3000):
        body.append(event[at : at + size])
        assert kept.held <= 2 * MEBIBYTE
    body.close()
    assert kept.held == 0


# --- requests ---------------------------------------------------------------------------------------------


def request_body(*parts: bytes) -> RequestBody:
    body = RequestBody()
    for part in parts:
        body.append(part)
        assert len(body._beginning) + len(body._end) <= 2 * MAX_CALL_BYTES
    return body


@pytest.mark.parametrize("size", [1, 3, 7, 8, 9, 100, 10_000])
def test_second_method_of_a_call_is_found_for_any_chunks(size: int) -> None:
    text = b'"text":"%s"' % (b"x" * 3000)
    whole = b'{"jsonrpc":"2.0","id":1,"method":"tasks/get",%s,"method":"message/send",%s,"a":{}}' % (
        text,
        text,
    )
    for body, expected in (
        (whole, None),
        (whole.replace(b'"method":"message', b'"mode":"message'), "tasks/get"),
    ):
        parts = [body[at : at + size] for at in range(0, len(body), size)]
        known: Any = request_body(*parts).call()
        assert known.get("method") == expected


@pytest.mark.parametrize("size", [1, 7, 511, 512, 513, 10_000])
def test_method_of_a_call_is_found_for_any_chunks(size: int) -> None:
    for length in (10, 600, 5000):
        whole = call("GetTask", params={"text": "x" * length})["body"]
        parts = [whole[at : at + size] for at in range(0, len(whole), size)]
        known: Any = request_body(*parts).call()
        assert known["method"] == "GetTask"
        assert known["jsonrpc"] == "2.0"


def test_long_uploads_are_not_searched() -> None:
    """A search takes 1 ms per MiB, which only a call is worth, and only up to the second name."""
    name = b'"method"'
    for first in (b"x", b"[", b"\xef\xbb\xbf{"):
        assert request_body(first, *([name] * 9))._names == 0
    for first in (b"", b" ", b"\n\t "):
        assert request_body(first, b"{", *([name] * 9))._names == 2


def test_body_that_is_no_call_is_unknown() -> None:
    assert request_body().call() is None
    assert request_body(b"text").call() is None
    assert request_body(b"x" * 5000).call() is UNKNOWN_BODY
    assert request_body(b"x" * 3000, b"y" * 3000).call() is UNKNOWN_BODY


# --- answers ----------------------------------------------------------------------------------------------


def answer(headers: dict[str, str], *parts: bytes, max_bytes: int = 32_768, status: int = 200) -> Outcome:
    begin = start(status, headers)
    body = StreamedBody(begin, "GET", content_of(begin), max_bytes)
    for part in parts:
        body.append(part)
    if body.kept is None:
        return Outcome.NOT_INSPECTED if is_compressed(begin) else Outcome.ANSWERED
    if isinstance(body.kept, JsonBody):
        read = body.kept.read(b"")
        return read.outcome if isinstance(read, JsonAnswer) else Outcome.NOT_INSPECTED
    return body.kept.end(b"").outcome


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
def test_only_json_is_inspected(content_type: str, is_seen: bool) -> None:  # noqa: FBT001
    seen = answer({"content-type": content_type}, FAULT)
    assert seen == (Outcome.SERVER_FAULT if is_seen else Outcome.ANSWERED)


@pytest.mark.parametrize(
    "content_type", ["text/event-stream", "text/event-stream; charset=utf-8", "Text/Event-Stream;x=y"]
)
def test_events_are_inspected(content_type: str) -> None:
    assert answer({"content-type": content_type}, EVENT) == Outcome.SERVER_FAULT


@pytest.mark.parametrize("parts", [[EVENT], [EVENT[:9], EVENT[9:]], [b": ping\n\n"] * 1000 + [EVENT]])
def test_the_end_of_a_stream_is_kept(parts: list[bytes]) -> None:
    assert answer(EVENTS, *parts) == Outcome.SERVER_FAULT


@pytest.mark.parametrize(("declared", "is_complete"), [("6", True), ("7", False), ("x", False), ("", False)])
def test_answer_is_complete_if_it_has_its_declared_length(declared: str, is_complete: bool) -> None:  # noqa: FBT001
    body = StreamedBody(start(headers={"content-length": declared}), "GET", "other", 100)
    body.append(b"abc")
    body.append(b"")
    assert body.is_as_long_as_declared(b"def") is is_complete


def test_a_stream_with_a_longer_event_was_not_inspected() -> None:
    good = b'data: {"a":1}\n\n'
    assert (
        answer(EVENTS, good, b"data: " + b"x" * 200 + b"\n\n", good, max_bytes=100) == Outcome.NOT_INSPECTED
    )


@pytest.mark.parametrize("headers", [JSON, EVENTS])
@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd", "gzip, identity", "x"])
def test_encoded_answer_is_not_inspected(headers: dict[str, str], encoding: str) -> None:
    assert answer(headers | {"content-encoding": encoding}, FAULT) == Outcome.NOT_INSPECTED


@pytest.mark.parametrize("encoding", ["", "identity"])
def test_unencoded_answer_is_inspected(encoding: str) -> None:
    assert answer(JSON | {"content-encoding": encoding}, FAULT) == Outcome.SERVER_FAULT


@pytest.mark.parametrize("status", [199, 301, 403, 500])
@pytest.mark.parametrize("headers", [JSON, EVENTS])
def test_body_is_not_kept_if_the_status_decides(status: int, headers: dict[str, str]) -> None:
    begin = start(status, headers)
    assert StreamedBody(begin, "GET", content_of(begin), 100).kept is None


def test_invalid_json_is_reported() -> None:
    for body in (b"<html>", b"", b" "):
        with pytest.raises(NotJson):
            read_json(body, 100)


@pytest.mark.parametrize("headers", [PLAIN, {}, {"content-type": "text/html; charset=utf-8"}])
def test_text_and_untyped_answers_are_not_inspected(headers: dict[str, str]) -> None:
    assert content_of(start(headers=headers)) == "other"
    assert content_of({"type": "http.response.start", "status": 200}) == "other"


@pytest.mark.parametrize("name", ["content-type", "Content-Type", "CONTENT-TYPE"])
@pytest.mark.parametrize(
    ("value", "content"),
    [
        ("application/json", "json"),
        ("text/json", "json"),
        ("application/json, application/json", "json"),
        ("text/event-stream", "events"),
    ],
)
def test_content_type_is_found_in_each_header_spelling(name: str, value: str, content: str) -> None:
    assert content_of(start(headers={name: value})) == content


def test_first_header_of_a_name_is_returned() -> None:
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
def test_chunks_of_an_answer_do_not_change_its_classification(document: object, cuts: list[int]) -> None:
    whole = json.dumps(document).encode()
    edges = [0, *sorted(min(cut, len(whole)) for cut in cuts), len(whole)]
    parts = [whole[begin:end] for begin, end in pairwise(edges)]
    assert answer(JSON, *parts) == answer(JSON, whole)
