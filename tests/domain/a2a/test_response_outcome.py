import json
from typing import Any

import pytest
from a2a.types import TaskState
from hypothesis import example, given
from hypothesis import strategies as st
from tests.support.a2a_messages import (
    event,
    outcome_of_json,
    rpc,
    rpc_error,
    streamed,
    task_0x,
    task_10,
    update_0x,
    update_10,
)

from lifesign.domain.a2a.response_outcome import (
    EMPTY_RESULT,
    FAILED_TOOL,
    GOOD_ANSWER,
    GOOD_TOOL_RESULT,
    MALFORMED_ANSWER,
    MAX_CALL_BYTES,
    METHOD_NAMES,
    NULL_RESULT,
    OTHER_JSON,
    UNKNOWN_BODY,
    UNNAMED_RESULT,
    call_of_excerpt,
    classify_json,
    expects_rpc_answer,
    is_poll,
    is_rest_path,
)
from lifesign.domain.a2a.stream_outcome import read_event_stream
from lifesign.domain.health.outcome import Outcome
from lifesign.domain.parsing.bounded_json import NotJson, TooComplex, parse_or_none

FAILED = Outcome.TASK_FAILED
ANSWERED = Outcome.ANSWERED

# --- JSON-RPC errors --------------------------------------------------------------------------------------

CODES = {
    -32700: Outcome.NO_OPERATION,
    -32600: Outcome.NO_OPERATION,
    -32601: Outcome.NO_OPERATION,
    -32602: Outcome.CALLER_FAULT,
    -32603: Outcome.SERVER_FAULT,
    -32001: Outcome.CALLER_FAULT,
    -32002: Outcome.CALLER_FAULT,
    -32003: Outcome.CALLER_FAULT,
    -32004: Outcome.CALLER_FAULT,
    -32005: Outcome.CALLER_FAULT,
    -32006: Outcome.SERVER_FAULT,
    -32007: Outcome.CALLER_FAULT,
    -32008: Outcome.CALLER_FAULT,
    -32009: Outcome.CALLER_FAULT,
    -32000: Outcome.SERVER_FAULT,
    -32099: Outcome.SERVER_FAULT,
    0: Outcome.SERVER_FAULT,
    # In JSON-RPC 404 and 429 are no standard codes, and no HTTP statuses.
    404: Outcome.SERVER_FAULT,
    429: Outcome.SERVER_FAULT,
}


@pytest.mark.parametrize(("code", "outcome"), CODES.items())
def test_json_rpc_error_is_classified_by_code_at_any_depth(code: int, outcome: Outcome) -> None:
    error = rpc_error(code)
    assert outcome_of_json(error) is outcome
    assert outcome_of_json(dict(reversed(error.items()))) is outcome
    assert streamed(event(error)) is outcome
    assert streamed(event(error, "error")) is outcome
    assert streamed(event(rpc(result=task_10("WORKING"))), event(error, "error")) is outcome


@pytest.mark.parametrize(
    "error",
    [{}, {"code": None}, {"code": "-32602"}, {"code": -32602.5}, {"code": [-32602]}, "down", [], 7, True],
)
def test_an_error_without_a_readable_code_is_the_agents_fault(error: object) -> None:
    assert outcome_of_json(rpc(error=error)) is Outcome.SERVER_FAULT
    assert streamed(event(rpc(error=error))) is Outcome.SERVER_FAULT
    assert streamed(event({"error": error}, "error")) is Outcome.SERVER_FAULT


def test_null_error_is_no_error() -> None:
    assert outcome_of_json(rpc(error=None, result={"kind": "message"})) is ANSWERED
    assert streamed(event(rpc(error=None, result=task_0x("completed")))) is ANSWERED


@pytest.mark.parametrize(
    "answer",
    [
        rpc(result={"message": {"parts": [{"text": '{"error": {"code": -32603}}'}]}}),
        rpc(result={"kind": "message", "error": {"code": -32603}}),
        rpc(
            result={"artifacts": [{"parts": [{"data": {"error": {"code": -32603}}}]}], **task_0x("completed")}
        ),
        rpc(result={"task": {"artifacts": [{"name": "TASK_STATE_FAILED"}], **task_10("COMPLETED")["task"]}}),
        rpc(result={"task": {"history": [{"status": {"state": "TASK_STATE_FAILED"}}]}}),
        rpc(result={"artifactUpdate": {"status": {"state": "TASK_STATE_FAILED"}}}),
        rpc(result={"metadata": task_0x("failed"), **task_0x("working")}),
        rpc(result=[task_0x("failed")]),
        rpc(result="failed"),
        rpc(metadata={"error": {"code": -32603}}, result=None),
        {"data": rpc_error(-32603)},
        [{"error": {"code": -32603}}],
        rpc(result={"content": [{"isError": True}]}),
        {"isError": True},
        "error",
        None,
        7,
    ],
)
def test_an_error_or_a_failure_below_the_top_level_is_content(answer: object) -> None:
    assert outcome_of_json(answer) is ANSWERED
    assert streamed(event(answer)) is ANSWERED


def test_error_member_outside_json_rpc_counts_as_answered() -> None:
    assert outcome_of_json({"error": {"code": -32603}}) is ANSWERED
    assert outcome_of_json({"error": "no such user", "jsonRPC": "2.0"}) is ANSWERED


@pytest.mark.parametrize(
    "answer",
    [None, 7, "ok", [], [7], {}, {"id": 1, "error": {"code": -32603}}, {"id": 1, "result": {}},
     [{"id": 1, "error": {}}], rpc(method="ping"), [rpc(method="ping")]],
)  # fmt: skip
def test_json_that_is_no_json_rpc_answer_is_marked(answer: object) -> None:
    assert classify_json(json.dumps(answer).encode()) is OTHER_JSON


def test_json_rpc_without_result_and_error_is_malformed() -> None:
    for nothing in (rpc(), rpc(error=None), rpc(task={})):
        assert classify_json(json.dumps(nothing).encode()) is MALFORMED_ANSWER
        assert outcome_of_json([rpc(result={}), nothing]) is Outcome.MALFORMED
        assert read_event_stream(event(rpc(result={})) + event(nothing)).has_other_data
    assert classify_json(json.dumps(rpc(result=None)).encode()) is NULL_RESULT
    assert classify_json(json.dumps(rpc(result={})).encode()) is EMPTY_RESULT


# --- task states ------------------------------------------------------------------------------------------

STATES = [
    "submitted",
    "working",
    "completed",
    "canceled",
    "rejected",
    "input-required",
    "auth-required",
    "unknown",
]


def all_generations(state: str) -> list[dict[str, Any]]:
    current = state.upper().replace("-", "_")
    return [
        rpc(result=task_10(current)),
        rpc(result=update_10(current)),
        rpc(result=task_10(current)["task"]),  # GetTask of 1.0
        rpc(result=task_0x(state)),
        rpc(result=update_0x(state)),
        rpc(result={"id": "t", "status": {"state": state}}),  # 0.1 knows no `kind`
        task_10(current),  # REST
        update_10(current),
    ]


@pytest.mark.parametrize("message", all_generations("failed"), ids=json.dumps)
def test_failed_task_is_recognised_in_each_protocol_version(message: dict[str, Any]) -> None:
    assert outcome_of_json(message) is FAILED
    assert streamed(event(message)) is FAILED


@pytest.mark.parametrize("state", STATES)
def test_a_task_in_any_other_state_is_an_answer(state: str) -> None:
    for message in all_generations(state):
        assert outcome_of_json(message) is ANSWERED
        assert streamed(event(message)) is ANSWERED


@pytest.mark.parametrize("state", ["Failed", "FAILED", "task_state_failed", "", None, 4.0, True, {}, []])
def test_unknown_spelling_of_a_task_state_is_no_failure(state: object) -> None:
    status = {"status": {"state": state}}
    assert outcome_of_json(rpc(result={"status": {"state": 4}})) is ANSWERED
    assert outcome_of_json(rpc(result=status)) is ANSWERED
    assert outcome_of_json(rpc(result={"task": status})) is ANSWERED
    assert streamed(event(rpc(result={"statusUpdate": status}))) is ANSWERED


@pytest.mark.parametrize("name", ["task", "statusUpdate"])
def test_state_may_be_the_number_of_protobuf(name: str) -> None:
    for number in [*TaskState.values(), -4, 40]:
        message = {name: {"status": {"state": number}}}
        expected = FAILED if number == TaskState.TASK_STATE_FAILED else ANSWERED
        for form in (message, rpc(result=message)):
            assert outcome_of_json(form) is expected
            assert streamed(event(form)) is expected


@pytest.mark.parametrize("name", ["task", "statusUpdate"])
def test_one_failed_state_among_two_in_a_result_decides(name: str) -> None:
    for other in ("WORKING", "COMPLETED"):
        both = {**task_10(other), **update_10(other)}
        both[name] = {"status": {"state": "TASK_STATE_FAILED"}}
        assert outcome_of_json(rpc(result=both)) is FAILED
        assert outcome_of_json(both) is FAILED
        assert streamed(event(rpc(result=both))) is FAILED


def test_status_without_the_kind_of_a_task_is_ignored() -> None:
    assert outcome_of_json(task_0x("failed")) is FAILED
    assert outcome_of_json(task_0x("completed")) is ANSWERED
    assert outcome_of_json({"status": {"state": "TASK_STATE_FAILED"}}) is ANSWERED


@pytest.mark.parametrize(
    ("states", "outcome"),
    [
        (["SUBMITTED", "WORKING", "COMPLETED"], ANSWERED),
        (["SUBMITTED", "WORKING", "FAILED"], FAILED),
        (["FAILED", "WORKING", "COMPLETED"], ANSWERED),
        (["FAILED"], FAILED),
    ],
)
def test_the_last_state_of_a_stream_decides(states: list[str], outcome: Outcome) -> None:
    assert streamed(*(event(rpc(result=update_10(state))) for state in states)) is outcome
    assert streamed(*(event(update_10(state)) for state in states)) is outcome


def test_artifacts_and_messages_after_a_failure_leave_the_outcome_failed() -> None:
    artifact = rpc(result={"artifactUpdate": {"taskId": "t", "artifact": {"artifactId": "a"}}})
    message = rpc(result={"message": {"role": "ROLE_AGENT", "parts": []}})
    assert streamed(event(rpc(result=update_10("FAILED"))), event(artifact), event(message)) is FAILED


def test_the_first_error_of_a_stream_decides() -> None:
    failed, completed = event(rpc(result=update_10("FAILED"))), event(rpc(result=update_10("COMPLETED")))
    assert streamed(failed, event(rpc_error(-32001)), completed) is Outcome.CALLER_FAULT
    assert streamed(event(rpc_error(-32603)), event(rpc_error(-32001))) is Outcome.SERVER_FAULT


# --- batches, and tools of MCP ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answers", "outcome"),
    [
        ([], ANSWERED),
        ([rpc(result={})], ANSWERED),
        ([rpc_error(-32603)], Outcome.SERVER_FAULT),
        ([rpc(result={}), rpc_error(-32603), rpc(result={})], Outcome.SERVER_FAULT),
        ([rpc_error(-32601), rpc(result=task_0x("failed")), rpc_error(-32602)], FAILED),
        ([rpc(result={}), rpc_error(-32602)], Outcome.CALLER_FAULT),
        ([rpc(result={}), rpc_error(-32601)], ANSWERED),
        ([rpc_error(-32601), rpc_error(-32600)], Outcome.NO_OPERATION),
        ([rpc_error(-32603), 7, None, [rpc_error(-32603)]], Outcome.SERVER_FAULT),
    ],
)
def test_batch_has_the_outcome_of_its_worst_answer(answers: list[Any], outcome: Outcome) -> None:
    assert outcome_of_json(answers) is outcome


def test_every_outcome_of_an_error_has_a_weight_in_a_batch() -> None:
    for code in [*CODES, None]:
        assert outcome_of_json([rpc_error(code)]) is outcome_of_json(rpc_error(code))


def test_failed_tool_of_mcp_is_a_tool_error() -> None:
    failed = rpc(result={"content": [{"type": "text", "text": "the backend is down"}], "isError": True})
    assert outcome_of_json(failed) is Outcome.TOOL_ERROR
    assert outcome_of_json([rpc(result={"isError": False}), failed]) is Outcome.TOOL_ERROR
    assert streamed(event(failed)) is Outcome.TOOL_ERROR
    assert outcome_of_json(rpc(result={"content": [], "isError": False})) is ANSWERED


@pytest.mark.parametrize("value", [True, "true", "false", "", 1, 0, None, [], {}])
def test_any_is_error_value_except_false_is_a_tool_error(value: object) -> None:
    failed = rpc(result={"content": [], "isError": value})
    assert classify_json(json.dumps(failed).encode()) is FAILED_TOOL
    assert streamed(event(failed)) is Outcome.TOOL_ERROR


def test_result_with_a_content_member_is_a_tool_result() -> None:
    assert classify_json(b'{"jsonrpc":"2.0","result":{"content":[]}}') is GOOD_TOOL_RESULT
    assert classify_json(b'{"jsonrpc":"2.0","result":{"tools":[]}}') is UNNAMED_RESULT
    assert classify_json(b'{"content":[]}') is OTHER_JSON


@pytest.mark.parametrize("member", ["message", "kind", "contents", "messages", "completion"])
def test_result_of_a_known_operation_needs_no_request(member: str) -> None:
    assert classify_json(json.dumps(rpc(result={member: {}})).encode()) is GOOD_ANSWER


# --- polls and sends --------------------------------------------------------------------------------------

SENDS = [
    "SendMessage",
    "SendStreamingMessage",
    "message/send",
    "message/stream",
    "tasks/send",
    "tasks/sendSubscribe",
]
POLLS = ["GetTask", "ListTasks", "SubscribeToTask", "CancelTask",
         "tasks/get", "tasks/list", "tasks/resubscribe", "tasks/cancel"]  # fmt: skip


@pytest.mark.parametrize("method", SENDS)
@pytest.mark.parametrize("path", ["/", "/a2a", "/tasks/a2a"])
def test_json_rpc_send_is_no_poll_on_any_path(method: str, path: str) -> None:
    assert not is_poll("POST", path, rpc(method=method))


@pytest.mark.parametrize("method", POLLS)
@pytest.mark.parametrize("path", ["/", "/a2a", "/message:send"])
def test_json_rpc_poll_is_recognised_on_any_path(method: str, path: str) -> None:
    assert is_poll("POST", path, rpc(method=method))


@pytest.mark.parametrize(
    "path",
    [
        "/message:send",
        "/message:stream",
        "/v1/message:send",
        "/rest/v1/message:stream",
        "/tenant/message:send",
    ],
)
def test_a_rest_send_is_no_poll(path: str) -> None:
    assert not is_poll("POST", path, {"message": {}})
    assert not is_poll("POST", path, None)


@pytest.mark.parametrize("path", ["/tasks/planner/message:send", "/tasks/planner/v1/message:stream"])
def test_rest_send_below_a_path_named_tasks_is_no_poll(path: str) -> None:
    assert not is_poll("POST", path, {"message": {}})


@pytest.mark.parametrize(
    ("http_method", "path"),
    [
        ("GET", "/tasks/1"),
        ("GET", "/v1/tasks/1"),
        ("GET", "/tasks"),
        ("GET", "/v1/tasks"),
        ("GET", "/tasks/1:subscribe"),
        ("POST", "/tasks/1:subscribe"),
        ("POST", "/rest/v1/tasks/1:subscribe"),
        ("POST", "/tasks/1:cancel"),
    ],
)
def test_rest_poll_is_recognised(http_method: str, path: str) -> None:
    assert is_poll(http_method, path, None)


@pytest.mark.parametrize("request_", [None, [], "SendMessage", {"method": None}, {"method": 1}, {}])
def test_sending_is_assumed_without_other_evidence(request_: object) -> None:
    assert not is_poll("POST", "/", request_)


def test_batch_is_a_poll_if_all_its_calls_are() -> None:
    poll, send = rpc(method="GetTask"), rpc(method="SendMessage")
    assert is_poll("POST", "/", [poll, poll])
    assert not is_poll("POST", "/", [poll, send])
    assert not is_poll("POST", "/", [poll, 7])


def excerpt(call: dict[str, Any]) -> object:
    """Return the first and last bytes of a call."""
    raw = json.dumps(call).encode()
    assert len(raw) > MAX_CALL_BYTES
    return excerpt_of(raw)


def excerpt_of(raw: bytes) -> object:
    names = sum(raw.count(name) for name in METHOD_NAMES)
    return call_of_excerpt(raw[: MAX_CALL_BYTES // 2], raw[-MAX_CALL_BYTES // 2 :], names)


LONG = {"message": {"parts": [{"text": "x" * 5000}], "metadata": {"way": "GetTask"}}}


@pytest.mark.parametrize("method", [*SENDS, *POLLS])
def test_method_of_a_long_call_is_found_at_the_top_level(method: str) -> None:
    for call in (
        {"jsonrpc": "2.0", "id": 1, "method": method, "params": LONG},
        {"id": "a-b", "jsonrpc": "2.0", "method": method, "params": LONG},
        {"params": LONG, "method": method, "jsonrpc": "2.0", "id": 1},
        {"jsonrpc": "2.0", "params": LONG, "id": None, "method": method},
    ):
        known = excerpt(call)
        assert is_poll("POST", "/", known) == (method in POLLS)
        assert expects_rpc_answer(known)


@pytest.mark.parametrize(
    "call",
    [
        {"jsonrpc": "2.0", "id": 1, "params": {"text": "x" * 5000, "method": "GetTask"}},
        {"jsonrpc": "2.0", "params": {"a": {"method": "GetTask"}, "text": "x" * 5000}, "id": 1},
        {"jsonrpc": "2.0", "params": {"text": "x" * 5000}, "b": {"c": 1, "method": "GetTask"}},
        {"jsonrpc": "2.0", "text": '","method":"GetTask"', "params": {"text": "x" * 5000}},
    ],
)
def test_method_below_the_top_of_a_long_call_is_not_taken(call: dict[str, Any]) -> None:
    assert not is_poll("POST", "/", excerpt(call))


@pytest.mark.parametrize(
    ("call", "if_short", "if_long"),
    [
        ('{"jsonrpc":"2.0","id":1,"method":"message/send","params":%s,"method":"tasks/get"}', True, True),
        ('{"jsonrpc":"2.0","id":1,"method":"tasks/get","params":%s,"method":"message/send"}', False, False),
        (
            '{"jsonrpc":"2.0","id":1,"method":"tasks/get","method":"message/send","params":%s,"a":{}}',
            False,
            None,
        ),
        (
            '{"jsonrpc":"2.0","id":1,"method":"tasks/get","a":%s,"method":"message/send","params":%s}',
            False,
            None,
        ),
        ('{"jsonrpc":"2.0","id":1,"method":"tasks/get","params":{"method":1,"a":%s}}', True, None),
        ('{"jsonrpc":"2.0","id":1,"method":"tasks/get","params":{"a":%s}}', True, True),
    ],
)
def test_last_of_two_methods_of_a_call_counts(
    call: str, *, if_short: bool | None, if_long: bool | None
) -> None:
    for text in ("", "x" * 5000):
        raw = call.replace("%s", json.dumps({"text": text})).encode()
        known = excerpt_of(raw) if text else parse_or_none(raw)
        # In the excerpt of a long call, a nested `method` looks like one at the top level.
        assert is_poll("POST", "/", known) is (if_long if text else if_short)


HIDDEN = [
    '{"jsonrpc":"2.0","id":1,"method":"\\u0047etTask","params":{"id":"t","tenant":"%s"}}',
    '{"jsonrpc":"2.0","id":1,"method":"tasks\\/get","params":{"id":"t","tenant":"%s"}}',
    '{"jsonrpc":"2.0","id":"a\\"b","method":"GetTask","params":{"id":"t","tenant":"%s"}}',
    '{"jsonrpc":"2.0","a":{"b":"%s"},"method":"GetTask","params":{"id":"t"}}',
    '{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":{"tenant":"%s"},"method":"GetTask","a":{}}',
    '{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":{"tenant":"%s"},"\\u006Dethod":"GetTask"}',
    '{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":{"tenant":"%s"},"me\\u0074hod":"GetTask"}',
    '{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":{"method":1,"tenant":"%s"}}',
    '{"a":"%s","jsonrpc":"2.0","method":"GetTask","b":"%s"}',
]


@pytest.mark.parametrize("call", HIDDEN)
def test_method_outside_the_excerpt_of_a_long_call_is_unknown(call: str) -> None:
    known = excerpt_of(call.replace("%s", "x" * 5000).encode())
    assert is_poll("POST", "/", known) is None
    assert is_poll("POST", "/v1/message:send", {}) is False


def test_last_of_two_methods_at_the_end_of_a_long_call_counts() -> None:
    call = '{"jsonrpc":"2.0","params":{"a":"%s"},"method":"SendMessage","method":"GetTask","id":1}'
    assert is_poll("POST", "/", excerpt_of(call.replace("%s", "x" * 5000).encode()))


def test_long_body_that_is_no_json_rpc_expects_no_answer() -> None:
    known = excerpt({"method": "GetTask", "params": LONG})
    assert known is UNKNOWN_BODY
    assert not expects_rpc_answer(known)
    assert is_poll("POST", "/v1/message:send", known) is False
    assert is_poll("POST", "/v1/tasks/7:cancel", known) is True


@given(st.binary(max_size=600), st.binary(max_size=600))
def test_any_excerpt_is_read_or_unknown(beginning: bytes, end: bytes) -> None:
    known = call_of_excerpt(b'{"jsonrpc"' + beginning, end, 1)
    assert isinstance(known, dict)


def test_only_a_json_rpc_call_with_an_id_expects_an_answer() -> None:
    assert expects_rpc_answer({"jsonrpc": "2.0", "id": 0, "method": "GetTask"})
    assert expects_rpc_answer({"jsonrpc": "2.0", "id": "", "method": "GetTask"})
    assert expects_rpc_answer([{"jsonrpc": "2.0", "method": "a"}, {"jsonrpc": "2.0", "id": 1}])
    for request in [
        {"jsonrpc": "2.0", "method": "GetTask"},
        {"jsonrpc": "2.0", "id": None, "method": "GetTask"},
        {"id": 1, "method": "GetTask"},
        {"jsonrpc": "2.0", "id": 1, "result": {}},
        {"jsonrpc": "2.0", "id": 1, "error": {"code": -1}},
        [{"jsonrpc": "2.0", "method": "GetTask"}],
        [[{"jsonrpc": "2.0", "id": 1}]],
        "jsonrpc",
        None,
    ]:
        assert not expects_rpc_answer(request)


def test_path_of_the_rest_binding_ends_in_an_operation() -> None:
    for path in ("/message:send", "/v1/message:stream", "/v1/tasks/7:cancel", "/tasks/7:subscribe"):
        assert is_rest_path(path)
    for path in ("", "/", "/rpc", "/v1:2/rpc", "/tasks/rpc", "/agents/did:web:x", "/:cancel", "/message:x"):
        assert not is_rest_path(path)


# --- arbitrary responses ----------------------------------------------------------------------------------


@pytest.mark.parametrize("digits", [19, 20, 21, 4300, 4301, 100_000])
@pytest.mark.parametrize("extra", [b"", rb',"text":"\ud800"'])
def test_number_of_any_length_is_read(digits: int, extra: bytes) -> None:
    """The lone surrogate is one that only Python's own parser takes."""
    number = b"1" * digits
    answer = b'{"jsonrpc":"2.0","result":{"n":%s,"x":0.%s}%s}' % (number, number, extra)
    assert classify_json(answer).outcome is ANSWERED
    fault = b'{"jsonrpc":"2.0","error":{"code":-32602,"data":%s}%s}' % (number, extra)
    assert classify_json(fault).outcome is Outcome.CALLER_FAULT


SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
)
NAMES = st.sampled_from(
    ["jsonrpc", "id", "result", "error", "code", "task", "statusUpdate", "status", "state", "kind"]
)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES | st.text(), inner),
    max_leaves=15,
)
ANSWERS = JSON | st.one_of(
    st.builds(lambda state: rpc(result={"status": {"state": state}}), JSON),
    st.builds(lambda status: rpc(result={"task": {"status": status}}), JSON),
    st.builds(lambda result: rpc(result=result), JSON),
    st.builds(rpc_error, JSON),
    st.builds(lambda error: rpc(error=error), JSON),
    st.builds(lambda update: {"statusUpdate": update}, JSON),
)


@given(ANSWERS)
@example(rpc(result={"status": {"state": []}}))
@example(rpc(result={"task": {"status": {"state": {}}}}))
def test_any_json_is_classified(message: object) -> None:
    raw = json.dumps(message).encode()
    assert classify_json(raw).outcome in Outcome
    assert read_event_stream(b"data: " + raw + b"\n\n").outcome in Outcome
    assert read_event_stream(b"event: error\ndata: " + raw + b"\n\n").outcome in Outcome
    assert is_poll("POST", "/", message) in {True, False}
    assert expects_rpc_answer(message) in {True, False}


@given(st.binary())
def test_any_bytes_are_classified_or_invalid_json(raw: bytes) -> None:
    try:
        outcome = classify_json(raw).outcome
    except (NotJson, TooComplex):
        assert parse_or_none(raw) is None
    else:
        assert outcome in Outcome
