import pytest

from lifesign.domain.parsing.event_framing import (
    end_of_first_event,
    end_of_last_event,
    named_events,
)

ENDS = [b"\n\n", b"\r\r", b"\r\n\r\n", b"\n\r\n", b"\r\n\n"]


@pytest.mark.parametrize("end", ENDS)
def test_blank_line_ends_an_event(end: bytes) -> None:
    first, second = b"data: 1" + end, b"event: error\ndata: 2" + end
    assert end_of_first_event(first + second) == len(first)
    assert end_of_last_event(b"", first + second + b"data: 3") == len(first + second)
    assert end_of_last_event(b"", first + second) == len(first + second)
    assert list(named_events(first + second)) == [(b"", b"1"), (b"error", b"2")]


@pytest.mark.parametrize("piece", [b"", b"data: 1", b"data: 1\n", b"data: 1\r\n", b"\r\nx"])
def test_piece_without_a_blank_line_ends_no_event(piece: bytes) -> None:
    assert end_of_last_event(b"", piece) == 0


def test_blank_line_may_be_cut_in_two() -> None:
    assert end_of_last_event(b"\n", b"\ndata") == 1
    assert end_of_last_event(b"\r", b"\rdata") == 1
    assert end_of_last_event(b"\r", b"\ndata") == 0


def test_event_without_data_is_ignored() -> None:
    stream = b"\xef\xbb\xbfdata: 1\n\nevent: x\n\n: note\n\nid: 1\nretry: 2\n\ndata: 2"
    assert list(named_events(stream)) == [(b"", b"1")]


def test_last_name_of_an_event_counts_for_this_event_only() -> None:
    stream = b"event: a\nevent:b\ndata: 1\n\nevent: c\n\ndata: 2\nevent\n\n"
    assert list(named_events(stream)) == [(b"b", b"1"), (b"", b"2")]
