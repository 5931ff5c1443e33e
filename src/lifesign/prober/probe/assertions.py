"""Assertions of a probe: its answers in the form that assertions check."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from lifesign.domain.a2a.response_outcome import task_state
from lifesign.domain.a2a.task_poll import UNFINISHED
from lifesign.domain.mcp.tools import tool_text, tool_value
from lifesign.domain.observation.assertion import (
    MAX_TEXT_CHARS,
    NOT_JSON,
    TOO_COMPLEX,
    Assertion,
    AssertionResult,
    CheckedAnswer,
    answer_text,
    evaluate,
)
from lifesign.domain.observation.message_answer import EVENT_STREAM
from lifesign.domain.observation.results import (
    CREDENTIAL_FAULTS,
    REFUSED_LOGIN,
    LayerResult,
    ResultClass,
)
from lifesign.domain.parsing.bounded_json import NotJson, TooComplex, parse_bounded
from lifesign.domain.targets.target import TargetKind
from lifesign.http_client.headers import UTF_8
from lifesign.http_client.redirects import is_same_origin
from lifesign.prober.network.fetched import Fetched
from lifesign.prober.probe.missing_credential import missing_text
from lifesign.prober.probe.session import ALTERED, ProbeSession

DAY_SECONDS: Final = 86_400
# The body requires credentials, or is longer than is read.
_WITHOUT_CONTENT: Final = REFUSED_LOGIN | {ResultClass.TOO_LARGE}
# The answer is incomplete.
_BROKEN_OFF: Final = frozenset({ResultClass.TIMEOUT, ResultClass.REFUSED, ResultClass.TLS_FAILURE})


def check_assertions(
    visit: ProbeSession, assertions: Iterable[Assertion], answers: Mapping[str, LayerResult | None]
) -> tuple[AssertionResult, ...] | None:
    """Return the results of all assertions; None if there are none. `answers`: answers by layer or path."""
    seen: dict[str, CheckedAnswer | None] = {}
    results = []
    for assertion in assertions:
        of = assertion.of
        layer = answers.get(of)
        if of not in seen:
            seen[of] = None if layer is None else _checked(visit, of, layer)
        result = evaluate(assertion, seen[of], "" if layer is None else _reason(visit, layer))
        fetched = None if layer is None else visit.fetched_for(layer)
        if result.has_failed and assertion.is_of_content and fetched is not None and fetched.is_altered:
            result = evaluate(assertion, None, ALTERED)
        if fetched is not None and result.actual is not None:
            result = result.model_copy(update={"actual": fetched.scrubber.clean_text(result.actual)})
        results.append(result)
    return tuple(results) or None


def _reason(visit: ProbeSession, layer: LayerResult) -> str:
    """Return the reason for assertions about an answer that are not measured; empty if unknown."""
    if layer.result is not ResultClass.OK:
        return layer.reason
    fetched = visit.fetched_for(layer)
    if fetched is None or not visit.is_without_credential(fetched):
        return ""
    missing = visit.credentials.missing_for(str(fetched.url))
    return fetched.token_fault or fetched.withheld or ("" if missing is None else missing_text(missing))


def _checked(visit: ProbeSession, of: str, layer: LayerResult) -> CheckedAnswer | None:
    """Return an answer in the form for assertions.

    None if there is none, or if it is no evidence about the target.
    """
    fetched = visit.fetched_for(layer)
    is_answer = layer.is_measured and layer.result not in _BROKEN_OFF and layer.status_code is not None
    if fetched is None or not is_answer or layer.status_code is None:
        return None
    has_fault = layer.result in CREDENTIAL_FAULTS or visit.is_without_credential(fetched)
    is_known = layer.result not in _WITHOUT_CONTENT and fetched.result not in _WITHOUT_CONTENT
    has_content = is_known and not has_fault and not fetched.is_body_unread
    value, json_fault = _parsed(fetched.body) if has_content else (None, "")
    text = fetched.body[:MAX_TEXT_CHARS].decode(fetched.codec, "replace") if has_content else ""
    if fetched.codec != UTF_8:
        # The search of the bytes finds invisible characters within a secret only in UTF-8.
        text = fetched.scrubber.clean_text(text)
    if of == "message":
        # A task that is not finished has no answer yet, and a stream is not read.
        is_finished = fetched.content_type != EVENT_STREAM and task_state(value) not in UNFINISHED
        has_content = has_content and is_finished
    value = _result_of(value)
    reply = visit.server_reply if of == "card" and visit.kind is TargetKind.MCP else None
    if has_content and reply is not None and reply.is_answer:
        # It may have arrived in an event stream.
        value, json_fault = reply.result, ""
    has_failed = False
    if of == "message":
        text = answer_text(value)
    elif of == "tool":
        value, text = tool_value(visit.tool_result), tool_text(visit.tool_result)
        json_fault = ""
        has_failed = layer.has_failed
    return CheckedAnswer(
        status=layer.status_code,
        latency_ms=layer.latency_ms,
        certificate_days=_certificate_days(visit, fetched),
        has_content=has_content,
        is_gated=layer.result in REFUSED_LOGIN,
        has_credential_fault=has_fault,
        has_failed=has_failed,
        value=value,
        json_fault=json_fault,
        text=text,
    )


def _parsed(body: bytes) -> tuple[Any, str]:
    """Return the JSON value of a body, and why there is none."""
    try:
        return parse_bounded(body), ""
    except NotJson:
        return None, NOT_JSON
    except TooComplex:
        return None, TOO_COMPLEX


def _result_of(value: Any) -> Any:
    """Return the value to which pointers apply: of a JSON-RPC answer, its result."""
    return value.get("result") if isinstance(value, dict) and value.get("jsonrpc") == "2.0" else value


def _certificate_days(visit: ProbeSession, fetched: Fetched) -> float | None:
    # That of an earlier answer of this origin, if the connection of this one broke.
    answers = (fetched, *(each.fetched for each in visit.exchanges))
    ends = next(
        (
            each.certificate_expires_at
            for each in answers
            if each.certificate_expires_at is not None and is_same_origin(each.url, fetched.url)
        ),
        None,
    )
    return None if ends is None else (ends - visit.now).total_seconds() / DAY_SECONDS


def needs_body(assertions: Sequence[Assertion], of: str) -> bool:
    """Return whether an assertion needs the body of an answer."""
    return any(each.of == of and each.needs_body for each in assertions)
