from typing import Any

import pytest
from tests.support.a2a_messages import rpc, rpc_error

from lifesign.domain.a2a.response_outcome import GOOD_TOOL_RESULT, JsonAnswer, judge_message
from lifesign.domain.health.outcome import Outcome
from lifesign.domain.mcp.answer_outcome import (
    NO_INTERACTION,
    classify_as_mcp,
    is_interaction,
    is_mcp,
    operation_of,
    outcome_of_mcp_status,
)

CODES = {
    -32700: Outcome.NO_OPERATION,
    -32600: Outcome.NO_OPERATION,
    -32601: Outcome.NO_OPERATION,
    -32020: Outcome.NO_OPERATION,
    -32021: Outcome.NO_OPERATION,
    -32022: Outcome.NO_OPERATION,
    -32602: Outcome.CALLER_FAULT,
    -32002: Outcome.CALLER_FAULT,
    -32042: Outcome.ANSWERED,
    -32800: Outcome.ABANDONED,
    -32603: Outcome.SERVER_FAULT,
    -32000: Outcome.SERVER_FAULT,
    -32001: Outcome.SERVER_FAULT,
    -32099: Outcome.SERVER_FAULT,
    7: Outcome.SERVER_FAULT,
}


def as_mcp(message: dict[str, Any], operation: str = "tools/call", status: int = 200) -> Outcome:
    return classify_as_mcp(judge_message(message), operation, status).outcome


@pytest.mark.parametrize(
    ("headers", "is_known"),
    [
        ([], False),
        ([(b"accept", b"*/*")], False),
        ([(b"accept", b"application/json")], False),
        ([(b"accept", b"text/event-stream")], False),
        ([(b"accept", b"application/json, text/event-stream")], True),
        ([(b"accept", b"Text/Event-Stream;q=1, Application/JSON")], True),
        ([(b"accept", b"application/json"), (b"accept", b"text/event-stream")], True),
        ([(b"mcp-protocol-version", b"2025-06-18")], True),
        ([(b"mcp-session-id", b"1")], True),
        ([(b"mcp-method", b"tools/call")], True),
        ([(b"x-mcp-proxy", b"1")], False),
        ([(b"a2a-version", b"1.0"), (b"content-type", b"application/json")], False),
    ],
)
def test_mcp_request_is_recognised_by_its_headers(
    headers: list[tuple[bytes, bytes]], *, is_known: bool
) -> None:
    assert is_mcp("POST", headers) is is_known


def test_body_names_the_operation_before_the_header() -> None:
    call = {"method": "tools/list"}
    assert operation_of([(b"mcp-method", b"tools/call")], call) == "tools/list"
    assert operation_of([(b"mcp-method", b"tools/call")], None) == "tools/call"
    assert operation_of([(b"accept", b"*/*")], call) == "tools/list"
    assert operation_of([], {"method": 3}) == operation_of([], [call]) == operation_of([], None) == ""


@pytest.mark.parametrize(
    ("method", "operation", "may_be"),
    [
        ("POST", "tools/call", True),
        ("POST", "", True),
        ("POST", "unheard/of", True),
        ("POST", "tools/list", False),
        ("POST", "initialize", False),
        ("POST", "server/discover", False),
        ("POST", "ping", False),
        ("POST", "subscriptions/listen", False),
        ("POST", "notifications/initialized", False),
        ("GET", "", False),
        ("DELETE", "", False),
    ],
)
def test_handshakes_lists_and_notifications_are_no_interactions(
    method: str, operation: str, *, may_be: bool
) -> None:
    assert is_interaction(method, operation) is may_be


@pytest.mark.parametrize("code", CODES)
def test_code_counts_by_the_table(code: int) -> None:
    assert as_mcp(rpc_error(code)) is CODES[code]


@pytest.mark.parametrize("status", [400, 404])
@pytest.mark.parametrize("code", CODES)
def test_code_decides_in_a_400_and_a_404(status: int, code: int) -> None:
    is_of_transport = code in {-32000, -32001}
    expected = Outcome.NO_OPERATION if is_of_transport else CODES[code]
    assert as_mcp(rpc_error(code), status=status) is expected


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (400, Outcome.NO_OPERATION),
        (401, Outcome.NOT_ADMITTED),
        (403, Outcome.NOT_ADMITTED),
        (404, Outcome.NO_OPERATION),
        (405, Outcome.NO_OPERATION),
        (406, Outcome.NO_OPERATION),
        (413, Outcome.CALLER_FAULT),
        (415, Outcome.NO_OPERATION),
        (429, Outcome.RATE_LIMITED),
        (500, Outcome.SERVER_FAULT),
        (503, Outcome.SERVER_FAULT),
    ],
)
def test_status_counts_where_no_code_decides(status: int, outcome: Outcome) -> None:
    assert outcome_of_mcp_status(status) is outcome
    if status not in {400, 404}:
        assert as_mcp(rpc_error(-32602), status=status) is outcome


@pytest.mark.parametrize("code", [None, "x", [], {}, 1.5])
def test_code_that_is_no_number_is_the_servers_fault(code: object) -> None:
    assert as_mcp(rpc_error(code)) is Outcome.SERVER_FAULT
    assert as_mcp(rpc_error(code), status=400) is Outcome.SERVER_FAULT


@pytest.mark.parametrize("operation", ["GetTask", "SendMessage", "message/send", "unheard/of", ""])
@pytest.mark.parametrize("code", [-32001, -32003, -32004, -32005, -32007, -32008, -32009])
def test_code_of_a2a_is_the_callers_fault_unless_a_method_of_mcp_was_called(
    code: int, operation: str
) -> None:
    assert as_mcp(rpc_error(code), operation) is Outcome.CALLER_FAULT
    by_header = classify_as_mcp(judge_message(rpc_error(code)), "tools/call", is_called=False)
    assert by_header.outcome is Outcome.CALLER_FAULT
    assert as_mcp(rpc_error(code), "tools/call") is Outcome.SERVER_FAULT


def test_result_of_a_method_of_a2a_is_an_answer() -> None:
    listed = judge_message(rpc(result={"tasks": []}))
    assert classify_as_mcp(listed, "ListTasks") is listed
    assert classify_as_mcp(listed, "ListTasks", is_called=False) is NO_INTERACTION


def test_result_without_known_members_counts_by_its_operation() -> None:
    listed = judge_message(rpc(result={"tools": []}))
    assert classify_as_mcp(listed, "") is NO_INTERACTION
    assert classify_as_mcp(listed, "tools/list") is NO_INTERACTION
    assert classify_as_mcp(listed, "tools/call") is GOOD_TOOL_RESULT
    assert classify_as_mcp(listed, "resources/read") == JsonAnswer(Outcome.ANSWERED)


def batch(*outcomes: dict[str, Any]) -> JsonAnswer:
    return classify_as_mcp(
        JsonAnswer(Outcome.ANSWERED, members=tuple(judge_message(one) for one in outcomes)), ""
    )


def test_batch_counts_as_its_worst_interaction() -> None:
    listed, good = rpc(result={"tools": []}), rpc(result={"content": []})
    failed = rpc(result={"content": [], "isError": True})
    assert batch(listed, listed).outcome is Outcome.EXCLUDED
    assert batch(listed, good) is GOOD_TOOL_RESULT
    assert batch(good, failed, listed).outcome is Outcome.TOOL_ERROR
    assert batch(rpc_error(-32602), failed).outcome is Outcome.TOOL_ERROR
    assert batch(rpc_error(-32603), failed).outcome is Outcome.SERVER_FAULT
    assert batch(rpc_error(-32800), good) is GOOD_TOOL_RESULT
    assert batch(rpc_error(-32601), listed).outcome is Outcome.NO_OPERATION
