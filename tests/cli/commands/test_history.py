"""History of an agent over the last day and month, on the command line."""

import json
import time
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.support.registry_server import RegistryServer
from tests.support.reporting import reported

from lifesign.cli import main
from lifesign.domain.health.document import HealthStatus
from lifesign.domain.lifecycle.agent_history import (
    HistorySlot,
    KeptHistory,
    Measure,
    Spread,
    half_hour_of,
    packed,
)
from lifesign.domain.models.history import NOT_PROBED
from lifesign.domain.models.observation_batch import ReportOutcome
from lifesign.domain.observation.results import LayerResult, Observation, ProbedDocument, ResultClass
from lifesign.storage.agents import agent_rows, histories
from lifesign.storage.engine.transaction import Transaction

CARD = "https://agent.example/.well-known/agent-card.json"
Captured = pytest.CaptureFixture[str]


def observation(answer_ms: float, **members: Any) -> Observation:
    now = datetime.now(UTC)
    return Observation(
        agent_id="billing-1",
        observed_at=now,
        transport=LayerResult(result=ResultClass.OK, latency_ms=answer_ms),
        readiness=LayerResult(result=ResultClass.OK),
        document=ProbedDocument(status=HealthStatus.HEALTHY, timestamp=now, **members),
    )


@pytest.fixture
def probed(registry: RegistryServer, capsys: Captured) -> str:
    """The id of an agent that was probed twice just now, and once two hours ago."""
    assert main(["agents", "register", "billing-1", "--card-url", CARD, "--monitoring", "probe"]) == 0
    spreads = {Measure.ANSWER_MS: Spread(12_345, 12_345, 12_345), Measure.RESPONSE_RATIO: Spread(1, 1, 1)}
    earlier = HistorySlot(half_hour_of(time.time() - 7_200), alive=1, spreads=spreads)

    def remember(transaction: Transaction) -> None:
        agent = agent_rows.find(transaction, "billing-1")
        assert agent is not None
        histories.store(transaction, {agent.id: KeptHistory(packed([earlier]), "")})

    registry.write(remember)
    now = {"response_ratio": 0.75, "error_ratio": 0.25, "latency_p99_ms": 900}
    answer = reported(registry.url, observation(100, **now), observation(200, **now))
    assert answer.counts == {ReportOutcome.ACCEPTED: 2}
    capsys.readouterr()
    return "billing-1"


def test_each_half_hour_with_a_probe_has_a_line(probed: str, capsys: Captured) -> None:
    assert main(["agents", "history", probed]) == 0
    head, first, *_, last = capsys.readouterr().out.splitlines()
    assert head.split("  ")[0] == "FROM (UTC)"
    *_, alive, failed, unknown, answer_ms, ratio = first.split()
    assert (alive, failed, unknown, ratio) == ("1", "0", "0", "1")
    assert int(answer_ms) == pytest.approx(12_345, rel=0.004)
    assert "0.75" in last
    assert "0.25" in last
    assert int(last.split()[-1]) == pytest.approx(900, rel=0.005)


def test_days_are_separated_and_a_url_is_accepted(probed: str, capsys: Captured) -> None:
    assert main(["agents", "history", CARD, "--days"]) == 0
    head, *days = capsys.readouterr().out.splitlines()
    assert head.startswith("DAY (UTC)")
    assert sum(int(day.split()[1]) for day in days) == 3


def test_json_is_the_answer_of_the_registry(probed: str, capsys: Captured) -> None:
    assert main(["agents", "history", probed, "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert output["agent_id"] == probed
    assert output["notes"] == []
    assert output["half_hours"][-1]["answer_ms"]["highest"] == pytest.approx(200, rel=0.005)
    assert set(output) == {"agent_id", "half_hours", "days", "notes"}


def test_heartbeat_agent_has_no_history_and_the_reason_is_given(
    registry: RegistryServer, capsys: Captured
) -> None:
    assert main(["agents", "register", "billing-2"]) == 0
    capsys.readouterr()
    assert main(["agents", "history", "billing-2"]) == 0
    assert capsys.readouterr().out == f"{NOT_PROBED}\n"
    assert main(["agents", "history", "billing-3"]) == 1
    assert "agent_not_found" in capsys.readouterr().err
