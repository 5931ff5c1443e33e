"""A real Prometheus reads the configuration of docs/monitoring and scrapes its targets."""

import json
import re
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.preloaded import PROGRAM, PYTHON, PreloadedProcess
from tests.support.registry_server import KEYS, RegistryServer, registry_server
from tests.support.servers import PATIENCE_SECONDS, REPOSITORY, Server, serving, until

from lifesign.domain.access.permissions import Role

DIRECTORY = REPOSITORY / "docs" / "monitoring"
ALERTS = DIRECTORY / "alerts.yml"
pytestmark = pytest.mark.skipif(
    shutil.which("prometheus") is None or shutil.which("promtool") is None,
    reason="NOT RUN: prometheus and promtool are absent (apt-get install prometheus)",
)


def promtool(*arguments: str) -> str:
    ran = subprocess.run(
        ["promtool", *arguments],
        cwd=DIRECTORY,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def test_promtool_accepts_rules_and_configuration() -> None:
    assert "26 rules found" in promtool("check", "rules", "alerts.yml")
    promtool("check", "config", "--syntax-only", "prometheus.yml")


def test_alerts_fire_at_their_thresholds_and_not_before() -> None:
    assert "SUCCESS" in promtool("test", "rules", "alerts_test.yml")


APP = """
from lifesign.middleware import AgentHealthMiddleware


async def answer(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"{}"})


app = AgentHealthMiddleware(answer, agent_id="agent-1", metrics_path="/metrics")
"""
PROBE: Mapping[str, object] = {
    "name": "all",
    "contact": "mailto:ops@agent.example",
    "networks": {"allow": ["127.0.0.0/8"]},
    "cadence": {"allow_fast_cadence": True, "interval_seconds": 1, "confirm_after_seconds": 0.5},
}


@contextmanager
def agent(directory: Path) -> Iterator[Server]:
    """An agent that reports its own figures, after a request."""
    (directory / "app.py").write_text(APP)
    command = [PYTHON, "-m", "uvicorn", "app:app", "--app-dir", str(directory), "--port", "{port}"]
    with serving(command, log=directory / "agent.log", start=PreloadedProcess) as server:
        assert server.send("/")[0] == 200
        yield server


@contextmanager
def prober(directory: Path, registry: RegistryServer, agent: Server) -> Iterator[Server]:
    """A prober that looks at the agent again and again."""
    target = f"http://127.0.0.1:{agent.port}/.well-known/agent-card.json"
    (directory / "probe.yml").write_text(yaml.safe_dump({**PROBE, "targets": [target]}))
    command = [
        PROGRAM, "crawl", str(directory / "probe.yml"), "--registry", registry.url,
        "--metrics", "127.0.0.1:{port}",
    ]  # fmt: skip
    key = {"LIFESIGN_KEY": KEYS[Role.PROBER]}
    with serving(command, log=directory / "prober.log", env=key, start=PreloadedProcess) as server:
        yield server


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A Prometheus that scrapes all three like docs/monitoring/prometheus.yml, but every second."""
    directory = tmp_path_factory.mktemp("prometheus")
    with (
        registry_server(directory) as registry,
        agent(directory) as seen,
        prober(directory, registry, seen) as looking,
    ):
        config = yaml.safe_load((DIRECTORY / "prometheus.yml").read_text())
        config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        config["rule_files"] = [str(ALERTS)]
        ports = {
            "lifesign-registry": registry.port,
            "lifesign-prober": looking.port,
            "agents": seen.port,
        }
        for job in config["scrape_configs"]:
            job["static_configs"] = [{"targets": [f"127.0.0.1:{ports.pop(job['job_name'])}"]}]
        (directory / "registry.key").write_text(KEYS[Role.READER])
        (directory / "prometheus.yml").write_text(yaml.safe_dump(config))
        command = [
            "prometheus", "--config.file", str(directory / "prometheus.yml"), "--log.level", "warn",
            "--storage.tsdb.path", str(directory / "data"), "--web.listen-address", "127.0.0.1:{port}",
        ]  # fmt: skip
        with serving(command, log=directory / "prometheus.log") as server:
            until("all are scraped", lambda: len(query(server, "up == 1")) == 3)
            yield server


def ask(server: Server, path: str, **parameters: str) -> Any:
    url = f"http://127.0.0.1:{server.port}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE_SECONDS) as answer:
            return json.load(answer)["data"]
    except urllib.error.HTTPError as error:
        if error.code == 503:
            # It answers before it is ready.
            return {"result": []}
        raise AssertionError(f"{parameters}: {error.read().decode()}") from error


def query(server: Server, expression: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = ask(server, "query", query=expression)["result"]
    return found


def test_a_registry_is_scraped_with_its_key(prometheus: Server) -> None:
    (up,) = query(prometheus, 'up{job="lifesign-registry"}')
    assert up["value"][1] == "1"
    (held,) = query(prometheus, 'lifesign_registry_decisions_suspended{track="probe"}')
    assert held["value"][1] == "0"
    assert len(query(prometheus, "lifesign_registry_agents")) == 20


def test_every_rule_is_evaluated(prometheus: Server) -> None:
    def rules() -> list[dict[str, Any]]:
        return [rule for group in ask(prometheus, "rules")["groups"] for rule in group["rules"]]

    until("all rules were evaluated", lambda: all(rule["health"] == "ok" for rule in rules()))
    assert {rule["name"] for rule in rules()} == {
        rule["alert"] for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]
    }
    # A healthy registry raises no alert.
    assert [rule["name"] for rule in rules() if rule["state"] == "firing"] == []


def expressions() -> list[str]:
    dashboard = json.loads((DIRECTORY / "grafana.json").read_text())
    return [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]


def test_every_query_of_the_dashboard_is_answered(prometheus: Server) -> None:
    assert len(expressions()) > 30
    for expression in expressions():
        if "agent_down_since" in expression:
            # No agent is down.
            assert query(prometheus, expression) == []
            continue
        until(expression, partial(query, prometheus, expression.replace("$__rate_interval", "1m")))


def series_of_tests() -> Iterator[tuple[str, dict[str, str]]]:
    """Names and labels of the series with which alerts_test.yml fires alerts, in place of real ones."""
    for group in yaml.safe_load((DIRECTORY / "alerts_test.yml").read_text())["tests"]:
        for series in group["input_series"]:
            name, _, labels = series["series"].partition("{")
            yield name, dict(re.findall(r'(\w+)="([^"]*)"', labels))


def test_alert_tests_use_only_exported_series(prometheus: Server) -> None:
    # There is no certificate, no task that waits, no agent that is down and no credential with a fault.
    absent = {
        "lifesign_registry_certificate_expiry_timestamp_seconds",
        "lifesign_registry_handoff_oldest_timestamp_seconds",
        "lifesign_registry_agent_down_since_timestamp_seconds",
        "lifesign_registry_credential_fault_since_timestamp_seconds",
    }
    given_by_prometheus = {"__name__", "job", "instance"}
    for name, labels in series_of_tests():
        if name in absent:
            continue
        until(f"{name} is scraped", partial(query, prometheus, name))
        real = [found["metric"] for found in query(prometheus, name)]
        assert {*labels} - given_by_prometheus == {*real[0]} - given_by_prometheus or name == "up", name
        for label in {"status", "state", "reason", "cause", "place"} & {*labels}:
            assert labels[label] in {metric[label] for metric in real}, f"{name}: {labels}"


def test_each_alert_is_tested_firing_and_silent() -> None:
    cases = [
        case
        for group in yaml.safe_load((DIRECTORY / "alerts_test.yml").read_text())["tests"]
        for case in group["alert_rule_test"]
    ]
    names = {
        rule["alert"] for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]
    }
    assert {case["alertname"] for case in cases if case.get("exp_alerts")} == names
    assert {case["alertname"] for case in cases if not case.get("exp_alerts")} == names


def test_queries_and_alerts_use_only_exported_metrics() -> None:
    documented = set(re.findall(r"`(lifesign_\w+)`", (REPOSITORY / "docs" / "monitoring.md").read_text()))
    texts = [*expressions(), ALERTS.read_text()]
    named = {name for text in texts for name in re.findall(r"lifesign_(?:registry|prober|agent)_\w+", text)}
    assert {re.sub(r"_(bucket|count|sum)$", "", name) for name in named} - documented == set()


def test_grafana_dashboard_has_the_import_format() -> None:
    dashboard = json.loads((DIRECTORY / "grafana.json").read_text())
    # Grafana assigns the id itself; an id of another dashboard would replace that one.
    assert dashboard.get("id") is None
    assert re.fullmatch(r"[a-zA-Z0-9_-]{8,40}", dashboard["uid"])
    assert dashboard["schemaVersion"] >= 36, "since version 36 a data source is an object"
    (variable,) = dashboard["templating"]["list"]
    assert (variable["type"], variable["query"]) == ("datasource", "prometheus")
    for panel in dashboard["panels"]:
        assert panel["title"]
        if panel["type"] == "row":
            assert panel["panels"] == []
            assert panel["collapsed"] is False
            continue
        assert panel["type"] in {"stat", "timeseries", "table"}
        assert panel["datasource"] == {"type": "prometheus", "uid": f"${{{variable['name']}}}"}
        names = [target["refId"] for target in panel["targets"]]
        assert len({*names}) == len(names) > 0
        steps = panel["fieldConfig"]["defaults"].get("thresholds", {"steps": [{"value": None}]})["steps"]
        assert steps[0]["value"] is None, "the first threshold has no lower bound"


def test_panels_of_the_grafana_dashboard_do_not_overlap() -> None:
    panels = json.loads((DIRECTORY / "grafana.json").read_text())["panels"]
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert max(x for x, _ in cells) < 24
        assert not taken & cells
        taken |= cells
    assert len({panel["id"] for panel in panels}) == len(panels)


def test_each_alert_is_documented() -> None:
    text = (REPOSITORY / "docs" / "monitoring.md").read_text()
    names = {
        rule["alert"] for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]
    }
    assert {name for name in names if not re.search(rf"\b{name}\b", text)} == set()
