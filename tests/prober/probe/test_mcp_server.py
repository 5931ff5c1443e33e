import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from mcp.server.mcpserver import MCPServer
from tests.support.agent_check import card, document
from tests.support.mcp_answers import handshaking, methods, refused, rpc, stateless
from tests.support.message_server import Agent, Got, Says, agent
from tests.support.official_clients import NODE_ROOT
from tests.support.probing import PATIENT, SHORT_SECONDS, layer, probing, results, see
from tests.support.servers import REPOSITORY, Server, serving
from tests.support.uvicorn_thread import served

from lifesign.domain.mcp.conversation import CURRENT_VERSION, Generation
from lifesign.domain.observation.probe_memory import ProbeMemory
from lifesign.domain.observation.results import Observation, ResultClass
from lifesign.domain.targets.target import StatedKind, TargetKind
from lifesign.prober.probe.mcp_exchange import MAX_ANSWER_BYTES
from lifesign.prober.probe.mcp_server import RETRY_DISCOVERY_SECONDS

DAY_S = 1_790_000_000.0
DISCOVER, INITIALIZE = "server/discover", "initialize"


async def probed(answers: Callable[[Got], Says], **settings: Any) -> tuple[Observation, Agent]:
    """Probe a server whose kind the definition names."""
    async with agent(answers, {}) as serving:
        url = f"{serving.url}/mcp"
        return await see(url, targets=[{"url": url, "kind": "mcp"}], **settings), serving


async def test_stateless_server_is_discovered_with_one_request() -> None:
    observation, serving = await probed(stateless, ask={"health": False})
    assert methods(serving) == [DISCOVER]
    assert results(observation) == {"discovery": "ok", "transport": "ok"}
    assert observation.kind is TargetKind.MCP
    assert observation.result is ResultClass.OK


async def test_refused_version_is_replaced_once() -> None:
    def answers(got: Got) -> Says:
        if got.headers["mcp-protocol-version"] == "2027-01-01":
            return stateless(got)
        return refused(got, -32022, 400, data={"supported": ["2027-01-01"]})

    observation, serving = await probed(answers, ask={"health": False})
    assert [got.headers["mcp-protocol-version"] for got in serving.got] == [CURRENT_VERSION, "2027-01-01"]
    assert observation.result is ResultClass.OK


async def test_server_that_offers_only_unsupported_versions_gets_two_requests() -> None:
    observation, serving = await probed(
        lambda got: refused(got, -32022, 400, data={"supported": ["2099-01-01"]}), ask={"health": False}
    )
    assert methods(serving) == [DISCOVER, DISCOVER]
    assert results(observation) == {"discovery": "invalid_document"}


@pytest.mark.parametrize("session", ["", "s-1"])
async def test_older_server_gets_a_handshake_whose_session_is_ended(session: str) -> None:
    observation, serving = await probed(lambda got: handshaking(got, session=session), ask={"health": False})
    expected = [DISCOVER, INITIALIZE, "notifications/initialized", "ping"]
    assert methods(serving) == expected + ["DELETE"] * bool(session)
    assert {got.headers.get("mcp-session-id", "") for got in serving.got[2:]} == {session}
    assert {got.headers["mcp-protocol-version"] for got in serving.got[2:]} == {"2025-06-18"}
    assert layer(observation.discovery).reason == "MCP 2025-06-18: old"


async def test_pointer_applies_to_the_reply_in_an_event_stream() -> None:
    def answers(got: Got) -> Says:
        says = handshaking(got)
        if not says.body:
            return says
        return Says(b"data: %s\n\n" % json.dumps(says.body).encode(), content_type="text/event-stream")

    checks = [{"of": "card", "pointer": "/serverInfo/name", "equals": name} for name in ("old", "new")]
    async with agent(answers, {}) as serving:
        url = f"{serving.url}/mcp"
        seen = await see(url, targets=[{"url": url, "kind": "mcp", "assertions": checks}])
    assert [each.result for each in seen.assertions or ()] == ["ok", "assertion_failed"]


async def test_session_is_not_sent_by_a_redirect_to_where_the_credential_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LAB_TOKEN", "canary-of-ours")

    def answers(got: Got) -> Says:
        if got.method == "POST" and got.path == "/mcp" and got.json["method"] in {"ping", "tools/list"}:
            place = "/mcp/b" if got.json["method"] == "ping" else "/other"
            return Says(status=307, headers=f"Location: {place}\r\n")
        return handshaking(got, session="canary-of-ours")

    async with agent(answers, {}) as serving:
        url = f"{serving.url}/mcp"
        lab = {"name": "lab", "origin": serving.url, "path": "/mcp", "bearer": {"env": "LAB_TOKEN"}}
        target = {"url": url, "kind": "mcp", "ask": {"tools": True}}
        await see(url, targets=[target], credentials=[lab])
    sent = {got.path: got.headers for got in serving.got}
    assert "canary-of-ours" not in str(sent["/other"])
    assert sent["/other"]["mcp-protocol-version"]
    assert sent["/mcp/b"]["mcp-session-id"] == "canary-of-ours"


async def test_session_of_an_invalid_handshake_is_ended() -> None:
    def answers(got: Got) -> Says:
        says = handshaking(got, session="s-1")
        return Says(rpc(got, result={}).body, headers=says.headers) if says.headers else says

    observation, serving = await probed(answers, ask={"health": False})
    assert methods(serving) == [DISCOVER, INITIALIZE, "DELETE"]
    assert serving.got[-1].headers["mcp-session-id"] == "s-1"
    assert results(observation) == {"discovery": "not_an_agent"}


async def test_session_is_ended_although_requests_had_no_answer() -> None:
    def answers(got: Got) -> Says:
        is_late = got.method == "POST" and got.json["method"] in {"ping", "tools/list"}
        return Says(after_s=60) if is_late else handshaking(got, session="s-1")

    ask = {"health": False, "tools": True}
    _, serving = await probed(answers, ask=ask, timeouts=PATIENT | {"first_byte_seconds": 4 * SHORT_SECONDS})
    assert methods(serving)[-3:] == ["ping", "tools/list", "DELETE"]


@pytest.mark.parametrize("status", [401, 402, 403])
async def test_server_behind_a_login_is_gated_and_gets_no_handshake(status: int) -> None:
    observation, serving = await probed(lambda _: Says(status=status), ask={"health": False})
    assert results(observation) == {"discovery": "gated", "transport": "gated"}
    assert methods(serving) == [DISCOVER]


@pytest.mark.parametrize("takes", ["secret-1", "another"])
async def test_credential_is_sent_with_each_request_of_a_conversation(tmp_path: Path, takes: str) -> None:
    (tmp_path / "token").write_text("secret-1\n")
    (tmp_path / "token").chmod(0o600)

    def answers(got: Got) -> Says:
        if got.headers.get("authorization") != f"Bearer {takes}":
            return Says(status=401)
        return handshaking(got, session="s-1") if got.method == "POST" else Says()

    async with agent(answers, {}) as serving:
        url = f"{serving.url}/mcp"
        credential = {"name": "acme", "origin": serving.url, "bearer": {"file": str(tmp_path / "token")}}
        observation = await see(
            url,
            targets=[{"url": url, "kind": "mcp"}],
            credentials=[credential],
            ask={"health": False},
        )
    assert {got.headers.get("authorization") for got in serving.got} == {"Bearer secret-1"}
    expected = "ok" if takes == "secret-1" else "credentials_rejected"
    assert results(observation) == {"discovery": expected, "transport": expected}
    assert len(serving.got) == (5 if takes == "secret-1" else 1)


async def test_busy_server_gets_no_handshake() -> None:
    observation, serving = await probed(lambda _: Says(status=429), ask={"health": False})
    assert methods(serving) == [DISCOVER]
    assert not layer(observation.discovery).is_measured


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        (lambda _: Says(b"<html>", content_type="text/html"), "not_an_agent"),
        (lambda _: Says(b"oops", status=500, content_type="text/plain"), "http_error"),
        (lambda got: refused(got, -32603), "invalid_document"),
        (lambda got: rpc(got, result={"nothing": 1}), "not_an_agent"),
        (
            lambda got: Says({"jsonrpc": "2.0", "id": "1", "result": stateless(got).body["result"]}),
            "not_an_agent",
        ),
        (lambda _: Says(b"[" * 100_000), "not_an_agent"),
        (lambda _: Says(b" " * (MAX_ANSWER_BYTES + 1)), "too_large"),
    ],
)
async def test_server_that_rejects_discovery_and_handshake_has_failed(
    answers: Callable[[Got], Says], expected: str
) -> None:
    observation, serving = await probed(answers, ask={"health": False})
    assert results(observation) == {"discovery": expected}
    assert layer(observation.discovery).has_failed
    assert len(serving.got) <= 2


async def test_server_that_refuses_the_connection_is_shown_as_a_server() -> None:
    """The request for its robots.txt fails, so that no request of MCP is sent."""
    url = "http://127.0.0.1:1/mcp"
    robots = {"robots_txt": True}
    observation = await see(url, targets=[{"url": url, "kind": "mcp"}], opt_out=robots)
    assert observation.kind is TargetKind.MCP
    assert results(observation) == {"discovery": "refused"}


async def test_server_that_never_answers_times_out() -> None:
    observation, serving = await probed(
        lambda _: Says(after_s=60), ask={"health": False}, timeouts={"first_byte_seconds": SHORT_SECONDS}
    )
    assert results(observation) == {"discovery": "timeout"}
    assert len(serving.got) == 1


@pytest.mark.parametrize("session", ["a b", "x" * 600])
async def test_session_id_with_characters_forbidden_in_headers_is_not_sent(session: str) -> None:
    observation, serving = await probed(lambda got: handshaking(got, session=session), ask={"health": False})
    assert observation.result is ResultClass.OK
    assert all("mcp-session-id" not in got.headers for got in serving.got)


async def test_health_document_is_requested_below_the_parent_of_the_endpoint() -> None:
    _, serving = await probed(stateless)
    assert [got.path for got in serving.got if got.method == "GET"] == ["/.well-known/agent-health"]


@pytest.mark.parametrize(
    ("own", "others", "shares_origin", "expected"),
    [
        (200, [], False, ["/a/.well-known/agent-health"]),
        (404, [], False, ["/a/.well-known/agent-health", "/.well-known/agent-health"]),
        (404, ["/b"], False, ["/a/.well-known/agent-health"]),
        (404, [], True, ["/a/.well-known/agent-health"]),
    ],
)
async def test_document_at_the_root_counts_if_no_other_target_has_the_origin(
    own: int, others: list[str], shares_origin: object, expected: list[str]
) -> None:
    def served(got: Got) -> Says:
        return Says(status=own) if own != 200 and got.path.startswith("/a") else Says(document())

    async with agent(stateless, {}) as serving:
        serving.others = served
        url = f"{serving.url}/a/mcp"
        targets = [{"url": url, "kind": "mcp"}, *(f"{serving.url}{path}" for path in others)]
        async with probing(targets=targets) as probes:
            observation = await probes.see(url, shares_origin=lambda: bool(shares_origin))
    assert [got.path for got in serving.got if got.method == "GET"] == expected
    is_found = own == 200 or len(expected) == 2
    assert (observation.document is not None) == is_found


async def test_document_at_the_root_is_not_that_of_a_server_which_does_not_answer() -> None:
    async with agent(lambda _: Says(status=500), {}) as serving:
        serving.others = lambda got: Says(status=404) if got.path.startswith("/a") else Says(document())
        url = f"{serving.url}/a/mcp"
        observation = await see(url, targets=[{"url": url, "kind": "mcp"}])
    assert observation.document is None
    assert [got.path for got in serving.got if got.method == "GET"] == ["/a/.well-known/agent-health"]


@pytest.mark.parametrize("status", ["healthy", "degraded", "unhealthy", "unknown"])
async def test_document_of_any_status_is_a_liveness_signal_of_a_server_that_fails(status: str) -> None:
    async with agent(lambda got: refused(got, -32603, 500), {}) as serving:
        own = "/a/.well-known/agent-health"
        serving.others = lambda got: Says(document(status)) if got.path == own else Says(status=404)
        url = f"{serving.url}/a/mcp"
        observation = await see(url, targets=[{"url": url, "kind": "mcp"}])
    assert layer(observation.discovery).has_failed
    assert observation.is_liveness_signal
    assert not observation.is_measured_failure


async def test_handshake_is_remembered_for_a_day() -> None:
    async with agent(handshaking, {}) as serving:
        url = f"{serving.url}/mcp"
        target: dict[str, Any] = {"targets": [{"url": url, "kind": "mcp"}], "ask": {"health": False}}
        async with probing(**target) as probes:
            for after_s in (0.0, 60.0, RETRY_DISCOVERY_SECONDS + 60.0):
                await probes.see(url, at_s=DAY_S + after_s)
            assert probes.memory.mcp_generation is Generation.HANDSHAKE
    firsts = [name for name in methods(serving) if name in {DISCOVER, INITIALIZE}]
    assert firsts == [DISCOVER, INITIALIZE, INITIALIZE, DISCOVER, INITIALIZE]


async def test_remembered_handshake_that_fails_is_followed_by_discovery() -> None:
    async with agent(stateless, {}) as serving:
        url = f"{serving.url}/mcp"
        target: dict[str, Any] = {"targets": [{"url": url, "kind": "mcp"}], "ask": {"health": False}}
        async with probing(**target) as probes:
            probes.memory = ProbeMemory(mcp_generation=Generation.HANDSHAKE, mcp_generation_at_s=DAY_S)
            observation = await probes.see(url, at_s=DAY_S + 1)
            assert probes.memory.mcp_generation is Generation.STATELESS
    assert methods(serving) == [INITIALIZE, DISCOVER]
    assert observation.result is ResultClass.OK


@pytest.mark.parametrize(
    ("answers", "firsts", "generation"),
    [
        (stateless, [DISCOVER, DISCOVER], Generation.STATELESS),
        (handshaking, [DISCOVER, INITIALIZE, INITIALIZE], Generation.HANDSHAKE),
    ],
)
async def test_configured_target_of_unknown_kind_without_a_card_is_checked_for_mcp(
    answers: Callable[[Got], Says], firsts: list[str], generation: Generation
) -> None:
    async with agent(answers, {}) as serving:
        url = f"{serving.url}/mcp"
        async with probing(targets=[url], ask={"health": False}) as probes:
            first = await probes.see(url)
            again = await probes.see(url)
            assert probes.memory.mcp_generation is generation
    assert [results(seen) for seen in (first, again)] == [{"discovery": "ok", "transport": "ok"}] * 2
    assert [name for name in methods(serving) if name in {DISCOVER, INITIALIZE}] == firsts


async def test_configured_target_without_card_and_mcp_server_has_no_card() -> None:
    async with agent(lambda _: Says(status=404), {}) as serving:
        url = f"{serving.url}/mcp"
        observation = await see(url, targets=[url], ask={"health": False})
    assert observation.result is ResultClass.HTTP_ERROR
    assert [name for name in methods(serving) if name != "GET"] == [DISCOVER, INITIALIZE]


@pytest.mark.parametrize(
    ("challenge", "is_server"), [('Bearer resource_metadata="/meta"', True), ("Bearer", False)]
)
async def test_configured_target_that_refuses_only_post_is_gated_or_has_a_hint(
    challenge: str, *, is_server: bool
) -> None:
    """MCP requires a challenge with metadata; another one may be that of any server."""
    refusal = Says(status=401, headers=f"WWW-Authenticate: {challenge}\r\n")
    async with agent(lambda _: refusal, {}) as serving:
        serving.others = lambda got: (
            Says({"resource": serving.url}) if got.path == "/meta" else Says(status=404)
        )
        url = f"{serving.url}/mcp"
        observation = await see(url, targets=[url], ask={"health": False})
    discovery = layer(observation.discovery)
    assert (observation.kind is TargetKind.MCP) is is_server
    assert discovery.result == ("gated" if is_server else "not_an_agent")
    assert ("--kind mcp" in discovery.reason) is not is_server
    assert (observation.login is not None) is is_server
    assert len(serving.posted) == 1


def without_token(serving: Agent, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return a credential whose token endpoint refuses it."""
    monkeypatch.setenv("CLIENT_SECRET", "client-canary")
    secret = {"env": "CLIENT_SECRET"}
    oauth2 = {"token_url": f"{serving.url}/token", "client_id": "a", "client_secret": secret}
    return {"name": "acme", "origin": serving.url, "oauth2": oauth2}


async def test_missing_url_is_no_login_of_a_post_without_its_token(monkeypatch: pytest.MonkeyPatch) -> None:
    async with agent(lambda _: Says(status=404), {}) as serving:
        serving.others = lambda _: Says(status=404)
        url = f"{serving.url}/mcp"
        credential = without_token(serving, monkeypatch)
        observation = await see(url, targets=[url], credentials=[credential], ask={"health": False})
    assert "POST" in {got.method for got in serving.got}
    assert "--kind mcp" not in layer(observation.discovery).reason


async def test_recognised_server_that_becomes_an_a2a_agent_is_recognised_again() -> None:
    wanted: dict[str, Any] = {"ask": {"health": False}}
    async with agent(stateless, {}) as serving, probing(targets=[serving.url], **wanted) as probes:
        probes.memory = ProbeMemory(mcp_generation=Generation.STATELESS)
        serving.answers, serving.card = (lambda _: Says(status=404)), card(url=serving.url)
        discovered = [results(await probes.see(serving.url))["discovery"] for _ in range(2)]
    assert discovered == ["not_an_agent", "ok"]


@pytest.mark.parametrize("memory", [ProbeMemory(), ProbeMemory(mcp_generation=Generation.STATELESS)])
async def test_crawled_target_of_unknown_kind_gets_no_post(memory: ProbeMemory) -> None:
    async with agent(stateless, {}) as serving, probing() as probes:
        probes.memory = memory
        await probes.see(f"{serving.url}/mcp")
    assert serving.posted == []


@pytest.mark.parametrize(
    ("listed", "defined", "posts"),
    [
        (StatedKind.MCP, None, 1),
        (StatedKind.A2A, None, 0),
        (None, None, 0),
        (StatedKind.MCP, "a2a", 0),
        (StatedKind.A2A, "mcp", 1),
    ],
)
async def test_kind_of_a_crawled_target_comes_from_definition_then_directory(
    listed: StatedKind | None, defined: str | None, posts: int
) -> None:
    async with agent(stateless, {}) as serving:
        url = f"{serving.url}/mcp"
        targets = ["https://agent.example/"] if defined is None else [{"url": url, "kind": defined}]
        async with probing(targets=targets, ask={"health": False}) as probes:
            await probes.see(url, kind=listed)
    assert len(serving.posted) == posts


async def test_target_of_kind_a2a_gets_no_post() -> None:
    async with agent(stateless, {}) as serving:
        url = f"{serving.url}/mcp"
        await see(url, targets=[{"url": url, "kind": "a2a"}])
    assert serving.posted == []


async def test_mcp_server_with_a_card_of_another_agent_is_detected() -> None:
    async with agent(stateless, card()) as serving:
        url = f"{serving.url}/mcp"
        observation = await see(url, targets=[url], ask={"health": False})
    assert observation.kind is TargetKind.MCP


async def test_agent_with_a_card_gets_no_post() -> None:
    async with agent(stateless, card()) as serving:
        observation = await see(serving.url, targets=[serving.url])
    assert observation.kind is None
    assert serving.posted == []


@pytest.mark.parametrize("status", [400, 401, 404, 405, 500])
async def test_server_that_gets_no_token_is_alive(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    async with agent(lambda _: Says(b"no", status=status, content_type="text/plain"), {}) as serving:
        serving.others = lambda _: Says(status=404)
        url = f"{serving.url}/mcp"
        credential = without_token(serving, monkeypatch)
        target = {"url": url, "kind": "mcp"}
        observation = await see(url, targets=[target], credentials=[credential], ask={"health": False})
    assert results(observation) == {"discovery": "token_error", "transport": "token_error"}
    assert observation.is_liveness_signal


async def test_server_that_is_gated_for_a_get_only_is_alive() -> None:
    async with agent(lambda _: Says(status=405), {}) as serving:
        serving.others = lambda _: Says(status=401)
        url = f"{serving.url}/sse"
        async with probing(targets=[{"url": url, "kind": "mcp"}], ask={"health": False}) as probes:
            unknown = await probes.see(url, at_s=DAY_S)
            known = ProbeMemory(mcp_generation=Generation.EVENT_STREAM, mcp_generation_at_s=DAY_S)
            probes.memory = known
            seen = await probes.see(url, at_s=DAY_S + 1)
    assert [results(each) for each in (unknown, seen)] == [{"discovery": "gated", "transport": "gated"}] * 2


# ── real servers ──


@pytest.fixture
def everything(tmp_path: Path) -> Iterator[Server]:
    """A server on the official TypeScript SDK 1.x, which shakes hands."""
    command = [str(NODE_ROOT / "bin" / "node"), str(REPOSITORY / "tests/support/typescript/server.mjs")]
    with serving([*command, str(NODE_ROOT), "{port}"], log=tmp_path / "server.log") as server:
        yield server


async def test_server_on_the_typescript_sdk_is_measured_and_its_session_ended(everything: Server) -> None:
    url = f"http://127.0.0.1:{everything.port}/mcp"
    async with probing(targets=[{"url": url, "kind": "mcp"}], ask={"health": False}) as probes:
        observation = await probes.see(url)
        sent = [request.method for request in probes.witness.requests]
        assert sent == ["POST", "POST", "POST", "POST", "DELETE"]
        assert probes.witness.answers[-1].status == 200
    assert layer(observation.discovery).reason == "MCP 2025-11-25: everything 1.2.3"


@pytest.mark.parametrize("is_json", [True, False])
async def test_server_on_the_python_sdk_is_measured_with_one_request(*, is_json: bool) -> None:
    def app(_: str) -> Any:
        return MCPServer("tools").streamable_http_app(json_response=is_json)

    with served(app) as origin:
        url = f"{origin}/mcp"
        async with probing(targets=[{"url": url, "kind": "mcp"}], ask={"health": False}) as probes:
            observation = await probes.see(url)
            assert [json.loads(request.body or b"")["method"] for request in probes.witness.requests] == [
                DISCOVER
            ]
    assert layer(observation.discovery).reason.startswith(f"MCP {CURRENT_VERSION}")
