"""Requests to a wrapped MCP server: each row of the table of protocol section 2.1."""

import json
from typing import Any

import pytest
from tests.support.scripted import (
    DISCONNECT,
    EVENTS,
    JSON,
    PLAIN,
    RECEIVE,
    Server,
    Step,
    call,
    chunk,
    final,
    http_scope,
    outcomes,
    play,
    request,
    start,
)

from lifesign import AgentHealthMiddleware
from lifesign.domain.health.document import HealthStatus

ACCEPT = (b"accept", b"application/json, text/event-stream")
ANY_TYPE = (b"accept", b"*/*")
"""As curl sends it; servers take it for both types."""
TOOL = {"content": [{"type": "text", "text": "done"}], "isError": False}
FAILED_TOOL = {"content": [{"type": "text", "text": "boom"}], "isError": True}
LIST: dict[str, Any] = {"tools": []}
RESULTS: dict[str, Any] = {
    "tools/call": TOOL,
    "resources/read": {"contents": []},
    "prompts/get": {"messages": []},
    "completion/complete": {"completion": {"values": []}},
    "initialize": {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {}},
    "server/discover": {"supportedVersions": ["2026-07-28"], "capabilities": {}},
    "ping": {},
    "tools/list": LIST,
    "resources/list": {"resources": []},
    "resources/templates/list": {"resourceTemplates": []},
    "prompts/list": {"prompts": []},
    "logging/setLevel": {},
    "subscriptions/listen": {"subscriptionId": "1"},
}
INTERACTIONS = {"tools/call", "resources/read", "prompts/get", "completion/complete"}


def message(**members: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 1, **members}).encode()


def error(code: int) -> bytes:
    return message(error={"code": code, "message": "no"})


def event(data: bytes) -> bytes:
    return b"event: message\r\ndata: %s\r\n\r\n" % data


PROGRESS = event(b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progress":1}}')
PRIMING = b"id: 1\r\ndata: \r\n\r\n"


async def outcome_of_call(
    *steps: Step,
    method: str = "tools/call",
    http: str = "POST",
    headers: tuple[tuple[bytes, bytes], ...] = (ACCEPT,),
    server: Server | None = None,
    **settings: Any,
) -> str:
    scope = http_scope("/mcp", http, headers=[(b"host", b"agent.test"), *headers])
    played = await play([RECEIVE, *steps], server=server or Server(call(method)), scope=scope, **settings)
    assert played.error is None
    return played.outcome


def sent(body: bytes, headers: dict[str, str], status: int = 200) -> dict[str, list[Step]]:
    """The same answer, sent in one message and in several."""
    half = len(body) // 2
    return {
        "one": [start(status, headers), final(body)],
        "many": [start(status, headers), chunk(body[:half]), chunk(body[half:]), final()],
    }


@pytest.mark.parametrize("method", RESULTS)
@pytest.mark.parametrize("accept", [ACCEPT, ANY_TYPE])
@pytest.mark.parametrize("form", ["one", "many"])
async def test_result_counts_if_its_operation_is_an_interaction(
    method: str, form: str, accept: tuple[bytes, bytes]
) -> None:
    body = message(result=RESULTS[method])
    expected = "answered" if method in INTERACTIONS else "excluded"
    assert await outcome_of_call(*sent(body, JSON)[form], method=method, headers=(accept,)) == expected
    events = sent(PRIMING + PROGRESS + event(body), EVENTS)[form]
    assert await outcome_of_call(*events, method=method, headers=(accept,)) == expected


@pytest.mark.parametrize("form", ["one", "many"])
async def test_mcp_result_that_is_no_object_is_malformed(form: str) -> None:
    results: tuple[Any, ...] = (None, [], "ok")
    for result in results:
        for method in INTERACTIONS:
            for body in (sent(message(result=result), JSON), sent(event(message(result=result)), EVENTS)):
                assert await outcome_of_call(*body[form], method=method) == "malformed"
        assert await outcome_of_call(*sent(message(result=result), JSON)[form], method="ping") == "excluded"


@pytest.mark.parametrize("form", ["one", "many"])
async def test_failed_tool_is_a_tool_error(form: str) -> None:
    body = message(result=FAILED_TOOL)
    assert await outcome_of_call(*sent(body, JSON)[form]) == "tool_error"
    assert await outcome_of_call(*sent(PROGRESS + event(body), EVENTS)[form]) == "tool_error"
    assert await outcome_of_call(*sent(body, JSON)[form], headers=()) == "tool_error"


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        (-32700, "no_operation"),
        (-32600, "no_operation"),
        (-32601, "no_operation"),
        (-32020, "no_operation"),
        (-32021, "no_operation"),
        (-32022, "no_operation"),
        (-32602, "caller_fault"),
        (-32002, "caller_fault"),
        (-32603, "server_fault"),
        (-32001, "server_fault"),
        (-32050, "server_fault"),
        (-32042, "answered"),
        (-32800, "abandoned"),
    ],
)
@pytest.mark.parametrize("form", ["one", "many"])
async def test_code_decides_in_200_400_404_and_in_a_stream(code: int, outcome: str, form: str) -> None:
    assert await outcome_of_call(*sent(error(code), JSON)[form]) == outcome
    assert await outcome_of_call(*sent(PROGRESS + event(error(code)), EVENTS)[form]) == outcome
    for status in () if code == -32001 else (400, 404):
        assert await outcome_of_call(*sent(error(code), JSON, status)[form]) == outcome


@pytest.mark.parametrize("status", [400, 404, 406, 415])
@pytest.mark.parametrize("body", [b"", b"no", b"{}", error(-32000), error(-32001)])
async def test_refusal_of_the_transport_reached_no_operation(status: int, body: bytes) -> None:
    for headers in (JSON, PLAIN):
        assert await outcome_of_call(start(status, headers), final(body)) == "no_operation"


async def test_crash_is_the_servers_fault() -> None:
    assert await outcome_of_call(start(500, JSON), final(error(-32603))) == "server_fault"
    assert await outcome_of_call(start(503, PLAIN), final(b"no")) == "server_fault"


async def test_input_required_is_an_answer() -> None:
    body = message(result={"resultType": "input_required", "inputRequests": {}})
    assert await outcome_of_call(*sent(body, JSON)["one"]) == "answered"


@pytest.mark.parametrize("status", [202, 204])
async def test_notification_is_no_interaction(status: int) -> None:
    steps = (start(status, {"content-length": "0"}), final())
    assert await outcome_of_call(*steps, method="notifications/initialized") == "excluded"
    assert (
        await outcome_of_call(*steps, server=Server(request(message(result={"action": "accept"}))))
        == "excluded"
    )
    notification = Server(request(b'{"jsonrpc":"2.0","method":"notifications/initialized"}'))
    assert await outcome_of_call(*steps, headers=(ANY_TYPE,), server=notification) == "excluded"
    assert await outcome_of_call(*steps, headers=(), server=Server(request(b"{}"))) == "answered"


@pytest.mark.parametrize("status", [200, 404, 405, 500])
async def test_listening_and_ending_a_session_are_no_interactions(status: int) -> None:
    session = ((b"mcp-session-id", b"1"),)
    body = event(message(method="notifications/message")) if status == 200 else b"no"
    headers = EVENTS if status == 200 else PLAIN
    assert (
        await outcome_of_call(start(status, headers), chunk(body), final(), http="GET", headers=session)
        == "excluded"
    )
    assert (
        await outcome_of_call(start(status, PLAIN), final(b"ended"), http="DELETE", headers=session)
        == "excluded"
    )
    assert await outcome_of_call(start(200, PLAIN), final(b"ended"), http="DELETE", headers=()) == "answered"


@pytest.mark.parametrize("http", ["GET", "DELETE"])
@pytest.mark.parametrize(
    ("status", "outcome"), [(200, "answered"), (404, "no_operation"), (500, "server_fault")]
)
async def test_other_api_that_accepts_both_types_is_not_mcp(http: str, status: int, outcome: str) -> None:
    steps = (start(status, JSON), final(b'{"forecast": "sunny"}'))
    found = await outcome_of_call(*steps, http=http, headers=(ACCEPT,), server=Server(request(b"")))
    assert found == outcome


async def test_error_counts_unless_its_mcp_operation_is_no_interaction() -> None:
    failed = sent(error(-32603), JSON)["one"]
    assert await outcome_of_call(*failed, method="tools/list") == "excluded"
    assert await outcome_of_call(*failed, server=Server(request(b"x" * 2000))) == "server_fault"
    ping = ((b"mcp-method", b"ping"),)
    assert await outcome_of_call(*failed, headers=ping) == "server_fault"
    assert await outcome_of_call(*failed, headers=ping, server=Server(request(b"x" * 2000))) == "excluded"
    assert (
        await outcome_of_call(*failed, headers=((b"mcp-method", b"tools/call"),), method="ping") == "excluded"
    )


@pytest.mark.parametrize("headers", [(ACCEPT,), ((b"mcp-x", b"1"),), ((b"mcp-method", b"tools/call"),)])
@pytest.mark.parametrize("code", [-32001, -32003, -32004, -32005, -32007, -32009])
async def test_mcp_header_on_an_a2a_call_keeps_caller_error_codes_caller_faults(
    code: int, headers: tuple[tuple[bytes, bytes], ...]
) -> None:
    hidden = request(message(params={"text": "x" * 2000}, method="?").replace(b'"?"', b'"\\u0047etTask"'))
    for form in ("one", "many"):
        steps, events = sent(error(code), JSON)[form], sent(event(error(code)), EVENTS)[form]
        for asking in (call("GetTask"), call("message/send"), hidden):
            assert await outcome_of_call(*steps, server=Server(asking), headers=headers) == "caller_fault"
            assert await outcome_of_call(*events, server=Server(asking), headers=headers) == "caller_fault"


async def test_mcp_tool_header_does_not_make_a_ping_result_a_tool_result() -> None:
    headers = ((b"mcp-method", b"tools/call"),)
    assert (
        await outcome_of_call(*sent(message(result={}), JSON)["one"], headers=headers, method="ping")
        == "excluded"
    )


async def test_request_that_hangs_counts_only_if_it_is_an_interaction() -> None:
    late = (40.0, start(200, JSON), final(message(result=TOOL)))
    assert await outcome_of_call(*late) == "timed_out"
    assert await outcome_of_call(*late, method="ping") == "excluded"


@pytest.mark.parametrize(
    ("steps", "outcome"),
    [
        ([start(500, JSON), final(error(-32603))], "server_fault"),
        ([start(500, PLAIN), final(b"no")], "server_fault"),
        (sent(error(-32603), JSON)["one"], "server_fault"),
        (sent(event(error(-32603)), EVENTS)["many"], "server_fault"),
        (sent(b"{}", JSON)["one"], "malformed"),
        ([start(200, JSON), chunk(b"{")], "unfinished"),
        ([40.0, start(200, JSON), final(message(result=RESULTS["initialize"]))], "timed_out"),
        (sent(error(-32602), JSON)["one"], "excluded"),
        ([start(400, JSON), final(error(-32600))], "excluded"),
        ([start(401, PLAIN), final(b"no")], "excluded"),
        ([start(429, PLAIN), final(b"no")], "excluded"),
    ],
)
async def test_handshake_counts_if_the_server_fails_in_it(steps: list[Step], outcome: str) -> None:
    """A client that gets no session calls no tool."""
    assert await outcome_of_call(*steps, method="initialize") == outcome
    assert await outcome_of_call(*steps, method="ping") == "excluded"
    session = ((b"mcp-method", b"initialize"),)
    assert await outcome_of_call(*steps, http="DELETE", server=Server(), headers=session) == "excluded"


async def test_mcp_server_request_in_a_stream_does_not_decide_the_outcome() -> None:
    odd = event(message(method="sampling/createMessage", error={"code": -32603}, result=FAILED_TOOL))
    body = PROGRESS + odd + event(message(result=TOOL))
    assert await outcome_of_call(*sent(body, EVENTS)["one"]) == "answered"
    assert await outcome_of_call(*sent(PRIMING + odd, EVENTS)["one"]) == "not_inspected"


GOOD, BAD = message(result=TOOL), message(result=FAILED_TOOL)


def named(name: str, data: bytes) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), data)


@pytest.mark.parametrize("form", ["one", "many"])
async def test_event_of_another_name_is_no_answer(form: str) -> None:
    for other in (BAD, error(-32603), b"beat", b"{}", b"[1]"):
        for body in (named("other", other) + event(GOOD), event(GOOD) + named("other", other)):
            assert await outcome_of_call(*sent(body, EVENTS)[form]) == "answered"
    for only in (named("other", GOOD), named("Message", GOOD), named("endpoint", b"/messages")):
        assert await outcome_of_call(*sent(only, EVENTS)[form]) == "tool_error"
        assert await outcome_of_call(*sent(b"id: 1\n" + only, EVENTS)[form]) == "not_inspected"
    steps, of_a2a = sent(named("other", error(-32603)), EVENTS)[form], ((b"accept", b"text/event-stream"),)
    assert await outcome_of_call(*steps, method="message/send", headers=of_a2a) == "server_fault"


@pytest.mark.parametrize("form", ["one", "many"])
async def test_fields_that_name_no_event_change_nothing(form: str) -> None:
    ignored = (b"event\n", b": event: x\n", b"retry: 9\n", b"event: x\n\n")
    for fields in (b"event:message\n", b"event: x\nevent: message\n", *ignored):
        assert await outcome_of_call(*sent(fields + event(GOOD), EVENTS)[form]) == "answered"
        assert await outcome_of_call(*sent(fields + b"data: " + BAD + b"\r\r", EVENTS)[form]) == "tool_error"


@pytest.mark.parametrize("form", ["one", "many"])
@pytest.mark.parametrize("answer", [GOOD, BAD, error(-32603), error(-32602)])
async def test_session_of_http_with_sse_is_no_interaction(form: str, answer: bytes) -> None:
    """MCP 2024-11-05: one GET gets the answers to all POST requests."""
    body = named("endpoint", b"/messages/?session_id=1") + named("message", answer)
    steps, opening = sent(body, EVENTS)[form], request(b"")
    plain = ((b"accept", b"text/event-stream"),)
    assert await outcome_of_call(*steps, http="GET", headers=plain, server=Server(opening)) == "excluded"
    left: list[Step] = [start(200, EVENTS), chunk(body), RECEIVE]
    server = Server(opening, DISCONNECT)
    assert await outcome_of_call(*left, http="GET", headers=plain, server=server) == "abandoned"
    later = sent(event(GOOD) + body, EVENTS)[form]
    assert await outcome_of_call(*later, http="GET", headers=plain, server=Server(opening)) != "excluded"
    assert await outcome_of_call(*steps, headers=plain) != "excluded"


@pytest.mark.parametrize("form", ["one", "many"])
async def test_error_event_decides_only_without_an_answer(form: str) -> None:
    """Clients of MCP ignore it, and wait for the answer."""
    fault = named("error", b"down")
    assert await outcome_of_call(*sent(fault, EVENTS)[form]) == "server_fault"
    assert await outcome_of_call(*sent(PROGRESS + fault + event(GOOD), EVENTS)[form]) == "answered"
    assert await outcome_of_call(*sent(fault + event(error(-32602)), EVENTS)[form]) == "caller_fault"
    assert await outcome_of_call(*sent(event(BAD) + fault, EVENTS)[form]) == "tool_error"


@pytest.mark.parametrize("form", ["one", "many"])
async def test_mcp_header_does_not_hide_named_a2a_events(form: str) -> None:
    state = {"id": "t", "contextId": "c", "status": {"state": "TASK_STATE_FAILED"}}
    for failed in (message(result={"task": state}), json.dumps({"statusUpdate": state}).encode()):
        body = named("status", failed)
        assert (
            await outcome_of_call(*sent(body, EVENTS)[form], method="SendStreamingMessage") == "task_failed"
        )
    answer = named("reply", message(result={"kind": "message", "parts": []}))
    assert await outcome_of_call(*sent(answer, EVENTS)[form], method="message/stream") == "answered"


@pytest.mark.parametrize("form", ["one", "many"])
async def test_result_that_is_not_in_the_stream_is_lost_or_not_inspected(form: str) -> None:
    for resumable in (PRIMING, PRIMING + PROGRESS, PROGRESS + b"id:7\n" + PROGRESS):
        assert await outcome_of_call(*sent(resumable, EVENTS)[form]) == "not_inspected"
        assert await outcome_of_call(*sent(resumable, EVENTS)[form], method="tools/list") == "excluded"
    for lost in (PROGRESS, PROGRESS * 3, b"id: \ndata: \n\n" + PROGRESS, PROGRESS + b"id: 7\n"):
        assert await outcome_of_call(*sent(lost, EVENTS)[form]) == "tool_error"
        assert await outcome_of_call(*sent(lost, EVENTS)[form], method="tools/list") == "excluded"
        assert await outcome_of_call(*sent(lost, EVENTS)[form], server=Server(request(b"{}"))) == "excluded"


@pytest.mark.parametrize(
    ("result", "outcome"), [(TOOL, "answered"), (FAILED_TOOL, "tool_error"), (LIST, "abandoned")]
)
async def test_caller_that_leaves_after_the_result_changes_nothing(
    result: dict[str, Any], outcome: str
) -> None:
    server = Server(call("x"), DISCONNECT)
    steps = (start(200, EVENTS), chunk(PROGRESS), chunk(event(message(result=result))), RECEIVE)
    assert await outcome_of_call(*steps, server=server) == outcome


async def test_batch_counts_once_as_its_worst_interaction() -> None:
    parts = [message(result=LIST), message(result=TOOL), error(-32602)]
    server = Server(request(b"[" + b",".join([message(method="tools/call")] * 3) + b"]"))
    body = b"[" + b",".join(parts) + b"]"
    assert await outcome_of_call(*sent(body, JSON)["one"], server=server) == "caller_fault"
    assert await outcome_of_call(*sent(b"[" + parts[0] + b"]", JSON)["one"]) == "excluded"


@pytest.mark.parametrize("size", [0, 5_000])
async def test_method_of_a_long_call_is_found(size: int) -> None:
    body = message(method="tools/call", params={"arguments": {"text": "x" * size}})
    steps = sent(message(result={"structuredContent": {}}), JSON)["one"]
    assert await outcome_of_call(*steps, server=Server(request(body))) == "answered"


@pytest.mark.parametrize("form", ["one", "many"])
@pytest.mark.parametrize("http", ["GET", "DELETE", "POST"])
@pytest.mark.parametrize("status", [400, 404])
async def test_refusal_by_json_rpc_reached_no_operation_without_mcp_headers(
    http: str, status: int, form: str
) -> None:
    steps = sent(error(-32600), JSON, status)[form]
    outcome = await outcome_of_call(*steps, http=http, headers=(ANY_TYPE,), server=Server(request(b"")))
    assert outcome == "no_operation"


async def test_batch_without_mcp_headers_counts_by_its_methods() -> None:
    server = Server(request(b"[" + message(method="ping") + b"]"))
    steps = sent(b"[" + message(result={}) + b"]", JSON)["one"]
    assert await outcome_of_call(*steps, headers=(ANY_TYPE,), server=server) == "excluded"


@pytest.mark.parametrize("method", ["x", "tasks/get", "tasks/list", "tasks/cancel"])
async def test_without_mcp_every_result_is_an_answer(method: str) -> None:
    steps, failed = sent(message(result=LIST), JSON)["one"], sent(error(-32001), JSON)["one"]
    assert await outcome_of_call(*steps, headers=(), method=method) == "answered"
    assert await outcome_of_call(*failed, headers=(), method=method) == "caller_fault"


# --- the status ---------------------------------------------------------------------------------------------


async def traffic(counting: str, **answers: int) -> AgentHealthMiddleware:
    """Play that many answers of each kind through one middleware."""
    results = {"failed": FAILED_TOOL, "good": TOOL, "listed": LIST, "read": {"contents": []}}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send(start(200, JSON))
        await send(final(message(result=results[scope["kind"]])))

    middleware = AgentHealthMiddleware(app, agent_id="urn:mcp", counting=counting)
    for kind, count in answers.items():
        for _ in range(count):
            server = Server(call("x"))
            scope = http_scope("/mcp", headers=[ACCEPT], kind=kind)
            await middleware(scope, server.receive, server.send)
    return middleware


@pytest.mark.parametrize("counting", ["literal", "interactions", "server_faults"])
async def test_server_whose_tool_always_fails_is_never_healthy(counting: str) -> None:
    kinds = ({"listed": 240}, {"read": 240}, {"listed": 240, "read": 240, "good": 11})
    played = [await traffic(counting, failed=12, **others) for others in kinds]
    statuses = [middleware.health.document().health.status for middleware in played]
    assert HealthStatus.HEALTHY not in statuses
    assert outcomes(played[-1]) == {"tool_error": 12, "excluded": 240, "answered": 251}


async def test_server_faults_do_not_count_the_tool_errors_of_a_few_callers() -> None:
    for failed, status in ((20, HealthStatus.HEALTHY), (21, HealthStatus.UNKNOWN)):
        middleware = await traffic("server_faults", failed=failed, good=20)
        document = middleware.health.document()
        assert document.health.status is status
        extension = (document.extensions or {})["io.github.lifesign.inspection"]
        assert (extension["rule"], extension["tool_results"]) == (
            "ratio" if failed == 20 else "mostly_tool_errors",
            20 + failed,
        )
