"""JSON-RPC batches outside MCP: each counts once, as its worst answer (protocol section 2)."""

import json
from typing import Any

import pytest
from tests.support.scripted import (
    EVENTS,
    JSON,
    PLAIN,
    RECEIVE,
    Message,
    Server,
    Step,
    call,
    chunk,
    final,
    play,
    request,
    start,
)

GOOD: dict[str, Any] = {"result": {"message": {"parts": []}}}
FAILED: dict[str, Any] = {"result": {"task": {"status": {"state": "TASK_STATE_FAILED"}}}}
TOOL: dict[str, Any] = {"result": {"content": [], "isError": True}}


def error(code: int) -> dict[str, Any]:
    return {"error": {"code": code, "message": "no"}}


def batch(*members: dict[str, Any]) -> bytes:
    return json.dumps([{"jsonrpc": "2.0", "id": at, **one} for at, one in enumerate(members)]).encode()


def asking(*methods: str) -> Message:
    return request(batch(*({"method": method} for method in methods)))


SENDS = asking("SendMessage", "SendMessage", "SendMessage")


async def counted(
    body: bytes, asked: Message = SENDS, form: str = "one", status: int = 200, **settings: Any
) -> str:
    """Send a batch through the middleware and return the one outcome that was counted."""
    if form == "events":
        steps: list[Step] = [start(200, EVENTS), chunk(b"data: " + body + b"\n\n"), final()]
    elif form == "many":
        half = len(body) // 2
        steps = [start(status, JSON), chunk(body[:half]), chunk(body[half:]), final()]
    else:
        steps = [start(status, JSON), final(body)]
    played = await play([RECEIVE, *steps], server=Server(asked), **settings)
    assert played.error is None
    return played.outcome


@pytest.mark.parametrize("form", ["one", "many", "events"])
@pytest.mark.parametrize(
    ("members", "outcome"),
    [
        ([GOOD, GOOD], "answered"),
        ([GOOD, error(-32601)], "answered"),
        ([error(-32601), error(-32601)], "no_operation"),
        ([GOOD, error(-32602)], "caller_fault"),
        ([error(-32602), TOOL, GOOD], "tool_error"),
        ([TOOL, FAILED, error(-32602)], "task_failed"),
        ([FAILED, error(-32603), GOOD], "server_fault"),
        ([GOOD, FAILED, GOOD], "task_failed"),
        ([error(-32603), *[GOOD] * 500], "server_fault"),
    ],
)
async def test_batch_counts_once_as_its_worst_answer(
    members: list[dict[str, Any]], outcome: str, form: str
) -> None:
    assert await counted(batch(*members), form=form) == outcome
    assert await counted(batch(*members[::-1]), form=form) == outcome


@pytest.mark.parametrize("form", ["one", "many"])
async def test_member_without_a_statement_makes_a_batch_malformed(form: str) -> None:
    assert await counted(batch(error(-32603), {}), form=form) == "malformed"
    assert await counted(batch({"method": "ping"}), form=form) == "malformed"
    assert await counted(b"[]", form=form) == "malformed"
    for ignored in (b"7", b"null", b'{"ok":true}', b'{"jsonrpc":"2.0","method":"ping"}'):
        assert await counted(batch(GOOD)[:-1] + b"," + ignored + b"]", form=form) == "answered"


@pytest.mark.parametrize("form", ["one", "many", "events"])
async def test_failed_task_is_a_good_answer_only_if_all_calls_are_polls(form: str) -> None:
    body = batch(FAILED, GOOD)
    assert await counted(body, asking("GetTask", "GetTask"), form) == "answered"
    assert await counted(body, asking("GetTask", "SendMessage"), form) == "task_failed"
    assert await counted(body, call("SendMessage"), form) == "task_failed"


async def test_batch_of_notifications_needs_no_answer() -> None:
    notifications = request(json.dumps([{"jsonrpc": "2.0", "method": "m"}] * 2).encode())
    steps: list[Step] = [RECEIVE, start(202, PLAIN), final()]
    assert (await play(steps, server=Server(notifications))).outcome == "answered"
    assert (await play(steps, server=Server(SENDS))).outcome == "not_inspected"


@pytest.mark.parametrize("form", ["one", "many", "events"])
async def test_batch_of_ten_thousand_answers_is_bounded(form: str) -> None:
    large = batch(*[GOOD] * 10_000)
    assert await counted(large, form=form) == "not_inspected"
    assert await counted(batch(error(-32603)), request(large), form) == "server_fault"


async def test_long_batch_of_calls_expects_an_answer_of_json_rpc() -> None:
    long = asking(*["SendMessage"] * 100)
    assert await counted(b"{}", long) == "malformed"
    assert await counted(batch(FAILED), long) == "not_inspected"
    assert await counted(batch(GOOD), long) == "answered"


async def test_status_of_an_error_decides_for_a_batch() -> None:
    assert await counted(batch(GOOD), status=500) == "server_fault"
    assert await counted(batch(error(-32603)), status=400) == "caller_fault"
