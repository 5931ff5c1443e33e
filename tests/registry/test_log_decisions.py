import io
import json
import logging
import re
from collections.abc import Iterator
from typing import Any, get_args

import pytest
from tests.registry.events.test_verify_events import live_a_little
from tests.support.asgi_client import ask
from tests.support.databases import WoundClock
from tests.support.fleet import add_agents
from tests.support.registry_api import AGENTS, RegistryApi
from tests.support.servers import REPOSITORY

from lifesign.domain.access.permissions import Role
from lifesign.domain.events.agent_payloads import AgentLifecycle
from lifesign.domain.events.event import EventDraft
from lifesign.domain.events.event_type import PAYLOADS, EventType
from lifesign.domain.lifecycle.status_table import Reason, Status
from lifesign.domain.models.base import moment
from lifesign.registry import log_decisions
from lifesign.registry.log_decisions import MAX_LINES, MAX_REFUSALS_PER_SECOND, UNLOGGED_EVENTS, DecisionLog
from lifesign.serving.log_lines import LogLine

FIRST = ["time", "level", "logger", "event"]


class Log:
    """The log of a server as JSON."""

    def __init__(self) -> None:
        self.stream = io.StringIO()

    @property
    def text(self) -> str:
        return self.stream.getvalue()

    def lines(self, event: str | None = None) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.text.splitlines()]
        return [line for line in lines if event is None or line["event"].startswith(event)]


@pytest.fixture
def log() -> Iterator[Log]:
    log, logger = Log(), logging.getLogger("lifesign")
    handler = logging.StreamHandler(log.stream)
    handler.setFormatter(LogLine("json"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield log
    logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)


async def test_a_change_of_a_status_is_one_line_with_its_reason(api: RegistryApi, log: Log) -> None:
    await live_a_little(api)
    lines = log.lines("agent.lifecycle")
    line = next(line for line in lines if line["new_status"] == "dead" and line["agent_id"] == "agent-1")
    assert list(line)[:4] == FIRST
    assert (line["level"], line["logger"]) == ("INFO", "lifesign.registry")
    members = {
        "actor",
        "agent_id",
        "previous_status",
        "new_status",
        "reason",
        "explanation",
        "incarnation",
        "version",
    }
    assert members <= set(line)
    assert (line["actor"], line["previous_status"], line["reason"]) == (
        "monitor",
        "unhealthy",
        "heartbeat_timeout",
    )
    assert len(lines) == len(await api.events(type="agent.lifecycle"))
    assert log.lines("lease.") == []


async def test_a_suspension_is_one_line_with_its_reason(
    api: RegistryApi, clock: WoundClock, log: Log
) -> None:
    await add_agents(api.database, 21)
    clock.advance(91)
    await api.sweep()
    (line,) = log.lines("monitor.suspended")
    assert {"actor", "track", "previous", "cause", "exits", "limit", "unwitnessed"} <= set(line)
    assert (line["actor"], line["previous"], line["cause"]) == ("monitor", "normal", "mass_exit")


@pytest.mark.both_databases
async def test_a_refused_call_is_one_line_with_its_reason_and_no_key(api: RegistryApi, log: Log) -> None:
    await api.register("agent-1")
    key = await api.add_agent_key("agent-2")
    await api.send_heartbeat("agent-1", key)
    await api.ask("GET", f"{AGENTS}/secret-name", key="ahk_" + "x" * 43)
    await api.ask("POST", "/api/v1/leases", {"resource": ""}, key=key)
    lines = log.lines("call.refused")
    assert [(line["method"], line["path"], line["status"], line["reason"]) for line in lines] == [
        ("POST", "/api/v1/agents/{agent_id}/heartbeat", 403, "not_allowed"),
        ("GET", "/api/v1/agents/{agent_id}", 401, "unknown_key"),
        ("POST", "/api/v1/leases", 422, "invalid_request"),
    ]
    assert set(lines[0]) == {*FIRST, "method", "path", "status", "reason", "client"}
    assert "secret-name" not in log.text


async def test_answers_to_an_agent_that_looks_for_its_record_are_not_logged(
    api: RegistryApi, log: Log
) -> None:
    other = await api.add_agent_key("agent-2")
    for key, status in ((Role.ENROLL, 403), (Role.COORDINATOR, 404), (other, 403)):
        assert (await api.ask("GET", f"{AGENTS}/agent-1", key=key)).status == status
    assert [line["status"] for line in log.lines("call.refused")] == [403], "the key of another agent"


async def test_no_key_or_secret_is_ever_in_the_log(api: RegistryApi, log: Log) -> None:
    await live_a_little(api)
    created = (await api.ask("POST", "/api/v1/keys", {"role": "reader", "name": "r"})).json()
    hook = {"url": "https://example.org/secret-path?token=abc"}
    webhook = (await api.ask("POST", "/api/v1/webhooks", hook)).json()
    for path in (f"/api/v1/{created['key']}", f"{AGENTS}/{created['key']}"):
        await api.ask("GET", path)
    await ask(api.app, "/api/v1/agents", headers=[(b"authorization", f"Bearer {created['key']}".encode())])
    logging.getLogger("lifesign.registry").error("it failed with %s", created["key"])
    fault = ValueError(f"Authorization: Bearer {created['key']} at postgresql://ah:hunter2@db/ah")
    logging.getLogger("lifesign.registry").error("it failed", exc_info=fault)
    secrets = [created["key"], *api.keys.values(), "hunter2", "secret-path", str(webhook.get("secret"))]
    assert len(log.lines()) > 15
    assert webhook["secret"]
    assert [secret for secret in secrets if secret in log.text] == []
    assert "ahk_" not in log.text


def registered(number: int) -> EventDraft:
    agent_id = f"agent-{number}"
    payload = AgentLifecycle(
        agent_id=agent_id,
        previous_status=Status.REGISTERING,
        new_status=Status.ACTIVE,
        reason=Reason.REGISTERED,
        timestamp=moment(1_763_640_000.0),
        incarnation=1,
        version=1,
        explanation="it came",
    )
    return EventDraft(type=EventType.AGENT_LIFECYCLE, actor="key:one", payload=payload, agent_id=agent_id)


def test_many_simultaneous_decisions_are_logged_as_some_lines_and_a_count(log: Log) -> None:
    DecisionLog().note_events([registered(number) for number in range(MAX_LINES + 20)])
    logged = log.lines("agent.lifecycle")
    assert len(logged) == MAX_LINES + 1
    assert logged[-1]["event"].startswith("agent.lifecycle to active: registered: 20 more")


async def test_requests_cannot_flood_the_log(api: RegistryApi, clock: WoundClock, log: Log) -> None:
    for _ in range(MAX_REFUSALS_PER_SECOND + 7):
        await api.ask("GET", AGENTS, key=None)
    assert len(log.lines("call.refused")) == MAX_REFUSALS_PER_SECOND
    clock.advance(1)
    await api.ask("GET", AGENTS, key=None)
    events = [line["event"] for line in log.lines("call.refused")][MAX_REFUSALS_PER_SECOND:]
    assert [event.partition(" more")[0] for event in events] == ["call.refused: 7", "call.refused"]


def test_event_members_do_not_collide_with_log_record_attributes() -> None:
    taken = set(vars(logging.makeLogRecord({}))) | {"message", "asctime"}
    for payload in PAYLOADS.values():
        named = {log_decisions._OTHERWISE.get(name, name) for name in payload.model_fields}
        assert named & taken == set(), payload
        assert get_args(payload) == ()


def test_document_lists_logged_and_unlogged_events() -> None:
    text = (REPOSITORY / "docs" / "monitoring.md").read_text()
    words = set(re.findall(r"`([a-z_.]+)`", text))
    assert {"agent.lifecycle", "monitor.suspended", "call.refused", "fenced_write_rejected"} <= words
    assert {kind.value for kind in UNLOGGED_EVENTS} <= words
    assert {*FIRST, "previous_status", "new_status", "reason", "explanation", "client"} <= words
