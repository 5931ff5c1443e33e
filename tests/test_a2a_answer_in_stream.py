"""What did an A2A answer say that came as server-sent events? (B11; protocol.md section 2)"""

import json

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from tests.support.a2a_messages import event, event_of, rpc, rpc_error, streamed, task_0x, task_10, update_10

from agent_health.a2a_answer import NotJson, TooDeep, outcome_of_stream
from agent_health.outcome import Outcome

FAILED = Outcome.TASK_FAILED
ANSWERED = Outcome.ANSWERED


def test_a_rest_error_event_holds_an_http_status() -> None:
    def judged(code: int) -> Outcome:
        return streamed(event({"error": {"code": code, "status": "?"}}, "error"))

    assert judged(400) is Outcome.CALLER_FAULT
    assert judged(403) is Outcome.NOT_ADMITTED
    assert judged(404) is Outcome.CALLER_FAULT
    assert judged(429) is Outcome.RATE_LIMITED
    assert judged(500) is Outcome.SERVER_FAULT
    assert judged(503) is Outcome.SERVER_FAULT


@pytest.mark.parametrize("data", ["", "down", "{", "null", "[]", '{"code": -32602}', '{"error": null}'])
def test_an_error_event_without_a_code_is_the_agents_fault(data: str) -> None:
    assert streamed(event_of(data, "error")) is Outcome.SERVER_FAULT


def test_an_error_in_the_data_needs_no_event_name() -> None:
    assert streamed(event(rpc(result=task_0x("working"))), event(rpc_error(-32603))) is Outcome.SERVER_FAULT
    assert streamed(event({"error": {"code": 500, "status": "INTERNAL"}})) is Outcome.SERVER_FAULT


def test_the_name_of_an_event_ends_with_it() -> None:
    assert streamed(b"event: error\n\n", event(rpc(result=task_0x("completed")))) is ANSWERED
    assert streamed(event(task_10("WORKING"), "status"), event(task_10("COMPLETED"))) is ANSWERED


@pytest.mark.parametrize("line_end", ["\n", "\r", "\r\n"])
def test_lines_end_in_any_of_the_three_ways(line_end: str) -> None:
    assert streamed(event(rpc_error(-32001), "error", line_end)) is Outcome.CALLER_FAULT
    assert streamed(event(rpc(result=update_10("FAILED")), line_end=line_end)) is FAILED


def test_data_may_be_spread_over_many_lines_as_the_rest_binding_of_03_does() -> None:
    spread = "\r\n".join("data: " + line for line in json.dumps(update_10("FAILED"), indent=2).split("\n"))
    assert streamed(spread.encode() + b"\r\n\r\n") is FAILED


def test_a_colon_needs_no_space_after_it() -> None:
    assert streamed(event(rpc_error(-32001)).replace(b"data: ", b"data:")) is Outcome.CALLER_FAULT


def test_comments_ids_and_retries_say_nothing() -> None:
    ping = b": ping - 2026-11-20 09:11:44\r\n\r\n"
    failed = b"id: 7\r\nretry: 100\r\n: between\r\nunknown: {\r\n" + event(rpc(result=update_10("FAILED")))
    assert streamed(ping, failed, ping, ping) is FAILED
    assert streamed(ping) is ANSWERED


def test_nothing_at_all_is_an_answer_if_it_is_whole_and_was_not_inspected_if_it_is_not() -> None:
    assert outcome_of_stream(b"", is_whole=True) is ANSWERED
    assert outcome_of_stream(b"", is_whole=False) is Outcome.UNINSPECTED


def test_data_that_is_no_json_is_told() -> None:
    with pytest.raises(NotJson):
        streamed(event_of("[DONE]"))
    with pytest.raises(TooDeep):
        streamed(event_of("[" * 200_000))


def test_data_that_is_no_json_hides_no_error_after_it() -> None:
    assert streamed(event_of("hello"), event(rpc_error(-32603), "error")) is Outcome.SERVER_FAULT
    assert streamed(event_of("hello"), event(rpc_error(-32001))) is Outcome.CALLER_FAULT


@pytest.mark.parametrize("missing", [1, 2, 3, 20, 60])
def test_an_event_that_never_ended_is_none(missing: int) -> None:
    completed, failed = (
        event(rpc(result=update_10(state)), line_end="\n") for state in ("COMPLETED", "FAILED")
    )
    assert streamed(completed, failed) is FAILED
    assert streamed(completed, failed[:-missing]) is ANSWERED


def test_the_beginning_of_a_cut_stream_is_not_looked_at() -> None:
    def ended(tail: bytes) -> Outcome:
        return outcome_of_stream(tail, is_whole=False)

    assert ended(b'data: te": "TASK_STATE_FAILED"}}}\r\n\r\n' + event(update_10("COMPLETED"))) is ANSWERED
    assert ended(b"data: half\r\n\r\n" + event(update_10("FAILED"))) is FAILED
    assert ended(b"data: half\r\n\r\n") is Outcome.UNINSPECTED


def test_a_whole_event_after_a_cut_one_is_looked_at_wherever_the_cut_fell() -> None:
    """A stream of one large artifact and a last word: the tail begins within the artifact."""
    failed = event(rpc(result=update_10("FAILED")))
    assert outcome_of_stream(b'long text"}]}}}\r\n\r\n' + failed, is_whole=False) is FAILED


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


@given(STREAMS, st.integers(0, 2000))
@example([event(rpc(result=update_10("WORKING"))), event(rpc(result=update_10("FAILED")))], 20)
def test_a_cut_stream_is_judged_by_the_events_that_surely_are_whole(events: list[bytes], kept: int) -> None:
    tail = b"".join(events)[-kept:] if kept else b""
    # A tail that begins with a line's end may or may not begin with an event.
    assume(not tail.startswith((b"\r", b"\n")))
    _, blank_line, rest = tail.partition(b"\r\n\r\n")
    outcome = outcome_of_stream(tail, is_whole=False)
    if blank_line and b"data:" in rest:
        assert outcome is outcome_of_stream(rest, is_whole=True)
    else:
        assert outcome in {ANSWERED, Outcome.UNINSPECTED}


LINES = st.lists(
    st.sampled_from(
        [b"data: ", b"data", b"event: error", b":", b"\r", b"\n", b"{", b"}", b'"error"', b"1", b"id: 1"]
    )
    | st.binary(max_size=5)
)


@given(LINES.map(b"".join), st.booleans())
def test_any_stream_is_judged_or_no_json(stream: bytes, is_whole: bool) -> None:  # noqa: FBT001 - drawn
    try:
        outcome = outcome_of_stream(stream, is_whole=is_whole)
    except (NotJson, TooDeep):
        return
    assert outcome in Outcome


@given(STREAMS, st.sampled_from([b"\n", b"\r"]))
def test_the_way_in_which_lines_end_changes_nothing(events: list[bytes], line_end: bytes) -> None:
    stream = b"".join(events)
    respelled = stream.replace(b"\r\n", line_end)
    assert outcome_of_stream(respelled, is_whole=True) is outcome_of_stream(stream, is_whole=True)
