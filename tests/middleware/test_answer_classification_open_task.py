"""Streams of A2A sends that end while the agent still has to work on the task."""

import json
from typing import Any

import pytest
from tests.support.scripted import (
    DISCONNECT,
    EVENTS,
    JSON,
    RECEIVE,
    Server,
    Step,
    call,
    chunk,
    final,
    http_scope,
    play,
    request,
    start,
)

OPEN = ["TASK_STATE_SUBMITTED", "TASK_STATE_WORKING", "submitted", "working"]
CLOSED = ["TASK_STATE_COMPLETED", "TASK_STATE_INPUT_REQUIRED", "TASK_STATE_REJECTED", "completed", "canceled"]
SENDS = ["SendStreamingMessage", "message/stream", "tasks/sendSubscribe"]
ARTIFACT = {"artifactUpdate": {"artifact": {"parts": [{"text": "done"}]}}}


def status(state: str, **more: Any) -> dict[str, Any]:
    if state.islower():
        return {"kind": "status-update", "status": {"state": state}, **more}
    return {"statusUpdate": {"taskId": "t", "status": {"state": state}}, **more}


def rpc_event(result: dict[str, Any]) -> bytes:
    return b"data: %s\n\n" % json.dumps({"jsonrpc": "2.0", "id": 1, "result": result}).encode()


def rest_event(result: dict[str, Any]) -> bytes:
    return b"data: %s\n\n" % json.dumps(result).encode()


async def outcomes_of(
    *events: bytes, method: str = "message/stream", scope: Any = None, asked: Any = None
) -> set[str]:
    """Return the outcomes of a stream in one message, event by event, and cut in the middle."""
    whole = b"".join(events)
    half = len(whole) // 2
    forms: list[list[Step]] = [
        [final(whole)],
        [*map(chunk, events), final()],
        [chunk(whole[:half]), final(whole[half:])],
    ]
    server = [Server(asked or call(method)) for _ in forms]
    steps: list[list[Step]] = [[RECEIVE, start(200, EVENTS), *form] for form in forms]
    played = [await play(step, server=one, scope=scope) for step, one in zip(steps, server, strict=True)]
    return {one.outcome for one in played}


@pytest.mark.parametrize("state", OPEN)
@pytest.mark.parametrize("method", SENDS)
async def test_stream_of_a_send_that_ends_with_an_unfinished_task_is_unfinished(
    method: str, state: str
) -> None:
    left = rpc_event(status(state))
    for events in ([left], [left] * 20, [left, rpc_event(ARTIFACT)], [*[rpc_event(ARTIFACT)] * 20, left]):
        assert await outcomes_of(*events, method=method) == {"unfinished"}


@pytest.mark.parametrize("state", OPEN)
async def test_stream_of_another_call_may_end_with_an_unfinished_task(state: str) -> None:
    for method in ("SubscribeToTask", "tasks/resubscribe"):
        assert await outcomes_of(rpc_event(status(state)), method=method) == {"answered"}
    hidden = request(
        b'{"jsonrpc":"2.0","id":1,"method":"Subscribe\\u0054oTask","params":"%s"}' % (b"x" * 2000)
    )
    assert await outcomes_of(rpc_event(status(state)), asked=hidden) == {"answered"}


@pytest.mark.parametrize("state", CLOSED)
async def test_stream_that_ends_with_its_task_is_an_answer(state: str) -> None:
    begins, ends = rpc_event(status("working")), rpc_event(status(state))
    for events in ([ends], [begins] * 20 + [ends], [begins, ends.rstrip()], [begins] * 3000 + [ends]):
        assert await outcomes_of(*events) == {"answered"}


async def test_state_marked_final_ends_the_stream() -> None:
    assert await outcomes_of(rpc_event(status("submitted", final=True))) == {"answered"}
    working, last = (rpc_event(status("working", final=is_final)) for is_final in (False, True))
    assert await outcomes_of(working) == {"unfinished"}
    for count in (1, 2, 20):
        assert await outcomes_of(*[working] * count, last) == {"answered"}
        assert await outcomes_of(*[last] * count, working) == {"unfinished"}


async def test_last_state_decides_also_if_many_events_had_it_before() -> None:
    waits, works = (rpc_event(status(f"TASK_STATE_{state}")) for state in ("INPUT_REQUIRED", "WORKING"))
    changes = [rpc_event(ARTIFACT), works, rpc_event(ARTIFACT), waits] * 2
    assert await outcomes_of(*changes, works, waits) == {"answered"}
    assert await outcomes_of(*changes[::-1], waits, works) == {"unfinished"}
    assert await outcomes_of(works, *changes[::-1], waits, works) == {"unfinished"}


@pytest.mark.parametrize(("state", "outcome"), [(OPEN[1], "unfinished"), (CLOSED[0], "answered")])
async def test_rest_stream_is_classified_like_a_json_rpc_stream(state: str, outcome: str) -> None:
    asked, scope = request(b'{"message":{}}'), http_scope("/v1/message:stream")
    assert await outcomes_of(rest_event(status(state)), asked=asked, scope=scope) == {outcome}


async def test_json_answer_with_an_unfinished_task_counts_as_answered() -> None:
    body = rpc_event(status("working")).removeprefix(b"data: ")
    played = await play([RECEIVE, start(200, JSON), final(body)], server=Server(call("message/send")))
    assert played.outcome == "answered"


async def test_caller_that_disconnects_during_a_task_is_no_failure() -> None:
    steps: list[Step] = [RECEIVE, start(200, EVENTS), chunk(rpc_event(status("working"))), RECEIVE]
    played = await play(steps, server=Server(call("message/stream"), DISCONNECT))
    assert played.outcome == "abandoned"
