import json
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.dashboard.conftest import Filled, Sample
from tests.support.assertions import asserted
from tests.support.dashboard_sample import KEYS
from tests.support.dashboard_visitor import Page
from tests.support.reporting import reported

from lifesign.dashboard.assets import asset_path
from lifesign.domain.access.permissions import Role
from lifesign.domain.observation.results import LayerResult, Observation, ResultClass
from lifesign.domain.published_interface.card_interface import card_interface
from lifesign.domain.targets.target import target_id
from lifesign.registry.targets.interface_changes import ReadInterface, note_interfaces
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.targets import target_rows

AGENT = "/agents/translator"


def notices(page: Page) -> list[str]:
    """Return the message that the page shows once, after a form was sent."""
    return re.findall(r'<p class="notice[^>]*>(.*?)</p>', page.html)


def test_agent_page_shows_reported_and_observed_facts(sample: Sample) -> None:
    text = sample.visitor(Role.READER).get(AGENT).text
    for words in (
        "Observed Health healthy Last probe answers a card, an interface that answers, a health document",
        "reported p99: 1,840 ms",
        "99.3 % of 412",
        "20 of the last 20 probes",
        "Last 24 hours",
        "never probed answers",
    ):
        assert words in text


def test_assertions_are_listed_with_their_values(sample: Sample) -> None:
    html = sample.visitor(Role.READER).get("/agents/summariser").html
    (table,) = re.findall(r'aria-label="Assertions">(.*?)</table>', html, re.DOTALL)
    assert re.findall(r"<t[hd](?: scope=\"row\")?>([^<]*)</t[hd]>", table) == [
        "/status /queue/depth equals", "ok", "17", "17",
    ]  # fmt: skip
    assert 'aria-label="Assertions"' not in sample.visitor(Role.READER).get(AGENT).html


def test_failure_that_was_not_measured_again_has_its_time_and_the_reason(mutable_sample: Sample) -> None:
    url, answered = "https://zeta.example.net/", LayerResult(result=ResultClass.OK)
    for result in ("assertion_failed", "not_measured"):
        given = asserted(result).model_copy(update={"reason": "HTTP 401"})
        seen = Observation(
            target_url=url, observed_at=datetime.now(UTC), transport=answered, assertions=(given,)
        )
        reported(mutable_sample.server.url, seen, key=KEYS[Role.PROBER])
    html = mutable_sample.visitor(Role.READER).get(f"/agents/{target_id(url)}").html
    (table,) = re.findall(r'aria-label="Assertions">(.*?)</table>', html, re.DOTALL)
    (cell,) = re.findall(r"<td>(assertion failed.*?)</td>", table, re.DOTALL)
    assert "<time" in cell
    assert "HTTP 401" in cell


def test_agent_page_shows_the_required_login(sample: Sample) -> None:
    html = sample.visitor(Role.READER).get("/agents/paywalled").html
    assert re.search(r"<dt>Login</dt><dd>[^<]*bearer[^<]*oauth2</dd>", html)
    assert "<dt>Login</dt>" not in sample.visitor(Role.READER).get(AGENT).html


def test_history_is_described_for_screen_readers(sample: Sample) -> None:
    html = sample.visitor(Role.READER).get("/agents/planner").html
    (status,) = re.findall(r'aria-label="(Status: [^"]+)"', html)
    assert re.fullmatch(r"Status: active \d+\.\d %, unhealthy \d+\.\d % of the time shown", status)


def test_history_is_shown_as_plot_text_and_table(sample: Sample) -> None:
    page = sample.visitor(Role.READER).get(AGENT)
    for title in ("Probes: ", "Share of answered requests: ", "Share of errors: ", "Latency: "):
        assert len(re.findall(rf'role="img"[^>]+aria-label="{title}', page.html)) == 2
    rules = sample.visitor().get(asset_path("dashboard.css")).html
    styles = re.findall(r'<path class="line ([^"]+)"', page.html)
    assert styles.count("reported dashed") == 4
    for style in set(styles):
        assert any(f"path.line.{name} {{ stroke: " in rules for name in style.split()), style
    assert "Last 30 days" in page.text
    assert page.text.count("Numbers") == 2
    assert re.search(r"Numbers .* answered 2\d\d ms \(", page.text)
    assert "NaN" not in page.html


def test_page_of_a_heartbeat_agent_explains_missing_numbers(sample: Sample) -> None:
    page = sample.visitor(Role.READER).get("/agents/librarian")
    assert "no prober probes it or reads its health document" in page.text
    assert "Numbers" not in page.text


def test_links_given_by_agents_are_http_only_and_send_no_referrer(sample: Sample) -> None:
    html = sample.visitor(Role.READER).get(AGENT).html
    (link,) = re.findall(r'<a href="https://agents.example.com[^>]+>', html)
    assert 'rel="noopener noreferrer nofollow"' in link


def test_page_does_not_link_to_its_own_host(sample: Sample, filled: Filled, tmp_path: Path) -> None:
    url = "https://agents.example.com/translator/.well-known/agent-card.json"
    page = sample.visitor(Role.READER).get(AGENT, host="Agents.example.com:8440")
    assert url in page.text
    assert f'href="{url}"' not in page.html
    with filled.served(tmp_path, public_url="https://agents.example.com:8440", open_dashboard=True) as served:
        # The request has another host if it comes through a proxy.
        assert f'href="{url}"' not in served.visitor().get(AGENT).html


def test_page_without_a_document_names_what_is_missing(sample: Sample) -> None:
    visitor = sample.visitor(Role.READER)
    beats = visitor.get("/agents/librarian").text
    assert re.search("none was read: .* monitoring both", beats)
    assert "none was read" not in visitor.get(AGENT).text


def test_observations_from_before_a_new_registration_are_shown(mutable_sample: Sample) -> None:
    visitor = mutable_sample.visitor(Role.READER)
    body = json.dumps({"agent_id": "translator", "name": "Translator", "supersede": True}).encode()
    sent = {"x-api-key": KEYS[Role.ADMIN], "content-type": "application/json"}
    answer = visitor._ask("POST", "/api/v1/agents", body, sent)
    assert answer.status == 201, answer.body
    text = visitor.get(AGENT).text
    assert "Last probe answers" in text
    assert "none since it registered; the last one before was at" in text


def test_versions_of_the_interface_are_listed_with_what_breaks_callers(mutable_sample: Sample) -> None:
    visitor = mutable_sample.visitor(Role.READER)
    assert 'data-part="interface"' not in visitor.get(AGENT).html

    def publish(transaction: Transaction) -> None:
        (target,) = target_rows.of_agent(transaction, "translator")
        for row, name in enumerate(("<b>old</b>", "new")):
            form = card_interface({"name": "T", "skills": [{"id": name}]}).form
            read = ReadInterface(target, "translator", None, form, row, transaction.now_s)
            note_interfaces(transaction, [read])

    mutable_sample.server.write(publish)
    html = visitor.get(AGENT).html
    (table,) = re.findall(r'data-part="interface">.*?<tbody>(.*?)</tbody>', html, re.DOTALL)
    assert re.findall(r"<th scope=\"row\">([^<]*)</th>", table) == [
        "/skills/&lt;b&gt;old&lt;~1b&gt;", "/skills/new",
    ]  # fmt: skip
    assert table.count("note-failing") == 1


def test_text_of_an_agent_is_escaped(sample: Sample) -> None:
    html = sample.visitor(Role.READER).get("/agents/hostile").html
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html
    assert "<script>alert" not in html
    assert "\u202e" not in html


def test_unknown_agent_is_a_404_page(sample: Sample) -> None:
    page = sample.visitor(Role.READER).get("/agents/nobody")
    assert page.status == 404
    assert "'nobody'" in page.text


@pytest.mark.parametrize(
    ("role", "buttons"),
    [
        (None, 0),
        (Role.READER, 0),
        (Role.PROBER, 0),
        (Role.COORDINATOR, 3),
        (Role.ADMIN, 4),
    ],
)
def test_buttons_are_shown_by_permission(
    sample: Sample, open_sample: Sample, role: Role | None, buttons: int
) -> None:
    served = open_sample if role is None else sample
    html = served.visitor(role).get(AGENT).html
    assert len(re.findall(rf'action="{AGENT}/', html)) == buttons


@pytest.mark.parametrize(
    "function", ["recheck", "drain", "command", "maintenance", "maintenance/end", "override", "override/end"]
)
def test_hidden_button_is_refused_by_the_same_rules(sample: Sample, function: str) -> None:
    visitor = sample.visitor(Role.READER)
    form = {"minutes": "5", "reason": "why not", "etag": '"1"', "status": "active", "sure": "yes"}
    answer = visitor.do("/", f"{AGENT}/{function}", **form)
    assert answer.status == 403
    assert "may not" in answer.text or "not allowed" in answer.text


def test_only_an_admin_can_override_the_status(sample: Sample) -> None:
    visitor = sample.visitor(Role.COORDINATOR)
    form = {"minutes": "5", "reason": "why not", "status": "unhealthy"}
    assert visitor.do(AGENT, f"{AGENT}/override", **form).status == 403
    assert "Declare" not in visitor.get(AGENT).text


@pytest.mark.parametrize("function", ["recheck", "drain", "override", "override/end"])
def test_agent_form_without_csrf_token_is_refused(sample: Sample, function: str) -> None:
    visitor = sample.visitor(Role.ADMIN)
    assert visitor.post(f"{AGENT}/{function}", {"etag": '"1"'}).status == 403
    nobody = sample.visitor().post(f"{AGENT}/{function}", {"token": "0" * 64})
    where = "/login?next=%2Fagents%2Ftranslator&form=undone"
    assert (nobody.status, nobody.headers["location"]) == (303, where)


def test_recheck_maintenance_and_drain_work_from_the_agent_page(mutable_sample: Sample) -> None:
    visitor = mutable_sample.visitor(Role.COORDINATOR)
    answer = visitor.do(AGENT, f"{AGENT}/recheck")
    assert (answer.status, answer.headers["location"]) == (303, AGENT)
    (reply,) = notices(visitor.get(AGENT))
    assert "No prober" in reply
    again = visitor.do(AGENT, f"{AGENT}/recheck")
    assert again.status == 429
    assert int(again.headers["retry-after"]) > 0

    assert visitor.do(AGENT, f"{AGENT}/maintenance", minutes="5", reason="new disk").status == 303
    page = visitor.get(AGENT)
    assert "In maintenance until" in page.text
    assert re.search(r"In maintenance.* Begun by \w+, key:key_\w+: new disk", page.text)
    assert visitor.do(AGENT, f"{AGENT}/maintenance/end").status == 303
    assert "In maintenance until" not in visitor.get(AGENT).text

    assert visitor.do(AGENT, f"{AGENT}/drain", etag='"99"').status == 422, "drained without the confirmation"
    stale = visitor.do(AGENT, f"{AGENT}/drain", etag='"99"', sure="yes")
    assert stale.status == 412
    (etag,) = re.findall(r'name="etag" value="([^"]+)"', visitor.get(AGENT).html)
    assert visitor.do(AGENT, f"{AGENT}/drain", etag=etag.replace("&#34;", '"'), sure="yes").status == 303
    assert re.search(r"draining|deregistered", visitor.get(AGENT).text)
    record = visitor.get("/api/v1/events?type=agent.maintenance_changed", x_api_key=KEYS[Role.READER])
    assert b'"actor":"key:key_coordinator_"' in record.body


def test_recheck_message_promises_a_result_while_a_prober_runs(mutable_sample: Sample) -> None:
    visitor = mutable_sample.visitor(Role.COORDINATOR)
    mutable_sample.start_a_prober()
    assert visitor.do(AGENT, f"{AGENT}/recheck").status == 303
    (answer,) = notices(visitor.get(AGENT))
    assert ("within seconds" in answer, "No prober" in answer) == (True, False)


def test_confirmation_is_shown_once_and_only_on_its_own_page(mutable_sample: Sample) -> None:
    visitor, reader = mutable_sample.visitor(Role.COORDINATOR), mutable_sample.visitor(Role.READER)
    visitor.do(AGENT, f"{AGENT}/maintenance", minutes="5", reason="new disk")
    reader.cookies["lifesign_done"] = visitor.cookies["lifesign_done"]
    assert notices(visitor.get("/agents/planner")) == []
    assert notices(reader.get(AGENT)) == [], "shown to another visitor"
    (answer,) = notices(visitor.get(AGENT))
    assert "maintenance" in answer
    assert notices(visitor.get(AGENT)) == []
    for done in ("maintenance", "drain", "recheck"):
        page = visitor.get(f"{AGENT}?done={done}")
        assert (page.status, 'class="notice"' in page.html) == (200, False)


@pytest.mark.parametrize("message", ["drain", "drain.", f"drain.{'0' * 64}", f"x.{'0' * 200}", "drain.ä"])
def test_message_cookie_of_another_user_is_ignored(sample: Sample, message: str) -> None:
    visitor = sample.visitor(Role.READER)
    visitor.cookies["lifesign_done"] = message.encode().decode("latin-1")
    page = visitor.get(AGENT)
    assert (page.status, 'class="notice"' in page.html) == (200, False)


def test_status_override_is_set_and_withdrawn(mutable_sample: Sample) -> None:
    visitor = mutable_sample.visitor(Role.ADMIN)
    form = {"status": "unhealthy", "minutes": "10", "reason": "it invents refunds"}
    answer = visitor.do(AGENT, f"{AGENT}/override", **form)
    assert (answer.status, answer.headers["location"]) == (303, AGENT)
    page = visitor.get(answer.headers["location"])
    assert len(notices(page)) == 1
    assert re.search(r"unhealthy since [0-9: -]+UTC \(declared by admin, key:key_admin_\w* until", page.text)
    assert re.search(
        r"declared by admin, key:key_admin_ until [0-9: -]+UTC : it invents refunds\)", page.text
    )
    assert f'action="{AGENT}/override"' not in page.html
    assert visitor.do(AGENT, f"{AGENT}/override/end").status == 303
    assert "declared by admin" not in visitor.get(AGENT).text
    log = visitor.get("/api/v1/events?type=agent.override_changed", x_api_key=KEYS[Role.READER])
    assert log.body.count(b'"actor":"key:key_admin_') == 2


def test_expired_override_is_no_longer_shown(mutable_sample: Sample) -> None:
    visitor = mutable_sample.visitor(Role.ADMIN)
    form = {"status": "unhealthy", "minutes": "10", "reason": "it invents refunds"}
    assert visitor.do(AGENT, f"{AGENT}/override", **form).status == 303
    assert "(declared by" in visitor.get(AGENT).text

    def pass_by(transaction: Transaction) -> None:
        over = "UPDATE agents SET override_until_s = 1 WHERE override_until_s > 1"
        assert transaction.connection.exec_driver_sql(over).rowcount == 1

    mutable_sample.server.write(pass_by)
    page = visitor.get(AGENT)
    assert "(declared by" not in page.text
    assert f'action="{AGENT}/override"' in page.html


def test_override_of_a_former_agent_applies_to_its_next_incarnation(mutable_sample: Sample) -> None:
    visitor = mutable_sample.visitor(Role.ADMIN)
    form = {"status": "unhealthy", "minutes": "10", "reason": "it invents refunds"}
    assert visitor.do(AGENT, f"{AGENT}/override", **form).status == 303

    def leave(transaction: Transaction) -> None:
        gone = "UPDATE agents SET status = 'deregistered' WHERE override_until_s > 1"
        assert transaction.connection.exec_driver_sql(gone).rowcount == 1

    mutable_sample.server.write(leave)
    text = visitor.get(AGENT).text
    assert "(declared by" not in text
    assert re.search(
        r"Declared unhealthy by admin, .+ until .+: it invents refunds\. The override applies", text
    )
    assert visitor.do(AGENT, f"{AGENT}/override/end").status == 303
    assert "Declared unhealthy" not in visitor.get(AGENT).text


@pytest.mark.parametrize(
    "wrong", [{"status": "dead"}, {"status": ""}, {"minutes": "x"}, {"minutes": "0"}, {"reason": ""}]
)
def test_override_form_requires_status_end_and_reason(sample: Sample, wrong: dict[str, str]) -> None:
    form = {"status": "unhealthy", "minutes": "10", "reason": "why", **wrong}
    assert sample.visitor(Role.ADMIN).do(AGENT, f"{AGENT}/override", **form).status == 422


def test_drain_of_a_heartbeat_agent_is_requested(mutable_sample: Sample) -> None:
    visitor = mutable_sample.visitor(Role.COORDINATOR)
    there = "/agents/research-1"
    assert visitor.do(there, f"{there}/command", reason="a new version").status == 303
    assert re.search(r" drain [\w ]+: a new version", visitor.get(there).text)


@pytest.mark.parametrize("minutes", ["", "soon", "-1", "1e9", "9999999", "0", "43201", "99999"])
def test_invalid_number_of_minutes_is_refused(sample: Sample, minutes: str) -> None:
    visitor = sample.visitor(Role.COORDINATOR)
    answer = visitor.do(AGENT, f"{AGENT}/maintenance", minutes=minutes, reason="why")
    assert answer.status == 422
    assert re.search("Minutes: .* 1 to 43,200, .* 30 days", answer.text)
    assert f'<a href="{AGENT}">Back to translator</a>' in answer.html
    assert "/seconds" not in answer.text


def test_action_on_a_dead_agent_is_refused_with_a_message(sample: Sample) -> None:
    visitor, dead = sample.visitor(Role.COORDINATOR), "/agents/billing-7"
    answer = visitor.do(AGENT, f"{dead}/maintenance", minutes="5", reason="why")
    assert answer.status == 410
    assert "billing-7 is dead" in answer.text
    assert f'<a href="{dead}">Back to' in answer.html


def test_action_on_an_outdated_page_is_refused(sample: Sample) -> None:
    answer = sample.visitor(Role.COORDINATOR).do(AGENT, f"{AGENT}/drain", etag='"99"', sure="yes")
    assert answer.status == 412
    assert f'<a href="{AGENT}">Back to translator</a>' in answer.html


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/agents?status=zzz", "registering, active, "),
        ("/agents?health=well", "Health has to be one of healthy, "),
        ("/agents?status=dead&status=active", "Status is repeated."),
        (f"/agents?q={'x' * 129}", "at most 128 characters."),
        ("/agents?q=%00", "without control characters."),
        ("/agents?q=a%00b", "without control characters."),
        ("/agents?after=x", "The link to this page is incomplete"),
        ("/tasks?cursor=x", "The link to this page is incomplete"),
        ("/events?before=x", "The link to this page is incomplete"),
        ("/events?group=x", "one of agent, "),
        ("/targets?observed=x", "one of answers, "),
    ],
)
def test_invalid_query_shows_a_message(sample: Sample, path: str, message: str) -> None:
    page = sample.visitor(Role.READER).get(path)
    assert page.status == 422
    assert message in page.text
    assert "Input should be" not in page.text
    assert "expected" not in page.text
    where = path.partition("?")[0]
    assert f'<a href="{where}">Back to all {where.strip("/")}</a>' in page.html


def test_invalid_reason_shows_a_message(sample: Sample) -> None:
    form = {"minutes": "5", "reason": "two\nlines"}
    page = sample.visitor(Role.ADMIN).do(AGENT, f"{AGENT}/maintenance", **form)
    assert page.status == 422
    assert "Reason: " in page.text
