import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.a2a_messages import event, rpc, rpc_error, task_0x, task_10, update_0x
from tests.support.cards import DATA

from lifesign.domain.observation.message_answer import MessageAnswer, best_of, classify_answer
from lifesign.domain.observation.results import MAX_REASON_CHARS, ResultClass

OK, GATED, FAILED = ResultClass.OK, ResultClass.GATED, ResultClass.HTTP_ERROR
NOT_AN_AGENT, INVALID = ResultClass.NOT_AN_AGENT, ResultClass.INVALID_DOCUMENT
JSON = "application/json"


def classified_json(message: Any, status: int = 200, *, is_rpc: bool = True) -> MessageAnswer:
    return classify_answer(status, JSON, json.dumps(message).encode(), is_rpc=is_rpc)


# ── tasks and messages ──

STATES = {
    "completed": OK, "submitted": OK, "working": OK, "input-required": OK, "rejected": OK, "canceled": OK,
    "auth-required": GATED, "failed": FAILED, "something-new": OK,
}  # fmt: skip


@pytest.mark.parametrize(("state", "expected"), STATES.items())
def test_task_is_classified_by_its_state_in_every_generation(state: str, expected: ResultClass) -> None:
    of_1_0 = task_10(state.upper().replace("-", "_"))
    answers = [
        classified_json(rpc(result=task_0x(state))),
        classified_json(rpc(result=of_1_0)),
        classified_json(of_1_0, is_rpc=False),
    ]
    assert {answer.result for answer in answers} == {expected}
    assert {bool(answer.reason) for answer in answers} == {state != "completed"}
    assert not any(answer.is_misspelt for answer in answers)


def test_a_message_is_an_answer() -> None:
    text = {"messageId": "m", "role": "ROLE_AGENT", "parts": [{"text": "failed"}]}
    assert classified_json(rpc(result={"message": text})) == MessageAnswer(OK)
    assert classified_json({"message": text}, is_rpc=False) == MessageAnswer(OK)
    assert classified_json(rpc(result={"kind": "message", **text})) == MessageAnswer(OK)


def test_failure_inside_an_artifact_is_content() -> None:
    artifact = {"artifactId": "a", "parts": [{"text": '{"error": {"code": -32603}}'}]}
    assert classified_json(rpc(result=task_0x("completed") | {"artifacts": [artifact]})) == MessageAnswer(OK)


# ── JSON-RPC errors ──


@pytest.mark.parametrize(
    ("code", "expected", "is_misspelt"),
    [
        (-32601, NOT_AN_AGENT, True),
        (-32600, NOT_AN_AGENT, True),
        (-32700, NOT_AN_AGENT, True),
        (-32602, OK, True),
        (-32009, OK, True),
        (-32005, OK, False),
        (-32008, OK, False),
        (-32603, FAILED, False),
        (-32006, FAILED, False),
        (-32000, FAILED, False),
        (None, FAILED, False),
        ("-32601", FAILED, False),
        ([], FAILED, False),
        (10**400, FAILED, False),
    ],
)
def test_json_rpc_error_code_decides_between_agent_caller_and_message_variant(
    code: object,
    expected: ResultClass,
    is_misspelt: bool,  # noqa: FBT001 - a column of the table
) -> None:
    for status in (200, 400, 404, 500):
        answer = classified_json(rpc_error(code), status)
        assert (answer.result, answer.is_misspelt) == (expected, is_misspelt)
        assert "JSON-RPC error" in answer.reason


def test_error_text_of_the_agent_is_quoted_shortened() -> None:
    error = {"code": -32603, "message": "Modell läuft nicht\x1b[2J" + "!" * 1000}
    reason = classified_json(rpc(error=error)).reason
    assert r"JSON-RPC error -32603, 'Modell l\xe4uft nicht\x1b[2J!" in reason
    assert len(reason) < 200


# ── HTTP ──


@pytest.mark.parametrize(
    ("status", "expected"),
    [(401, GATED), (402, GATED), (403, GATED), (407, GATED), (429, ResultClass.RATE_LIMITED)],
)
def test_authentication_challenge_is_no_failure(status: int, expected: ResultClass) -> None:
    for message in (rpc_error(-32603), {"detail": "no"}, None):
        answer = classified_json(message, status)
        assert (answer.result, answer.is_misspelt) == (expected, False)


@pytest.mark.parametrize("status", [404, 405, 410])
def test_rest_path_that_takes_no_message_suggests_another_variant(status: int) -> None:
    by_path = classify_answer(status, "text/html", b"<p>none", is_rpc=False)
    assert (by_path.result, by_path.is_misspelt) == (NOT_AN_AGENT, True)
    # A call in another spelling would go to the same address.
    by_call = classify_answer(status, "text/html", b"<p>none", is_rpc=True)
    assert (by_call.result, by_call.is_misspelt) == (NOT_AN_AGENT, False)


@pytest.mark.parametrize("status", [400, 422])
def test_refusal_by_the_agent_differs_from_that_of_a_plain_server(status: int) -> None:
    own = classified_json({"error": {"code": status, "message": "parts?"}}, status, is_rpc=False)
    assert (own.result, own.is_misspelt) == (OK, True)
    assert own.reason.startswith(f"HTTP {status}: ")
    assert own.reason.endswith(" 'parts?'")
    mere = classify_answer(status, "text/html", b"<h1>nginx", is_rpc=False)
    assert (mere.result, mere.is_misspelt) == (FAILED, True)


@pytest.mark.parametrize("status", [500, 502, 503, 504, 408, 301])
def test_server_error_or_redirect_is_no_answer(status: int) -> None:
    for body in (b"", b"oops", b'{"message": "unknown exception"}'):
        answer = classify_answer(status, JSON, body, is_rpc=False)
        assert (answer.result, answer.is_misspelt) == (FAILED, False)


# ── responses that are not an answer to a message ──


def test_html_page_and_unrelated_json_are_not_an_agent() -> None:
    page = classify_answer(200, "text/html", b"<!doctype html>", is_rpc=True)
    assert page.result is NOT_AN_AGENT
    assert page.reason.endswith(" 'text/html'")
    assert classify_answer(200, "", b"", is_rpc=True).result is NOT_AN_AGENT
    for other in ({"ok": True}, [rpc(result=task_0x("completed"))], "hello", {"error": "no"}):
        assert classified_json(other).result is NOT_AN_AGENT
    assert classified_json({"message": "Welcome!"}, is_rpc=False).result is INVALID


def test_malformed_answer_differs_from_one_of_another_type() -> None:
    assert classify_answer(200, JSON, b'{"jsonrpc": ', is_rpc=True).result is INVALID
    assert classify_answer(200, "application/a2a+json", b"{", is_rpc=False).result is INVALID
    for nothing in (rpc(), rpc(result=None), rpc(result={}), rpc(result="hi"), rpc(result={"task": "t"})):
        assert classified_json(nothing).result is INVALID


def test_an_answer_in_events_is_read_to_its_end() -> None:
    def streamed(*events: bytes) -> ResultClass:
        return classify_answer(200, "text/event-stream", b"".join(events), is_rpc=True).result

    assert streamed(event(rpc(result=task_0x("working"))), event(rpc(result=update_0x("completed")))) is OK
    assert streamed(event(rpc(result=update_0x("failed")))) is FAILED
    assert streamed(event(rpc_error(-32603), "error")) is FAILED
    assert streamed(event(rpc_error(-32005))) is OK
    assert streamed(b"data: {nope\r\n\r\n") is INVALID
    assert streamed() is streamed(b": ping\r\n\r\n") is INVALID


# ── arbitrary responses ──


@given(
    st.integers(100, 599),
    st.sampled_from([JSON, "application/a2a+json", "text/html", "text/event-stream", ""]),
    st.binary(max_size=100)
    | st.builds(
        lambda value: json.dumps(value).encode(),
        st.recursive(
            st.none() | st.integers() | st.text(max_size=20),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(
                    st.sampled_from(
                        ["jsonrpc", "result", "error", "code", "message", "task", "status", "state", "parts"]
                    ),
                    inner,
                    max_size=4,
                )
            ),
            max_leaves=8,
        ),
    ),
    st.sampled_from([True, False]),
)
def test_any_answer_is_classified_with_a_storable_reason(
    status: int,
    content_type: str,
    body: bytes,
    is_rpc: bool,  # noqa: FBT001 - drawn
) -> None:
    answer = classify_answer(status, content_type, body, is_rpc=is_rpc)
    assert answer.reason or answer.result is OK
    assert len(answer.reason) <= MAX_REASON_CHARS
    assert answer.reason.isascii()
    assert not answer.is_misspelt or answer.result in {OK, NOT_AN_AGENT, FAILED}


def test_refusal_of_a_known_operation_counts_among_several() -> None:
    unknown, other = classified_json(rpc_error(-32601)), classified_json(rpc_error(-32600))
    declined = classified_json(rpc_error(-32602))
    assert best_of([unknown, declined, other]) is declined
    assert best_of([unknown, other]) is unknown


# ── recorded answers of real agents ──

CAPTURED = {
    "10-rpc1-send-ok": OK, "11-rpc1-send-message": OK, "12-rpc1-send-failed": FAILED,
    "13-rpc1-send-rejected": OK, "14-rpc1-send-auth-required": GATED, "15-rpc1-send-input-required": OK,
    "16-rpc1-executor-raises": FAILED, "17-rpc1-executor-raises-first": FAILED,
    "19-rpc1-executor-a2aerror-first": OK, "20-rpc1-unknown-method": NOT_AN_AGENT,
    "23-rpc1-invalid-params": OK, "26-rpc1-version-not-supported": OK, "27-rpc1-no-version-header": OK,
    "28-rpc1-batch": NOT_AN_AGENT, "31-rpc1-return-immediately": OK, "40-rpc1-stream-ok": OK,
    "41-rpc1-stream-failed": FAILED, "42-rpc1-stream-raises": FAILED, "50-rpc03-send-ok": OK,
    "51-rpc03-send-failed": FAILED, "55-rpc03-unknown-method": NOT_AN_AGENT, "60-rest1-send-ok": OK,
    "61-rest1-send-failed": FAILED, "63-rest1-invalid": OK, "64-rest1-version": OK,
    "67-rest1-executor-raises-first": FAILED, "68-rest1-unknown-path": NOT_AN_AGENT,
    "a2a-sdk-0.3.26/10-rpc03-send-ok": OK, "a2a-sdk-0.3.26/12-rpc03-failed": FAILED,
    "a2a-sdk-0.3.26/14-rpc03-auth": GATED, "a2a-sdk-0.3.26/16-rpc03-raise": FAILED,
    "a2a-sdk-0.3.26/20-rpc03-unknown-method": NOT_AN_AGENT, "a2a-sdk-0.3.26/23-rpc03-invalid-params": OK,
    "a2a-sdk-0.3.26/60-rest03-send-ok": OK, "a2a-sdk-0.3.26/67-rest03-raise-first": FAILED,
}  # fmt: skip


@pytest.mark.parametrize(("case", "expected"), CAPTURED.items())
def test_captured_answers_are_classified_correctly(case: str, expected: ResultClass) -> None:
    path = DATA / "captures" / f"{case}.response.http"
    if not path.exists():
        pytest.skip(f"NOT COMPARED with real answers: {path} is absent")
    head, _, body = path.read_bytes().partition(b"\r\n\r\n")
    first, *lines = head.decode().lower().split("\r\n")
    fields = dict(line.split(": ", 1) for line in lines)
    if fields.get("transfer-encoding") == "chunked":
        body = unchunked(body)
    content_type = fields["content-type"].partition(";")[0]
    answer = classify_answer(int(first.split()[1]), content_type, body, is_rpc="rest" not in case)
    assert answer.result is expected, answer.reason


def unchunked(body: bytes) -> bytes:
    whole = b""
    while body:
        size, _, body = body.partition(b"\r\n")
        whole, body = whole + body[: int(size, 16)], body[int(size, 16) + 2 :]
    return whole
