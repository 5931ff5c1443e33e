import re

import pytest
from tests.dashboard.conftest import Sample
from tests.support.dashboard_sample import KEYS
from tests.support.dashboard_visitor import Page, Visitor
from tests.support.servers import until

from lifesign.domain.access.permissions import Role
from lifesign.storage.engine.transaction import Transaction

POOL = "/agents?pool=billing"
DEED = "/pools/billing/maintenance"


def functions(page: Page) -> list[str]:
    """Return the actions of a page's forms for a pool."""
    return re.findall(r'action="(/pools[^"]*)"', page.html)


def overview_after_change(visitor: Visitor, words: str) -> Page:
    """Return the page of the fleet once it shows the change: its counts may be a few seconds old."""

    def look() -> Page | None:
        page = visitor.get("/")
        return page if re.search(words, page.text) else None

    return until(f"the fleet's page says {words}", look)


def test_pool_page_counts_members_by_status(sample: Sample) -> None:
    page = sample.visitor(Role.READER).get(POOL)
    assert "Pool billing active 7, dead 1" in page.text
    assert 'method="post" action="/pools' not in page.html
    assert 'id="pool"' in page.html
    assert 'id="pool"' not in sample.visitor(Role.COORDINATOR).get("/agents").html


def test_misspelt_pool_is_empty(sample: Sample) -> None:
    visitor = sample.visitor(Role.COORDINATOR)
    page = visitor.get("/agents?pool=biling")
    assert 'action="/pools' not in page.html
    answer = visitor.do(POOL, "/pools/biling/maintenance", minutes="5", reason="why")
    assert answer.status == 404
    assert "biling" in answer.text


def test_pool_maintenance_is_started_and_ended(mutable_sample: Sample) -> None:
    visitor = mutable_sample.visitor(Role.COORDINATOR)
    answer = visitor.do(POOL, DEED, minutes="5", reason="new disk")
    assert (answer.status, answer.headers["location"]) == (303, POOL)
    assert 'class="notice"' in visitor.get(answer.headers["location"]).html
    assert functions(visitor.get(POOL)) == [f"{DEED}/end"]
    assert "In maintenance until" in visitor.get("/agents/billing-1").text
    assert "In maintenance until" not in visitor.get("/agents/support-1").text
    assert visitor.do(POOL, f"{DEED}/end").headers["location"] == POOL
    assert "has ended." in visitor.get(POOL).text
    assert "has ended." not in visitor.get(POOL).text
    assert "In maintenance until" not in visitor.get("/agents/billing-1").text
    log = visitor.get("/api/v1/events?type=agent.maintenance_changed", x_api_key=KEYS[Role.READER])
    assert log.body.count(b'"actor":"key:key_coordinator_') == 14


def test_only_possible_actions_on_a_pool_are_shown(mutable_sample: Sample) -> None:
    visitor = mutable_sample.visitor(Role.COORDINATOR)
    assert functions(visitor.get(POOL)) == [DEED]
    visitor.do("/agents/billing-1", "/agents/billing-1/maintenance", minutes="5", reason="new disk")
    assert functions(visitor.get(POOL)) == [DEED, f"{DEED}/end"]


def test_reader_sees_author_end_and_reason_of_a_maintenance(mutable_sample: Sample) -> None:
    mutable_sample.visitor(Role.COORDINATOR).do(POOL, DEED, minutes="5", reason="new disk")
    reader = mutable_sample.visitor(Role.READER)
    when = r"until 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d UTC"
    by = r"Begun by coordinator, key:key_coordinator_\w*: new disk"
    pool = reader.get(POOL).text
    assert re.search(f"In maintenance {when} : all 7 living members; no failure .* {by}", pool), pool
    assert pool.count("active in maintenance") == 7
    assert "in maintenance" not in reader.get("/agents?pool=support").text.lower()
    agent = reader.get("/agents/billing-1").text
    assert re.search(f"In maintenance {when} , with 6 others of its pool : no failure .* {by}", agent)
    fleet = overview_after_change(reader, f"no failure .* Pool billing : 7 agents {when} {by}")
    assert '<a href="/agents?pool=billing">Pool billing</a>' in fleet.html


def test_single_pool_member_in_maintenance_is_shown(mutable_sample: Sample) -> None:
    visitor = mutable_sample.visitor(Role.COORDINATOR)
    visitor.do("/agents/billing-1", "/agents/billing-1/maintenance", minutes="5", reason="new disk")
    alone = r"In maintenance until [0-9: -]+UTC : billing-1 alone; no failure"
    assert re.search(alone, visitor.get(POOL).text)
    overview_after_change(visitor, "no failure .* billing-1 until")


def test_expired_maintenance_is_not_shown(mutable_sample: Sample) -> None:
    mutable_sample.visitor(Role.COORDINATOR).do(POOL, DEED, minutes="5", reason="new disk")

    def pass_by(transaction: Transaction) -> None:
        over = "UPDATE agents SET maintenance_until_s = 1 WHERE maintenance_until_s > 1"
        assert transaction.connection.exec_driver_sql(over).rowcount == 7

    mutable_sample.server.write(pass_by)
    visitor = mutable_sample.visitor(Role.ADMIN)
    for path in ("/", POOL, "/agents/billing-1"):
        assert re.search(r"\bin maintenance", visitor.get(path).text.lower()) is None, path
    assert functions(visitor.get(POOL)) == [DEED]
    assert "/agents/billing-1/maintenance" in visitor.get("/agents/billing-1").html


@pytest.mark.parametrize("role", [Role.READER, Role.PROBER])
@pytest.mark.parametrize("function", [DEED, f"{DEED}/end"])
def test_key_without_permission_is_refused(sample: Sample, role: Role, function: str) -> None:
    answer = sample.visitor(role).do("/", function, minutes="5", reason="why")
    assert answer.status == 403


@pytest.mark.parametrize("function", [DEED, f"{DEED}/end"])
def test_pool_form_without_csrf_token_is_refused(sample: Sample, function: str) -> None:
    form = {"minutes": "5", "reason": "why"}
    assert sample.visitor(Role.ADMIN).post(function, form).status == 403
    nobody = sample.visitor().post(function, {**form, "token": "0" * 64})
    where = "/login?next=%2Fagents%3Fpool%3Dbilling&form=undone"
    assert (nobody.status, nobody.headers["location"]) == (303, where)


@pytest.mark.parametrize("wrong", [{"minutes": "soon"}, {"minutes": "0"}, {"reason": ""}])
def test_pool_maintenance_requires_end_and_reason(sample: Sample, wrong: dict[str, str]) -> None:
    form = {"minutes": "5", "reason": "why", **wrong}
    answer = sample.visitor(Role.COORDINATOR).do(POOL, DEED, **form)
    assert answer.status == 422
    assert f'<a href="{POOL}">' in answer.html
