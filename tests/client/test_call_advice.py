import asyncio
import logging
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import aiohttp
import pytest
from aioresponses import aioresponses
from hypothesis import given
from hypothesis import strategies as st
from mcp.server.mcpserver import MCPServer
from tests.support import hostile_server as hostile
from tests.support.agent_check import PATIENT_SECONDS, SHORT_SECONDS, card, document
from tests.support.hostile_server import (
    CARD_PATH,
    HEALTH_PATH,
    Reply,
    accepting,
    answer,
    as_json,
    serving,
)
from tests.support.mcp_answers import stateless
from tests.support.message_server import agent
from tests.support.mocked_responses import MockedResponse
from tests.support.uvicorn_thread import served

from lifesign import AgentHealthMiddleware
from lifesign.client import call_advice
from lifesign.client import should_call as exported
from lifesign.client.call_advice import CallAdvisor, should_call
from lifesign.domain.health.document import HealthStatus
from lifesign.domain.observation.decision import Action, Decision

UNUSED_URL = "http://127.0.0.1:1"
"""A URL that is valid and is not requested."""


def is_unknown(decision: Decision) -> bool:
    return (decision.action, decision.status) == (Action.PROCEED_AND_MONITOR, HealthStatus.UNKNOWN)


async def ask(replies: dict[str, Reply], timeout_seconds: float = PATIENT_SECONDS) -> Decision:
    async with serving(replies) as server:
        return await CallAdvisor().should_call(server.url, timeout_seconds=timeout_seconds)


class HeldDocument:
    """An unhealthy document that is sent once `opened` is set; a request for it sets `asked`."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.opened = asyncio.Event()

    async def __call__(self, writer: asyncio.StreamWriter, head: str) -> None:
        self.asked.set()
        await self.opened.wait()
        await as_json(document("unhealthy"))(writer, head)


# ── content of the document ──


@pytest.mark.parametrize(
    ("status", "action"),
    [
        ("healthy", Action.PROCEED),
        ("degraded", Action.PROCEED_WITH_CAUTION),
        ("unhealthy", Action.AVOID),
        ("unknown", Action.PROCEED_AND_MONITOR),
    ],
)
async def test_advice_follows_the_health_document(status: str, action: Action) -> None:
    decision = await ask({CARD_PATH: as_json(card()), HEALTH_PATH: as_json(document(status))})
    assert (decision.action, decision.status) == (action, status)


@pytest.mark.parametrize(("outcome", "action"), [("answered", Action.PROCEED), ("task_failed", Action.AVOID)])
async def test_advice_follows_the_document_of_a_wrapped_mcp_server(outcome: str, action: Action) -> None:
    def app(url: str) -> Any:
        server = MCPServer("tools").streamable_http_app()
        wrapped = AgentHealthMiddleware(server, agent_id=f"{url}/mcp")
        for _ in range(20):
            wrapped.health.record(outcome, latency_ms=1)
        return wrapped

    with served(app) as url:
        decision = await CallAdvisor().should_call(f"{url}/mcp", timeout_seconds=PATIENT_SECONDS)
    assert decision.action is action


async def test_a_server_without_a_document_is_unknown_and_gets_no_post() -> None:
    async with agent(stateless, {}) as server:
        server.card = {}
        url = f"{server.url}/mcp"
        decision = await CallAdvisor().should_call(url, timeout_seconds=PATIENT_SECONDS)
    assert is_unknown(decision)
    assert server.posted == []


async def test_an_expired_document_is_unknown() -> None:
    computed_at = (datetime.now(UTC) - timedelta(days=1)).isoformat()
    assert is_unknown(await ask({HEALTH_PATH: as_json(document("unhealthy", timestamp=computed_at))}))


async def test_hanging_card_does_not_prevent_the_health_document() -> None:
    replies = {CARD_PATH: hostile.silence, HEALTH_PATH: as_json(document("unhealthy"))}
    assert (await ask(replies, timeout_seconds=2.0)).action is Action.AVOID


# ── answers without a document ──


@pytest.mark.parametrize(
    "reply",
    [
        answer(404),
        answer(500),
        answer(200, b"\x00{", Content_Type="application/json"),
        as_json(["garbage"]),
        hostile.raw(b"\x00\xff I AM NOT HTTP\r\n\r\n"),
        hostile.reset,
        hostile.endless_body,
        hostile.endless_headers,
        hostile.bomb(16 * 1024 * 1024),
    ],
    ids=["404", "500", "garbage", "list", "no-http", "reset", "endless-body", "endless-headers", "bomb"],
)
async def test_any_other_answer_is_unknown(reply: Reply) -> None:
    decision = await ask({CARD_PATH: reply, HEALTH_PATH: reply})
    assert is_unknown(decision)
    assert decision.reasons[0]


async def test_a_closed_port_is_unknown() -> None:
    async with serving({}) as server:
        url = server.url
    assert is_unknown(await CallAdvisor().should_call(url, timeout_seconds=PATIENT_SECONDS))


@pytest.mark.parametrize("reply", [hostile.silence, hostile.drip(lambda: asyncio.sleep(0.01))])
async def test_a_server_that_does_not_finish_is_unknown_within_the_time_limit(reply: Reply) -> None:
    started_s = time.monotonic()
    decision = await ask({CARD_PATH: reply, HEALTH_PATH: reply}, SHORT_SECONDS)
    assert is_unknown(decision)
    assert SHORT_SECONDS / 2 < time.monotonic() - started_s < PATIENT_SECONDS


async def test_a_connection_without_an_answer_is_unknown() -> None:
    async def greet(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with accepting(greet) as port:
        url = f"http://127.0.0.1:{port}"
        assert is_unknown(await CallAdvisor().should_call(url, timeout_seconds=SHORT_SECONDS))


@pytest.fixture
def mocked() -> Iterator[aioresponses]:
    with aioresponses() as mock:
        yield mock


@pytest.mark.parametrize(
    "error",
    [
        aiohttp.ServerTimeoutError("slow"),
        aiohttp.ServerFingerprintMismatch(b"a", b"b", "agent.example", 443),
        aiohttp.ServerDisconnectedError(),
        aiohttp.ClientPayloadError("cut"),
        aiohttp.InvalidURL("x"),
        OSError(113, "No route to host"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_errors_of_the_http_library_are_unknown(mocked: aioresponses, error: Exception) -> None:
    mocked.get("https://agent.example" + CARD_PATH, status=500, response_class=MockedResponse)
    mocked.get("https://agent.example" + HEALTH_PATH, exception=error)
    assert is_unknown(await CallAdvisor().should_call("https://agent.example"))


async def test_unexpected_error_is_unknown_and_logged_with_its_traceback(
    mocked: aioresponses, caplog: pytest.LogCaptureFixture
) -> None:
    mocked.get("https://agent.example" + CARD_PATH, exception=ZeroDivisionError())
    decision = await CallAdvisor().should_call("https://agent.example")
    assert is_unknown(decision)
    (record,) = [record for record in caplog.records if record.name == call_advice.__name__]
    assert record.levelno == logging.ERROR
    assert record.exc_info is not None
    assert record.exc_info[0] is ZeroDivisionError


# ── arguments ──


@pytest.mark.parametrize(
    ("url", "timeout_seconds"),
    [
        ("", 1.0),
        ("agent.example", 1.0),
        (None, 1.0),
        (b"http://127.0.0.1", 1.0),
        (UNUSED_URL, 0),
        (UNUSED_URL, float("nan")),
        (UNUSED_URL, 10**400),
        (UNUSED_URL, "1"),
        (UNUSED_URL, None),
    ],
)
async def test_invalid_arguments_are_unknown_and_logged(
    caplog: pytest.LogCaptureFixture, url: Any, timeout_seconds: Any
) -> None:
    assert is_unknown(await should_call(url, timeout_seconds=timeout_seconds))
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


async def test_a_password_in_the_url_is_not_repeated(caplog: pytest.LogCaptureFixture) -> None:
    decision = await should_call("http://me:hunter2@agent.example/")
    assert is_unknown(decision)
    assert "hunter2" not in decision.reasons[0]
    assert "hunter2" not in caplog.text


@given(text=st.text() | st.text().map("http://127.0.0.1:1/".__add__) | st.text().map("http://[".__add__))
def test_any_url_text_gives_advice_without_an_exception(text: str) -> None:
    # No check may start: the limit is 0.
    assert is_unknown(asyncio.run(CallAdvisor(max_running_checks=0).should_call(text)))


# ── cache ──


async def test_a_decision_is_kept_until_it_expires() -> None:
    now_s = 0.0
    advisor = CallAdvisor(clock=lambda: now_s)
    async with serving({HEALTH_PATH: as_json(document("degraded"))}) as server:
        first = await advisor.should_call(server.url, timeout_seconds=PATIENT_SECONDS)
        requests = len(server.paths)
        now_s = 299.0
        server.replies[HEALTH_PATH] = as_json(document("unhealthy"))
        assert await advisor.should_call(server.url + "/") == first
        assert len(server.paths) == requests
        now_s = 300.0
        later = await advisor.should_call(server.url, timeout_seconds=PATIENT_SECONDS)
    assert (first.action, later.action) == (Action.PROCEED_WITH_CAUTION, Action.AVOID)


async def test_failed_check_expires_sooner() -> None:
    now_s = 0.0
    advisor = CallAdvisor(clock=lambda: now_s)
    async with serving({CARD_PATH: answer(503), HEALTH_PATH: answer(503)}) as server:
        assert is_unknown(await advisor.should_call(server.url, timeout_seconds=PATIENT_SECONDS))
        server.replies[HEALTH_PATH] = as_json(document())
        now_s = 29.0
        assert is_unknown(await advisor.should_call(server.url))
        now_s = 30.0
        found = await advisor.should_call(server.url, timeout_seconds=PATIENT_SECONDS)
    assert found.action is Action.PROCEED


async def test_two_agents_of_one_origin_are_distinguished() -> None:
    advisor = CallAdvisor()
    replies = {
        "/a" + HEALTH_PATH: as_json(document("degraded")),
        "/b" + HEALTH_PATH: as_json(document("unhealthy")),
    }
    async with serving(replies) as server:
        found = [await advisor.should_call(server.url + path) for path in ("/a", "/b", "/a")]
    assert [decision.status for decision in found] == ["degraded", "unhealthy", "degraded"]


def test_event_loops_share_decisions() -> None:
    advisor = CallAdvisor()

    async def first() -> str:
        async with serving({HEALTH_PATH: as_json(document("unhealthy"))}) as server:
            await advisor.should_call(server.url, timeout_seconds=PATIENT_SECONDS)
            return server.url

    url = asyncio.run(first())
    assert asyncio.run(advisor.should_call(url)).action is Action.AVOID


# ── concurrent callers ──


async def test_concurrent_callers_share_one_check() -> None:
    advisor, health = CallAdvisor(), HeldDocument()
    async with serving({CARD_PATH: as_json(card()), HEALTH_PATH: health}) as server:
        callers = [
            asyncio.create_task(advisor.should_call(server.url, timeout_seconds=PATIENT_SECONDS))
            for _ in range(50)
        ]
        await health.asked.wait()
        health.opened.set()
        found = await asyncio.gather(*callers)
        assert server.paths == [CARD_PATH, HEALTH_PATH]
    assert {decision.action for decision in found} == {Action.AVOID}


async def test_a_cancelled_caller_does_not_end_the_check_of_the_others() -> None:
    advisor, health = CallAdvisor(), HeldDocument()
    async with serving({HEALTH_PATH: health}) as server:
        first, second = (
            asyncio.create_task(advisor.should_call(server.url, timeout_seconds=PATIENT_SECONDS))
            for _ in range(2)
        )
        await health.asked.wait()
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        health.opened.set()
        assert (await second).action is Action.AVOID


async def test_a_caller_with_a_shorter_time_limit_does_not_wait_for_the_others() -> None:
    advisor, health = CallAdvisor(), HeldDocument()
    async with serving({HEALTH_PATH: health}) as server:
        patient = asyncio.create_task(advisor.should_call(server.url, timeout_seconds=PATIENT_SECONDS))
        await health.asked.wait()
        assert is_unknown(await advisor.should_call(server.url, timeout_seconds=0.01))
        health.opened.set()
        assert (await patient).action is Action.AVOID


async def test_callers_of_a_cancelled_check_get_a_decision() -> None:
    advisor, health = CallAdvisor(), HeldDocument()
    async with serving({HEALTH_PATH: health}) as server:
        caller = asyncio.create_task(advisor.should_call(server.url, timeout_seconds=PATIENT_SECONDS))
        await health.asked.wait()
        (check,) = advisor._running_checks().values()
        check.cancel()
        assert is_unknown(await caller)
        assert advisor._running_checks() == {}


async def test_number_of_concurrent_checks_has_a_limit() -> None:
    advisor, health = CallAdvisor(max_running_checks=1), HeldDocument()
    async with serving({HEALTH_PATH: health}) as server:
        first = asyncio.create_task(advisor.should_call(server.url, timeout_seconds=PATIENT_SECONDS))
        await health.asked.wait()
        assert is_unknown(await advisor.should_call(server.url + "/other"))
        health.opened.set()
        assert (await first).action is Action.AVOID
        other = await advisor.should_call(server.url + "/other", timeout_seconds=PATIENT_SECONDS)
    assert "/other" + HEALTH_PATH in server.paths
    assert is_unknown(other)


def test_client_package_exports_the_call_advice() -> None:
    assert cast("object", exported) is should_call
