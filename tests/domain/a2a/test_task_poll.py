"""Requests for the state of a task, and their answers."""

import json
from typing import Any

import pytest
from tests.support.a2a_messages import rpc, task_0x, task_10

from lifesign.domain.a2a.message_variants import REST_0_3, REST_1_0, RPC_0_1, RPC_0_3, RPC_1_0, MessageVariant
from lifesign.domain.a2a.response_outcome import task_state
from lifesign.domain.a2a.task_poll import UnfinishedTask, as_sent_answer, unfinished_task
from lifesign.domain.parsing.bounded_json import parse_or_none

URL = "https://a.example/a2a"


def task_of(spelling: MessageVariant, message: Any, tenant: str | None = None) -> UnfinishedTask | None:
    return unfinished_task(spelling, URL, tenant, json.dumps(message).encode())


@pytest.mark.parametrize(
    ("spelling", "message", "method"),
    [
        (RPC_1_0, rpc(result=task_10("WORKING")), "GetTask"),
        (RPC_0_3, rpc(result=task_0x("submitted")), "tasks/get"),
        (RPC_0_1, rpc(result=task_0x("working")), "tasks/get"),
    ],
)
def test_json_rpc_poll_contains_the_task_id_and_requests_no_history(
    spelling: MessageVariant, message: Any, method: str
) -> None:
    task = task_of(spelling, message)
    assert task is not None
    request = task.request("call")
    assert (request.method, request.url) == ("POST", URL)
    assert json.loads(request.body or b"") == {
        "jsonrpc": "2.0",
        "id": "call",
        "method": method,
        "params": {"id": "t", "historyLength": 0},
    }


@pytest.mark.parametrize(
    ("spelling", "url", "expected"),
    [
        (REST_1_0, URL, f"{URL}/tasks/t%2F1?historyLength=0"),
        (REST_1_0, f"{URL}?k=1", f"{URL}/tasks/t%2F1?k=1&historyLength=0"),
        (REST_0_3, URL, f"{URL}/v1/tasks/t%2F1?historyLength=0"),
    ],
)
def test_http_json_has_the_task_in_its_path(spelling: MessageVariant, url: str, expected: str) -> None:
    request = UnfinishedTask(spelling, url, None, "t/1").request("call")
    assert (request.method, request.url, request.body) == ("GET", expected, None)


def test_task_poll_contains_the_tenant_of_the_message() -> None:
    rpc_request = UnfinishedTask(RPC_1_0, URL, "x y", "t").request("call")
    assert json.loads(rpc_request.body or b"")["params"]["tenant"] == "x y"
    assert UnfinishedTask(REST_1_0, URL, "x y", "t").request("call").url.startswith(f"{URL}/x%20y/tasks/t?")


@pytest.mark.parametrize(
    "message",
    [
        rpc(result=task_10("COMPLETED")),
        rpc(result=task_0x("input-required")),
        rpc(result=task_0x("working") | {"id": 7}),
        rpc(result=task_0x("working") | {"id": ""}),
        rpc(result=task_0x("working") | {"id": "x" * 257}),
        rpc(result=task_0x("working") | {"id": "a\r\nb"}),
        rpc(error={"code": -32603}),
        [],
        None,
    ],
)
def test_answer_without_a_working_task_and_valid_id_is_not_polled(message: Any) -> None:
    assert task_of(RPC_0_3, message) is None


@pytest.mark.parametrize(
    ("spelling", "bare"),
    [
        (RPC_1_0, rpc(result=task_10("WORKING")["task"])),
        (RPC_0_3, rpc(result=task_0x("working"))),
        (REST_1_0, task_10("WORKING")["task"]),
    ],
)
def test_polled_task_is_converted_to_the_form_of_a_message_answer(
    spelling: MessageVariant, bare: Any
) -> None:
    message = parse_or_none(as_sent_answer(spelling, json.dumps(bare).encode()))
    assert str(task_state(message)).lower().endswith("working")
    assert task_of(spelling, message) is not None


@pytest.mark.parametrize("body", [b"", b"{}", b"[1]", b'{"error": 1}', b"\xff"])
def test_answer_without_a_task_is_unchanged(body: bytes) -> None:
    for spelling in (RPC_1_0, RPC_0_3, REST_1_0):
        assert as_sent_answer(spelling, body) == body
