import re
from typing import Any

import pytest
from tests.support.a2a_messages import event, rpc, rpc_error, update_10

from lifesign.domain.a2a import event_search
from lifesign.domain.a2a.event_search import end_as_objects, first_other_event, suspicious_events
from lifesign.domain.parsing.event_framing import named_events

GOOD = [event(rpc(result={"kind": "message"})), b": ping\r\n\r\n", event(rpc(result=update_10("WORKING")))]
FAILED = [
    event(rpc_error(-32603)),
    event(rpc(result={"isError": True})),
    event(rpc(result=update_10("FAILED"))),
    event(rpc(result={"status": {"state": "failed"}})),
    event(rpc(result={"statusUpdate": {"status": {"state": 4}}})),
    b'data: {"\\u0065rror":1}\r\n\r\n',
    b"event: error\r\ndata: x\r\n\r\n",
    b"event:error\r\ndata: x\r\n\r\n",
]


@pytest.mark.parametrize("line_end", [b"\r\n", b"\n", b"\r"])
@pytest.mark.parametrize("failed", FAILED)
def test_event_that_may_contain_a_failure_is_found_among_others(failed: bytes, line_end: bytes) -> None:
    for events in ([*GOOD, failed, *GOOD], [failed, *GOOD, failed], [failed, failed], [*GOOD, failed]):
        found = suspicious_events(b"".join(events).replace(b"\r\n", line_end))
        expected = [failed.replace(b"\r\n", line_end)] * events.count(failed)
        assert [one.lstrip(b"\r\n") for one in found] == expected


def test_events_without_failures_are_not_suspicious() -> None:
    assert not list(suspicious_events(b"".join(GOOD) * 10))
    assert not list(suspicious_events(b""))


class CountedText(bytes):
    """Counts the bytes that searches and slices of it take."""

    steps = 0

    def rfind(self, *given: Any) -> int:
        found = super().rfind(*given)
        self.steps += given[2] - max(found, given[1])
        return found

    def find(self, *given: Any) -> int:
        raise AssertionError(given)

    def __getitem__(self, at: Any) -> Any:
        taken = super().__getitem__(at)
        self.steps += len(taken) if isinstance(taken, bytes) else 1
        return taken


class CountedPattern:
    """Counts the bytes of a CountedText that it searches."""

    def __init__(self, pattern: re.Pattern[bytes]) -> None:
        self._pattern = pattern

    def search(self, text: CountedText, at: int = 0) -> re.Match[bytes] | None:
        found = self._pattern.search(text, at)
        text.steps += (found.end() if found else len(text)) - at
        return found


@pytest.mark.parametrize("line_end", [b"\r\n", b"\n", b"\r"])
@pytest.mark.parametrize("number", [1, 63, 1000])
def test_search_takes_linear_time_for_any_number_of_matches(
    number: int, line_end: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_SIGNS", "_BLANKS"):
        counted = tuple(map(CountedPattern, getattr(event_search, name)))
        monkeypatch.setattr(event_search, name, counted)
    found, others = b'data: {"isError":false}\r\n\r\n', b"data: 1\r\n\r\n" * 20_000
    for made in (found * number + others, (found + others[:130]) * number + others, others + found * number):
        text = CountedText(made.replace(b"\r\n", line_end))
        assert len(list(suspicious_events(text))) == number
        # Six signs and three kinds of blank line, each with a search forwards or backwards.
        assert text.steps <= 14 * len(text)


@pytest.mark.parametrize("line_end", [b"\r\n", b"\n", b"\r"])
@pytest.mark.parametrize("other", [b"down", b"[DONE]", b"1", b"", b'"{}"', b" {}", b"data: {}"])
def test_first_event_whose_data_is_no_object_is_found(other: bytes, line_end: bytes) -> None:
    stream = b"".join([*GOOD, b"id: 1\r\ndata: " + other + b"\r\n\r\n", *GOOD]).replace(b"\r\n", line_end)
    found = first_other_event(stream)
    assert found is not None
    assert [data for _, data in named_events(found) if data] == ([other] if other else [])


def test_stream_of_json_objects_has_no_other_event() -> None:
    for line_end in (b"\r\n", b"\n", b"\r"):
        stream = b"".join([*GOOD, event({"text": "data: x", "metadata": "data:"})] * 3)
        stream = stream.replace(b"\r\n", line_end)
        assert first_other_event(stream) is None
        assert end_as_objects(stream)
        for cut in (b'data: {"a":' + line_end * 2, b"data: {}x" + line_end * 2):
            assert not end_as_objects(stream + cut)
            assert not end_as_objects(cut + stream)
