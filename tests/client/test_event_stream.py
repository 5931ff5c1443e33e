import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifesign.client import event_stream
from lifesign.client.event_stream import MAX_LINE_BYTES, MAX_MESSAGE_BYTES, EventStreamParser, Message
from lifesign.client.registry_errors import InvalidAnswer

STREAM = b": hello\nid: 7\n\nid:8\nevent: x\ndata: {\ndata:  \xc3\xa9}\n\ndata\n\nretry: 2500\nelse: 1\n\n"
MESSAGES = [Message("", "7"), Message("{\n \u00e9}", "8"), Message("", "8"), Message("", "8")]


def parsed(*pieces: bytes) -> list[Message]:
    parser = EventStreamParser()
    return [message for piece in pieces for message in parser.feed(piece)]


@pytest.mark.parametrize("ending", [b"\n", b"\r", b"\r\n"])
@given(cuts=st.lists(st.integers(0, 120), max_size=12))
def test_chunks_and_line_ends_do_not_change_the_events(ending: bytes, cuts: list[int]) -> None:
    stream = STREAM.replace(b"\n", ending)
    places = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    assert parsed(*(stream[begin:end] for begin, end in itertools.pairwise(places))) == MESSAGES


def test_stream_of_single_bytes_is_read() -> None:
    stream = STREAM.replace(b"\n", b"\r\n")
    assert parsed(*(stream[place : place + 1] for place in range(len(stream)))) == MESSAGES


def test_lines_may_end_in_different_ways_in_one_stream() -> None:
    assert parsed(b"data: 1\r\rdata: 2\r", b"\n\ndata: 3\n\n") == [
        Message("1", ""), Message("2", ""), Message("3", ""),
    ]  # fmt: skip


def test_incomplete_message_is_not_delivered() -> None:
    assert parsed(b"data: 1\n") == []


def test_a_byte_order_mark_counts_only_at_the_beginning() -> None:
    mark = "\ufeff".encode()
    assert parsed(mark + b"data: 1\n\n" + mark + b"data: 2\n\n") == [Message("1", ""), Message("", "")]


def test_id_with_a_null_character_is_ignored() -> None:
    assert parsed(b"id: 3\n\nid: 4\0\n\n") == [Message("", "3"), Message("", "3")]


def test_each_complete_line_is_a_liveness_signal() -> None:
    parser = EventStreamParser()
    counts = []
    for piece in (b": hea", b"rtbeat\r", b"\n\n", b"data", b": 1"):
        parser.feed(piece)
        counts.append(parser.lines)
    assert counts == [0, 1, 2, 2, 2]


def test_retry_field_of_a_stream_is_read() -> None:
    parser = EventStreamParser()
    parser.feed(b"retry: 2500\nretry: soon\n")
    assert parser.retry_ms == 2500


@pytest.mark.parametrize(
    "piece",
    [
        b"data: " + b"x" * 65_536,
        b"data: " + b"x" * 65_536 + b"\n",
        b"data\n" * 13_108,
        b"data:\r\n" * 10_923,
        b":\n" * 32_768,
        b": sign of life\n" * 4_370,
        b"id: 1\n" * 10_923,
        b"x\n" * 32_768,
    ],
    ids=lambda piece: f"{piece[:12]!r}",
)
def test_endless_line_or_message_is_discarded(piece: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "MAX_MESSAGE_BYTES", MAX_LINE_BYTES)
    parser = EventStreamParser()
    with pytest.raises(InvalidAnswer):
        feed_often(parser, piece, MAX_LINE_BYTES // 65_536 + 8)


def feed_often(parser: EventStreamParser, piece: bytes, times: int) -> None:
    for _ in range(times):
        parser.feed(piece)


def test_comments_do_not_count_towards_the_message_size() -> None:
    parser = EventStreamParser()
    feed_often(parser, b": " + b"x" * 65_536 + b"\n\n", 2 * MAX_MESSAGE_BYTES // 65_536)


def test_empty_lines_give_no_message() -> None:
    assert parsed(b"\n" * 1_000, b"data: 1\n\n\n\n") == [Message("1", "")]


def test_line_of_the_maximum_size_is_accepted() -> None:
    value = b"x" * (MAX_LINE_BYTES - len(b"data: "))
    assert parsed(b"data: " + value + b"\n\n") == [Message(value.decode(), "")]
