"""A2A and MCP answers: the outcome by the body of a JSON answer (JSON-RPC codes, task states).

A2A over JSON-RPC answers every failure with HTTP 200, so that the body decides. Only its top-level members
count: an artifact may contain the word "error". `stream_outcome` reads event streams.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from lifesign.domain.health.outcome import (
    ANSWERED,
    TASK_FAILED,
    Outcome,
    outcome_of_rpc_code,
    outcome_of_status,
)
from lifesign.domain.parsing.bounded_json import parse_bounded

MAX_CALL_BYTES: Final = 1024
"""Number of bytes of a call that are kept: half of them from its beginning, half from its end."""

_FAILED_STATES = frozenset({"TASK_STATE_FAILED", "failed"})
_OPEN_STATES = frozenset({"TASK_STATE_SUBMITTED", "TASK_STATE_WORKING", "submitted", "working"})
# Parsers of protobuf's JSON take the number of a state, too.
_STATE_OF_NUMBER: Mapping[int, str] = MappingProxyType({
    1: "TASK_STATE_SUBMITTED",
    2: "TASK_STATE_WORKING",
    4: "TASK_STATE_FAILED",
})  # fmt: skip
_OTHER_STATE = "TASK_STATE_UNSPECIFIED"
"""A state whose number is not one of them."""
_REST_MEMBERS = ("artifactUpdate", "statusUpdate", "task", "message")
_BARE_KINDS = ("task", "message")
"""What servers of A2A 0.x also send without the member `task` or `message` around it."""
_KINDS = ("artifact-update", "status-update", *_BARE_KINDS)
_OPERATIONS_OF_MESSAGE = ("send", "stream")
_OPERATIONS_OF_TASK = ("cancel", "subscribe", "resubscribe")
_ASKING_METHODS = frozenset({
    "GetTask", "ListTasks", "SubscribeToTask", "CancelTask",  # A2A 1.0
    "tasks/get", "tasks/list", "tasks/resubscribe", "tasks/cancel",  # A2A 0.x
})  # fmt: skip
METHOD_NAMES: Final = (b'"method"', b"\\u006", b"\\u007")
"""The name of the method in a call, and escapes that can spell it in another way."""
STREAMING_METHODS: Final = frozenset({"SendStreamingMessage", "message/stream", "tasks/sendSubscribe"})
SENDING_METHODS: Final = STREAMING_METHODS | {"SendMessage", "message/send", "tasks/send"}
_DELETING_METHOD: Final = "tasks/pushNotificationConfig/delete"
STREAMING_PATH: Final = "message:stream"
"""End of the path of a streaming send in A2A's REST binding."""
SENDING_PATHS: Final = ("message:send", STREAMING_PATH)
"""Ends of the paths of both sends."""

# Weight of the outcome of one answer in a batch: the outcome with the highest weight is that of the batch.
_WEIGHT_IN_BATCH: Mapping[Outcome, int] = MappingProxyType({
    Outcome.EXCLUDED:     0,
    Outcome.ABANDONED:    0,
    Outcome.NO_OPERATION: 1,
    Outcome.ANSWERED:     2,
    Outcome.CALLER_FAULT: 3,
    Outcome.TOOL_ERROR:   4,
    Outcome.TASK_FAILED:  5,
    Outcome.SERVER_FAULT: 6,
    Outcome.MALFORMED:    7,
})  # fmt: skip

# Members of a result that name MCP's operation: of `resources/read`, `prompts/get`, `completion/complete`.
_MCP_MEMBERS = ("contents", "messages", "completion")

# Members with plain values, and then the method: of the beginning of a call, and of its end. An atomic group
# repeats them: `re` of Python before 3.11.5 misreads a group with a possessive repeat, such as Debian 12's.
_PLAIN = rb'"[^"\\]*+"\s*+:\s*+(?:"[^"\\]*+"|[-+.0-9a-zA-Z]++)\s*+'
_METHOD = rb'"method"\s*+:\s*+"([^"\\]*+)"\s*+'
_FIRST_METHOD = re.compile(rb"\s*+\{\s*+(?>(?:(?!\"method\")" + _PLAIN + rb",\s*+)*)" + _METHOD)
_LAST_METHOD = re.compile(rb",\s*+" + _METHOD + rb"(?>(?:,\s*+(?!\"method\")" + _PLAIN + rb")*)\}\s*+\Z")


UNKNOWN_CALL: Final[Mapping[str, Any]] = {"jsonrpc": "2.0", "id": True}
"""A long JSON-RPC call whose method is not known."""
UNKNOWN_BODY: Final[Mapping[str, Any]] = {}
"""A long body that shows no JSON-RPC."""


@dataclass(frozen=True, slots=True)
class JsonAnswer:
    """Outcome of a JSON answer, and facts that later steps need to correct it."""

    outcome: Outcome
    """The outcome, unless the request shows an operation of MCP: see `domain/mcp/answer_outcome.py`."""
    is_tool: bool = False
    """Whether the answer is the result of an MCP tool."""
    is_unnamed: bool = False
    """Whether the answer is a JSON-RPC result that does not show which operation it answers."""
    is_empty: bool = False
    """Whether such a result is no object, or one without members: it answers no send of A2A."""
    is_rpc_error: bool = False
    code: object = None
    """The code of a JSON-RPC error."""
    members: tuple["JsonAnswer", ...] = ()
    """The answers of a JSON-RPC batch."""
    is_other: bool = False
    """Whether it is JSON, but no answer to a JSON-RPC call."""


GOOD_ANSWER: Final = JsonAnswer(ANSWERED)
OTHER_JSON: Final = JsonAnswer(ANSWERED, is_other=True)
REST_ANSWER: Final = JsonAnswer(ANSWERED, is_other=True)
"""JSON with or of a task or a message, which answers a send of the REST binding."""
GOOD_TOOL_RESULT: Final = JsonAnswer(ANSWERED, is_tool=True)
UNNAMED_RESULT: Final = JsonAnswer(ANSWERED, is_unnamed=True)
EMPTY_RESULT: Final = JsonAnswer(ANSWERED, is_unnamed=True, is_empty=True)
NULL_RESULT: Final = JsonAnswer(ANSWERED, is_unnamed=True, is_empty=True)
"""A result that is no object: it answers no interaction of MCP either."""
FAILED_TASK: Final = JsonAnswer(TASK_FAILED)
FAILED_TOOL: Final = JsonAnswer(Outcome.TOOL_ERROR, is_tool=True)
MALFORMED_ANSWER: Final = JsonAnswer(Outcome.MALFORMED)


def classify_json(body: bytes) -> JsonAnswer:
    """Return the outcome of a complete JSON answer.

    Raises NotJson or TooComplex. Knows JSON-RPC by the top-level `jsonrpc`; other JSON is A2A's
    REST binding if it has its members, else OTHER_JSON. A JSON-RPC batch is as bad as its worst answer.
    """
    message = parse_bounded(body)
    if isinstance(message, dict):
        return judge_message(message)
    return _judge_batch(message) if isinstance(message, list) else OTHER_JSON


def judge_message(message: Mapping[str, Any]) -> JsonAnswer:  # noqa: PLR0911 - a call costs 100 ns per request
    """Return the outcome of one JSON object: by its JSON-RPC error, task state, or MCP result.

    JSON-RPC without an error, a result and a method is malformed.
    """
    if "jsonrpc" not in message:
        is_bare = message.get("kind") in _BARE_KINDS
        if _state_of(message, is_rpc=is_bare) in _FAILED_STATES:
            return FAILED_TASK
        is_rest = is_bare or isinstance(message.get("task"), dict) or isinstance(message.get("message"), dict)
        return REST_ANSWER if is_rest else OTHER_JSON
    error = message.get("error")
    if error is not None:
        code = error.get("code") if isinstance(error, dict) else None
        return JsonAnswer(outcome_of_rpc_code(code), is_rpc_error=True, code=code)
    result = message.get("result")
    if not isinstance(result, dict):
        if "result" in message:
            return NULL_RESULT
        # A request or a notification is no answer.
        return OTHER_JSON if "method" in message else MALFORMED_ANSWER
    if not result:
        return EMPTY_RESULT
    if result.get("isError", False) is not False:
        # No client takes any other value for a good result.
        return FAILED_TOOL
    state = _state_of(result, is_rpc=True)
    if state is not None:
        return FAILED_TASK if state in _FAILED_STATES else GOOD_ANSWER
    if "content" in result:
        return GOOD_TOOL_RESULT
    is_named = "message" in result or "kind" in result or result.get("resultType") == "input_required"
    return GOOD_ANSWER if is_named or any(name in result for name in _MCP_MEMBERS) else UNNAMED_RESULT


def worst_of(answers: tuple[JsonAnswer, ...]) -> JsonAnswer:
    """Return the worst answer of a JSON-RPC batch, which decides the outcome. `answers` is not empty."""
    return max(answers, key=_badness)


def badness_of(message: Mapping[str, Any]) -> tuple[int, bool, bool, bool]:
    """Return a value that orders the answers of a JSON-RPC batch: the worst answer has the highest."""
    return _badness(judge_message(message))


def _badness(answer: JsonAnswer) -> tuple[int, bool, bool, bool]:
    return _WEIGHT_IN_BATCH[answer.outcome], answer.is_tool, not answer.is_unnamed, not answer.is_empty


def _judge_batch(messages: list[Any]) -> JsonAnswer:
    statements = (judge_message(one) for one in messages if isinstance(one, dict) and "jsonrpc" in one)
    answers = tuple(answer for answer in statements if not answer.is_other)
    if not answers:
        return OTHER_JSON
    worst = worst_of(answers)
    return JsonAnswer(worst.outcome, worst.is_tool, is_unnamed=worst.is_unnamed, members=answers)


def is_poll(http_method: str, path: str, request: object) -> bool | None:
    """Return whether a request only reads a task: then a failed task in the answer is no failure.

    `request` is the parsed request body, None if it is no JSON, or a call of `call_of_excerpt`. The answer is
    None if its method is not known. A batch is a poll if all of its calls are. For a JSON-RPC call only the
    method counts: below any path, also one with `/tasks/`, it may be a send.
    """
    calls = request if isinstance(request, list) else [request]
    methods = [method_of(call) for call in calls]
    if any(methods):
        return all(method in _ASKING_METHODS for method in methods)
    is_unknown = request is UNKNOWN_CALL or request is UNKNOWN_BODY
    if request is not UNKNOWN_BODY and any(isinstance(call, dict) and "jsonrpc" in call for call in calls):
        return None if is_unknown else False
    if path.endswith(SENDING_PATHS):
        return False
    return http_method == "GET" or "/tasks/" in path or (None if is_unknown else False)


def method_of(call: object) -> str:
    """Return the method name of a parsed JSON-RPC call; "" if it has none."""
    method = call.get("method") if isinstance(call, dict) else None
    return method if isinstance(method, str) else ""


def may_lack_result(call: object) -> bool:
    """Return whether JSON-RPC without a result answers the call: a2a-sdk drops null in A2A 0.3."""
    return method_of(call) == _DELETING_METHOD


def expects_rpc_answer(request: object) -> bool:
    """Return whether a parsed request body contains a JSON-RPC call with an `id`, which expects an answer.

    The answer of an MCP client to its server is none.
    """
    return any(
        isinstance(call, dict)
        and "jsonrpc" in call
        and call.get("id") is not None
        and ("method" in call or not ("result" in call or "error" in call))
        for call in (request if isinstance(request, list) else [request])
    )


def is_rest_path(path: str) -> bool:
    """Return whether a path ends with an operation of A2A's REST binding, such as `message:send`."""
    name, _, operation = path[path.rfind("/") + 1 :].rpartition(":")
    return operation in (_OPERATIONS_OF_MESSAGE if name == "message" else _OPERATIONS_OF_TASK) and bool(name)


def call_of_excerpt(beginning: bytes, end: bytes, names: int) -> object:
    """Return the JSON-RPC call in a long request body, as far as the body's beginning and end show it.

    `names` is how often METHOD_NAMES occur in the whole body. Whether the call expects an answer is a guess
    from the name `jsonrpc`; a method is exact if there is one. Parsers take the last of two methods, which
    may be below the top or in the part that was not kept: then it is unknown.
    """
    if b'"jsonrpc"' not in beginning and b'"jsonrpc"' not in end:
        return UNKNOWN_BODY
    found = _LAST_METHOD.search(end) or (_FIRST_METHOD.match(beginning) if names == 1 else None)
    if found is None:
        return UNKNOWN_CALL
    return {"jsonrpc": "2.0", "id": True, "method": found[1].decode("utf-8", "replace")}


def outcome_of_error(error: object, *, is_rpc: bool) -> Outcome:
    """Return the outcome of an answer's `error` member, by its code (A2A's REST binding: HTTP status)."""
    code = error.get("code") if isinstance(error, dict) else None
    if not is_rpc and isinstance(code, int) and 400 <= code < 500:
        return outcome_of_status(code, has_route=True)
    return outcome_of_rpc_code(code)


def is_failed(state: str | None) -> bool:
    """Return whether a task in this state has failed."""
    return state in _FAILED_STATES


def is_open(state: str | None) -> bool:
    """Return whether a task in this state is unfinished work of the agent."""
    return state in _OPEN_STATES


def is_final(message: Mapping[str, Any]) -> bool:
    """Return whether a message about a task is marked as the last one, as in A2A 0.x."""
    result = message.get("result") if "jsonrpc" in message else message
    return isinstance(result, dict) and result.get("final") is True


def task_state(message: object) -> str | None:
    """Return the state of the task that a message reports, None if it reports none.

    `result.task` and `result.statusUpdate` in 1.0 (REST: without `result`), `result` in 0.x.
    A bare `status` without JSON-RPC or one of A2A's kinds is a REST poll, or no A2A at all.
    """
    if not isinstance(message, dict):
        return None
    is_rpc = "jsonrpc" in message
    result = message.get("result") if is_rpc else message
    if not isinstance(result, dict):
        return None
    return _state_of(result, is_rpc=is_rpc or result.get("kind") in _KINDS)


def is_rest_event(message: Mapping[str, Any]) -> bool:
    """Return whether an event's data has A2A's form without JSON-RPC."""
    return message.get("kind") in _KINDS or any(isinstance(message.get(name), dict) for name in _REST_MEMBERS)


def _state_of(result: Mapping[str, Any], *, is_rpc: bool) -> str | None:
    """Return the state that a result reports; of two, which A2A forbids, the failed one, else the last."""
    task, update = result.get("task"), result.get("statusUpdate")
    if not update:
        if task:
            # Nearly every answer. Reading the absent update too would take a quarter longer.
            return _wrapped_state(task)
        state = _state_in(result) if is_rpc else None
        return state if isinstance(state, str) else None
    last, before = _wrapped_state(update), _wrapped_state(task)
    return before if last is None or before in _FAILED_STATES else last


def _wrapped_state(reporter: object) -> str | None:
    """Return the state of a task within a member of its own, as protobuf writes it: by name or number."""
    state = _state_in(reporter)
    if type(state) is int:
        return _STATE_OF_NUMBER.get(state, _OTHER_STATE)
    return state if isinstance(state, str) else None


def _state_in(reporter: object) -> object:
    status = reporter.get("status") if isinstance(reporter, dict) else None
    return status.get("state") if isinstance(status, dict) else None
