"""What did an A2A answer say? (JSON-RPC codes, task states, SSE events)

A2A over JSON-RPC answers every failure with HTTP 200, so the body decides. It is judged by
its top-level members only: an artifact may well contain the word "error".
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any

from pydantic_core import from_json

from agent_health.outcome import ANSWERED, TASK_FAILED, Outcome, outcome_of_rpc_code, outcome_of_status

_FAILED_STATES = frozenset({"TASK_STATE_FAILED", "failed"})
_ASKING_METHODS = frozenset({
    "GetTask", "ListTasks", "SubscribeToTask", "CancelTask",  # A2A 1.0
    "tasks/get", "tasks/list", "tasks/resubscribe", "tasks/cancel",  # A2A 0.x
})  # fmt: skip
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_SENDING_PATHS = ("message:send", "message:stream")  # A2A's REST binding


class NotJson(ValueError):
    """The bytes are not JSON."""


class TooDeep(ValueError):
    """The bytes may be JSON, but are nested too deeply to be read safely."""


def outcome_of_json(body: bytes) -> Outcome:
    """Judge a whole JSON answer that came with a 2xx status.

    Raises NotJson or TooDeep. Knows JSON-RPC by the top-level `jsonrpc`; other JSON is A2A's
    REST binding if it has its members, else simply an answer.
    """
    message = _parse(body)
    if not isinstance(message, dict):
        return ANSWERED
    if message.get("error") is not None and "jsonrpc" in message:
        return _outcome_of_error(message["error"], is_rpc=True)
    return TASK_FAILED if task_state(message) in _FAILED_STATES else ANSWERED


def outcome_of_stream(tail: bytes, *, is_whole: bool) -> Outcome:
    """Judge the last bytes of a finished `text/event-stream` answer.

    The first error event decides; without one, the last task state. With `is_whole` False the
    beginning is missing: what stands before the first blank line is not looked at, and the outcome
    is UNINSPECTED if no event is left.
    Raises NotJson if an event's data is not JSON, TooDeep if it may be but cannot be read.
    """
    lines = tail.removeprefix(_BYTE_ORDER_MARK).splitlines()
    if not is_whole:
        # The first line is the rest of one: even if it is empty, it is no blank line.
        lines = lines[lines.index(b"", 1) + 1 :] if b"" in lines[1:] else []
    last = ANSWERED if is_whole else None
    not_json = None
    for name, data in _events(lines):
        if name == b"error":
            return _outcome_of_error_event(data)
        try:
            message = _parse(data)
        except NotJson as error:
            not_json = error
            continue
        if isinstance(message, dict):
            if message.get("error") is not None:
                return _outcome_of_error(message["error"], is_rpc="jsonrpc" in message)
            state = task_state(message)
            if state is not None:
                last = TASK_FAILED if state in _FAILED_STATES else ANSWERED
        if last is None:
            last = ANSWERED
    if not_json is not None and last is not TASK_FAILED:
        raise not_json
    return Outcome.UNINSPECTED if last is None else last


def is_poll(http_method: str, path: str, request: object) -> bool:
    """Whether a request only asks about a task, so that a FAILED task is a good answer to it.

    `request` is the parsed request body, or None if it is not known. Sending is assumed
    where nothing tells otherwise.
    """
    method = request.get("method") if isinstance(request, dict) else None
    if isinstance(method, str):
        return method in _ASKING_METHODS
    if path.endswith(_SENDING_PATHS):
        return False
    return http_method == "GET" or "/tasks/" in path


def expects_rpc_answer(request: object) -> bool:
    """Whether a parsed request body is a JSON-RPC call that asks for an answer (it has an `id`)."""
    return isinstance(request, dict) and "jsonrpc" in request and request.get("id") is not None


def parse_or_none(body: bytes) -> object:
    """Return the JSON value of `body`, or None if it is not readable JSON."""
    try:
        return _parse(body)
    except (NotJson, TooDeep):
        return None


def _parse(body: bytes) -> Any:
    try:
        # Two to three times as fast as json.loads; json.loads stays the judge of what is JSON,
        # as it takes deeper nesting and lone surrogates.
        return from_json(body, allow_inf_nan=False, cache_strings="keys")
    except ValueError:
        pass
    try:
        return json.loads(body, parse_constant=_refuse_constant)
    except RecursionError as error:
        raise TooDeep("nested too deeply") from error
    except ValueError as error:
        raise NotJson(str(error)) from error


def _refuse_constant(name: str) -> None:
    # Python writes NaN and Infinity, which no other reader takes.
    raise ValueError(f"{name} is not JSON")


def _outcome_of_error(error: object, *, is_rpc: bool) -> Outcome:
    code = _member(error, "code")
    if not is_rpc and isinstance(code, int) and 400 <= code < 500:
        # The REST binding puts an HTTP status there.
        return outcome_of_status(code, has_route=True)
    return outcome_of_rpc_code(code)


def _outcome_of_error_event(data: bytes) -> Outcome:
    message = parse_or_none(data)
    error = _member(message, "error")
    return _outcome_of_error(error, is_rpc=_member(message, "jsonrpc") is not None)


def task_state(message: object) -> str | None:
    """The state of the task that a message reports, None if it reports none.

    `result.task` and `result.statusUpdate` in 1.0 (REST: without `result`), `result` in 0.x.
    A bare `status` without JSON-RPC around it is a REST poll, or no A2A at all.
    """
    if not isinstance(message, dict):
        return None
    is_rpc = "jsonrpc" in message
    result = message.get("result") if is_rpc else message
    if not isinstance(result, dict):
        return None
    reporter = result.get("task") or result.get("statusUpdate") or (result if is_rpc else None)
    status = reporter.get("status") if isinstance(reporter, dict) else None
    state = status.get("state") if isinstance(status, dict) else None
    return state if isinstance(state, str) else None


def _member(value: object, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None


def _events(lines: Iterable[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Yield (event name, data) of every complete event that has data (WHATWG server-sent events).

    What follows the last blank line is no event.
    """
    name = b""
    data: list[bytes] = []
    for line in lines:
        if not line:
            if data:
                yield name, b"\n".join(data)
            name, data = b"", []
            continue
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            data.append(value)
        elif field == b"event":
            name = value
