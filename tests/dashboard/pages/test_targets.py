import re
from datetime import UTC, datetime

import pytest
from tests.dashboard.conftest import Sample
from tests.support.dashboard_sample import KEYS
from tests.support.reporting import reported

from lifesign.domain.access.permissions import Role
from lifesign.domain.observation.assertion import AssertionOutcome, AssertionResult, Check
from lifesign.domain.observation.probe_memory import ProbeMemory
from lifesign.domain.observation.results import LayerResult, Observation, ResultClass
from lifesign.domain.targets.target import TargetKind, target_id


@pytest.mark.parametrize(
    ("query", "hosts"),
    [
        ("observed=gated", ["beta"]),
        ("observed=never+probed", ["zeta"]),
        ("observed=unknown", ["epsilon"]),
        ("observed=down&directory=sample-directory", ["delta", "gamma"]),
        ("host=ALPHA.example.net", ["alpha"]),
    ],
)
def test_targets_are_filtered_by_their_last_result(sample: Sample, query: str, hosts: list[str]) -> None:
    html = sample.visitor(Role.READER).get(f"/targets?{query}").html
    assert sorted(re.findall(r">https://(\w+)\.example\.net/<", html)) == hosts


def test_targets_are_ordered_by_host(sample: Sample) -> None:
    html = sample.visitor(Role.READER).get("/targets").html
    hosts = re.findall(r">https://(\w+)\.example\.net/<", html)
    assert len(hosts) > 3
    assert hosts == sorted(hosts)


def test_short_url_has_no_line_break(sample: Sample) -> None:
    html = sample.visitor(Role.READER).get("/targets").html
    rows = re.findall(r'<th scope="row"( class="short")?><a [^>]*>(https?://[^<]*)<', html)
    assert rows
    assert all(bool(marked) is (len(url) <= 48) for marked, url in rows)


def test_a_target_that_is_no_agent_has_a_page(sample: Sample) -> None:
    visitor = sample.visitor(Role.COORDINATOR)
    html = visitor.get("/targets?host=gamma.example.net").html
    (where,) = re.findall(r'href="(/targets/tgt_[^"]+)"', html)
    page = visitor.get(where)
    assert "down since" in page.text
    assert 'rel="noopener' in page.html
    assert 'rel="noopener' not in visitor.get(where, host="gamma.example.net").html
    assert "/agents/" not in page.html.partition("<main")[2]
    assert visitor.do(where, f"{where}/recheck").status == 303
    assert 'class="notice' in visitor.get(where).html
    assert 'href="/targets" aria-current="page"' in page.html


@pytest.mark.parametrize(("kind", "row"), [(None, "card"), (TargetKind.MCP, "server")])
def test_first_layer_has_the_name_of_the_targets_kind(
    mutable_sample: Sample, kind: TargetKind | None, row: str
) -> None:
    url, failed = "https://zeta.example.net/", LayerResult(result=ResultClass.HTTP_ERROR, status_code=500)
    paths = {"/status": failed}
    seen = Observation(
        target_url=url, observed_at=datetime.now(UTC), kind=kind, discovery=failed, paths=paths
    )
    reported(mutable_sample.server.url, seen, key=KEYS[Role.PROBER])
    html = mutable_sample.visitor(Role.READER).get(f"/targets/{target_id(url)}").html
    table = html.partition('id="layers"')[2].partition("</table>")[0]
    assert re.findall(r'<th scope="row">(.*?)</th>', table) == [row, "/status"]


def test_failed_assertions_are_counted_in_the_list_and_on_the_page(mutable_sample: Sample) -> None:
    url = "https://zeta.example.net/"
    failed = AssertionResult(
        of="card", check=Check.STATUS, result=AssertionOutcome.ASSERTION_FAILED, expected="200", actual="203"
    )
    answered = LayerResult(result=ResultClass.OK, status_code=203)
    seen = Observation(
        target_url=url, observed_at=datetime.now(UTC), discovery=answered, assertions=(failed,)
    )
    reported(mutable_sample.server.url, seen, key=KEYS[Role.PROBER])
    visitor = mutable_sample.visitor(Role.READER)
    for where in ("/targets?host=zeta.example.net", f"/targets/{target_id(url)}"):
        assert "1 assertion failed" in visitor.get(where).text


def test_opted_out_target_is_not_reported_as_probed_now(mutable_sample: Sample) -> None:
    url = "https://zeta.example.net/"
    now = datetime.now(UTC)
    memory = ProbeMemory(probed_at_s=now.timestamp(), not_before_s=now.timestamp() + 3_600)
    limited = LayerResult(result=ResultClass.RATE_LIMITED)
    seen = Observation(target_url=url, observed_at=now, discovery=limited)
    reported(mutable_sample.server.url, seen, memories=[memory], key=KEYS[Role.PROBER])
    mutable_sample.start_a_prober()
    visitor = mutable_sample.visitor(Role.COORDINATOR)
    where = f"/targets/{target_id(url)}"
    done = visitor.do(where, f"{where}/recheck")
    assert done.headers["location"] == where
    page = visitor.get(done.headers["location"]).text
    assert "Retry-After" in page
    assert "within seconds" not in page


def test_census_is_shown_with_its_plots(sample: Sample) -> None:
    page = sample.visitor(Role.READER).get("/census")
    for words in ("alive", "By platform", "example.net", "sample-directory"):
        assert words in page.text
    assert page.html.count("<svg") > 5
    assert 'class="trend"' in page.html


@pytest.mark.parametrize(
    "path", ["/targets?observed=well", "/targets?directory=%20", "/events?group=x", "/events?before=0"]
)
def test_invalid_page_query_is_refused(sample: Sample, path: str) -> None:
    assert sample.visitor(Role.READER).get(path).status == 422


@pytest.mark.parametrize(
    "path",
    ["/targets", "/targets/tgt_1", "/census", "/events", "/tasks", "/tasks/task_1", "/agents/a", "/live"],
)
def test_target_pages_require_a_login(sample: Sample, path: str) -> None:
    assert sample.visitor().get(path).status in {303, 403}


def test_events_are_listed_newest_first_with_their_subject(sample: Sample) -> None:
    visitor = sample.visitor(Role.READER)
    page = visitor.get("/events?group=task")
    sequences = [int(found) for found in re.findall(r'data-sequence="(\d+)"', page.html)]
    assert sequences == sorted(sequences, reverse=True)
    assert set(re.findall(r'class="event-type">(\w+)\.', page.html)) == {"task"}
    of_one = visitor.get("/events?agent=planner&group=agent").text
    assert "active → unhealthy (probe failures" in of_one
    assert "registering → active" in of_one


def test_older_events_are_on_the_next_page(sample: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    visitor = sample.visitor(Role.READER)
    whole = re.findall(r'data-sequence="(\d+)"', visitor.get("/events").html)
    monkeypatch.setattr("lifesign.dashboard.pages.events.PAGE_SIZE", 10)
    found, page = [], visitor.get("/events")
    for _ in range(3):
        found += re.findall(r'data-sequence="(\d+)"', page.html)
        (older,) = re.findall(r'href="(/events\?[^"]+)" rel="next"', page.html)
        page = visitor.get(older.replace("&amp;", "&"))
    assert found == whole[:30]
