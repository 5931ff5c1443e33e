"""Events that need no parsing, since one like them was read before."""

import re
from collections.abc import Callable
from itertools import pairwise
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.a2a_messages import (
    artifact,
    event,
    event_of,
    rpc,
    rpc_error,
    task_0x,
    task_10,
    update_10,
)
from tests.support.a2a_messages import (
    read_pieces as read,
)

from lifesign.domain.a2a import event_shape, response_outcome
from lifesign.domain.a2a.event_shape import MAX_SHAPED_BYTES, has_shape
from lifesign.domain.a2a.stream_outcome import EventStreamReader
from lifesign.domain.health.outcome import Outcome

ANSWERED = Outcome.ANSWERED
FAULT = Outcome.SERVER_FAULT
KIB = 1024


SHAPED: dict[str, Callable[[str], bytes]] = {
    "1.0": artifact,
    "1.0 state": lambda text: event(rpc(result=update_10("WORKING") | {"text": text})),
    "0.x": lambda text: event(
        rpc(result={"append": False, "artifact": {"parts": [{"text": text}]}, "kind": "a"})
    ),
    "REST": lambda text: event({"artifactUpdate": {"artifact": {"parts": [{"text": text}]}}}),
    "LF": lambda text: artifact(text).replace(b"\r\n", b"\n"),
    "result first": lambda text: event(
        {"result": {"artifactUpdate": {"text": text}}, "id": "1", "jsonrpc": "2.0"}
    ),
}
"""Events that change nothing, as the SDKs write them."""


def shape_after(*pieces: bytes, max_event_bytes: int = 1024 * KIB) -> Any:
    reader = EventStreamReader(max_event_bytes)
    for piece in pieces:
        reader.append(piece)
    return reader.shape


@pytest.mark.parametrize("spelling", SHAPED)
def test_events_that_differ_only_in_text_have_the_same_shape(spelling: str) -> None:
    shape = shape_after(SHAPED[spelling]("one"))
    assert shape is not None
    assert has_shape(shape, SHAPED[spelling]("another"))
    assert has_shape(shape, SHAPED[spelling]('with \\ and " and \u00e9'))


DECIDING = [
    event(rpc_error(-32603)),
    event(rpc(result=update_10("FAILED"))),
    event(rpc(result=task_10("FAILED"))),
    event(rpc(result=task_0x("failed"))),
    event(update_10("FAILED")),
    event({"error": {"code": 500}}),
    event(rpc(error={"code": 1}, result=None)),
    event_of("down", "error"),
    event(rpc(result={"isError": True})),
]


@pytest.mark.parametrize("spelling", SHAPED)
@pytest.mark.parametrize("deciding", DECIDING)
def test_event_that_decides_the_outcome_never_matches_a_harmless_shape(
    spelling: str, deciding: bytes
) -> None:
    harmless = SHAPED[spelling]("...")
    shape = shape_after(harmless)
    for line_end in (b"\r\n", b"\n"):
        last = deciding.replace(b"\r\n", line_end)
        for piece in (
            last,
            harmless + last,
            harmless + last + harmless,
            harmless[:-2] + last,
            last + harmless,
        ):
            assert not has_shape(shape, piece)


def hidden_behind_cr(harmless: bytes, line_end: bytes) -> bytes:
    """Two events in one piece, the second an error. The piece begins and ends as the first does."""
    line_ends = b"\r\n\r\n" if harmless.endswith(b"\r\n\r\n") else b"\n\n"
    data = harmless.removesuffix(line_ends)
    closing = data[len(data.rstrip(b"}]")) :]
    opening = closing.translate(bytes.maketrans(b"}]", b"{["))[::-1].replace(b"{", b'{"a":')
    error = b'data: {"jsonrpc":"2.0","error":' + opening.removeprefix(b'{"a":') + b"1" + closing
    return data + line_end + error + line_ends


@pytest.mark.parametrize("spelling", SHAPED)
@pytest.mark.parametrize("line_end", [b"\r\r", b"\r\revent: error\r", b"\rdata: 1\r\r"])
def test_carriage_return_hides_no_event_behind_a_harmless_one(spelling: str, line_end: bytes) -> None:
    harmless = SHAPED[spelling]("...")
    shape = shape_after(harmless)
    piece = hidden_behind_cr(harmless, line_end)
    assert read(piece).outcome is FAULT
    assert (piece[shape[0]], piece[shape[2]]) == (shape[1], shape[3])
    assert not has_shape(shape, piece)


@pytest.mark.parametrize(
    "harmless",
    [
        {"status": {"state": "ok"}, "text": {}},
        {"artifact": {"parts": []}, "text": {}},
        {"status": {"state": "ok"}, "error": None},
        {"statusUpdate": {"status": {"state": "ok"}}, "error": None},
        {"artifactUpdate": {"artifact": {}}, "error": None},
        rpc(result={"status": {"state": "working"}, "isError": False, "x": {}}),
    ],
)
def test_event_that_may_contain_an_error_has_no_shape(harmless: Any) -> None:
    assert shape_after(event(harmless)) is None
    failed = harmless | {"error": {"code": 500}}
    assert read(event(harmless), event(failed)).outcome is FAULT


def test_part_of_an_event_has_no_shape() -> None:
    whole = artifact()
    shape = shape_after(whole)
    assert shape is not None
    for cut in range(1, len(whole)):
        assert not has_shape(shape, whole[:cut])
        assert not has_shape(shape, whole[cut:])
        # The rest must be read together with the next chunk.
        assert shape_after(whole, whole[:cut]) is None


def test_event_above_the_size_limit_matches_no_shape() -> None:
    shape = shape_after(artifact())
    room = MAX_SHAPED_BYTES - len(artifact(""))
    assert has_shape(shape, artifact("x" * room))
    for more in range(1, 12):
        assert not has_shape(shape, artifact("x" * (room + more)))
    assert shape_after(artifact(), max_event_bytes=MAX_SHAPED_BYTES - 1) is None


def test_after_a_failed_task_no_event_is_skipped() -> None:
    working = event(rpc(result=update_10("WORKING")))
    assert shape_after(working) is not None
    assert shape_after(working, event(rpc(result=update_10("FAILED")))) is None
    assert shape_after(working, event(rpc(result=update_10("FAILED"))), working) is None
    assert read(event(rpc(result=update_10("FAILED"))), working).outcome is ANSWERED


EVENTS = st.sampled_from([*(make("...") for make in SHAPED.values()), *DECIDING, b": ping\r\n\r\n"])


@given(st.lists(EVENTS, max_size=12), st.lists(st.integers(0, 3000), max_size=6))
def test_skipping_events_of_a_known_shape_does_not_change_the_outcome(
    events: list[bytes], cuts: list[int]
) -> None:
    """Also where the messages that arrive are cut at other places than the events."""
    stream = b"".join(events)
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    for pieces in (events, [stream[begin:end] for begin, end in pairwise(edges)]):
        reader = EventStreamReader(1024 * KIB)
        for piece in pieces:
            if reader.shape is None or not has_shape(reader.shape, piece):
                reader.append(piece)
        assert reader.end() == read(stream)


@pytest.mark.parametrize("module", [event_shape, response_outcome])
def test_no_group_has_a_possessive_repeat(module: ModuleType) -> None:
    # `re` of Python before 3.11.5, such as that of Debian 12, misreads it.
    patterns = [each.pattern for each in vars(module).values() if isinstance(each, re.Pattern)]
    assert patterns
    assert [pattern for pattern in patterns if re.search(rb"\)[*+?]\+", pattern)] == []
