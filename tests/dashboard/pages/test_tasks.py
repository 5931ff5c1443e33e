import re

import pytest
from tests.dashboard.conftest import Sample
from tests.support.dashboard_visitor import Page

from lifesign.domain.access.permissions import Role


def test_tasks_that_wait_for_a_decision_come_first(sample: Sample) -> None:
    text = sample.visitor(Role.READER).get("/tasks").text
    assert "Waiting for people ( 3 )" in text
    assert "handoff Refund order 4711" in text
    assert "Translate the handbook" in text


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("status=queued", "1 task queued Sort"),
        ("pool=support", "1 task queued Sort"),
        ("status=cancelled", "1 task cancelled Old"),
        ("holder=worker-1&status=running", "1 task running Write"),
        ("holder=nobody", "0 tasks"),
    ],
)
def test_tasks_are_filtered_by_the_search_form(sample: Sample, query: str, found: str) -> None:
    assert found in sample.visitor(Role.READER).get(f"/tasks?{query}").text


def test_a_task_shows_its_budget_runs_reports_and_what_it_delegated(sample: Sample) -> None:
    text = sample.visitor(Role.READER).get(f"/tasks/{sample.tasks['parent']}").text
    for words in (
        "20,000 tokens, 1.5000 USD",
        "Delegated 2,000 tokens",
        "Drafted the hero section",
        "worker-1 with token",
        "Find the brand colours",
    ):
        assert words in text


def test_text_of_agents_is_escaped(sample: Sample) -> None:
    html = sample.visitor(Role.READER).get(f"/tasks/{sample.tasks['handoff']}").html
    assert "&lt;script&gt;alert(1)" in html
    assert "<script>alert" not in html


def decided(
    served: Sample, name: str, function: str, fields: dict[str, str], role: Role = Role.COORDINATOR
) -> Page:
    where = f"/tasks/{served.tasks[name]}"
    visitor = served.visitor(role)
    answer = visitor.do("/", f"{where}/{function}", **fields)
    return visitor.get(answer.headers["location"]) if answer.status == 303 else answer


def test_task_decisions_are_carried_out_from_the_page(mutable_sample: Sample) -> None:
    assert decided(mutable_sample, "review", "review", {"verdict": "reject"}).status == 422, (
        "rejected without the confirmation"
    )
    accepted = decided(mutable_sample, "review", "review", {"verdict": "accept", "comment": "well done"})
    assert "done since" in accepted.text
    assert "well done" in accepted.text
    again = decided(
        mutable_sample, "handoff", "resolve", {"resolution": "requeue", "comment": "try once more"}
    )
    assert "queued since" in again.text
    assert ": try once more" in again.text
    assert "help asked: " in again.text
    unsure = decided(mutable_sample, "queued", "cancel", {})
    assert unsure.status == 422
    sure = {"sure": "yes", "comment": "obsolete"}
    assert "cancelled since" in decided(mutable_sample, "queued", "cancel", sure).text
    assert decided(mutable_sample, "queued", "cancel", sure).status == 409


def test_rejection_needs_a_confirmation(mutable_sample: Sample) -> None:
    rejected = {"verdict": "reject", "comment": "page 3 is empty", "sure": "yes"}
    assert "rejected: page 3 is empty" in decided(mutable_sample, "review", "review", rejected).text


@pytest.mark.parametrize(
    ("name", "legends"),
    [
        ("review", ["Accept the result", "Reject the result"]),
        ("handoff", ["Answer the request for help", "Cancel the task"]),
    ],
)
def test_possible_decisions_are_grouped_with_a_heading(sample: Sample, name: str, legends: list[str]) -> None:
    html = sample.visitor(Role.COORDINATOR).get(f"/tasks/{sample.tasks[name]}").html
    forms = re.findall(r'<form method="post" action="/tasks/.*?</form>', html)
    grouped = r"<fieldset><legend>([^<]*)</legend>.*<button.*</fieldset></form>$"
    assert [re.findall(grouped, form) for form in forms] == [[legend] for legend in legends]


def test_run_that_requested_help_is_not_shown_as_success(sample: Sample) -> None:
    visitor = sample.visitor(Role.READER)
    assert "asked for help" in visitor.get(f"/tasks/{sample.tasks['handoff']}").text
    events = visitor.get("/events?group=task").text
    assert "handoff (help asked)" in events
    assert "help asked, completed" not in events


def test_multi_line_text_of_agents_keeps_its_lines(sample: Sample) -> None:
    html = sample.visitor(Role.READER).get(f"/tasks/{sample.tasks['review']}").html
    assert '<b class="pre-line">Translated the handbook:\n- 12 pages\n- no pictures \ufffd[2J</b>' in html


@pytest.mark.parametrize(
    ("name", "function", "fields", "status"),
    [
        ("review", "review", {"verdict": "maybe"}, 422),
        ("review", "review", {}, 422),
        ("handoff", "resolve", {"resolution": "later"}, 422),
        ("cancelled", "resolve", {"resolution": "done"}, 409),
    ],
)
def test_impossible_decision_is_reported(
    sample: Sample, name: str, function: str, fields: dict[str, str], status: int
) -> None:
    assert decided(sample, name, function, fields).status == status


@pytest.mark.parametrize("function", ["review", "resolve", "cancel"])
def test_reader_key_cannot_decide_about_tasks(sample: Sample, function: str) -> None:
    fields = {"verdict": "accept", "resolution": "done", "sure": "yes"}
    assert decided(sample, "handoff", function, fields, Role.READER).status == 403
    assert "Actions" not in sample.visitor(Role.READER).get(f"/tasks/{sample.tasks['handoff']}").text


def test_missing_task_is_reported(sample: Sample) -> None:
    assert sample.visitor(Role.READER).get("/tasks/task_0").status == 404
