"""Does a real Prometheus understand what docs/monitoring has for it, and see a real registry?"""

import json
import re
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from tests.support.registry_server import KEYS, registry_server
from tests.support.servers import PATIENCE_SECONDS, REPOSITORY, Server, serving, until

from agent_health.access import Role

DIRECTORY = REPOSITORY / "docs" / "monitoring"
ALERTS = DIRECTORY / "alerts.yml"
pytestmark = pytest.mark.skipif(
    shutil.which("prometheus") is None or shutil.which("promtool") is None,
    reason="no prometheus and promtool: apt-get install prometheus",
)


def promtool(*arguments: str) -> str:
    ran = subprocess.run(
        ["promtool", *arguments], cwd=DIRECTORY, capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def test_the_rules_and_the_configuration_are_understood() -> None:
    assert "19 rules found" in promtool("check", "rules", "alerts.yml")
    promtool("check", "config", "--syntax-only", "prometheus.yml")


def test_alerts_fire_when_they_should_and_not_before() -> None:
    assert "SUCCESS" in promtool("test", "rules", "alerts_test.yml")


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A Prometheus that scrapes a registry as docs/monitoring/prometheus.yml says, but every second."""
    directory = tmp_path_factory.mktemp("prometheus")
    with registry_server(directory) as registry:
        config = yaml.safe_load((DIRECTORY / "prometheus.yml").read_text())
        config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        config["rule_files"] = [str(ALERTS)]
        scraped = [job for job in config["scrape_configs"] if job["job_name"] == "agent-health-registry"]
        scraped[0]["static_configs"] = [{"targets": [f"127.0.0.1:{registry.port}"]}]
        (directory / "registry.key").write_text(KEYS[Role.READER])
        (directory / "prometheus.yml").write_text(yaml.safe_dump({**config, "scrape_configs": scraped}))
        command = [
            "prometheus", "--config.file", str(directory / "prometheus.yml"), "--log.level", "warn",
            "--storage.tsdb.path", str(directory / "data"), "--web.listen-address", "127.0.0.1:{port}",
        ]  # fmt: skip
        with serving(command, log=directory / "prometheus.log") as server:
            until("the registry is scraped", lambda: query(server, "agent_health_registry_build_info"))
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
    (up,) = query(prometheus, 'up{job="agent-health-registry"}')
    assert up["value"][1] == "1"
    (held,) = query(prometheus, "agent_health_registry_decisions_held")
    assert held["value"][1] == "0"
    assert len(query(prometheus, "agent_health_registry_agents")) == 20


def test_every_rule_is_evaluated(prometheus: Server) -> None:
    def rules() -> list[dict[str, Any]]:
        return [rule for group in ask(prometheus, "rules")["groups"] for rule in group["rules"]]

    until("all rules were evaluated", lambda: all(rule["health"] == "ok" for rule in rules()))
    assert {rule["name"] for rule in rules()} == {
        rule["alert"] for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]
    }
    # A registry in which nothing is wrong wakes nobody.
    assert [rule["name"] for rule in rules() if rule["state"] == "firing"] == []


def expressions() -> list[str]:
    dashboard = json.loads((DIRECTORY / "grafana.json").read_text())
    return [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]


def test_every_query_of_the_dashboard_is_understood(prometheus: Server) -> None:
    assert len(expressions()) > 30
    for expression in expressions():
        query(prometheus, expression.replace("$__rate_interval", "1m"))


def test_queries_and_alerts_name_only_numbers_that_there_are() -> None:
    documented = set(re.findall(r"`(agent_health_\w+)`", (REPOSITORY / "docs" / "monitoring.md").read_text()))
    texts = [*expressions(), ALERTS.read_text()]
    named = {
        name for text in texts for name in re.findall(r"agent_health_(?:registry|prober|agent)_\w+", text)
    }
    assert {re.sub(r"_(bucket|count|sum)$", "", name) for name in named} - documented == set()


def test_the_dashboard_has_a_place_for_each_panel() -> None:
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


def test_every_alert_is_in_the_document() -> None:
    text = (REPOSITORY / "docs" / "monitoring.md").read_text()
    names = {
        rule["alert"] for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]
    }
    assert {name for name in names if not re.search(rf"\b{name}\b", text)} == set()
