import re
import subprocess
import sys
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from tests.support.asgi_client import ask
from tests.support.hand_clock import HandClock
from tests.support.metrics import HAS_PROMTOOL, Scraped, complaints
from tests.support.servers import PATIENCE_SECONDS, REPOSITORY

from lifesign.domain.health.inspection import Inspection
from lifesign.errors import InvalidValue
from lifesign.middleware import AgentHealth, AgentHealthMiddleware, Outcome
from lifesign.middleware.metrics import KEPT_NS, PREFIX, HealthCollector

TOKEN = "a-token-of-sixteen-characters"


async def app(scope: Any, _receive: Any, send: Any) -> None:
    status = 500 if scope["path"] == "/fails" else 200
    streams = scope["path"] == "/streams"
    headers = [(b"content-type", b"text/event-stream")] if streams else []
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b"ok"})


def wrapped(**settings: Any) -> AgentHealthMiddleware:
    return AgentHealthMiddleware(app, agent_id="agent-1", **settings)


async def test_metrics_are_served_at_the_configured_path() -> None:
    agent = wrapped(metrics_path="/metrics")
    for number in range(20):
        await ask(agent, "/fails" if number < 5 else "/")
    answer = await ask(agent, "/metrics")
    assert answer.status == 200
    assert (answer.header("content-type") or "").startswith("text/plain; version=")
    found = Scraped(answer.body.decode())
    of = {"agent_id": "agent-1"}
    assert found.value(f"{PREFIX}response_ratio", **of) == 0.75
    assert found.value(f"{PREFIX}window_samples", **of) == 20
    assert found.value(f"{PREFIX}window_outcomes", **of, outcome="answered") == 15
    assert found.value(f"{PREFIX}status", **of, status="degraded") == 1
    assert found.value(f"{PREFIX}status", **of, status="healthy") == 0
    assert 0 < (found.value(f"{PREFIX}latency_seconds", **of, quantile="0.99") or 0) < 60
    assert found.value(f"{PREFIX}last_healthy_timestamp_seconds", **of) is None
    document = await ask(agent, "/.well-known/agent-health")
    # Requests for metrics and for the document are not interactions.
    assert document.status == 200
    assert agent.health.document().calibration.sample_count == 20  # type: ignore[union-attr]


async def test_uninspected_responses_are_exported_by_reason() -> None:
    agent = wrapped(metrics_path="/metrics")
    for inspection in (Inspection.COMPRESSED, Inspection.COMPRESSED, Inspection.OVERSIZED):
        agent.health.count(Outcome.NOT_INSPECTED, 5, None, agent.health.clock.monotonic_ns(), inspection)
    found = Scraped((await ask(agent, "/metrics")).body.decode())
    of = {"agent_id": "agent-1"}
    assert found.value(f"{PREFIX}window_outcomes", **of, outcome="not_inspected") == 3
    counts = {"compressed": 2, "oversized": 1, "complex": 0, "no_room": 0, "from_file": 0, "unspecified": 0}
    for reason, count in counts.items():
        assert found.value(f"{PREFIX}window_not_inspected", **of, reason=reason) == count


async def test_metrics_are_encoded_again_after_a_second() -> None:
    hands = HandClock()
    agent = wrapped(metrics_path="/metrics", clock=hands.clock)

    async def samples() -> float | None:
        found = Scraped((await ask(agent, "/metrics")).body.decode())
        return found.value(f"{PREFIX}window_samples", agent_id="agent-1")

    seen = []
    for _ in range(3):
        await ask(agent, "/")
        seen.append(await samples())
        hands.advance(KEPT_NS / 2e9)
    assert seen == [1, 1, 3]


@pytest.mark.skipif(not HAS_PROMTOOL, reason="NOT RUN: promtool is absent (apt-get install prometheus)")
async def test_promtool_reports_no_problems() -> None:
    agent = wrapped(metrics_path="/metrics")
    for _ in range(3):
        await ask(agent, "/streams", method="POST")
    text = (await ask(agent, "/metrics")).body.decode()
    assert {"lifesign_agent_latency_seconds", "lifesign_agent_first_byte_latency_seconds"} <= {
        line.partition("{")[0] for line in text.splitlines()
    }
    assert complaints(text) == ""


async def test_each_exported_metric_is_documented() -> None:
    served = set()
    for family in HealthCollector(wrapped().health).collect():
        served.add(f"{family.name}_info" if family.type == "info" else family.name)
    text = (REPOSITORY / "docs" / "monitoring.md").read_text()
    assert served == set(re.findall(r"`(lifesign_agent_\w+)`", text))


async def test_only_get_is_answered_and_head_is_empty() -> None:
    agent = wrapped(metrics_path="/metrics")
    refused = await ask(agent, "/metrics", method="POST")
    assert (refused.status, refused.header("allow")) == (405, "GET, HEAD")
    head = await ask(agent, "/metrics", method="HEAD")
    assert (head.status, head.body) == (200, b"")


async def test_metrics_path_is_served_below_a_root_path_and_only_if_configured() -> None:
    assert (await ask(wrapped(metrics_path="/metrics"), "/sub/metrics", root_path="/sub")).body[
        :6
    ] == b"# HELP"
    assert (await ask(wrapped(), "/metrics")).body == b"ok"


async def test_restricted_details_require_the_token_for_metrics() -> None:
    agent = wrapped(detail="coarse", detail_token=TOKEN, metrics_path="/metrics")
    assert (await ask(agent, "/metrics")).status == 401
    for given, status in ((TOKEN, 200), (TOKEN + "x", 401), ("", 401)):
        headers = [(b"authorization", f"Bearer {given}".encode())]
        answer = await ask(agent, "/metrics", headers=headers)
        assert answer.status == status
        assert TOKEN.encode() not in answer.body


@pytest.mark.parametrize(
    "settings",
    [
        {"metrics_path": "metrics"}, {"metrics_path": "/"}, {"metrics_path": "/.well-known/agent-health"},
        {"metrics_path": "/metrics", "detail": "coarse"},
    ],
)  # fmt: skip
def test_invalid_metrics_settings_are_refused_by_name(settings: dict[str, str]) -> None:
    with pytest.raises(InvalidValue, match="metrics_path"):
        wrapped(**settings)


def test_custom_registry_exports_all_agents_of_the_process() -> None:
    registry = CollectorRegistry()
    one, two = AgentHealth(agent_id="https://one.example"), AgentHealth(agent_id='two"\\')
    one.record(latency_ms=12)
    registry.register(HealthCollector(one, two))
    found = Scraped(generate_latest(registry).decode())
    assert found.value(f"{PREFIX}window_samples", agent_id="https://one.example") == 1
    assert found.value(f"{PREFIX}window_samples", agent_id='two"\\') == 0
    everybody = CollectorRegistry()
    everybody.register(HealthCollector())
    scraped = Scraped(generate_latest(everybody).decode())
    named = {labels["agent_id"] for labels in scraped.labels(f"{PREFIX}uptime_seconds")}
    assert {"https://one.example", 'two"\\'} <= named


@pytest.mark.parametrize("module", ["prometheus_client", "pbr", "setuptools"])
def test_importing_the_middleware_does_not_import_optional_modules(module: str) -> None:
    code = f"import sys, lifesign.middleware; sys.exit({module!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=PATIENCE_SECONDS).returncode == 0
