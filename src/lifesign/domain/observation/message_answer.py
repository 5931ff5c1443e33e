"""Classification of the answer to a message.

An agent that answers works: also if it asks a question, is still working, or refuses the message in A2A
terms. It has failed if it reports a FAILED task or an internal error. A failure that may come from the
variant of the protocol is distinguished, so that another variant can be tried.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from lifesign.domain.a2a.response_outcome import task_state
from lifesign.domain.a2a.stream_outcome import read_event_stream
from lifesign.domain.health.outcome import Outcome, outcome_of_rpc_code
from lifesign.domain.observation.interface_answer import classify_interface
from lifesign.domain.observation.results import ResultClass
from lifesign.domain.parsing.bounded_json import parse_or_none

EVENT_STREAM: Final = "text/event-stream"
MAX_SHOWN_CHARS: Final = 120
"""Maximum length of a peer's text in a reason."""
MAX_CODE: Final = 10**9

_OK, _FAILED = ResultClass.OK, ResultClass.HTTP_ERROR
_REFUSED_FIRST: Final = frozenset({ResultClass.GATED, ResultClass.RATE_LIMITED})

# A task's state in small letters, without the prefix of 1.0. A state that is absent here is an answer.
_STATES: Final[Mapping[str, tuple[ResultClass, str]]] = MappingProxyType({
    "completed":      (_OK, ""),
    "failed":         (_FAILED, "the task failed"),
    "rejected":       (_OK, "it refuses the message: the task is rejected"),
    "auth-required":  (ResultClass.GATED, "the task waits for credentials"),
})  # fmt: skip

# Meaning of an outcome (protocol section 2) for a message from the prober, a stranger: an agent that refuses
# unsupported input has not failed.
_CLASSES: Final[Mapping[Outcome, tuple[ResultClass, str]]] = MappingProxyType({
    Outcome.ANSWERED:     (_OK, ""),
    Outcome.NOT_INSPECTED: (_OK, "the answer could not be inspected"),
    Outcome.CALLER_FAULT: (_OK, "it declines the message"),
    Outcome.NO_OPERATION: (ResultClass.NOT_AN_AGENT, "it does not know the operation"),
    Outcome.NOT_ADMITTED: (ResultClass.GATED, "it requires credentials or payment first"),
    Outcome.RATE_LIMITED: (ResultClass.RATE_LIMITED, "asked too often"),
    Outcome.SERVER_FAULT: (_FAILED, "it fails inside"),
    Outcome.TASK_FAILED:  (_FAILED, "the task failed"),
    Outcome.TOOL_ERROR:   (_FAILED, "the tool failed"),
})  # fmt: skip

# Parse error and invalid request (our JSON is neither), method not found, invalid params, version.
_MISSPELT_CODES: Final = frozenset({-32700, -32600, -32601, -32602, -32009})
# If the operation is a path (HTTP+JSON), an unknown one does not exist or does not accept POST.
_MISSPELT_PATHS: Final = frozenset({404, 405, 410})
_MISSPELT_BODIES: Final = frozenset({400, 415, 422, 501})
_DECLINES: Final = frozenset({400, 409, 413, 415, 422})
# Members of a result that identify A2A, of any generation.
_RESULT_MEMBERS: Final[tuple[tuple[str, type], ...]] = (
    ("task", dict), ("message", dict), ("statusUpdate", dict), ("status", dict), ("parts", list),
    ("artifacts", list),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class MessageAnswer:
    """Result of one message to an agent, by its answer."""

    result: ResultClass
    reason: str = ""
    """Finding, for people; empty if the class is sufficient. May quote the peer."""
    is_misspelt: bool = False
    """Whether another variant of the message may be accepted."""


def classify_answer(status: int, content_type: str, body: bytes, *, is_rpc: bool) -> MessageAnswer:
    """Return the result of a message by the complete answer. `is_rpc`: JSON-RPC, otherwise HTTP+JSON."""
    result, reason = classify_interface(status)
    if result in _REFUSED_FIRST:
        return MessageAnswer(result, reason)
    is_good = 200 <= status < 300
    if is_good and content_type == EVENT_STREAM:
        return _classify_stream(body)
    message = parse_or_none(body)
    if isinstance(message, dict) and "jsonrpc" in message and message.get("error") is not None:
        return _classify_error(message["error"])
    if not is_good:
        return _classify_status(status, message, is_rpc=is_rpc)
    return _classify_result(message, content_type, is_rpc=is_rpc)


def best_of(answers: list[MessageAnswer]) -> MessageAnswer:
    """Return the most informative answer to a message that was sent in several variants, all refused.

    This is the first answer of an agent that knows the operation and declines; else the first one. `answers`
    is not empty.
    """
    return next((one for one in answers if one.result is not ResultClass.NOT_AN_AGENT), answers[0])


def _classify_error(error: object) -> MessageAnswer:
    given = error.get("code") if isinstance(error, dict) else None
    # A number may have more digits than Python agrees to print.
    code = given if isinstance(given, int) and abs(given) < MAX_CODE else None
    result, meaning = _CLASSES[outcome_of_rpc_code(code)]
    reason = f"{meaning}: JSON-RPC error{'' if code is None else f' {code}'}{_error_text(error)}"
    return MessageAnswer(result, reason, is_misspelt=code in _MISSPELT_CODES)


def _classify_status(status: int, message: object, *, is_rpc: bool) -> MessageAnswer:
    is_misspelt = status in _MISSPELT_BODIES or (status in _MISSPELT_PATHS and not is_rpc)
    if status in _DECLINES and isinstance(message, dict):
        # The text of an agent, not of a server without an agent.
        return MessageAnswer(_OK, f"HTTP {status}: it refuses the message{_error_text(message)}", is_misspelt)
    result = ResultClass.NOT_AN_AGENT if status in _MISSPELT_PATHS else _FAILED
    meaning = (
        "it accepts no message at this URL"
        if result is ResultClass.NOT_AN_AGENT
        else "not an answer to a message"
    )
    return MessageAnswer(result, f"HTTP {status}: {meaning}{_error_text(message)}", is_misspelt)


def _classify_result(message: object, content_type: str, *, is_rpc: bool) -> MessageAnswer:
    if message is None:
        if content_type.endswith("json"):
            return MessageAnswer(ResultClass.INVALID_DOCUMENT, "the answer claims to be JSON, but is not")
        what = ascii(content_type) if content_type else "of no content type"
        return MessageAnswer(ResultClass.NOT_AN_AGENT, f"the answer is not JSON but {what}")
    if not isinstance(message, dict) or (is_rpc and "jsonrpc" not in message):
        return MessageAnswer(ResultClass.NOT_AN_AGENT, "JSON of another kind than an answer to a message")
    result = message.get("result") if "jsonrpc" in message else message
    if not isinstance(result, dict) or not any(
        isinstance(result.get(name), kind) for name, kind in _RESULT_MEMBERS
    ):
        return MessageAnswer(ResultClass.INVALID_DOCUMENT, "the answer contains neither a task nor a message")
    state = task_state(message)
    if state is None:
        return MessageAnswer(_OK)
    name = state.removeprefix("TASK_STATE_").lower().replace("_", "-")
    found, meaning = _STATES.get(name, (_OK, f"the task is {name[:MAX_SHOWN_CHARS]!a}"))
    return MessageAnswer(found, meaning)


def _classify_stream(body: bytes) -> MessageAnswer:
    """Classify an event stream, which some agents send without a request for one."""
    end = read_event_stream(body)
    if not end.has_events:
        return MessageAnswer(ResultClass.INVALID_DOCUMENT, "the answer is a stream without an event")
    if end.has_other_data and end.outcome in {Outcome.ANSWERED, Outcome.NOT_INSPECTED}:
        return MessageAnswer(ResultClass.INVALID_DOCUMENT, "an event of the answer is not JSON")
    result, meaning = _CLASSES[end.outcome]
    return MessageAnswer(result, f"a stream: {meaning}" if meaning else "")


def _error_text(error: Any) -> str:
    """Return the text of an error, in ASCII."""
    inner = error.get("error", error) if isinstance(error, dict) else error
    text = inner.get("message") if isinstance(inner, dict) else None
    return f", {text[:MAX_SHOWN_CHARS]!a}" if isinstance(text, str) and text else ""
