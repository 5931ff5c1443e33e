"""Who shows its health to everybody, and how?"""

import re
from xml.etree import ElementTree as ET

import pytest
from tests.dashboard.conftest import Sample
from tests.support.dashboard_sample import LONGEST_ID

from agent_health.dashboard.public_status import badge_svg, is_public, public_word
from agent_health.document import HealthStatus
from agent_health.lifecycle import Status


def test_who_wants_to_has_a_page_and_a_badge(sample: Sample) -> None:
    visitor = sample.visitor()
    page = visitor.get("/status/translator")
    assert page.status == 200
    assert "Translator (probed)" in page.text
    assert "It says healthy" in page.text
    badge = visitor.get("/badge/translator.svg")
    assert (badge.status, badge.headers["content-type"]) == (200, "image/svg+xml")
    assert badge.headers["cache-control"] == "public, max-age=60"
    assert "agent: healthy" in badge.html


@pytest.mark.parametrize(
    "agent_id", ["planner", "research-1", "nobody", "x" * 129, "x" * 500, "%3Cscript%3E"]
)
def test_of_all_others_nobody_learns_whether_they_are_there(sample: Sample, agent_id: str) -> None:
    visitor = sample.visitor()
    page, badge = visitor.get(f"/status/{agent_id}"), visitor.get(f"/badge/{agent_id}.svg")
    assert (page.status, badge.status) == (404, 404)
    nobody = visitor.get("/badge/somebody-else.svg")
    assert badge.body == nobody.body
    assert "<script" not in page.html


def test_an_id_may_be_as_long_as_it_may_be(sample: Sample) -> None:
    assert sample.visitor().get(f"/status/{LONGEST_ID}").status == 200


@pytest.mark.parametrize("said", ["true", 1, "yes", None, False, []])
def test_only_true_is_a_wish(said: object) -> None:
    assert not is_public({"public_status": said})
    assert is_public({"public_status": True})


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.REGISTERING])
@pytest.mark.parametrize("health", list(HealthStatus))
def test_every_word_fits_its_badge(status: Status, health: HealthStatus) -> None:
    word = public_word(status, health)
    drawn = ET.fromstring(badge_svg("agent", word))  # noqa: S314 - ours
    assert drawn.attrib["aria-label"] == f"agent: {word}"
    widths = [float(found.attrib["textLength"]) for found in drawn.iter() if "textLength" in found.attrib]
    assert sum(widths) < float(drawn.attrib["width"])


def test_where_it_stands_comes_before_what_it_says() -> None:
    assert public_word(Status.DEAD, HealthStatus.HEALTHY) == "dead"
    assert public_word(Status.UNHEALTHY, HealthStatus.HEALTHY) == "unhealthy"
    assert public_word(Status.ACTIVE, HealthStatus.DEGRADED) == "degraded"
    assert public_word(Status.ACTIVE, HealthStatus.UNKNOWN) == "active"
    assert public_word(Status.DEREGISTERED, HealthStatus.UNKNOWN) == "gone"


def test_a_public_page_says_no_more_than_it_must(sample: Sample) -> None:
    html = sample.visitor().get("/status/translator").html
    assert "well-known" not in html
    assert not re.search(r"metadata|capabilit", html)
