import json
import re
from pathlib import Path

import pytest
from tests.dashboard.conftest import Filled, Sample
from tests.support.dashboard_sample import KEYS
from tests.support.suspension import suspend

from lifesign.dashboard.assets import asset_path
from lifesign.dashboard.fleet_facts import ObservedCounts
from lifesign.dashboard.pages.overview import warnings
from lifesign.domain.access.permissions import Role
from lifesign.domain.lifecycle.verdict_suspension import Track
from lifesign.domain.models.monitor import MonitorRecord

PAGES = ("/", "/agents", "/login")


def test_overview_counts_agents_by_status_health_and_probe_result(open_sample: Sample) -> None:
    page = open_sample.visitor().get("/")
    assert page.status == 200
    for words in ("Agents by status", "Health", "Observed", "Latest events", "Needs attention"):
        assert words in page.text
    for words in ("1 deregistered", "1 gated", "1 never probed", "35 agents"):
        assert words in page.text
    assert "Verdicts are active" in page.text


def test_each_status_of_the_overview_has_a_mark_and_a_colour(open_sample: Sample) -> None:
    """A class without a rule is a black bar, and a circle instead of the word's own mark."""
    visitor = open_sample.visitor()
    html = visitor.get("/").html
    rules = visitor.get(asset_path("dashboard.css")).html
    bars, marks = (
        set(re.findall(r'<rect class="([^"]+)"', html)),
        set(re.findall(r'mark (probe-[^" ]+)"', html)),
    )
    assert {"status-active", "probe-answers"} <= bars
    assert "probe-gated" in marks
    assert not {name for name in bars if f"svg .{name}" not in rules}
    assert not {name for name in marks if f".{name}.mark::before" not in rules}


def test_down_agent_is_listed_with_the_reason(open_sample: Sample) -> None:
    text = open_sample.visitor().get("/").text
    assert "Support agent 3 unhealthy" in text
    assert "heartbeat_timeout" in text
    assert "Planner (probed) unhealthy" in text


def test_public_dashboard_is_readable_and_links_to_the_login(open_sample: Sample) -> None:
    visitor = open_sample.visitor()
    page = visitor.get("/agents")
    assert page.status == 200
    assert "Log in" in page.text
    assert '<form method="post"' not in page.html
    assert '<p><a href="/">' in visitor.get("/login").html


@pytest.mark.parametrize("path", PAGES)
def test_pages_load_nothing_from_other_origins(open_sample: Sample, path: str) -> None:
    page = open_sample.visitor().get(path)
    policy = page.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert "unsafe" not in policy
    assert "<style" not in page.html
    assert " style=" not in page.html
    assert " onclick" not in page.html
    assert page.headers["x-content-type-options"] == "nosniff"
    assert page.headers["cache-control"] == "no-store"


@pytest.mark.parametrize("path", PAGES)
def test_names_of_agents_are_escaped(open_sample: Sample, path: str) -> None:
    html = open_sample.visitor().get(path).html
    assert "<b>Bold" not in html
    assert "<script>alert" not in html
    assert "<img src=x" not in html


@pytest.mark.parametrize("path", ["/", "/agents", "/events", "/agents/hostile", "/status/hostile"])
def test_direction_marks_in_names_are_replaced(open_sample: Sample, path: str) -> None:
    page = open_sample.visitor().get(path)
    assert page.status == 200
    assert "\u202e" not in page.html
    assert page.title.startswith('<b>Bold</b> & "quoted" \ufffdtxt') == path.endswith("hostile")


def test_root_path_answers_json_to_api_clients(sample: Sample) -> None:
    for accept in ("application/json", "*/*"):
        answer = sample.visitor().get("/", accept=accept)
        assert answer.headers["content-type"] == "application/json"
        assert b'"openapi":"/openapi.json"' in answer.body


def test_assets_have_hashed_names_and_are_cached_permanently(sample: Sample) -> None:
    for name in ("dashboard.css", "live.js", "icon.svg"):
        answer = sample.visitor().get(asset_path(name))
        assert answer.status == 200
        assert "immutable" in answer.headers["cache-control"]
    assert sample.visitor().get("/static/dashboard.css").status == 404
    assert sample.visitor().get("/static/..%2f__init__.py").status == 404


def test_api_refuses_a_session_cookie(sample: Sample) -> None:
    visitor = sample.visitor(Role.ADMIN)
    assert visitor.get("/api/v1/agents").status == 401
    assert visitor.get("/api/v1/agents", x_api_key=KEYS[Role.READER]).status == 200


def test_suspension_is_shown_with_its_cause_and_ended_by_an_admin(mutable_sample: Sample) -> None:
    mutable_sample.server.write(suspend)
    reader, admin = mutable_sample.visitor(Role.READER), mutable_sample.visitor(Role.ADMIN)
    assert re.search(r"suspended .* heartbeat: 30 agents", reader.get("/").text)
    assert "End the suspension" not in reader.get("/").text
    assert reader.do("/", "/monitor/release").status == 403
    assert "End the suspension" in admin.get("/").text
    assert admin.do("/", "/monitor/release").status == 303
    assert "Decisions are held" not in admin.get("/").text


def test_overview_uses_the_suspension_policy_of_the_server(filled: Filled, tmp_path: Path) -> None:
    with filled.served(tmp_path, mass_exit_min_exits=7) as served:
        served.server.write(suspend)
        admin = served.visitor(Role.ADMIN)
        assert admin.do("/", "/monitor/release").status == 303
        sent = {"x-api-key": KEYS[Role.ADMIN]}
        events = admin.get("/api/v1/events?limit=1000", **sent).body
    (ended,) = [each for each in json.loads(events)["events"] if each["type"] == "monitor.resuming"]
    assert ended["payload"]["limit"] == 7


def test_forms_of_the_public_url_are_accepted_behind_a_proxy(filled: Filled, tmp_path: Path) -> None:
    public = "https://registry.example"
    with filled.served(tmp_path, public_url=public) as served:
        visitor = served.visitor()
        form = {"key": KEYS[Role.READER], "token": visitor.get("/login").form_token()}
        assert visitor.post("/login", form, origin="https://other.example").status == 403
        assert visitor.post("/login", form, origin=public).status == 303


def test_json_at_the_url_of_a_page_varies_by_accept_in_caches(
    sample: Sample,
) -> None:
    answer = sample.visitor().get("/", accept="application/json")
    assert (answer.headers["content-type"], answer.headers["vary"]) == ("application/json", "Accept")
    assert "Accept" in sample.visitor(Role.READER).get("/").headers["vary"]


def test_no_running_prober_is_a_warning(sample: Sample) -> None:
    assert "No prober is running" in sample.visitor(Role.READER).get("/").text


def test_monitoring_faults_are_shown_with_their_numbers() -> None:
    since = "2026-11-23T08:00:00Z"
    track = {"state": "normal", "since": since, "exits": 0, "limit": 20, "baseline": 0, "unwitnessed": 0}
    monitor = MonitorRecord.model_validate({
        "state": "normal",
        "since": since,
        "tracks": {"heartbeat": track, "probe": track},
        "excluded_downtime": [],
        "silent_classes": {"public_ipv4": since},
        "lost_evidence": {
            "agents": 1_200, "reasons": {"no_prober": 1_000, "no_witness": 200}, "since": since,
            "is_reported": True,
        },
        "missing_credentials": [{
            "holder": "key:b/1", "held_by": "key:c/1", "name": "acme", "origin": "https://acme.example",
            "path": "/billing", "target_origins": ["https://acme.example"],
        }],
        "credential_faults": [{
            "key_id": "key_1", "name": "lab", "origin": "https://lab.example", "path": "/",
            "fault": "credentials_rejected", "since": since,
        }],
    })  # fmt: skip
    seen = ObservedCounts(
        by_label={"answers": 5},
        last_observed_at_s=None,
        probers=2,
        clock_offsets_s={"key:a/1": -3_600.0, "key:a/2": 30.0},
    )
    found = warnings(monitor, seen, clock_limit_s=30.0)
    assert len(found) == 5
    lost, silence, rejected, missing, clock = found
    assert all(name in missing for name in ("key:b/1", "key:c/1", "acme", "https://acme.example/billing"))
    assert all(name in rejected for name in ("key_1", "lab", "https://lab.example", "credentials_rejected"))
    assert {"1,200", "(1,000)", "(200)", "2026-11-23"} <= set(re.findall(r"\(?[\d,-]+\)?", lost))
    assert "public_ipv4" in silence
    assert "key:a/1" in clock
    assert "1 h behind" in clock


@pytest.mark.parametrize("track", list(Track))
def test_suspension_names_its_track(mutable_sample: Sample, track: Track) -> None:
    mutable_sample.server.write(lambda transaction: suspend(transaction, track))
    assert f"agents monitored by {track}" in mutable_sample.visitor(Role.READER).get("/").text
