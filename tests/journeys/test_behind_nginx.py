"""A registry behind nginx, configured as in docs/operating.md, works as it does alone.

A real nginx is in front, with the certificate of an authority that callers trust.
"""

import json
import os
import re
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trustme
from tests.support.dashboard_visitor import Visitor
from tests.support.nginx import nginx_command
from tests.support.registry_process import ADMIN_KEY, prepare, registry
from tests.support.servers import (
    PATIENCE_SECONDS,
    REPOSITORY,
    SCRIPTS,
    Server,
    free_port,
    serving,
    until,
)

from lifesign.client.environment_variables import KEY_VARIABLE

pytestmark = pytest.mark.skipif(
    shutil.which("nginx") is None, reason="NOT RUN: nginx is absent (apt-get install nginx-light)"
)
PROXIED_BYTES = 16 * 1024 * 1024
"""Body limit of nginx in the page; our limit is above nginx's default of 1 MiB."""


@dataclass(frozen=True)
class Proxied:
    """A registry, and the proxy before it."""

    registry: Server
    visitor: Visitor
    authority: Path
    """The certificate of whom to trust."""

    def log(self) -> str:
        return self.registry.log.read_text()


def config(directory: Path, *, registry_port: int, port: int) -> str:
    """Return the configuration of the page, with other paths."""
    page = (REPOSITORY / "docs" / "operating.md").read_text()
    text: str
    (text,) = re.findall(r"```nginx\n(.*?)```", page, re.DOTALL)
    for default, replacement in {
        "127.0.0.1:8440": f"127.0.0.1:{registry_port}",
        "listen 443 ssl;": f"listen 127.0.0.1:{port} ssl;",
        "server_name registry.example;": "server_name localhost;",
        "/etc/ssl/registry.pem": f"{directory}/registry.pem",
        "/etc/ssl/registry.key": f"{directory}/registry.key",
    }.items():
        assert text.count(default) == 1, default
        text = text.replace(default, replacement)
    return text


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxied]:
    directory = tmp_path_factory.mktemp("proxied")
    authority = trustme.CA()
    issued = authority.issue_cert("localhost")
    issued.private_key_pem.write_to_path(directory / "registry.key")
    for pem in issued.cert_chain_pems:
        pem.write_to_path(directory / "registry.pem", append=True)
    authority.cert_pem.write_to_path(directory / "authority.pem")
    trusts = ssl.create_default_context()
    authority.configure_trust(trusts)
    url = f"sqlite:///{directory}/registry.db"
    prepare(url, [])
    port = free_port()
    settings = {"LIFESIGN_SERVER_TRUSTED_PROXIES": "127.0.0.1"}
    with registry(url, directory, settings=settings) as behind:
        command = nginx_command(directory, config(directory, registry_port=behind.port, port=port))
        checked = subprocess.run(
            [*command, "-t"], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
        )
        assert checked.returncode == 0, checked.stderr
        with serving(command, log=directory / "nginx.log", port=port):
            visitor = Visitor(f"https://localhost:{port}", trusts=trusts)
            yield Proxied(behind, visitor, directory / "authority.pem")


def request_api(
    proxied: Proxied, method: str, path: str, body: bytes | None = None, **headers: str
) -> tuple[int, Any]:
    sent = {"X-API-Key": ADMIN_KEY, "Content-Type": "application/json", **headers}
    with closing(proxied.visitor.connection()) as connection:
        connection.request(method, path, body, sent)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())


def test_api_is_reachable_over_tls_behind_nginx(proxied: Proxied) -> None:
    assert request_api(proxied, "POST", "/api/v1/agents", b'{"agent_id": "a"}')[0] == 201
    status, found = request_api(proxied, "GET", "/api/v1/agents/a")
    assert (status, found["status"]) == (200, "active")


def test_session_cookie_is_secure_behind_nginx(proxied: Proxied) -> None:
    visitor = Visitor(proxied.visitor.url, trusts=proxied.visitor.trusts)
    entered = visitor.log_in(ADMIN_KEY)
    assert (entered.status, entered.headers["location"]) == (303, "/")
    assert all("; Secure" in cookie for cookie in entered.cookies)
    assert visitor.get("/").status == 200


@pytest.mark.parametrize("path", ["/api/v1/events/stream", "/live?after="])
def test_nginx_does_not_buffer_the_event_stream(proxied: Proxied, path: str) -> None:
    visitor = Visitor(proxied.visitor.url, trusts=proxied.visitor.trusts)
    visitor.log_in(ADMIN_KEY)
    cookie = "; ".join(f"{name}={value}" for name, value in visitor.cookies.items())
    name = f"seen-{len(path)}"
    with closing(visitor.connection()) as connection:
        connection.request("GET", path, headers={"X-API-Key": ADMIN_KEY, "Cookie": cookie})
        answer = connection.getresponse()
        assert (answer.status, answer.headers.get_content_type()) == (200, "text/event-stream")
        assert request_api(proxied, "POST", "/api/v1/agents", b'{"agent_id": "%b"}' % name.encode())[0] == 201
        # The stream does not end: a proxy that collects would keep it until this gives up.
        while name.encode() not in answer.readline():
            pass


def test_commands_work_with_the_https_url_of_nginx(proxied: Proxied) -> None:
    """With the authority at OpenSSL's path the commands work; without it, they report the cause."""

    def command(*arguments: str, trusts: str) -> "subprocess.CompletedProcess[str]":
        file = str(proxied.authority) if trusts == "it" else "/dev/null"
        variables = {**os.environ, "SSL_CERT_FILE": file, KEY_VARIABLE: ADMIN_KEY}
        return subprocess.run(
            [SCRIPTS / "lifesign", *arguments, "--registry", proxied.visitor.url, "--json"],
            capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False, env=variables,
        )  # fmt: skip

    registered = command("agents", "register", "b", trusts="it")
    assert registered.returncode == 0, registered.stderr
    assert json.loads(registered.stdout)["status"] == "active"
    created = command("tasks", "create", "Something to do", trusts="it")
    assert json.loads(created.stdout)["status"] == "queued", created.stderr
    refused = command("agents", "list", trusts="nobody")
    assert refused.returncode == 2
    assert "certificate" in refused.stderr


def test_a_body_that_is_too_large_is_refused_by_the_registry_itself(proxied: Proxied) -> None:
    status, answer = request_api(proxied, "POST", "/api/v1/agents", b" " * (PROXIED_BYTES // 4))
    assert (status, answer["error"]["code"]) == (413, "body_too_large")


def test_callers_are_distinguished_by_address_despite_forged_headers(proxied: Proxied) -> None:
    """Attempts to log in are limited by it, and the log names it."""
    forger = Visitor(proxied.visitor.url, trusts=proxied.visitor.trusts, address="127.0.0.7")

    def attempt(number: int) -> int:
        forged = {"x-forwarded-for": f"203.0.113.{number}", "forwarded": "for=203.0.113.1"}
        return forger.post("/login", {"key": "ahk_wrong", "token": "0" * 64}, **forged).status

    assert 429 in {attempt(number) for number in range(40)}
    other = Visitor(proxied.visitor.url, trusts=proxied.visitor.trusts, address="127.0.0.8")
    assert other.log_in(ADMIN_KEY).status == 303
    with closing(forger.connection()) as connection:
        connection.request("GET", "/api/v1/agents", headers={"X-Forwarded-For": "203.0.113.77"})
        assert connection.getresponse().status == 401
    # A request is logged once it is answered.
    until("it is logged", lambda: "client=127.0.0.7" in proxied.log())
    assert "203.0.113." not in proxied.log()
