"""Checks of MCP servers: wrapped ones by their document, others by their answer."""

from collections.abc import Callable
from typing import Any

import pytest
from mcp.server.mcpserver import MCPServer
from tests.support.agent_check import card, document, names
from tests.support.hostile_server import CARD_PATH, HEALTH_PATH, Reply, answer, as_json, serving
from tests.support.mcp_answers import handshaking, rpc, stateless
from tests.support.mcp_stream_server import old, streaming
from tests.support.message_server import Got, Says, agent
from tests.support.uvicorn_thread import served

from lifesign import AgentHealthMiddleware
from lifesign.client import fetch_health
from lifesign.domain.health.document import HealthStatus
from lifesign.domain.mcp.conversation import Generation
from lifesign.domain.observation.decision import Action
from lifesign.domain.observation.results import ResultClass
from lifesign.errors import InvalidValue


@pytest.mark.parametrize("path", ["/mcp", "/a/mcp"])
@pytest.mark.parametrize("is_named", [True, False])
async def test_document_of_an_mcp_server_is_found_below_the_parent_of_its_endpoint(
    path: str, *, is_named: bool
) -> None:
    def app(origin: str) -> Any:
        agent_id = f"{origin}{path}" if is_named else "urn:example:tools"
        server = MCPServer("tools").streamable_http_app(streamable_http_path=path)
        health_path = f"{path.rpartition('/')[0]}{HEALTH_PATH}"
        return AgentHealthMiddleware(server, agent_id=agent_id, path=health_path)

    with served(app) as origin:
        checked = await fetch_health(f"{origin}{path}")
        assert checked.health_url == f"{origin}{path.rpartition('/')[0]}{HEALTH_PATH}"
        assert checked.document is not None
        assert "found_at_origin_root" not in names(checked)
        elsewhere = await fetch_health(f"{origin}/other")
    assert elsewhere.document is None


async def test_only_a_url_next_to_a_health_document_is_checked_for_mcp() -> None:
    async with serving({}) as server:
        await fetch_health(f"{server.url}/mcp")
        before = len(server.paths)
        server.replies[HEALTH_PATH] = as_json(document())
        await fetch_health(f"{server.url}/mcp")
        await fetch_health(f"{server.url}/mcp{CARD_PATH}")
        await fetch_health(f"{server.url}/mcp", kind="a2a")
    posts = [head.startswith("POST /mcp ") for head in server.heads]
    assert not any(posts[:before])
    assert sum(posts[before:]) == 2


@pytest.mark.parametrize("kind", [None, "mcp"])
@pytest.mark.parametrize("path", ["/", "/mcp"])
@pytest.mark.parametrize(
    ("answers", "generation"), [(stateless, Generation.STATELESS), (handshaking, Generation.HANDSHAKE)]
)
async def test_server_without_a_document_is_identified(
    answers: Callable[[Got], Says], generation: Generation, path: str, kind: str | None
) -> None:
    async with agent(answers, {}) as server:
        server.card = {"nothing": 1}
        checked = await fetch_health(f"{server.url}{path}", kind=kind, identify=True)
    assert checked.is_server
    assert checked.server is not None
    assert checked.server.generation is generation
    assert checked.document is None
    assert checked.decision.action is Action.PROCEED_AND_MONITOR
    assert len(checked.decision.reasons) == 2
    assert (checked.card_result is ResultClass.NOT_MEASURED) is (kind == "mcp")
    has_asked_for_card = any(got.path.endswith("agent-card.json") for got in server.got)
    assert has_asked_for_card is (kind is None)


@pytest.mark.parametrize("kind", [None, "mcp"])
async def test_server_over_http_with_sse_is_identified_with_its_version(kind: str | None) -> None:
    async with streaming(old) as server:
        checked = await fetch_health(server.url, kind=kind, identify=True)
    assert checked.server is not None
    assert (checked.server.generation, checked.server.version) == (Generation.EVENT_STREAM, "2024-11-05")
    assert checked.decision.action is Action.PROCEED_AND_MONITOR


@pytest.mark.parametrize(
    ("replies", "kind"),
    [
        ({CARD_PATH: as_json(card())}, None),
        ({HEALTH_PATH: as_json(document())}, None),
        ({CARD_PATH: answer(401)}, None),
        ({CARD_PATH: answer(500)}, None),
        ({}, "a2a"),
    ],
)
async def test_agent_that_has_a_card_or_a_document_or_fails_gets_no_post(
    replies: dict[str, Reply], kind: str | None
) -> None:
    async with serving(replies) as server:
        checked = await fetch_health(server.url, kind=kind, identify=True)
    assert checked.server is None
    assert not any(head.startswith("POST") for head in server.heads)


async def test_named_server_that_does_not_answer_is_unknown_by_its_failure() -> None:
    async with agent(lambda _: Says(b"oops", status=500), {}) as server:
        server.others = lambda _: Says(status=404)
        checked = await fetch_health(f"{server.url}/mcp", kind="mcp")
    assert checked.server is not None
    assert checked.server.answer.result is ResultClass.HTTP_ERROR
    assert checked.decision.status is HealthStatus.UNKNOWN
    assert "HTTP 500" in checked.decision.reasons[0]
    refused = await fetch_health("http://127.0.0.1:1/mcp", kind="mcp")
    assert (refused.document_result, refused.health_url) == (ResultClass.REFUSED, None)


@pytest.mark.parametrize("kind", [None, "mcp"])
async def test_token_goes_to_the_document_of_a_server_only_if_the_kind_is_named(kind: str | None) -> None:
    async with agent(stateless, {}) as server:
        server.card = {}
        server.others = lambda got: Says(document()) if got.path == HEALTH_PATH else Says(status=404)
        checked = await fetch_health(f"{server.url}/mcp", kind=kind, detail_token="secret12", identify=True)
        sent = [got.headers.get("authorization") for got in server.got if got.path == HEALTH_PATH]
    assert checked.document is not None
    assert set(sent) == ({"Bearer secret12"} if kind else {None})
    assert ("token_not_sent" in names(checked)) is (kind is None)


async def test_token_is_not_shown_in_the_name_of_a_server() -> None:
    """The server received it with the request for its document."""

    def repeating(got: Got) -> Says:
        return rpc(got, result={
            "protocolVersion": "secret12", "capabilities": {}, "serverInfo": {"name": "a secret12"},
        })  # fmt: skip

    async with agent(repeating, {}) as server:
        server.card = {}
        server.others = lambda _: Says(status=404)
        checked = await fetch_health(server.url, detail_token="secret12", identify=True)
    assert checked.is_server
    assert "secret12" not in str(checked)


async def test_login_of_a_server_that_refuses_only_posts_is_reported() -> None:
    headers = 'WWW-Authenticate: Bearer resource_metadata="https://a.example/x"\r\n'
    async with agent(lambda _: Says(status=401, headers=headers), {}) as server:
        server.card = {}
        checked = await fetch_health(f"{server.url}/mcp", identify=True)
    assert checked.is_server
    assert checked.login is not None
    assert checked.login.schemes == ("bearer",)


async def test_unknown_kind_is_refused() -> None:
    with pytest.raises(InvalidValue):
        await fetch_health("https://agent.example", kind="ftp")
