import re

import pytest
from tests.dashboard.conftest import Sample
from tests.support.dashboard_sample import LONGEST_ID
from tests.support.dashboard_visitor import Page

from lifesign.domain.access.permissions import Role
from lifesign.domain.targets.target import target_id

ALPHA = target_id("https://alpha.example.net/")


@pytest.mark.parametrize(
    "path", ["/agents?status=dead", "/tasks?status=done", "/events?group=task", "/targets?observed=down"]
)
def test_unknown_query_parameters_change_nothing(sample: Sample, path: str) -> None:
    visitor = sample.visitor(Role.READER)
    plain, passed_on = (
        visitor.get(f"{path}{added}") for added in ("", "&utm_source=chat&fbclid=1&fbclid=2&x[]=%00")
    )
    assert passed_on.status == 200
    assert re.findall(r'href="[^"]+"', passed_on.html) == re.findall(r'href="[^"]+"', plain.html)


@pytest.mark.parametrize(
    "path",
    ["/agents?status=zzz", "/agents?pool=%00", "/tasks?status=x", "/events?before=x", "/targets?observed=x"],
)
def test_query_errors_are_hidden_before_the_login(sample: Sample, path: str) -> None:
    answer = sample.visitor().get(path)
    assert answer.status == 303
    assert answer.headers["location"].startswith("/login?next=")


def agents_on(page: Page) -> list[str]:
    return re.findall(r'<tr data-agent="([^"]+)"', page.html)


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("status=deregistered", [LONGEST_ID]),
        ("status=dead", ["librarian", "billing-7"]),
        ("status=unhealthy&sort=changed", ["support-3", "planner"]),
        ("q=BILLING-7", ["billing-7"]),
        ("q=g+agent+7", ["billing-7"]),
        ("q=Research+agent&status=dead", []),
        ("q=%25", []),
        ("q=g_agent", []),
        ("capability=planner", ["planner"]),
        ("pool=billing&status=dead", ["billing-7"]),
        ("host=agents.example.com&status=unhealthy", ["planner"]),
        ("host=AGENTS.example.com&health=degraded&q=summ", ["summariser"]),
        ("host=nowhere.example", []),
        # In wide letters, as some keyboards write them.
        ("host=%EF%BD%81gents.example.com&status=unhealthy", ["planner"]),
        ("q=research-1&health=&pool=&status=", ["research-1"]),
        ("q=alpha.example.net", [ALPHA]),
        ("q=https://ALPHA.example.net/", [ALPHA]),
        ("q=alpha.example.net&status=dead", []),
        ("q=alpha.example.net/a2a", []),
        ("q=alph.example.net", []),
    ],
)
def test_agents_are_filtered_by_the_search_form(open_sample: Sample, query: str, found: list[str]) -> None:
    page = open_sample.visitor().get(f"/agents?{query}")
    assert page.status == 200
    assert agents_on(page) == found


@pytest.mark.parametrize(
    "path", ["/agents?q=alpha.example.net", f"/agents/{ALPHA}", f"/events?agent={ALPHA}"]
)
def test_discovered_agent_is_shown_by_its_url(open_sample: Sample, path: str) -> None:
    page = open_sample.visitor().get(path)
    shown = re.findall(r"<(?:h1|a [^>]*)>alpha\.example\.net</", page.html)
    assert len(shown) >= 1
    assert re.findall(rf'<a href="/agents/{ALPHA}">{ALPHA}', page.html) == []


def test_every_order_shows_each_agent_once(open_sample: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lifesign.dashboard.pages.agents.PAGE_SIZE", 7)
    visitor = open_sample.visitor()
    seen = {}
    for order in ("newest", "oldest", "name", "changed"):
        page, found = visitor.get(f"/agents?sort={order}"), []
        while True:
            found += agents_on(page)
            further = re.search(r'href="(/agents[^"]+)" rel="next"', page.html)
            if further is None:
                break
            page = visitor.get(further[1].replace("&amp;", "&"))
        assert len(found) == len(set(found)) == 35
        seen[order] = found
    assert seen["newest"] == seen["oldest"][::-1]
    assert seen["name"] == sorted(seen["name"])
    assert seen["changed"][0] == "support-3"


@pytest.mark.parametrize("order", ["newest", "oldest", "changed"])
@pytest.mark.parametrize("query", ["health=unknown", "pool=support", "health=healthy&pool=billing"])
def test_filtered_pages_continue_after_the_last_one(
    open_sample: Sample, monkeypatch: pytest.MonkeyPatch, query: str, order: str
) -> None:
    visitor = open_sample.visitor()
    whole = agents_on(visitor.get(f"/agents?{query}&sort={order}"))
    assert len(whole) >= 4
    monkeypatch.setattr("lifesign.dashboard.pages.agents.PAGE_SIZE", 3)
    first = visitor.get(f"/agents?{query}&sort={order}")
    further = re.search(r'href="(/agents[^"]+)" rel="next"', first.html)
    assert further is not None
    second = visitor.get(further[1].replace("&amp;", "&"))
    assert agents_on(first) + agents_on(second) == whole[:6]


def test_agents_sorted_by_name_are_equal_with_and_without_a_scan(
    open_sample: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    visitor = open_sample.visitor()
    sorted_ = agents_on(visitor.get("/agents?status=active&sort=name"))
    monkeypatch.setattr("lifesign.dashboard.pages.agents.COMMON", 1)
    assert agents_on(visitor.get("/agents?status=active&sort=name")) == sorted_


def test_unknown_differs_from_never_probed(open_sample: Sample) -> None:
    text = open_sample.visitor().get("/agents").text
    assert "hostile active unknown never probed" in text
    assert "planner unhealthy unknown down" in text
    assert "paywalled active unknown answers" in text


@pytest.mark.parametrize(
    "query",
    [
        "status=well",
        "sort=upside-down",
        "after=nonsense",
        "sort=changed&after=WyJkYXNoYm9hcmRfY2hhbmdlZCIsICJuYW4vMSJd",
        f"q={'x' * 129}",
        "status=active&status=dead",
        "capability=a,b",
    ],
)
def test_invalid_page_query_is_refused(open_sample: Sample, query: str) -> None:
    page = open_sample.visitor().get(f"/agents?{query}")
    assert page.status == 422
    assert '<a href="/agents">' in page.html


def test_old_evidence_is_unknown_with_its_age_and_reason(sample: Sample) -> None:
    visitor = sample.visitor(Role.COORDINATOR)
    row = visitor.get("/agents?q=forgotten").text
    assert re.search(r"unknown no prober .* 1 h \d+ min ago", row)
    detail = visitor.get("/agents/forgotten").text
    assert re.search(r"Health unknown no prober .* 1 h \d+ min ago", detail)
    assert re.search(r"Last probe unknown no prober .* 1 h \d+ min ago", detail)
    target = visitor.get("/targets/forgotten").text
    assert re.search(r"unknown : no prober|unknown: no prober", target)
    healthy, unknown = (visitor.get(f"/agents?health={word}").html for word in ("healthy", "unknown"))
    assert 'data-agent="forgotten"' not in healthy
    assert 'data-agent="forgotten"' in unknown
    answers, targets = (visitor.get(f"/targets?observed={word}").html for word in ("answers", "unknown"))
    assert "/targets/forgotten" not in answers
    assert "/targets/forgotten" in targets


def test_agents_are_filtered_by_the_age_of_their_evidence(sample: Sample) -> None:
    visitor = sample.visitor(Role.COORDINATOR)
    for path in ("/agents?q=forgotten&evidence={}", "/targets?host=agents.example.com&evidence={}"):
        assert "forgotten" not in visitor.get(path.format("1+h")).html.partition("<table")[2]
        assert "forgotten" in visitor.get(path.format("1+d")).html.partition("<table")[2]
    assert visitor.get("/agents?evidence=2+h").status == 422


def test_active_agent_whose_last_probes_failed_is_marked(sample: Sample) -> None:
    visitor = sample.visitor(Role.COORDINATOR)
    row = visitor.get("/agents?q=flaky").text
    assert "active last 2 probes failed" in row
    detail = visitor.get("/agents/flaky")
    assert '<div class="banner warn">' in detail.html
    assert "last 2 probes failed" in detail.text
    assert "probes failed" not in visitor.get("/agents/translator").text
