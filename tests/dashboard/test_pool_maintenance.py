"""What may be done about a whole pool?"""

import re

import pytest
from tests.dashboard.conftest import Sample
from tests.support.dashboard_sample import KEYS
from tests.support.dashboard_visitor import Page

from agent_health.access import Role

POOL = "/agents?pool=billing"
DEED = "/pools/billing/maintenance"


def deeds(page: Page) -> list[str]:
    """What the forms of a page do about a pool."""
    return re.findall(r'action="(/pools[^"]*)"', page.html)


def test_who_looks_at_a_pool_sees_how_many_are_how(sample: Sample) -> None:
    page = sample.visitor(Role.READER).get(POOL)
    assert "Pool billing active 7, dead 1" in page.text
    assert 'method="post" action="/pools' not in page.html
    assert 'id="pool"' in page.html
    assert 'id="pool"' not in sample.visitor(Role.COORDINATOR).get("/agents").html


def test_nobody_is_in_a_pool_that_is_misspelt(sample: Sample) -> None:
    visitor = sample.visitor(Role.COORDINATOR)
    page = visitor.get("/agents?pool=biling")
    assert "Nobody is in it." in page.text
    assert 'action="/pools' not in page.html
    answer = visitor.do(POOL, "/pools/biling/maintenance", minutes="5", reason="why")
    assert answer.status == 404
    assert "biling" in answer.text


def test_the_maintenance_of_a_pool_begins_and_ends(acted: Sample) -> None:
    visitor = acted.visitor(Role.COORDINATOR)
    answer = visitor.do(POOL, DEED, minutes="5", reason="new disk")
    assert (answer.status, answer.headers["location"]) == (303, POOL)
    assert (
        "nothing takes the living members of this pool down" in visitor.get(answer.headers["location"]).text
    )
    assert deeds(visitor.get(POOL)) == [f"{DEED}/end"]
    assert "In maintenance until" in visitor.get("/agents/billing-1").text
    assert "In maintenance until" not in visitor.get("/agents/support-1").text
    assert visitor.do(POOL, f"{DEED}/end").headers["location"] == POOL
    assert "The maintenance of this pool is over." in visitor.get(POOL).text
    assert "The maintenance of this pool is over." not in visitor.get(POOL).text
    assert "In maintenance until" not in visitor.get("/agents/billing-1").text
    log = visitor.get("/api/v1/events?type=agent.maintenance_changed", x_api_key=KEYS[Role.READER])
    assert log.body.count(b'"actor":"key:key_coordinator_') == 14


def test_what_can_be_done_about_a_pool_is_shown_and_nothing_else(acted: Sample) -> None:
    visitor = acted.visitor(Role.COORDINATOR)
    assert deeds(visitor.get(POOL)) == [DEED]
    visitor.do("/agents/billing-1", "/agents/billing-1/maintenance", minutes="5", reason="new disk")
    assert deeds(visitor.get(POOL)) == [DEED, f"{DEED}/end"]


@pytest.mark.parametrize("role", [Role.READER, Role.PROBER])
@pytest.mark.parametrize("deed", [DEED, f"{DEED}/end"])
def test_who_may_not_is_refused(sample: Sample, role: Role, deed: str) -> None:
    answer = sample.visitor(role).do("/", deed, minutes="5", reason="why")
    assert answer.status == 403


@pytest.mark.parametrize("deed", [DEED, f"{DEED}/end"])
def test_a_form_without_its_token_changes_nothing(sample: Sample, deed: str) -> None:
    form = {"minutes": "5", "reason": "why"}
    assert sample.visitor(Role.ADMIN).post(deed, form).status == 403
    nobody = sample.visitor().post(deed, {**form, "token": "0" * 64})
    assert (nobody.status, nobody.headers["location"]) == (303, "/login?next=%2Fagents%3Fpool%3Dbilling")


@pytest.mark.parametrize("wrong", [{"minutes": "soon"}, {"minutes": "0"}, {"reason": ""}])
def test_an_end_and_a_reason_are_needed(sample: Sample, wrong: dict[str, str]) -> None:
    form = {"minutes": "5", "reason": "why", **wrong}
    answer = sample.visitor(Role.COORDINATOR).do(POOL, DEED, **form)
    assert answer.status == 422
    assert f'<a href="{POOL}">Back to pool billing</a>' in answer.html
