import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from tests.dashboard.conftest import Filled, Sample
from tests.support.dashboard_sample import LONGEST_ID

from lifesign.dashboard import page_handler
from lifesign.dashboard.pages.public_status import badge_svg, is_public, public_word
from lifesign.domain.access.rate_limit import RateLimit
from lifesign.domain.health.document import HealthStatus
from lifesign.domain.models.agents import AgentRecord

NOW = datetime(2026, 11, 23, tzinfo=UTC)


def test_public_status_page_and_badge_can_be_switched_on(sample: Sample) -> None:
    visitor = sample.visitor()
    page = visitor.get("/status/translator")
    assert page.status == 200
    assert "Translator (probed)" in page.text
    assert "Health healthy" in page.text
    badge = visitor.get("/badge/translator.svg")
    assert (badge.status, badge.headers["content-type"]) == (200, "image/svg+xml")
    assert badge.headers["cache-control"] == "public, max-age=60"
    assert "agent: healthy" in badge.html


@pytest.mark.parametrize(
    "agent_id", ["planner", "research-1", "nobody", "x" * 129, "x" * 500, "%3Cscript%3E"]
)
def test_private_agents_are_indistinguishable_from_absent_ones(sample: Sample, agent_id: str) -> None:
    visitor = sample.visitor()
    page, badge = visitor.get(f"/status/{agent_id}"), visitor.get(f"/badge/{agent_id}.svg")
    assert (page.status, badge.status) == (404, 404)
    nobody = visitor.get("/badge/somebody-else.svg")
    assert badge.body == nobody.body
    assert "<script" not in page.html


def test_public_page_accepts_the_longest_agent_id(sample: Sample) -> None:
    assert sample.visitor().get(f"/status/{LONGEST_ID}").status == 200


@pytest.mark.parametrize("path", ["/status/translator", "/badge/translator.svg"])
def test_requests_for_public_pages_are_limited(
    filled: Filled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(page_handler, "PAGES_PER_VISITOR", RateLimit(0.001, 2))
    with filled.served(tmp_path) as sample:
        visitor = sample.visitor()
        assert [visitor.get(path).status for _ in range(3)] == [200, 200, 429]


@pytest.mark.parametrize("expected", ["true", 1, "yes", None, False, []])
def test_only_metadata_true_makes_an_agent_public(expected: object) -> None:
    assert not is_public({"public_status": expected})
    assert is_public({"public_status": True})


@pytest.mark.parametrize("word", ["active", "draining", "dead", "gone", "failing", *HealthStatus])
def test_each_status_text_fits_its_badge(word: str) -> None:
    drawn = ET.fromstring(badge_svg("agent", word, "<why> & since when"))  # noqa: S314 - ours
    assert drawn.attrib["aria-label"] == f"agent: {word} (<why> & since when)"
    widths = [float(found.attrib["textLength"]) for found in drawn.iter() if "textLength" in found.attrib]
    assert sum(widths) < float(drawn.attrib["width"])


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"status": "dead", "health": "healthy"}, "dead"),
        ({"status": "unhealthy", "health": "healthy"}, "unhealthy"),
        ({"health": "degraded"}, "degraded"),
        ({}, "active"),
        ({"status": "deregistered"}, "gone"),
        ({"unknown_reason": "no_prober"}, "unknown"),
        ({"unknown_reason": "not_yet_probed"}, "unknown"),
        ({"unknown_reason": "document_ended"}, "active"),
        ({"unknown_reason": "no_prober", "monitoring": "both"}, "active"),
        ({"unknown_reason": "no_prober", "status": "dead"}, "dead"),
        ({"health": "healthy", "failures": 1}, "healthy"),
        ({"health": "healthy", "failures": 2}, "failing"),
        ({"health": "healthy", "failures": 2, "monitoring": "both"}, "failing"),
        ({"unknown_reason": "no_witness", "failures": 2}, "unknown"),
        ({"status": "unhealthy", "failures": 2}, "unhealthy"),
        ({"is_unreachable": True}, "failing"),
        ({"is_unreachable": True, "monitoring": "both"}, "active"),
        ({"is_unreachable": True, "status": "dead"}, "dead"),
    ],
    ids=str,
)
def test_badge_shows_the_status_unless_observed_health_is_worse(changed: dict[str, Any], word: str) -> None:
    assert public_word(known(**changed)) == word


def known(**changed: Any) -> AgentRecord:
    """Return the record of an active agent that is probed, with some members changed."""
    failures = changed.pop("failures", 0)
    members: dict[str, Any] = {
        "agent_id": "a", "capabilities": [], "capacity": {}, "status": "active", "health": "unknown",
        "monitoring": "probe", "heartbeat_config": {}, "drain_timeout_seconds": 1, "metadata": {},
        "registered_at": NOW, "version": 1, "incarnation": 1, "etag": "", "reason": "registered",
        "status_since": NOW, "explanation": "", "reported": {"current_load": 0, "tasks_in_progress": []},
        "observed": {"failures_in_row": failures, "recent_interactions": ""},
        "failing_probes": failures if failures >= 2 and "unknown_reason" not in changed else None,
    }  # fmt: skip
    return AgentRecord.model_validate(members | changed)


def test_badge_of_old_evidence_says_unknown_and_why(sample: Sample) -> None:
    visitor = sample.visitor()
    badge = visitor.get("/badge/forgotten.svg").html
    assert re.search(r"agent: unknown \(no prober .* 1 h \d+ min ago\)", badge)
    assert "healthy" not in badge
    page = visitor.get("/status/forgotten").text
    assert "active since" in page
    assert "Health unknown" in page
    assert "Observed unknown" in page


def test_badge_of_an_agent_whose_last_probes_failed_is_not_green(sample: Sample) -> None:
    visitor = sample.visitor()
    assert "agent: failing (last 2 probes failed)" in visitor.get("/badge/flaky.svg").html
    assert "last 2 probes failed" in visitor.get("/status/flaky").text


def test_public_page_omits_urls_metadata_and_capabilities(sample: Sample) -> None:
    html = sample.visitor().get("/status/translator").html
    assert "well-known" not in html
    assert not re.search(r"metadata|capabilit", html)
