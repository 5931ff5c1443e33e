"""Requests that real A2A agents answered (B11; protocol.md section 2).

Replays every capture of ../shared/data/captures through the real middleware. The tables were written by
reading the captures and the protocol: they contain the outcome that the middleware should record for each.
"""

import json
from collections.abc import MutableMapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.http_capture import CapturedAnswer, CapturedRequest, captured_exchanges

from lifesign import AgentHealthMiddleware, Outcome
from lifesign.middleware.asgi import App
from lifesign.middleware.exchange import Receive, Scope, Send

Message = MutableMapping[str, Any]

CAPTURES = Path(__file__).parents[1].parent / "shared" / "data" / "captures"

# a2a-sdk 1.3.0: 1.0 over JSON-RPC (rpc1) and HTTP+JSON (rest1), and its service of 0.3 (rpc03, rest03).
SDK_1_3 = {
    "01-card": Outcome.EXCLUDED,
    "02-card-304": Outcome.EXCLUDED,
    "03-card-head": Outcome.EXCLUDED,
    "04-card-legacy-path": Outcome.EXCLUDED,  # a 404, but a card path is never sampled
    "05-ping": Outcome.ANSWERED,  # the router redirects to a path with a slash
    "06-get-root": Outcome.NO_OPERATION,  # 405
    "10-rpc1-send-ok": Outcome.ANSWERED,
    "11-rpc1-send-message": Outcome.ANSWERED,
    "12-rpc1-send-failed": Outcome.TASK_FAILED,
    "13-rpc1-send-rejected": Outcome.ANSWERED,
    "14-rpc1-send-auth-required": Outcome.ANSWERED,
    "15-rpc1-send-input-required": Outcome.ANSWERED,
    "16-rpc1-executor-raises": Outcome.SERVER_FAULT,  # -32603
    "17-rpc1-executor-raises-first": Outcome.SERVER_FAULT,  # -32603
    "18-rpc1-executor-a2aerror": Outcome.SERVER_FAULT,  # -32603
    "19-rpc1-executor-a2aerror-first": Outcome.CALLER_FAULT,  # -32005
    "20-rpc1-unknown-method": Outcome.NO_OPERATION,  # -32601
    "21-rpc1-parse-error": Outcome.NO_OPERATION,  # -32700
    "22-rpc1-invalid-request": Outcome.NO_OPERATION,  # -32600
    "23-rpc1-invalid-params": Outcome.CALLER_FAULT,  # -32602
    "24-rpc1-empty-message": Outcome.CALLER_FAULT,  # -32602
    "25-rpc1-task-not-found": Outcome.CALLER_FAULT,  # -32001
    "26-rpc1-version-not-supported": Outcome.CALLER_FAULT,  # -32009
    "27-rpc1-no-version-header": Outcome.CALLER_FAULT,  # -32009
    "28-rpc1-batch": Outcome.NO_OPERATION,  # -32600
    "29-rpc1-push-unsupported": Outcome.CALLER_FAULT,  # -32003
    "30-rpc1-ext-card": Outcome.CALLER_FAULT,  # -32004
    "31-rpc1-return-immediately": Outcome.ANSWERED,  # SUBMITTED
    "32-rpc1-get-task-working": Outcome.ANSWERED,
    "33-rpc1-cancel": Outcome.ANSWERED,
    "34-rpc1-cancel-again": Outcome.CALLER_FAULT,  # -32002
    "40-rpc1-stream-ok": Outcome.ANSWERED,
    "41-rpc1-stream-failed": Outcome.TASK_FAILED,
    "42-rpc1-stream-raises": Outcome.SERVER_FAULT,  # event: error, -32603
    "43-rpc1-stream-raises-first": Outcome.SERVER_FAULT,  # plain JSON, -32603
    "44-rpc1-stream-a2aerror": Outcome.SERVER_FAULT,  # event: error, -32603
    "45-rpc1-stream-message": Outcome.ANSWERED,
    "46-rpc1-stream-slow": Outcome.ANSWERED,
    "47-rpc1-subscribe-notfound": Outcome.CALLER_FAULT,  # plain JSON, -32001
    "48-rpc1-stream-invalid": Outcome.CALLER_FAULT,  # plain JSON, -32602
    "50-rpc03-send-ok": Outcome.ANSWERED,
    "51-rpc03-send-failed": Outcome.TASK_FAILED,
    "52-rpc03-stream-ok": Outcome.ANSWERED,
    "53-rpc03-stream-raises": Outcome.SERVER_FAULT,  # -32603 without an event name
    "54-rpc03-task-not-found": Outcome.CALLER_FAULT,  # -32001
    "55-rpc03-unknown-method": Outcome.NO_OPERATION,  # -32601
    "56-rpc03-invalid-params": Outcome.NO_OPERATION,  # the SDK says -32600 where it means -32602
    "60-rest1-send-ok": Outcome.ANSWERED,
    "61-rest1-send-failed": Outcome.TASK_FAILED,
    "62-rest1-task-not-found": Outcome.CALLER_FAULT,  # an endpoint's own 404
    "63-rest1-invalid": Outcome.CALLER_FAULT,  # 400
    "64-rest1-version": Outcome.CALLER_FAULT,  # 400
    "65-rest1-stream-ok": Outcome.ANSWERED,
    "66-rest1-stream-raises": Outcome.SERVER_FAULT,  # event: error, 500
    "67-rest1-executor-raises-first": Outcome.SERVER_FAULT,  # 500
    "68-rest1-unknown-path": Outcome.NO_OPERATION,  # the router's 404
    "69-rest1-stream-raises-first": Outcome.SERVER_FAULT,  # 500
    "70-rest03-send-ok": Outcome.ANSWERED,
    "71-rest03-card": Outcome.CALLER_FAULT,  # 400
}
SDK_0_3 = {
    "01-card": Outcome.EXCLUDED,
    "04-card-legacy-path": Outcome.EXCLUDED,
    "10-rpc03-send-ok": Outcome.ANSWERED,
    "11-rpc03-send-message": Outcome.ANSWERED,
    "12-rpc03-failed": Outcome.TASK_FAILED,
    "13-rpc03-rejected": Outcome.ANSWERED,
    "14-rpc03-auth": Outcome.ANSWERED,
    "15-rpc03-input": Outcome.ANSWERED,
    "16-rpc03-raise": Outcome.SERVER_FAULT,  # -32603
    "17-rpc03-raise-first": Outcome.SERVER_FAULT,  # -32603
    "18-rpc03-a2aerror": Outcome.SERVER_FAULT,  # -32603
    "19-rpc03-a2aerror-first": Outcome.CALLER_FAULT,  # -32005
    "20-rpc03-unknown-method": Outcome.NO_OPERATION,  # -32601
    "21-rpc03-parse-error": Outcome.NO_OPERATION,  # -32700
    "22-rpc03-invalid-request": Outcome.CALLER_FAULT,  # the SDK says -32602 where it means -32600
    "23-rpc03-invalid-params": Outcome.CALLER_FAULT,  # -32602
    "24-rpc03-task-not-found": Outcome.CALLER_FAULT,  # -32001
    "40-rpc03-stream-ok": Outcome.ANSWERED,
    "41-rpc03-stream-failed": Outcome.TASK_FAILED,
    "42-rpc03-stream-raises": Outcome.RAISED,  # the exception left the app after 200 was sent
    "43-rpc03-stream-raises-first": Outcome.RAISED,
    "44-rpc03-stream-a2aerror": Outcome.SERVER_FAULT,  # -32603 without an event name
    "45-rpc03-stream-message": Outcome.ANSWERED,
    "46-rpc03-stream-slow": Outcome.ANSWERED,
    "47-rpc03-resubscribe-notfound": Outcome.CALLER_FAULT,  # -32001 as the only event
    "60-rest03-send-ok": Outcome.ANSWERED,
    "62-rest03-not-found": Outcome.CALLER_FAULT,  # an endpoint's own 404
    "65-rest03-stream-ok": Outcome.ANSWERED,  # one JSON over many data lines
    "66-rest03-stream-raises": Outcome.RAISED,
    "67-rest03-raise-first": Outcome.SERVER_FAULT,  # 500
}
TABLES = {".": SDK_1_3, "a2a-sdk-0.3.26": SDK_0_3}
ENDPOINTS_OWN_404 = {"62-rest1-task-not-found", "62-rest03-not-found"}
CUT = {"42-rpc03-stream-raises", "43-rpc03-stream-raises-first", "66-rest03-stream-raises"}

# The requests of a wrapper's log, line by line, and the outcome of each.
SEQUENCES = {
    "a2a-sdk-1.3.0": [
        ("stream ok", Outcome.ANSWERED),
        ("stream raises", Outcome.SERVER_FAULT),
        ("stream raises first", Outcome.SERVER_FAULT),
        ("the caller leaves a stream", Outcome.ABANDONED),
        ("the caller leaves a unary call, unnoticed", Outcome.ANSWERED),
    ],
    "a2a-sdk-0.3.26": [
        ("stream ok", Outcome.ANSWERED),
        ("stream raises", Outcome.RAISED),
        ("stream raises first", Outcome.RAISED),
        ("the caller leaves a stream", Outcome.ABANDONED),
    ],
}
FOLDER_OF_SEQUENCES = {"a2a-sdk-1.3.0": ".", "a2a-sdk-0.3.26": "a2a-sdk-0.3.26"}


def present(path: Path) -> Path:
    if not path.exists():
        pytest.skip(f"NOT COMPARED with a capture: {path} is absent")
    return path


def exchanges(folder: str) -> dict[str, tuple[CapturedRequest, CapturedAnswer]]:
    return captured_exchanges(present(CAPTURES / folder))


def outcomes(middleware: AgentHealthMiddleware) -> dict[str, int]:
    extensions = middleware.health.document().extensions
    assert extensions is not None
    counts: dict[str, int] = extensions["io.github.lifesign.outcomes"]
    return counts


async def replay(
    app: App, scope: Scope, received: Sequence[Message]
) -> tuple[dict[str, int], list[Message], Exception | None]:
    """Return counts, sent messages and the exception of one request through the middleware."""
    middleware = AgentHealthMiddleware(app, agent_id="urn:replayed")
    sent: list[Message] = []
    incoming = iter(received)

    async def receive() -> Message:
        return next(incoming)

    async def send(message: Message) -> None:
        sent.append(message)

    raised = None
    try:
        await middleware(scope, receive, send)
    except RuntimeError as error:
        raised = error
    return outcomes(middleware), sent, raised


async def replay_exchange(
    name: str, request: CapturedRequest, answer: CapturedAnswer
) -> tuple[dict[str, int], list[Message], Exception | None]:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if name in ENDPOINTS_OWN_404:
            scope["route"] = SimpleNamespace(endpoint=object())
        await receive()
        await send({"type": "http.response.start", "status": answer.status, "headers": [*answer.headers]})
        if not answer.is_streamed:
            await send({"type": "http.response.body", "body": b"".join(answer.chunks)})
            return
        for chunk in answer.chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        if answer.is_cut:
            raise RuntimeError("boom")
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    scope = {
        "type": "http",
        "method": request.method,
        "path": request.path,
        "query_string": request.query,
        "root_path": "",
        "headers": list(request.headers),
    }
    return await replay(app, scope, [{"type": "http.request", "body": request.body, "more_body": False}])


@pytest.mark.parametrize("folder", TABLES)
def test_every_capture_has_a_row_and_every_row_a_capture(folder: str) -> None:
    captured = exchanges(folder)
    assert sorted(captured) == sorted(TABLES[folder])
    assert len(list((CAPTURES / folder).glob("*.http"))) == 2 * len(captured)


def test_only_captured_03_answers_with_an_app_exception_are_truncated() -> None:
    cut = {name for folder in TABLES for name, (_, answer) in exchanges(folder).items() if answer.is_cut}
    assert cut == CUT


@pytest.mark.parametrize(
    ("folder", "name"), [(folder, name) for folder, table in TABLES.items() for name in table]
)
async def test_captured_request_counts_once_by_the_protocol(folder: str, name: str) -> None:
    request, answer = exchanges(folder)[name]
    counts, sent, raised = await replay_exchange(name, request, answer)
    assert counts == {TABLES[folder][name].name.lower(): 1}
    assert sent[0]["status"] == answer.status
    assert b"".join(message["body"] for message in sent[1:]) == b"".join(answer.chunks)
    assert (raised is not None) == answer.is_cut


def bodies_by_length(folder: str) -> dict[int, bytes]:
    """Captured bodies; a sequence names only the lengths of its own."""
    return {len(chunk): chunk for _, answer in exchanges(folder).values() for chunk in answer.chunks}


def body(length: int, known: dict[int, bytes], *, is_stream: bool) -> bytes:
    """A captured body of this length, or one that says nothing."""
    if not length:
        return b""
    if length in known and known[length].startswith((b"data:", b"event:")) is is_stream:
        return known[length]
    return (
        b": ".ljust(length - 4, b".") + b"\r\n\r\n"
        if is_stream
        else b'{"jsonrpc":"2.0","result":{"message":{}}}'.ljust(length)
    )


@pytest.mark.parametrize("sdk", SEQUENCES)
def test_every_sequence_has_a_row_and_every_row_a_sequence(sdk: str) -> None:
    lines = present(CAPTURES / "asgi-events" / f"{sdk}.jsonl").read_text().splitlines()
    assert len(lines) == len(SEQUENCES[sdk])
    assert {path.stem for path in (CAPTURES / "asgi-events").iterdir()} == set(SEQUENCES)


@pytest.mark.parametrize(
    ("sdk", "index", "outcome"),
    [
        pytest.param(sdk, index, outcome, id=f"{sdk}: {what}")
        for sdk, rows in SEQUENCES.items()
        for index, (what, outcome) in enumerate(rows)
    ],
)
async def test_message_sequence_counts_once_by_the_protocol(sdk: str, index: int, outcome: Outcome) -> None:
    lines = present(CAPTURES / "asgi-events" / f"{sdk}.jsonl").read_text().splitlines()
    sequence = json.loads(lines[index])
    known = bodies_by_length(FOLDER_OF_SEQUENCES[sdk])
    is_stream = any(event[3] for event in sequence["events"] if event[1] == "http.response.body")
    is_stream |= sequence["exc"] is not None
    content_type = b"text/event-stream; charset=utf-8" if is_stream else b"application/json"

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        for direction, kind, *facts in sequence["events"]:
            if direction == "recv":
                assert (await receive())["type"] == kind
            elif kind == "http.response.start":
                await send({"type": kind, "status": facts[0], "headers": [(b"content-type", content_type)]})
            else:
                more = {} if facts[1] is None else {"more_body": facts[1]}
                await send({"type": kind, "body": body(facts[0], known, is_stream=is_stream), **more})
        if sequence["exc"]:
            raise RuntimeError(sequence["exc"])

    call = {"jsonrpc": "2.0", "id": 1, "method": "SendStreamingMessage" if is_stream else "SendMessage"}
    received = [
        {"type": "http.request", "body": json.dumps(call).encode()}
        if event[1] == "http.request"
        else {"type": event[1]}
        for event in sequence["events"]
        if event[0] == "recv"
    ]
    scope = {"type": "http", "method": "POST", "path": sequence["path"], "root_path": "", "headers": []}
    counts, _, raised = await replay(app, scope, received)
    assert counts == {outcome.name.lower(): 1}
    assert (raised is not None) == (sequence["exc"] is not None)
