import json
from collections.abc import Callable
from typing import Any

import pytest
from mcp.server.mcpserver import MCPServer
from mcp.types import ToolAnnotations
from tests.prober.probe.test_mcp_server import DAY_S
from tests.support.mcp_answers import handshaking, methods, refused, rpc, stateless
from tests.support.message_server import Agent, Got, Says, agent
from tests.support.probing import Played, definition, entry, layer, probing, results
from tests.support.uvicorn_thread import served

from lifesign.domain.mcp.conversation import Generation, McpReply, McpRequest, McpSession
from lifesign.domain.mcp.tools import MAX_LIST_BYTES, MAX_PAGES, MAX_TOOLS
from lifesign.domain.observation.results import Observation, ResultClass
from lifesign.prober.definition.layer_settings import LayerSettings
from lifesign.prober.definition.models import ProbeDefinition
from lifesign.prober.network.fetched import Fetched
from lifesign.prober.probe.mcp_exchange import McpAnswer, McpExchange
from lifesign.prober.probe.mcp_tools import ask_tools
from lifesign.prober.probe.session import ProbeSession

LIST, CALL = "tools/list", "tools/call"
SAFE = {"name": "search", "annotations": {"readOnlyHint": True}}
ASK: dict[str, Any] = {"health": False, "tools": True, "call": {"tool": "search", "arguments": {"q": "x"}}}
GOOD = {"content": [{"type": "text", "text": "found"}], "structuredContent": {"hits": 3}}


def serving_tools(
    listed: Callable[[Got], Says] | None = None,
    called: Callable[[Got], Says] | None = None,
    *,
    discovered: Callable[[Got], Says] = stateless,
) -> Callable[[Got], Says]:
    """Answer like a server with one tool that is marked read-only."""

    def answers(got: Got) -> Says:
        if got.method == "POST" and got.json["method"] == LIST:
            return listed(got) if listed else rpc(got, result={"tools": [SAFE]})
        if got.method == "POST" and got.json["method"] == CALL:
            return called(got) if called else rpc(got, result=GOOD)
        return discovered(got)

    return answers


async def probe_tools(
    answers: Callable[[Got], Says], ask: dict[str, Any] = ASK, *assertions: dict[str, Any]
) -> tuple[Observation, Agent]:
    async with agent(answers, {}) as serving:
        url = f"{serving.url}/mcp"
        target = {"url": url, "kind": "mcp", "ask": ask, "assertions": list(assertions)}
        async with probing(targets=[target]) as probes:
            return await probes.see(url), serving


async def test_tool_that_is_marked_read_only_is_called_with_its_arguments() -> None:
    observation, serving = await probe_tools(serving_tools())
    assert methods(serving) == ["server/discover", LIST, CALL]
    assert results(observation) == {"discovery": "ok", "transport": "ok", "message": "ok"}
    assert layer(observation.tools).result is ResultClass.OK
    called = serving.got[-1]
    assert called.json["params"]["name"] == "search"
    assert called.json["params"]["arguments"] == {"q": "x"}
    assert called.headers["mcp-name"] == "search"
    assert called.headers["mcp-method"] == CALL


async def test_tool_is_called_within_the_session_of_a_handshake() -> None:
    answers = serving_tools(discovered=lambda got: handshaking(got, session="s-1"))
    observation, serving = await probe_tools(answers)
    assert methods(serving)[4:] == [LIST, CALL, "DELETE"]
    assert {got.headers["mcp-session-id"] for got in serving.got[4:]} == {"s-1"}
    assert [got.json["id"] for got in serving.posted if "id" in got.json] == [1, 2, 3, 4, 5]
    assert "mcp-name" not in serving.got[5].headers
    assert layer(observation.message).result is ResultClass.OK


async def test_known_protocol_version_keeps_the_request_limit() -> None:
    ask = {"health": False, "tools": True}
    _, serving = await probe_tools(serving_tools(), ask)
    assert len(serving.got) == 2
    answers = serving_tools(discovered=lambda got: handshaking(got, session="s-1"))
    async with agent(answers, {}) as serving:
        url = f"{serving.url}/mcp"
        async with probing(targets=[{"url": url, "kind": "mcp", "ask": ask}]) as probes:
            await probes.see(url, at_s=DAY_S)
            first = len(serving.got)
            await probes.see(url, at_s=DAY_S + 60)
    assert first <= 9
    assert len(serving.got) - first == 5


@pytest.mark.parametrize(
    "tools",
    [
        [],
        [{"name": "search"}],
        [{"name": "search", "annotations": {"readOnlyHint": "true"}}],
        [{"name": "s"}],
        [{"name": "search", "annotations": {"readOnlyHint": True}}, {"name": "search"}],
    ],
)
async def test_tool_without_read_only_annotation_is_not_called_and_logged_once(
    tools: list[dict[str, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    async with agent(serving_tools(lambda got: rpc(got, result={"tools": tools})), {}) as serving:
        url = f"{serving.url}/mcp"
        async with probing(targets=[{"url": url, "kind": "mcp", "ask": ASK}]) as probes:
            observation = await probes.see(url)
            await probes.see(url)
    assert CALL not in methods(serving)
    called = layer(observation.message)
    assert called.result is ResultClass.NOT_MEASURED
    assert observation.result is ResultClass.OK
    assert [record.getMessage() for record in caplog.records] == [f"{url}: {called.reason}"]


async def test_tool_that_is_not_listed_is_reported_with_similar_names() -> None:
    names = [{"name": name} for name in ("searches", "Search2", "other")]
    observation, _ = await probe_tools(serving_tools(lambda got: rpc(got, result={"tools": names})))
    assert layer(observation.message).reason.endswith("no such tool, but 'searches', 'Search2'")


async def test_tool_without_read_only_annotation_is_called_if_side_effects_are_allowed() -> None:
    ask = ASK | {"call": {"tool": "other", "allow_side_effects": True}}
    observation, serving = await probe_tools(serving_tools(), ask)
    assert serving.got[-1].json["params"]["name"] == "other"
    assert layer(observation.message).result is ResultClass.OK


async def test_tools_are_not_listed_or_called_by_default() -> None:
    observation, serving = await probe_tools(serving_tools(), {"health": False})
    assert methods(serving) == ["server/discover"]
    assert (observation.tools, observation.message) == (None, None)


async def test_second_request_of_a_failed_probe_calls_no_tool() -> None:
    async with agent(serving_tools(), {}) as serving:
        url = f"{serving.url}/mcp"
        async with probing(targets=[{"url": url, "kind": "mcp", "ask": ASK}]) as probes:
            observation = await probes.see(url, is_repeat=True)
    assert methods(serving) == ["server/discover"]
    assert observation.message is None


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (lambda got: refused(got, -32601), ResultClass.HTTP_ERROR),
        (lambda got: refused(got, -32601, 404), ResultClass.HTTP_ERROR),
        (lambda _: Says(b"oops", status=500), ResultClass.HTTP_ERROR),
        (lambda _: Says(b"<html>", content_type="text/html"), ResultClass.INVALID_DOCUMENT),
        (lambda got: rpc(got, result={"tools": "x"}), ResultClass.INVALID_DOCUMENT),
        (lambda _: Says(b" " * (MAX_LIST_BYTES + 1)), ResultClass.TOO_LARGE),
    ],
)
async def test_failed_tool_list_is_no_measured_failure(
    answer: Callable[[Got], Says], expected: ResultClass
) -> None:
    observation, serving = await probe_tools(serving_tools(answer))
    assert layer(observation.tools).result is expected
    assert layer(observation.message).result is ResultClass.NOT_MEASURED
    assert observation.result is ResultClass.OK
    assert not observation.is_measured_failure
    assert methods(serving).count(LIST) == 1


def pages(cursor_after: Callable[[str], str | None], tools: int = 1) -> Callable[[Got], Says]:
    def answer(got: Got) -> Says:
        cursor = cursor_after(got.json["params"].get("cursor", "0"))
        result: dict[str, Any] = {"tools": [{"name": f"t{number}"} for number in range(tools)]}
        return rpc(got, result=result if cursor is None else {**result, "nextCursor": cursor})

    return answer


async def test_all_pages_of_a_list_are_read() -> None:
    ask = {"health": False, "tools": True}
    answer = pages(lambda cursor: None if cursor == "2" else str(int(cursor) + 1))
    observation, serving = await probe_tools(serving_tools(answer), ask)
    assert [got.json["params"].get("cursor") for got in serving.got[1:]] == [None, "1", "2"]
    assert layer(observation.tools).reason.startswith("3 ")


async def test_repeated_cursor_ends_a_list() -> None:
    observation, serving = await probe_tools(serving_tools(pages(lambda _: "again")))
    assert methods(serving).count(LIST) == 2
    assert layer(observation.tools).result is ResultClass.INVALID_DOCUMENT


async def test_endless_tool_list_ends_at_the_page_limit() -> None:
    observation, serving = await probe_tools(serving_tools(pages(lambda cursor: str(int(cursor) + 1))))
    assert methods(serving).count(LIST) == MAX_PAGES
    assert layer(observation.tools).result is ResultClass.TOO_LARGE


async def test_tool_list_above_the_limit_is_not_read_further() -> None:
    answer = pages(lambda cursor: str(int(cursor) + 1), tools=MAX_TOOLS // 2 + 1)
    observation, serving = await probe_tools(serving_tools(answer))
    assert methods(serving).count(LIST) == 2
    assert layer(observation.tools).result is ResultClass.TOO_LARGE


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (lambda got: rpc(got, result={**GOOD, "isError": True}), ResultClass.HTTP_ERROR),
        (lambda got: refused(got, -32602), ResultClass.HTTP_ERROR),
        (lambda _: Says(b"oops", status=500), ResultClass.HTTP_ERROR),
        (lambda _: Says(status=401), ResultClass.GATED),
        (lambda _: Says(b"<html>", content_type="text/html"), ResultClass.INVALID_DOCUMENT),
        (lambda got: rpc(got, result={"x": 1}), ResultClass.INVALID_DOCUMENT),
        (lambda got: rpc(got, result={"resultType": "input_required"}), ResultClass.OK),
        (lambda _: Says(b" " * (MAX_LIST_BYTES + 1)), ResultClass.OK),
        (lambda _: Says(b"id: 1\ndata: \n\n", content_type="text/event-stream"), ResultClass.NOT_MEASURED),
        (lambda _: Says(b"data: \n\n", content_type="text/event-stream"), ResultClass.INVALID_DOCUMENT),
    ],
)
async def test_answer_to_a_tool_call_is_the_message_layer(
    answer: Callable[[Got], Says], expected: ResultClass
) -> None:
    observation, serving = await probe_tools(serving_tools(called=answer))
    assert layer(observation.message).result is expected
    assert methods(serving).count(CALL) == 1
    assert observation.result is ResultClass.OK


CHECKS: tuple[dict[str, Any], ...] = (
    {"of": "tool", "pointer": "/hits", "equals": 3},
    {"of": "tool", "text_contains": "found"},
    {"of": "card", "pointer": "/supportedVersions", "contains": "2026-07-28"},
)


async def test_assertions_apply_to_the_result_of_the_tool_and_to_the_discovery() -> None:
    observation, _ = await probe_tools(serving_tools(), ASK, *CHECKS)
    assert [each.result for each in observation.assertions or ()] == ["ok"] * 3


async def test_content_of_a_failed_tool_call_satisfies_no_assertion() -> None:
    answers = serving_tools(called=lambda got: rpc(got, result={**GOOD, "isError": True}))
    observation, _ = await probe_tools(answers, ASK, *CHECKS)
    outcomes = [each.result for each in observation.assertions or ()]
    assert outcomes == ["assertion_failed", "assertion_failed", "ok"]


async def test_assertions_of_a_tool_that_is_not_called_are_not_measured() -> None:
    answers = serving_tools(lambda got: rpc(got, result={"tools": []}))
    observation, _ = await probe_tools(answers, ASK, *CHECKS)
    outcomes = [each.result for each in observation.assertions or ()]
    assert outcomes == ["not_measured", "not_measured", "ok"]
    reason = layer(observation.message).reason
    assert [each.reason for each in observation.assertions or ()] == [reason, reason, None]


async def test_target_without_a_kind_is_called_once_it_is_known_to_be_a_server() -> None:
    async with agent(serving_tools(), {}) as serving:
        url = f"{serving.url}/mcp"
        async with probing(targets=[{"url": url, "ask": ASK}]) as probes:
            observation = await probes.see(url)
    assert methods(serving)[-3:] == ["server/discover", LIST, CALL]
    assert layer(observation.message).result is ResultClass.OK


def test_tool_call_for_all_targets_is_refused_in_a_definition() -> None:
    with pytest.raises(ValueError, match="call_of_all"):
        ProbeDefinition.model_validate({"name": "a", "targets": ["https://a.example"], "ask": ASK})


# ── real servers ──


def counting_server(called: list[str]) -> MCPServer:
    server = MCPServer("tools")

    @server.tool(annotations=ToolAnnotations(read_only_hint=True))
    def search(q: str) -> str:
        called.append(q)
        if q == "fail":
            raise LookupError("no index")
        return f"result for {q}"

    @server.tool()
    def write(q: str) -> str:
        called.append(q)
        return "written"

    return server


@pytest.mark.parametrize(
    ("tool", "query", "expected", "count"),
    [("search", "ok", "ok", 1), ("search", "fail", "http_error", 1), ("write", "ok", "not_measured", 0)],
)
async def test_tool_of_a_server_on_the_python_sdk(tool: str, query: str, expected: str, count: int) -> None:
    called: list[str] = []
    with served(lambda _: counting_server(called).streamable_http_app()) as origin:
        url = f"{origin}/mcp"
        ask = ASK | {"call": {"tool": tool, "arguments": {"q": query}}}
        check = {"of": "tool", "text_contains": "result for ok"}
        target = {"url": url, "kind": "mcp", "ask": ask, "assertions": [check]}
        async with probing(targets=[target]) as probes:
            observation = await probes.see(url)
            requests = probes.witness.requests
    sent = [json.loads(request.body or b"")["method"] for request in requests if request.method == "POST"]
    assert layer(observation.message).result == expected
    assert len(called) == count
    assert sent == ["server/discover", LIST, *[CALL] * count]
    # Only an answer to a request after a failed call shows that the network works.
    assert (requests[-1].method == "GET") is (expected == "http_error")
    outcome = {"ok": "ok", "http_error": "assertion_failed", "not_measured": "not_measured"}[expected]
    assert [each.result for each in observation.assertions or ()] == [outcome]


class Cut(McpExchange):
    """An exchange in which so many requests can be sent, each with the same answer."""

    def __init__(self, visit: ProbeSession, left: int) -> None:
        super().__init__(visit)
        self._left = left

    async def send(self, request: McpRequest, **_: Any) -> McpAnswer | None:
        self._left -= 1
        if self._left < 0:
            return None
        fetched = Fetched(url=self._visit.given.url, result=ResultClass.OK, status=200, reason="")
        return McpAnswer(fetched, McpReply(result={"tools": [SAFE]}))


@pytest.mark.parametrize(
    ("requests", "seconds_left", "listed", "called"),
    [
        (0, 9.0, "nothing", ""),
        (0, 0.0, "no time", ""),
        (1, 9.0, "1 tool", "nothing"),
        (1, 0.0, "1 tool", "no time"),
    ],
)
async def test_tools_are_not_measured_if_no_request_can_be_sent(
    monkeypatch: pytest.MonkeyPatch, requests: int, seconds_left: float, listed: str, called: str
) -> None:
    monkeypatch.setattr(ProbeSession, "is_late", seconds_left <= 0)
    visit = ProbeSession(Played(), definition(), None, entry("https://agent.example"), DAY_S)
    asked = LayerSettings.model_validate(ASK)
    found = await ask_tools(visit, Cut(visit, requests), McpSession(Generation.STATELESS, "1"), asked)
    assert layer(found.listed).reason.startswith(listed)
    assert layer(found.called).reason.startswith(called)
    assert layer(found.called).result is ResultClass.NOT_MEASURED
