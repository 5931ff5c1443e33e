import re

import pytest
from tests.registry.events.test_verify_events import live_a_little
from tests.registry.probing.test_accept_observations import observed, outcomes, register_probed
from tests.support.databases import WoundClock
from tests.support.metrics import HAS_PROMTOOL, Scraped, complaints
from tests.support.registry_api import AGENTS, RegistryApi
from tests.support.servers import REPOSITORY
from tests.support.suspension import EXITS, suspend

from lifesign.domain.access.permissions import Role
from lifesign.domain.common.project import install_command
from lifesign.domain.models.base import moment
from lifesign.registry.metrics import show_metrics
from lifesign.registry.metrics.show_metrics import COUNT_AGAIN_SECONDS
from lifesign.storage.engine.transaction import Database
from lifesign.storage.errors import StoreUnavailable

PREFIX = "lifesign_registry_"


@pytest.fixture(autouse=True)
def counted_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(show_metrics, "COUNT_AGAIN_SECONDS", 0.0)
    monkeypatch.setattr(show_metrics, "PAUSE_RATIO", 0.0)


async def scrape(api: RegistryApi) -> Scraped:
    answer = await api.ask("GET", "/metrics", key=Role.READER)
    assert answer.status == 200, answer.body
    return Scraped(answer.body.decode())


@pytest.mark.both_databases
async def test_facts_of_the_database_are_exported(api: RegistryApi, clock: WoundClock) -> None:
    await live_a_little(api)
    await api.register("agent-3")
    await api.ask("POST", "/api/v1/tasks", {"title": "one"})
    await outcomes(api, observed(clock, agent_id="agent-3"))
    found = await scrape(api)

    def value(name: str, **labels: str) -> float | None:
        return found.value(PREFIX + name, **labels)

    assert value("agents", status="active", health="unknown") == 1
    assert value("agents", status="dead", health="unknown") == 1
    assert value("agents", status="deregistered", health="unknown") == 1
    assert value("agents", status="draining", health="healthy") == 0
    (down,) = found.labels(f"{PREFIX}agent_down_since_timestamp_seconds")
    assert down == {"agent_id": "agent-1", "status": "dead", "reason": "heartbeat_timeout"}
    # The shard of the target that was reported.
    assert value("leases") == 1
    assert value("tasks", status="queued") == 1
    assert value("tasks", status="handoff") == 0
    assert value("handoff_oldest_timestamp_seconds") is None
    assert value("event_log_sequence") == len(await api.events())
    assert value("swept_timestamp_seconds") == clock.now_s()
    assert value("sweep_lag_seconds") == 0
    for track in ("heartbeat", "probe"):
        assert value("decisions_suspended", track=track) == 0
        assert value("monitor_state", track=track, state="normal") == 1
    assert value("webhooks", state="active") == 0
    assert value("keys") == len(Role) - 1 + 3
    assert value("database_up") == 1
    assert value("changes_failing") == 0


@pytest.mark.both_databases
async def test_healthy_agent_without_current_evidence_counts_as_unknown(
    api: RegistryApi, clock: WoundClock
) -> None:
    await register_probed(api)
    document = {"status": "healthy", "timestamp": moment(clock.at_s).isoformat(), "max_age_s": 7200}
    assert await outcomes(api, observed(clock, readiness={"result": "ok"}, document=document)) == ["accepted"]
    for health, waited_s in (("healthy", 0), ("unknown", 1000)):
        clock.advance(waited_s)
        found = await scrape(api)
        for each in ("healthy", "unknown"):
            expected = float(each == health)
            assert found.value(f"{PREFIX}agents", status="active", health=each) == expected


async def test_tracks_with_suspended_verdicts_are_exported(api: RegistryApi) -> None:
    await api.database.write(suspend)
    found = await scrape(api)
    for track, is_suspended in (("heartbeat", 1), ("probe", 0)):
        assert found.value(f"{PREFIX}decisions_suspended", track=track) == is_suspended
        assert found.value(f"{PREFIX}monitor_state", track=track, state="suspended") == is_suspended
        assert found.value(f"{PREFIX}monitor_exits", track=track) == EXITS * is_suspended
        assert found.value(f"{PREFIX}monitor_exit_limit", track=track) == 20
        assert found.value(f"{PREFIX}monitor_unwitnessed", track=track) == 0


async def test_failure_in_maintenance_is_excluded_from_alerts(api: RegistryApi, clock: WoundClock) -> None:
    await api.register("agent-1")
    body = {"status": "unhealthy", "seconds": 600, "reason": "broken"}
    assert (await api.ask("PUT", f"{AGENTS}/agent-1/override", body)).status == 200
    down = f"{PREFIX}agent_down_since_timestamp_seconds"
    assert [each["reason"] for each in (await scrape(api)).labels(down)] == ["operator_override"]
    maintained = {"seconds": 60, "reason": "new disk"}
    assert (await api.ask("PUT", f"{AGENTS}/agent-1/maintenance", maintained)).status == 200
    assert [*(await scrape(api)).labels(down)] == []
    clock.advance(61)
    assert [each["agent_id"] for each in (await scrape(api)).labels(down)] == ["agent-1"]


async def test_requests_of_this_server_are_counted(api: RegistryApi, clock: WoundClock) -> None:
    await live_a_little(api)
    found = await scrape(api)

    def value(name: str, **labels: str) -> float | None:
        return found.value(PREFIX + name, **labels)

    assert value("transitions_total", status="dead", reason="heartbeat_timeout") == 2
    assert value("transitions_total", status="active", reason="registered") == 2
    # A counter's increase needs the time before the first probe.
    assert value("transitions_total", status="unhealthy", reason="probe_failures") == 0
    assert value("events_total", type="webhook.disabled") == 0
    for method, path in (("POST", "/api/v1/leases"), ("GET", "/api/v1/webhooks")):
        assert value("http_requests_total", method=method, path=path, status="5xx") == 0
    assert value("webhook_deliveries_total", result="refused") == 0
    assert value("webhook_lag_events") == 0
    assert value("events_total", type="lease.acquired") == 4
    assert value("heartbeats_total") == 4
    assert (
        value("http_requests_total", method="POST", path=f"{AGENTS}/{{agent_id}}/heartbeat", status="2xx")
        == 4
    )
    assert value("http_requests_total", method="POST", path="/api/v1/leases", status="2xx") == 4
    assert value("http_request_duration_seconds_count", method="POST", path=AGENTS) == 3
    assert value("sweep_duration_seconds_count") == 12
    assert value("sweep_failures_total") == 0


async def test_rolled_back_transaction_counts_no_event(api: RegistryApi) -> None:
    await api.register("agent-1")
    assert (await api.ask("POST", AGENTS, {"agent_id": "agent-1"})).status == 409
    found = await scrape(api)
    assert found.value(f"{PREFIX}transitions_total", status="active", reason="registered") == 1
    assert found.value(f"{PREFIX}http_requests_total", method="POST", path=AGENTS, status="4xx") == 1


async def test_task_in_review_has_its_waiting_time(api: RegistryApi, clock: WoundClock) -> None:
    await api.register("agent-1")
    key = await api.add_agent_key("agent-1")
    await api.ask("POST", "/api/v1/tasks", {"title": "one"})
    granted = (await api.ask("POST", "/api/v1/tasks/claim", {}, key=key)).json()
    clock.advance(5)
    run = {"run_id": granted["run_id"], "fencing_token": granted["lease"]["fencing_token"]}
    task_id = granted["task"]["task_id"]
    asked = {**run, "idempotency_key": "k", "reason": "what now?"}
    helped = await api.ask("POST", f"/api/v1/tasks/{task_id}/help", asked, key=key)
    assert helped.status == 200, helped.body
    found = await scrape(api)
    assert found.value(f"{PREFIX}tasks", status="handoff") == 1
    assert found.value(f"{PREFIX}handoff_oldest_timestamp_seconds") == clock.now_s()


async def test_no_more_agents_have_series_than_the_setting_allows(
    database: Database, clock: WoundClock
) -> None:
    api = RegistryApi(database, clock, metrics_agents=2)
    await api.add_keys()
    quick = {"interval_seconds": 1, "unhealthy_after_seconds": 2, "dead_after_seconds": 4}
    for number in range(4):
        await api.register(f"agent-{number}", heartbeat_config=quick)
    for _ in range(3):
        clock.advance(1)
        await api.sweep()
    found = await scrape(api)
    named = list(found.labels(f"{PREFIX}agent_down_since_timestamp_seconds"))
    assert [agent["agent_id"] for agent in named] == ["agent-3", "agent-2"]
    assert found.value(f"{PREFIX}agents", status="unhealthy", health="unknown") == 4


@pytest.mark.parametrize(
    ("role", "status"),
    [
        (Role.READER, 200), (Role.PROBER, 200), (Role.COORDINATOR, 200), (Role.ADMIN, 200),
        (Role.ENROLL, 403), (None, 401),
    ],
)  # fmt: skip
async def test_metrics_require_a_reader_key(api: RegistryApi, role: Role | None, status: int) -> None:
    answer = await api.ask("GET", "/metrics", key=role)
    assert answer.status == status


async def test_scraper_may_send_its_key_as_a_bearer_token(api: RegistryApi) -> None:
    key = api.keys[Role.READER]
    answer = await api.ask("GET", "/metrics", key=None, headers={"authorization": f"Bearer {key}"})
    assert answer.status == 200
    assert key not in answer.body.decode()


async def test_metrics_can_be_opened_to_unauthenticated_callers(
    database: Database, clock: WoundClock
) -> None:
    api = RegistryApi(database, clock, open_metrics=True)
    assert (await api.ask("GET", "/metrics", key=None)).status == 200


@pytest.mark.parametrize(
    ("accept", "media_type"),
    [
        ("", "text/plain; version=0.0.4; charset=utf-8"),
        ("application/openmetrics-text;version=1.0.0", "application/openmetrics-text; version=1.0.0"),
        ("x" * 100_000, "text/plain; version=0.0.4; charset=utf-8"),
    ],
)
async def test_accept_header_selects_the_metrics_format(
    api: RegistryApi, accept: str, media_type: str
) -> None:
    answer = await api.ask("GET", "/metrics", key=Role.READER, headers={"accept": accept})
    assert (answer.header("content-type") or "").startswith(media_type)
    assert (answer.body.endswith(b"# EOF\n")) is ("openmetrics" in media_type)


async def test_admitted_caller_gets_503_during_an_outage(
    api: RegistryApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    await api.register("agent-1")
    await scrape(api)

    async def fail(_function: object) -> None:
        raise StoreUnavailable("it is unreachable")

    monkeypatch.setattr(api.registry.dispatcher.database, "read", fail)
    found = await scrape(api)
    assert found.value(f"{PREFIX}database_up") == 0
    # The values of the last count are still shown.
    assert found.value(f"{PREFIX}agents", status="active", health="unknown") == 1
    assert (await api.ask("GET", "/metrics", key=Role.ADMIN)).status == 503


@pytest.mark.parametrize("open_metrics", [False, True])
async def test_one_scrape_waits_for_an_outage_and_its_end_is_reported_at_once(
    database: Database, clock: WoundClock, monkeypatch: pytest.MonkeyPatch, *, open_metrics: bool
) -> None:
    # No new count after a failed one, for the whole test.
    monkeypatch.setattr(show_metrics, "COUNT_AGAIN_SECONDS", 1e6)
    api = RegistryApi(database, clock, open_metrics=open_metrics)
    await api.add_keys()
    assert (await scrape(api)).value(f"{PREFIX}database_up") == 1
    asked: list[object] = []

    async def fail(function: object) -> None:
        asked.append(function)
        raise StoreUnavailable("it is unreachable")

    with monkeypatch.context() as patched:
        patched.setattr(api.registry.dispatcher.database, "read", fail)
        assert (await scrape(api)).value(f"{PREFIX}database_up") == 0
    assert len(asked) == 1
    assert (await scrape(api)).value(f"{PREFIX}database_up") == 1


async def test_repeated_scrapes_count_rows_once(api: RegistryApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(show_metrics, "COUNT_AGAIN_SECONDS", COUNT_AGAIN_SECONDS)
    await scrape(api)
    await api.register("agent-1")
    found = await scrape(api)
    assert found.value(f"{PREFIX}agents", status="active", health="unknown") == 0
    assert found.value(f"{PREFIX}transitions_total", status="active", reason="registered") == 1


@pytest.mark.both_databases
async def test_refused_requests_are_counted(database: Database, clock: WoundClock) -> None:
    api = RegistryApi(database, clock, open_metrics=True, request_burst=1, requests_per_second=0.001)
    await api.add_keys()
    for _ in range(3):
        await api.ask("GET", AGENTS)
    assert (await api.ask("GET", "/nowhere/ahk_secret")).status == 404
    found = Scraped((await api.ask("GET", "/metrics", key=None)).body.decode())
    assert found.value(f"{PREFIX}rate_limited_requests_total") == 2
    assert found.value(f"{PREFIX}http_requests_total", method="GET", path=AGENTS, status="4xx") == 2
    # Paths that are not served make no series of their own.
    assert found.value(f"{PREFIX}http_requests_total", method="other", path="other", status="4xx") == 1


async def test_missing_prometheus_client_is_404_with_the_install_command(
    api: RegistryApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "prometheus_client.exposition", None)
    answer = await api.ask("GET", "/metrics", key=Role.READER)
    assert answer.status == 404
    assert install_command("metrics") in answer.json()["error"]["hint"]
    assert (await api.ask("GET", "/metrics", key=None)).status == 401, "the hint is shown without a key"


@pytest.mark.skipif(not HAS_PROMTOOL, reason="NOT RUN: promtool is absent (apt-get install prometheus)")
async def test_promtool_reports_no_problems(api: RegistryApi) -> None:
    await live_a_little(api)
    answer = await api.ask("GET", "/metrics", key=Role.READER)
    assert complaints(answer.body.decode()) == ""


async def test_all_names_follow_the_conventions_and_are_documented(api: RegistryApi) -> None:
    await live_a_little(api)
    await api.registry.log_watch.check_once()
    found = await scrape(api)
    text = (REPOSITORY / "docs" / "monitoring.md").read_text()
    named = set(re.findall(r"`(lifesign_registry_\w+)`", text))
    served = {_name(family.name, family.type) for family in found.families}
    assert served == named
    for family in found.families:
        assert family.documentation.endswith("."), family.name
        if family.type in {"histogram", "summary"}:
            assert family.name.endswith("_seconds")
        assert not re.search(r"_(ms|minutes|hours|kb|mb|percent)\b", family.name)


def _name(name: str, kind: str) -> str:
    return f"{name}_total" if kind == "counter" else name
