"""An agent behind a real nginx that demands client certificates, and answers 400 without an accepted one."""

import shutil
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.journeys.test_client_certificates import agent_of, authority, bank
from tests.support.certificates import Authority
from tests.support.hostile_server import as_json, serving
from tests.support.nginx import nginx_command
from tests.support.probing import probing, results
from tests.support.servers import free_port, until

__all__ = ["authority", "bank"]
pytestmark = pytest.mark.skipif(
    shutil.which("nginx") is None, reason="NOT RUN: nginx is absent (apt-get install nginx-light)"
)
QUEUE = "/queue"
SERVER = """\
    server {{
        listen 127.0.0.1:{port} ssl;
        ssl_certificate {directory}/server.pem;
        ssl_certificate_key {directory}/server.key;
        ssl_client_certificate {authority};
        ssl_verify_client on;
        location / {{ proxy_pass {agent}; }}
    }}
"""


@contextmanager
def running_nginx(directory: Path, http: str) -> Iterator[None]:
    nginx = subprocess.Popen(nginx_command(directory, http))
    try:
        until("nginx has a pid", (directory / "nginx.pid").exists)
        yield
    finally:
        nginx.terminate()
        nginx.wait()


@asynccontextmanager
async def behind_nginx(authority: Authority, directory: Path) -> AsyncIterator[str]:
    """Serve an agent behind nginx; yield its URL there."""
    port = free_port()
    authority.server_files(directory, "127.0.0.1")
    async with serving({}) as agent:
        own_url = agent.url
        agent.replies[QUEUE] = as_json({"depth": 1})
        http = SERVER.format(directory=directory, port=port, authority=authority.file, agent=own_url)
        agent.scheme, agent.port = "https", port
        agent_of(agent)
        with running_nginx(directory, http):
            yield agent.url


async def test_refused_certificate_rejects_the_credential_and_condemns_no_agent(
    authority: Authority, bank: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    other = Authority(tmp_path / "other")
    async with behind_nginx(authority, tmp_path) as url:
        checks = [{"of": QUEUE, "status": 200}, {"of": QUEUE, "pointer": "/depth", "equals": 1}]
        target = {"url": url, "assertions": checks, "ask": {"message": {"text": "hello"}}}
        for credential, expected, outcome in (
            (bank(url), "ok", "ok"),
            (bank(url, "foreign", issuer=other), "credentials_rejected", "not_measured"),
        ):
            async with probing(targets=[target], credentials=[credential]) as probes:
                observation = await probes.see(url)
                [status] = probes.credentials.states
            assert results(observation)["discovery"] == expected
            assert [each.result for each in observation.assertions or ()] == [outcome] * 2
            assert not observation.is_measured_failure
            assert status.state == ("works" if expected == "ok" else expected)


async def test_interface_that_refuses_a_certificate_is_a_fault_of_the_credential(
    authority: Authority, bank: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    """Its card was read before the certificate was revoked, for example."""
    (tmp_path / "other").mkdir()
    other = Authority(tmp_path / "other")
    async with behind_nginx(authority, tmp_path) as url:
        target = {"url": url, "ask": {"message": {"text": "hello"}, "health": False}}
        async with probing(targets=[target], credentials=[bank(url)]) as probes:
            await probes.see(url)
            memory = probes.memory
        foreign = bank(url, "foreign", issuer=other)
        async with probing(targets=[target], credentials=[foreign]) as probes:
            probes.memory = memory
            observation = await probes.see(url)
        rejected = "credentials_rejected"
        assert (results(observation)["transport"], results(observation)["message"]) == (rejected, rejected)


async def test_prober_without_a_certificate_finds_a_login(
    authority: Authority, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    authority.is_trusted(monkeypatch)
    async with behind_nginx(authority, tmp_path) as url, probing() as probes:
        observation = await probes.see(url)
    assert results(observation)["discovery"] == "gated"
    assert not observation.is_measured_failure
