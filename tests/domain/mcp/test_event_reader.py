import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.properties import examples

from lifesign.domain.mcp.conversation import MAX_EVENTS
from lifesign.domain.mcp.event_reader import EventReader, ReplyReader

STREAM = b"event: endpoint\ndata: /messages\n\ndata: a\r\n\r\ndata: b\n\n: comment\n\ndata: rest"
EVENTS = [(b"endpoint", b"/messages"), (b"", b"a"), (b"", b"b")]


@settings(max_examples=examples(50))
@given(st.lists(st.integers(1, len(STREAM) - 1)))
def test_events_do_not_depend_on_how_the_stream_is_cut(cuts: list[int]) -> None:
    reader, found, at = EventReader(), [], 0
    for cut in [*sorted(cuts), len(STREAM)]:
        found += reader.feed(STREAM[at:cut])
        at = cut
    assert found == EVENTS


@pytest.mark.parametrize("end", [b"\n\n", b"\r\r", b"\r\n\r\n", b"\n\r\n", b"\r\n\n"])
@pytest.mark.parametrize("size", [1, 2, 100])
def test_event_ends_with_a_blank_line_of_any_form(end: bytes, size: int) -> None:
    reader, stream = EventReader(), b"event:x\rdata: 1" + end + b"data: 2" + end
    pieces = [stream[at : at + size] for at in range(0, len(stream), size)]
    assert [event for piece in pieces for event in reader.feed(piece)] == [(b"x", b"1"), (b"", b"2")]


@pytest.mark.parametrize(
    ("lines", "is_answer"),
    [
        (b"event: message\n", True),
        (b"event:message\r\n", True),
        (b"event\n", True),
        (b"event: other\nevent: message\n", True),
        (b"event: other\n\n", True),
        (b": event: other\nid: 7\nretry: 100\n", True),
        (b"event: result\n", False),
        (b"event: error\n", False),
        (b"event: endpoint\n", False),
        (b"event: Message\n", False),
        (b"event:  message\n", False),
        (b"event: message\nevent: other\n", False),
        (b"id: event: message\nevent: ping\n", False),
    ],
)
def test_event_of_another_name_is_no_answer(lines: bytes, *, is_answer: bool) -> None:
    event = lines + b'data: {"jsonrpc": "2.0", "id": 7, "result": {}}\n\n'
    assert ReplyReader(7).feed(event) is is_answer


def test_number_of_events_is_bounded() -> None:
    reader = EventReader()
    assert len(reader.feed(b"data: x\n\n" * (MAX_EVENTS + 5))) == MAX_EVENTS
    assert reader.feed(b"data: x\n\n") == []


def test_answer_among_other_messages_is_noticed() -> None:
    reader = ReplyReader(7)
    assert not reader.feed(b'data: {"jsonrpc": "2.0", "method": "notifications/message"}\n\n')
    assert not reader.feed(b'data: {"jsonrpc": "2.0", "id": 6, "result": {}}\n\n')
    body = json.dumps({"jsonrpc": "2.0", "id": 7, "result": {}}).encode()
    assert not reader.feed(b"data: " + body)
    assert reader.feed(b"\n\n")
