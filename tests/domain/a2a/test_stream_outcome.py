"""Event streams of A2A and MCP, read one event at a time (B11; protocol.md section 2)."""

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.support.a2a_messages import (
    artifact,
    event,
    event_of,
    rpc,
    rpc_error,
    streamed,
    task_0x,
    task_10,
    update_10,
)
from tests.support.a2a_messages import (
    read_pieces as read,
)

from lifesign.domain.a2a import stream_outcome
from lifesign.domain.a2a.stream_outcome import (
    EventStreamReader,
    StreamEnd,
    read_event_stream,
)
from lifesign.domain.health.inspection import Inspection
from lifesign.domain.health.outcome import Outcome
from lifesign.domain.parsing.bounded_json import MAX_MARKS

FAILED = Outcome.TASK_FAILED
ANSWERED = Outcome.ANSWERED
FAULT = Outcome.SERVER_FAULT
KIB = 1024


def test_a_rest_error_event_holds_an_http_status() -> None:
    def outcome_of(code: int) -> Outcome:
        return streamed(event({"error": {"code": code, "status": "?"}}, "error"))

    assert outcome_of(400) is Outcome.CALLER_FAULT
    assert outcome_of(403) is Outcome.NOT_ADMITTED
    assert outcome_of(404) is Outcome.CALLER_FAULT
    assert outcome_of(429) is Outcome.RATE_LIMITED
    assert outcome_of(500) is Outcome.SERVER_FAULT
    assert outcome_of(503) is Outcome.SERVER_FAULT


@pytest.mark.parametrize("data", ["", "down", "{", "null", "[]", '{"code": -32602}', '{"error": null}'])
def test_an_error_event_without_a_code_is_the_agents_fault(data: str) -> None:
    assert streamed(event_of(data, "error")) is Outcome.SERVER_FAULT


def test_an_error_in_the_data_needs_no_event_name() -> None:
    assert streamed(event(rpc(result=task_0x("working"))), event(rpc_error(-32603))) is Outcome.SERVER_FAULT
    assert streamed(event({"error": {"code": 500, "status": "INTERNAL"}})) is Outcome.SERVER_FAULT


def test_event_name_applies_to_one_event_only() -> None:
    assert streamed(b"event: error\n\n", event(rpc(result=task_0x("completed")))) is ANSWERED
    assert streamed(event(task_10("WORKING"), "status"), event(task_10("COMPLETED"))) is ANSWERED


@pytest.mark.parametrize("line_end", ["\n", "\r", "\r\n"])
def test_lines_end_in_any_of_the_three_ways(line_end: str) -> None:
    assert streamed(event(rpc_error(-32001), "error", line_end)) is Outcome.CALLER_FAULT
    assert streamed(event(rpc(result=update_10("FAILED")), line_end=line_end)) is FAILED


def test_data_may_be_spread_over_many_lines_as_the_rest_binding_of_03_does() -> None:
    spread = "\r\n".join("data: " + line for line in json.dumps(update_10("FAILED"), indent=2).split("\n"))
    assert streamed(spread.encode() + b"\r\n\r\n") is FAILED


def test_space_after_the_colon_of_an_event_field_is_optional() -> None:
    assert streamed(event(rpc_error(-32001)).replace(b"data: ", b"data:")) is Outcome.CALLER_FAULT


def test_comments_ids_and_retry_fields_do_not_change_the_outcome() -> None:
    ping = b": ping - 2026-11-20 09:11:44\r\n\r\n"
    failed = b"id: 7\r\nretry: 100\r\n: between\r\nunknown: {\r\n" + event(rpc(result=update_10("FAILED")))
    assert streamed(ping, failed, ping, ping) is FAILED
    assert streamed(ping) is ANSWERED


def test_empty_stream_counts_as_answered() -> None:
    assert read_event_stream(b"") == StreamEnd(ANSWERED)


def test_stream_records_whether_it_had_an_event() -> None:
    for nothing in (b"", b": ping\n\n", b"retry: 100\n\n", b"event: error\n\n", b"data: {}\n"):
        assert not read_event_stream(nothing).has_events
    assert read_event_stream(event({})).has_events
    skipped = EventStreamReader(10)
    skipped.append(event_of("12345678901"))
    assert skipped.end().has_events


def test_event_with_empty_data_counts_as_answered() -> None:
    assert read_event_stream(b"id: 1\ndata: \n\n") == StreamEnd(ANSWERED, has_events=True)


def test_event_data_that_is_not_json_is_reported() -> None:
    done = StreamEnd(ANSWERED, has_other_data=True, has_events=True)
    assert read_event_stream(event_of("[DONE]")) == done
    mixed = event_of("[DONE]") + event(rpc(result={}))
    assert read_event_stream(mixed) == replace(done, is_rpc=True)
    deep = StreamEnd(Outcome.NOT_INSPECTED, Inspection.COMPLEX, has_events=True)
    assert read_event_stream(event_of("[" * 15_000)) == deep
    assert read_event_stream(event_of("[" * 200_000)) == deep


def test_data_that_is_no_json_hides_no_error_after_it() -> None:
    assert streamed(event_of("hello"), event(rpc_error(-32603), "error")) is Outcome.SERVER_FAULT
    assert streamed(event_of("hello"), event(rpc_error(-32001))) is Outcome.CALLER_FAULT


def test_error_beside_a_method_counts_outside_mcp() -> None:
    fault = event(rpc(method="SendMessage", error={"code": -32603}))
    failed = event(rpc(method="SendMessage", result=task_0x("failed")))
    notice = event({"jsonrpc": "2.0", "method": "notifications/progress"})
    assert streamed(fault) is FAULT
    assert streamed(notice, failed, notice) is FAILED
    for cut in (0, 2):
        reader = EventStreamReader(KIB, is_mcp=True)
        reader.append((notice + fault + failed)[: -cut or None])
        assert reader.end() == StreamEnd(ANSWERED, is_rpc=True, has_events=True)


@pytest.mark.parametrize("is_mcp", [True, False])
def test_worst_answer_of_a_batch_decides_wherever_it_stands(*, is_mcp: bool) -> None:
    good, notice = rpc(result=update_10("COMPLETED")), rpc(method="notifications/progress")
    failed, fault, refused = rpc(result=update_10("FAILED")), rpc_error(-32603), rpc_error(-32602)
    request = rpc(method="ping", error={"code": -32603})
    cases = [
        ([good, failed], FAILED),
        ([good, refused, failed], FAILED),
        ([refused, fault, failed], FAULT),
        ([good, refused], Outcome.CALLER_FAULT),
        ([good, rpc_error(-32601)], ANSWERED),
        ([good, notice], ANSWERED),
        ([request, good], ANSWERED if is_mcp else FAULT),
        ([rpc(result={"content": []}), rpc(result={"content": [], "isError": True})], Outcome.TOOL_ERROR),
    ]
    for members, outcome in cases:
        for batch in (members, members[::-1], [7, None, *members, {"a": 1}]):
            reader = EventStreamReader(KIB * KIB, is_mcp=is_mcp)
            reader.append(event(batch))
            assert reader.end().outcome is outcome, batch


@pytest.mark.parametrize(("missing", "outcome"), [(1, FAILED), (2, FAILED), (3, ANSWERED), (60, ANSWERED)])
def test_failure_in_an_unterminated_last_event_counts(missing: int, outcome: Outcome) -> None:
    completed, failed = (
        event(rpc(result=update_10(state)), line_end="\n") for state in ("COMPLETED", "FAILED")
    )
    assert streamed(completed, failed) is FAILED
    assert streamed(completed, failed[:-missing]) is outcome


def test_error_in_an_unterminated_last_event_counts() -> None:
    error = event(rpc_error(-32603), line_end="\n")
    assert streamed(artifact(), error[:-1]) is FAULT
    assert streamed(artifact(), error[:-2]) is FAULT
    assert streamed(artifact(), artifact()[:-1]) is ANSWERED


# --- one event at a time ----------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 16, 17, 1000])
@pytest.mark.parametrize("fault", [event(rpc_error(-32603)), event_of("down", "error")])
def test_error_decides_for_any_number_of_later_events(count: int, fault: bytes) -> None:
    heartbeats = [b": ping\r\n\r\n", event(rpc(result=update_10("WORKING"))), artifact()]
    assert read(artifact(), fault, *(heartbeats * count)).outcome is FAULT


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64])
@pytest.mark.parametrize("line_end", ["\r\n", "\n", "\r"])
@pytest.mark.parametrize("last", [rpc_error(-32603), rpc(result=update_10("FAILED"))])
def test_event_may_arrive_in_chunks_of_any_size(size: int, line_end: str, last: Any) -> None:
    stream = b"".join(
        event(message, line_end=line_end) for message in [rpc(result=update_10("WORKING")), last]
    )
    pieces = [stream[at : at + size] for at in range(0, len(stream), size)]
    assert read(*pieces).outcome in {FAULT, FAILED}
    assert read(*pieces) == read(stream)


def test_event_up_to_the_limit_is_read() -> None:
    whole = artifact("x" * 9 * KIB) + event(rpc(result=update_10("FAILED")))
    limit = len(artifact("x" * 9 * KIB))
    for pieces in ([whole], [whole[:5000], whole[5000:]], [whole[at : at + 1] for at in range(len(whole))]):
        assert read(*pieces, max_event_bytes=len(whole)).outcome is FAILED
    assert read(artifact("x" * 9 * KIB), max_event_bytes=limit) == StreamEnd(
        ANSWERED, is_rpc=True, has_events=True
    )
    assert read(artifact("x" * 9 * KIB), max_event_bytes=limit - 2).missed is Inspection.OVERSIZED


@pytest.mark.parametrize("cut", [1, 1000, 5000, 9000])
def test_event_beyond_the_limit_hides_no_failure_after_it(cut: int) -> None:
    long, last = artifact("x" * 9 * KIB), event(rpc(result=update_10("FAILED")))
    pieces = [long[:cut], long[cut:], last]
    assert read(*pieces, max_event_bytes=5 * KIB).outcome is FAILED
    good = [long[:cut], long[cut:], event(rpc(result=update_10("COMPLETED")))]
    assert read(*good, max_event_bytes=5 * KIB) == StreamEnd(
        Outcome.NOT_INSPECTED, Inspection.OVERSIZED, is_rpc=True, has_events=True
    )


def test_event_after_an_oversized_event_in_the_same_chunk_is_read() -> None:
    long = artifact("x" * 9 * KIB)
    begun = event(rpc(result=update_10("FAILED")))
    ended = read(long + begun[:20], begun[20:], artifact(), max_event_bytes=5 * KIB)
    assert ended == StreamEnd(FAILED, Inspection.OVERSIZED, is_rpc=True, has_events=True)


def test_event_after_many_oversized_events_in_one_chunk_is_not_inspected() -> None:
    long = artifact("x" * 9 * KIB) * 10
    begun = event(rpc(result=update_10("FAILED")))
    ended = read(long + begun[:20], begun[20:], artifact(), max_event_bytes=5 * KIB)
    assert ended == StreamEnd(Outcome.NOT_INSPECTED, Inspection.OVERSIZED, is_rpc=True, has_events=True)


@pytest.mark.parametrize("name", [b"event: error\n", b"event:error\r\n", b": x\nevent: error\r"])
def test_event_named_error_is_an_error_for_any_length_of_data(name: bytes) -> None:
    long = name + b"data: " + b"x" * 9 * KIB
    for pieces in ([long], [long[:40], long[40:]], [long[at : at + 100] for at in range(0, len(long), 100)]):
        assert read(*pieces, max_event_bytes=5 * KIB).outcome is FAULT


def test_event_with_too_many_brackets_or_lines_is_not_read() -> None:
    for piece in (event({"a": [[]] * (MAX_MARKS // 2)}), b"data:\n" * (MAX_MARKS + 1) + b"\n"):
        assert read(piece).missed is Inspection.COMPLEX
        assert read(piece, event(rpc_error(-32603))).outcome is FAULT


MANY = event(rpc(result={"kind": "message"})) * (MAX_MARKS // 5)


@pytest.mark.parametrize(
    ("failure", "outcome"),
    [
        (event(rpc_error(-32603)), FAULT),
        (event(rpc_error(-32603)).replace(b'"error"', rb'"\u0065rror"'), FAULT),
        (b"event: error\ndata: x\n\n", FAULT),
        (event(rpc(result=update_10("FAILED"))), FAILED),
    ],
)
def test_failure_among_many_events_of_one_chunk_counts(failure: bytes, outcome: Outcome) -> None:
    for piece in (failure + MANY, MANY + failure + MANY, MANY + failure):
        assert read(piece).outcome is outcome


def test_many_events_without_failures_count_as_answered() -> None:
    assert read(MANY) == StreamEnd(ANSWERED, is_rpc=True, has_events=True)
    assert read(b"\n" * (MAX_MARKS + 1)) == StreamEnd(ANSWERED)


@pytest.mark.parametrize("line_end", [b"\r\n", b"\n", b"\r"])
def test_data_that_is_no_object_is_noticed_among_many_events(line_end: bytes) -> None:
    error = event_of("Internal Server Error")
    for piece in (error * 12_000, MANY + error, error + MANY, MANY + error * 3 + MANY):
        ended = read(event(rpc(result={})), piece.replace(b"\r\n", line_end))
        assert (ended.outcome, ended.has_other_data, ended.is_rpc) == (ANSWERED, True, True)


def test_many_events_that_may_be_no_objects_are_not_inspected() -> None:
    broken, spread = b'data: {"jsonrpc": "2.0", "id"\n\n', b'data: {"jsonrpc":\ndata: "2.0"}\n\n'
    for piece in (broken * 12_000, spread * 12_000, MANY + broken, event_of("1") * 12_000):
        ended = read(piece)
        assert (ended.outcome, ended.missed) == (Outcome.NOT_INSPECTED, Inspection.COMPLEX)
    many = event({"choices": [1]}) * 12_000 + event_of("[DONE]")
    assert read(many) == StreamEnd(ANSWERED, has_other_data=True, has_events=True)


def test_many_events_that_may_have_failed_are_not_all_read() -> None:
    piece = event(rpc(result={"error": 1})) * (MAX_MARKS // 5)
    assert read(piece) == StreamEnd(Outcome.NOT_INSPECTED, Inspection.COMPLEX, is_rpc=True, has_events=True)
    assert read(event(rpc_error(-32603)) + piece).outcome is FAULT


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[bytes]]:
    """Record the input of the two parsers."""
    given: dict[str, list[bytes]] = {"parse_fast": [], "parse_bounded": [], "parse_again": []}
    for name, bodies in given.items():
        parse = getattr(stream_outcome, name)

        def noting(data: bytes, *more: Any, parse: Any = parse, bodies: list[bytes] = bodies) -> object:
            bodies.append(data)
            return parse(data, *more)

        monkeypatch.setattr(stream_outcome, name, noting)
    return given


SUSPICIOUS = {
    "small": event({"isError": False}),
    "brackets": event({"isError": False, "x": [[]] * 4000}),
    "long": event({"isError": False, "x": "y" * 15_000}),
    "escapes": event_of(r'{"isError":false,"x":"%s"}' % (r"\ud800" * 2500)),
}


@pytest.mark.parametrize("kind", SUSPICIOUS)
@pytest.mark.parametrize("pieces", [1, 3])
def test_parsing_of_a_message_is_limited(kind: str, pieces: int, parsed: dict[str, list[bytes]]) -> None:
    """Beyond 64 events, 256 KiB or MAX_MARKS of those that may have failed, none is parsed."""
    piece = SUSPICIOUS[kind] * 70 + event_of("1") * MAX_MARKS
    for _ in range(pieces):
        assert read(piece, max_event_bytes=2 * KIB * KIB).missed is Inspection.COMPLEX
    short = parsed["parse_fast"]
    assert 0 < len(short) <= 64 * pieces
    assert sum(map(len, short)) <= 262_144 * pieces
    assert sum(one.count(b"{") + one.count(b"[") + one.count(b",") for one in short) <= MAX_MARKS * pieces


def test_slow_parser_reads_few_events_of_a_chunk(parsed: dict[str, list[bytes]]) -> None:
    odd, fault = event_of(r'{"a":"\ud800"}'), event(rpc_error(-32603))
    assert read(odd * 100 + fault) == StreamEnd(FAULT, is_rpc=True, has_events=True)
    assert len(parsed["parse_again"]) == 100
    assert read(odd * 200).missed is Inspection.COMPLEX
    assert read(odd * 2000 + fault).outcome is FAULT
    assert len(parsed["parse_again"]) == 300
    assert read(*[odd] * 200) == StreamEnd(ANSWERED, has_events=True)


def test_slow_parser_reads_few_commas_and_brackets_of_a_chunk() -> None:
    odd = event_of(r'{"a":"\ud800","b":[' + ",".join("1" * 1000) + "]}")
    assert read(odd * 5) == StreamEnd(ANSWERED, has_events=True)
    assert read(odd * 7).missed is Inspection.COMPLEX
    assert read(*[odd] * 7) == StreamEnd(ANSWERED, has_events=True)


@pytest.mark.parametrize("data", ["down", "null null", "the end", '"text', "{down", "[DONE]"])
def test_many_events_that_are_no_json_are_reported(data: str, parsed: dict[str, list[bytes]]) -> None:
    ended = read(event_of(data) * 1000)
    assert ended.has_other_data
    assert ended.missed is None
    assert not parsed["parse_again"]


def test_bytes_after_the_first_mebibyte_of_a_chunk_are_not_read(parsed: dict[str, list[bytes]]) -> None:
    piece = artifact("x" * KIB) * 1024
    ended = read(piece, max_event_bytes=100 * KIB)
    assert (ended.outcome, ended.missed) == (Outcome.NOT_INSPECTED, Inspection.OVERSIZED)
    assert sum(len(one) for bodies in parsed.values() for one in bodies) <= KIB * KIB
    assert read(event(rpc_error(-32603)) + piece, max_event_bytes=100 * KIB).outcome is FAULT
    assert read(piece, event(rpc_error(-32603)), max_event_bytes=100 * KIB).outcome is FAULT
    assert read(piece * 2, max_event_bytes=4 * KIB * KIB) == StreamEnd(ANSWERED, is_rpc=True, has_events=True)


def test_error_in_a_chunk_longer_than_an_event_counts() -> None:
    for piece in (event(rpc_error(-32603)) + artifact() * 40, artifact() * 40 + event(rpc_error(-32603))):
        assert read(piece, max_event_bytes=KIB).outcome is FAULT


def test_a_skipped_event_is_not_read() -> None:
    reader = EventStreamReader(KIB)
    reader.append(event(rpc_error(-32603))[:20])
    reader.skip_event(Inspection.NO_ROOM)
    assert reader.held_bytes <= 1
    reader.append(event(rpc_error(-32603))[20:])
    reader.append(artifact())
    assert reader.end() == StreamEnd(Outcome.NOT_INSPECTED, Inspection.NO_ROOM, is_rpc=True, has_events=True)


@given(
    st.lists(st.binary(max_size=40) | st.sampled_from([b"\n\n", b"\r\n\r\n", b"event: error\n"])),
    st.integers(1, 60),
)
def test_reader_buffers_at_most_one_event(pieces: list[bytes], limit: int) -> None:
    read(*pieces, max_event_bytes=limit)


STREAMS = st.lists(
    st.sampled_from([
        event(rpc(result=update_10("WORKING"))),
        event(rpc(result=update_10("COMPLETED"))),
        event(rpc(result=update_10("FAILED"))),
        event(rpc(result={"artifactUpdate": {"artifact": {"parts": [{"text": "TASK_STATE_FAILED"}]}}})),
        event(rpc_error(-32001)),
        event(rpc_error(-32603), "error"),
        b": ping\r\n\r\n",
    ]),
    min_size=1,
    max_size=8,
)  # fmt: skip


LINES = st.lists(
    st.sampled_from(
        [b"data: ", b"data", b"event: error", b":", b"\r", b"\n", b"{", b"}", b'"error"', b"1", b"id: 1"]
    )
    | st.binary(max_size=5)
)


@given(LINES.map(b"".join), st.lists(st.integers(0, 60), max_size=5))
@example(b"data: {}\r\r\n\rdata", [9, 10])
def test_classification_of_a_stream_is_independent_of_its_chunks(stream: bytes, cuts: list[int]) -> None:
    whole = read_event_stream(stream)
    assert whole.outcome in Outcome
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    assert read(*(stream[begin:end] for begin, end in pairwise(edges))) == whole


@given(STREAMS, st.sampled_from([b"\n", b"\r"]))
def test_line_endings_do_not_change_the_outcome(events: list[bytes], line_end: bytes) -> None:
    stream = b"".join(events)
    respelled = stream.replace(b"\r\n", line_end)
    assert read_event_stream(respelled).outcome is read_event_stream(stream).outcome
