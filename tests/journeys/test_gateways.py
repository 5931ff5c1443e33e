"""The recipes of docs/gateways.md run in the real programs, and the registry sometimes fails."""

import json
import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.nginx import nginx_command
from tests.support.registry_server import ADMIN_KEY, KEYS, RegistryServer, registry_server
from tests.support.servers import PATIENCE_SECONDS, REPOSITORY, Server, free_port, serving, until

from lifesign.domain.access.permissions import Role
from lifesign.registry.agents.check_ready import READY_AGENT_PATH

PAGE = (REPOSITORY / "docs" / "gateways.md").read_text()
READER_KEY = KEYS[Role.READER]
AGENTS = ("agent_billing_01", "agent_billing_02")


def absent(program: str, package: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(
        shutil.which(program) is None, reason=f"NOT RUN: {program} is absent (apt-get install {package})"
    )


def recipe(language: str, replaced: Mapping[str, str], place: int = 0) -> str:
    """Return a recipe of the page, with other addresses; each must be there."""
    text: str = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)[place]
    for published, replacement in replaced.items():
        assert published in text, published
        text = text.replace(published, replacement)
    return text


@dataclass
class Agent:
    """An agent's own server: it answers with its id, and counts the requests."""

    agent_id: str
    port: int
    paths: list[str] = field(default_factory=list)


@contextmanager
def agent_server(agent_id: str) -> Iterator[Agent]:
    agent = Agent(agent_id, free_port())

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            agent.paths.append(self.path)
            content = b"requests_total 1\n" if self.path == "/metrics" else agent_id.encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", agent.port), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield agent
        finally:
            server.shutdown()
            thread.join()


@dataclass
class World:
    """A registry, and two agents that are registered there."""

    registry: RegistryServer
    agents: list[Agent]
    keys: dict[str, str]

    def ask(self, method: str, path: str, body: object = None, key: str = ADMIN_KEY) -> bytes:
        connection = HTTPConnection("127.0.0.1", self.registry.port, timeout=PATIENCE_SECONDS)
        with closing(connection):
            content = None if body is None else json.dumps(body).encode()
            connection.request(method, path, content, {"X-API-Key": key})
            answer = connection.getresponse()
            read = answer.read()
            assert answer.status < 300, read
            return read

    def call(self, method: str, path: str, body: object = None, key: str = ADMIN_KEY) -> Any:
        return json.loads(self.ask(method, f"/api/v1/agents{path}", body, key) or b"null")

    def register(self, agent: Agent) -> None:
        body = {
            "agent_id": agent.agent_id,
            "endpoint": f"http://127.0.0.1:{agent.port}/",
            "role_id": "billing",
            # This agent sends no heartbeats; it must not become unhealthy on a slow machine.
            "heartbeat_config": {"unhealthy_after_seconds": 3_600, "dead_after_seconds": 7_200},
        }
        self.keys[agent.agent_id] = self.call("POST", "", body)["agent_key"]

    def drain(self, agent: Agent) -> None:
        beat = {"status": "draining", "current_load": 1, "client_timestamp": "2026-01-01T00:00:00Z"}
        self.call("POST", f"/{agent.agent_id}/heartbeat", beat, self.keys[agent.agent_id])


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with ExitStack() as stack:
        registry = stack.enter_context(registry_server(tmp_path))
        agents = [stack.enter_context(agent_server(agent_id)) for agent_id in AGENTS]
        world = World(registry, agents, {})
        for agent in agents:
            world.register(agent)
        yield world


def answered(server: Server, path: str = "/billing/") -> tuple[int, str]:
    status, body = server.send(path)
    return status, body.decode() if status == 200 else ""


@contextmanager
def nginx(world: World, directory: Path) -> Iterator[Server]:
    (directory / "lifesign_key.conf").write_text(f'proxy_set_header X-API-Key "{READER_KEY}";\n')
    port = free_port()
    text = recipe(
        "nginx",
        {
            "/var/cache/nginx/lifesign": f"{directory}/cache",
            "127.0.0.1:8440": f"127.0.0.1:{world.registry.port}",
            "listen 8080;": f"listen 127.0.0.1:{port};",
            "127.0.0.1:8441": f"127.0.0.1:{free_port()}",
            "127.0.0.1:9000": f"127.0.0.1:{world.agents[0].port}",
            "/etc/nginx/lifesign_key.conf": f"{directory}/lifesign_key.conf",
            # A slow machine is no registry that fails.
            "proxy_read_timeout 5s;": "proxy_read_timeout 60s;",
            "proxy_read_timeout 1s;": "proxy_read_timeout 60s;",
        },
    )
    with serving(nginx_command(directory, text), log=directory / "nginx.log", port=port) as server:
        yield server


@absent("nginx", "nginx-light")
def test_nginx_sends_requests_only_to_a_ready_agent(world: World, tmp_path: Path) -> None:
    agent = world.agents[0]
    with nginx(world, tmp_path) as server:
        assert answered(server) == (200, agent.agent_id)
        world.drain(agent)
        until("the agent is closed", lambda: answered(server)[0] == 503)
        before = len(agent.paths)
        assert [answered(server)[0] for _ in range(20)] == [503] * 20
        assert len(agent.paths) == before
        # A registry that is gone closes no agent, and one that refuses the key does not either.
        world.registry.stop()
        until("the agent is open", lambda: answered(server) == (200, agent.agent_id))
        world.registry.start()
        until("the agent is closed again", lambda: answered(server)[0] == 503)
        world.registry.revoke(READER_KEY)
        until("the agent is open again", lambda: answered(server) == (200, agent.agent_id))


@absent("nginx", "nginx-light")
def test_nginx_requests_readiness_at_most_every_two_seconds(world: World, tmp_path: Path) -> None:
    def asked() -> float:
        lines = world.ask("GET", "/metrics").decode().splitlines()
        name, path = "lifesign_registry_http_requests_total{", f'path="{READY_AGENT_PATH}"'
        return sum(float(line.split()[-1]) for line in lines if line.startswith(name) and path in line)

    world.drain(world.agents[0])
    with nginx(world, tmp_path) as server:
        began_s = time.monotonic()
        assert {answered(server)[0] for _ in range(200)} == {503}
        assert 1 <= asked() <= 1 + (time.monotonic() - began_s) / 2


@absent("nginx", "nginx-light")
def test_nginx_sends_no_header_of_a_client_to_the_registry(world: World, tmp_path: Path) -> None:
    world.drain(world.agents[0])
    with nginx(world, tmp_path) as server:
        headers: Any = {"X-API-Key": "ahk_wrong", "X-Agent-Status": "active"}
        assert server.send("/billing/", **headers)[0] == 503
        # The subrequest's own location is not open to clients.
        assert server.send("/_ready/agent_billing_01")[0] == 404


@contextmanager
def haproxy(world: World, directory: Path) -> Iterator[Server]:
    port = free_port()
    text = recipe(
        "haproxy",
        {
            "127.0.0.1:8440": f"127.0.0.1:{world.registry.port}",
            "127.0.0.1:8080": f"127.0.0.1:{port}",
            "8441": str(free_port()),
            "127.0.0.1:9000": f"127.0.0.1:{world.agents[0].port}",
            "127.0.0.1:9001": f"127.0.0.1:{world.agents[1].port}",
            "inter 5s": "inter 100ms",
        },
    )
    file = directory / "haproxy.cfg"
    file.write_text(text)
    environment = {"LIFESIGN_KEY": READER_KEY}
    checked = subprocess.run(
        ["haproxy", "-c", "-f", str(file)],
        capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False, env=os.environ | environment,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stderr
    assert "WARNING" not in checked.stderr + checked.stdout, checked.stderr
    command = ["haproxy", "-db", "-f", str(file)]
    with serving(command, log=directory / "haproxy.log", port=port, env=environment) as server:
        yield server


@absent("haproxy", "haproxy")
def test_haproxy_sends_requests_only_to_ready_agents(world: World, tmp_path: Path) -> None:
    first, second = world.agents

    def answers(server: Server) -> set[tuple[int, str]]:
        return {answered(server) for _ in range(6)}

    both = {(200, first.agent_id), (200, second.agent_id)}
    with haproxy(world, tmp_path) as server:
        until("both agents are open", lambda: answers(server) == both)
        world.drain(first)
        until("one agent is closed", lambda: answers(server) == {(200, second.agent_id)})
        world.drain(second)
        until("both agents are closed", lambda: answers(server) == {(503, "")})
        # A registry that is gone closes no agent, and one that refuses the key does not either.
        world.registry.stop()
        until("both agents are open without a registry", lambda: answers(server) == both)
        world.registry.start()
        until("both agents are closed again", lambda: answers(server) == {(503, "")})
        world.registry.revoke(READER_KEY)
        until("both agents are open without a valid key", lambda: answers(server) == both)


@absent("haproxy", "haproxy")
def test_haproxy_excludes_an_agent_unknown_to_the_registry(world: World, tmp_path: Path) -> None:
    first, second = world.agents
    world.call("DELETE", f"/{first.agent_id}/record")
    with haproxy(world, tmp_path) as server:
        open_ones = {(200, second.agent_id)}
        until("one agent is closed", lambda: {answered(server) for _ in range(6)} == open_ones)


def test_envoy_recipe_checks_the_readiness_path_of_the_registry() -> None:
    (cluster,) = yaml.safe_load(recipe("yaml", {}))["static_resources"]["clusters"]
    (check,) = cluster["health_checks"]
    assert check["http_health_check"]["path"] == READY_AGENT_PATH
    ranges = check["http_health_check"]["expected_statuses"]
    statuses = {status for each in ranges for status in range(each["start"], each["end"])}
    assert {*range(200, 600)} - statuses == {503}


@contextmanager
def prometheus(world: World, directory: Path) -> Iterator[Server]:
    text = recipe("yaml", {"127.0.0.1:8440": f"127.0.0.1:{world.registry.port}"}, 1)
    config = yaml.safe_load(text.replace("refresh_interval: 30s", "refresh_interval: 1s"))
    config["global"] = {"scrape_interval": "1s"}
    (directory / "registry.key").write_text(READER_KEY)
    (directory / "prometheus.yml").write_text(yaml.safe_dump(config))
    command = [
        "prometheus", "--config.file", str(directory / "prometheus.yml"), "--log.level", "warn",
        "--storage.tsdb.path", str(directory / "data"), "--web.listen-address", "127.0.0.1:{port}",
    ]  # fmt: skip
    with serving(command, log=directory / "prometheus.log") as server:
        yield server


def sd_failures(server: Server) -> float:
    found = re.search(
        r"^prometheus_sd_http_failures_total (\S+)", server.send("/metrics")[1].decode(), re.MULTILINE
    )
    assert found is not None
    return float(found[1])


@absent("prometheus", "prometheus")
def test_prometheus_scrapes_active_agents(world: World, tmp_path: Path) -> None:
    first, second = world.agents

    def scraped(server: Server) -> dict[str, tuple[str, str]]:
        status, body = server.send("/api/v1/targets?state=active")
        if status != 200:
            return {}
        targets = json.loads(body)["data"]["activeTargets"]
        return {
            each["labels"]["agent_id"]: (each["health"], each["scrapeUrl"])
            for each in targets
            if each["labels"]["role_id"] == "billing"
        }

    urls = {agent.agent_id: ("up", f"http://127.0.0.1:{agent.port}/metrics") for agent in world.agents}
    with prometheus(world, tmp_path) as server:
        until("both agents are scraped", lambda: scraped(server) == urls)
        world.call("DELETE", f"/{second.agent_id}")
        until("the agent that left is not", lambda: scraped(server).keys() == {first.agent_id})
        # A registry that is gone does not end the scraping of the others.
        world.registry.stop()
        until("two refreshes have failed", lambda: sd_failures(server) >= 2)
        assert scraped(server).keys() == {first.agent_id}
        world.registry.start()
