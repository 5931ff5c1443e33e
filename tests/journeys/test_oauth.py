"""Probes of a real A2A agent that requires the tokens of a real OAuth 2 provider."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from joserfc.jwk import ECKey, RSAKey
from tests.support.a2a_agent_13 import make_agent
from tests.support.agent_check import document
from tests.support.hostile_server import HEALTH_PATH, answer, as_json, serving
from tests.support.oauth_provider import (
    CLIENT,
    CLIENT_SECRET,
    RIGHTS,
    Provider,
    RequiresToken,
    serving_provider,
)
from tests.support.preloaded import PROGRAM, PreloadedProcess
from tests.support.probing import Bodies, layer, probing, results
from tests.support.process_tree import descendants
from tests.support.servers import PATIENCE_SECONDS
from tests.support.uvicorn_thread import served

REJECTED, NO_TOKEN = "credentials_rejected", "token_error"
ANSWERED = {"discovery": "ok", "transport": "ok", "message": "ok"}
NEXT = "refresh-canary-next"
ASK = {"health": False, "message": {"text": "ok"}}


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLIENT_SECRET", CLIENT_SECRET)


@contextmanager
def agent_of(provider: Provider) -> Iterator[tuple[RequiresToken, str]]:
    """Serve an agent on the A2A SDK whose card is public."""
    guards: list[RequiresToken] = []

    def make_app(url: str) -> RequiresToken:
        guards.append(RequiresToken(make_agent(f"{url}/"), provider, lambda path: "well-known" in path))
        return guards[0]

    with served(make_app) as url:
        yield guards[0], url


def settings(url: str, token_url: str, **members: Any) -> dict[str, Any]:
    """Return a definition's members with one OAuth 2 client."""
    client = {"token_url": token_url, "client_id": CLIENT, "client_secret": {"env": "CLIENT_SECRET"}}
    oauth2 = {name: value for name, value in (client | members).items() if value is not None}
    return {"ask": ASK, "credentials": [{"name": "acme", "origin": url, "oauth2": oauth2}]}


@pytest.mark.parametrize("method", ["client_secret_basic", "client_secret_post"])
async def test_an_agent_is_measured_with_one_token(method: str) -> None:
    with serving_provider(method) as (provider, token_url), agent_of(provider) as (agent, url):
        asked = {"auth_method": method, "scope": RIGHTS, "resource": url}
        async with probing(**settings(url, token_url, **asked)) as probes:
            assert results(await probes.see(url)) == ANSWERED
            for _ in range(2):
                assert results(await probes.see(url))["message"] == "ok"
    assert len(provider.forms) == 1
    assert set(agent.tokens) == set(provider.issued)
    assert provider.forms[0]["scope"] == RIGHTS
    assert provider.forms[0]["resource"] == url


KEYS: dict[str, tuple[Callable[[], Any], Any]] = {
    "rsa": (lambda: rsa.generate_private_key(65_537, 2048), RSAKey),
    "p-256": (lambda: ec.generate_private_key(ec.SECP256R1()), ECKey),
}


@pytest.mark.parametrize("kind", KEYS)
async def test_client_authenticates_with_its_private_key(kind: str, tmp_path: Path) -> None:
    make_key, reader = KEYS[kind]
    key = make_key()
    file = tmp_path / "acme.key"
    file.touch(mode=0o600)
    file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public = reader.import_key(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    with serving_provider("private_key_jwt", public) as (provider, token_url), agent_of(provider) as (_, url):
        given = {"auth_method": "private_key_jwt", "client_secret": None, "private_key": {"file": str(file)}}
        async with probing(**settings(url, token_url, **given, key_id="key-1")) as probes:
            assert results(await probes.see(url))["message"] == "ok"
            # Each assertion is used once.
            provider.revoke()
            assert results(await probes.see(url))["message"] == "ok"
    assert len(provider.forms) == 2


async def test_a_revoked_token_is_replaced_once_a_minute() -> None:
    with serving_provider() as (provider, token_url), agent_of(provider) as (_, url):
        async with probing(**settings(url, token_url)) as probes:
            assert results(await probes.see(url))["message"] == "ok"
            provider.revoke()
            assert results(await probes.see(url))["message"] == "ok"
            assert len(provider.forms) == 2
            provider.revoke()
            observation = await probes.see(url)
            assert results(observation)["message"] == REJECTED
            assert observation.is_liveness_signal
            assert len(provider.forms) == 2


async def test_layers_behind_a_login_are_unknown_without_a_token() -> None:
    with serving_provider() as (provider, token_url), agent_of(provider) as (agent, url):
        provider.is_down = True
        async with probing(**settings(url, token_url)) as probes:
            for _ in range(2):
                observation = await probes.see(url)
                assert results(observation)["message"] == NO_TOKEN
                assert "503" in layer(observation.message).reason
                assert observation.is_liveness_signal
                assert not observation.is_measured_failure
            assert agent.tokens == []
            assert len(provider.forms) == 1


async def test_wrong_client_secret_is_reported_with_the_providers_error_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CLIENT_SECRET", "another-secret")
    with serving_provider() as (provider, token_url), agent_of(provider) as (_, url):
        async with probing(**settings(url, token_url)) as probes:
            observation = await probes.see(url)
    assert results(observation)["transport"] == NO_TOKEN
    assert "invalid_client" in layer(observation.transport).reason
    assert len(provider.forms) == 1


async def test_token_echoed_by_a_target_is_removed() -> None:
    evidence = Bodies()
    with serving_provider() as (provider, token_url):

        def echo(_url: str) -> Any:
            async def app(scope: Any, _receive: Any, send: Any) -> None:
                if scope["type"] == "http":
                    sent = dict(scope["headers"]).get(b"authorization", b"")
                    head = {"type": "http.response.start", "status": 500, "headers": []}
                    await send(head)
                    await send({"type": "http.response.body", "body": b"<html>" + sent})

            return app

        with served(echo) as url:
            asked = settings(url, token_url) | {"targets": [{"url": url, "kind": "mcp"}]}
            async with probing(evidence, **asked) as probes:
                report = await probes.report(url)
    assert provider.issued
    shown = report.observation.model_dump_json() + report.memory.to_json()
    shown += "".join(body.decode() for body in evidence.kept.values())
    assert not any(token in shown for token in provider.issued)


def files_in(directory: Path) -> list[Path]:
    return [file for file in directory.rglob("*") if file.is_file()]


def found_in(pid: int, wanted: Iterable[bytes]) -> set[bytes]:
    """Return which texts are in the memory of a process."""
    found = set()
    with suppress(OSError), Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            place, mode, *_ = line.split()
            begin, end = (int(each, 16) for each in place.split("-"))
            if mode.startswith("rw") and "[v" not in line:
                memory.seek(begin)
                data = memory.read(end - begin)
                found |= {each for each in wanted if each in data}
    return found


async def test_worker_processes_share_one_token(tmp_path: Path) -> None:
    """Hosts are divided among the processes; the credentials of all hosts are those of one client."""
    with serving_provider() as (provider, token_url):
        in_memory: list[list[bytes]] = []

        async def behind_login(writer: asyncio.StreamWriter, head: str) -> None:
            _, _, sent = head.partition("Authorization: Bearer ")
            token = sent.partition("\r")[0]
            is_admitted = token in provider.valid
            if is_admitted and not in_memory:
                # The process that sent the request waits for the answer.
                in_memory.append([])
                wanted = (CLIENT_SECRET.encode(), token.encode())
                for pid in descendants(process.pid):
                    in_memory[0] += await asyncio.to_thread(found_in, pid, wanted)
            await (as_json(document()) if is_admitted else answer(401))(writer, head)

        async with AsyncExitStack() as stack:
            hosts = [f"127.0.0.{number}" for number in range(2, 18)]
            replies = {HEALTH_PATH: behind_login}
            servers = [await stack.enter_async_context(serving(replies, host=host)) for host in hosts]
            secret = "client_secret: {env: CLIENT_SECRET}"
            client = f"{{token_url: '{token_url}', client_id: {CLIENT}, {secret}}}"
            credentials = "".join(
                f"  - {{name: host-{number}, origin: '{server.url}', oauth2: {client}}}\n"
                for number, server in enumerate(servers)
            )
            (tmp_path / "acme.yml").write_text(
                "name: acme\ncontact: mailto:tests@agent.example\nnetworks: {allow: [127.0.0.0/8]}\n"
                "ask: {card: false, transport: false}\nopt_out: {robots_txt: false}\n"
                "results: {jsonl: seen.jsonl}\nlimits: {concurrency: 4}\n"
                f"targets: [{', '.join(repr(server.url) for server in servers)}]\n"
                f"credentials:\n{credentials}"
            )
            process = await asyncio.create_subprocess_exec(
                Path(sys.executable).with_name("lifesign"),
                "crawl", "acme.yml", "--once", "--workers", "2", "--log-format", "json",
                cwd=tmp_path,
                env=os.environ | {"CLIENT_SECRET": CLIENT_SECRET},
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )  # fmt: skip
            async with asyncio.timeout(PATIENCE_SECONDS):
                written, _ = await process.communicate()
    assert process.returncode == 0, written
    seen = [json.loads(line) for line in (tmp_path / "seen.jsonl").read_text().splitlines()]
    assert [each["readiness"]["result"] for each in seen] == ["ok"] * len(servers)
    assert len(provider.forms) == 1
    # The processes that probe need no secret of the client.
    assert {*in_memory[0]} == {provider.issued[0].encode()}
    # No token and no secret is left behind, by any process.
    left = [written, *map(Path.read_bytes, files_in(tmp_path))]
    for secret in (*provider.issued, CLIENT_SECRET):
        assert not any(secret.encode() in data for data in left)


def refreshed(url: str, token_url: str, file: Path, **members: Any) -> dict[str, Any]:
    """Return a definition's members with a public client that has a refresh token."""
    public = {"auth_method": "none", "client_secret": None}
    return settings(url, token_url, **public, grant="refresh_token", token_file=str(file), **members)


def stored_token(directory: Path, token: str) -> Path:
    file = directory / "acme.refresh"
    file.touch(mode=0o600)
    file.write_text(token)
    return file


@pytest.mark.parametrize("method", ["none", "client_secret_basic"])
async def test_a_refresh_token_is_replaced_in_its_file_with_each_use(method: str, tmp_path: Path) -> None:
    with serving_provider(method) as (provider, token_url), agent_of(provider) as (_, url):
        provider.refresh_tokens.append("refresh-canary-first")
        file = stored_token(tmp_path, "refresh-canary-first\n")
        given = {"grant": "refresh_token", "token_file": str(file), "auth_method": method}
        secret = None if method == "none" else {"env": "CLIENT_SECRET"}
        # The second prober goes on with what the first one has left.
        for number in (1, 2):
            async with probing(**settings(url, token_url, **given, client_secret=secret)) as probes:
                assert results(await probes.see(url))["message"] == "ok"
            assert len(provider.forms) == number
            assert file.read_text().strip() == provider.refresh_tokens[-1]
            assert file.stat().st_mode & 0o777 == 0o600
    assert [form["grant_type"] for form in provider.forms] == ["refresh_token"] * 2
    assert len(set(provider.refresh_tokens)) == 3


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("command", [["probe"], ["credentials", "test", "acme"]])
async def test_a_signal_does_not_lose_the_next_refresh_token(
    command: list[str], number: signal.Signals, tmp_path: Path
) -> None:
    file = stored_token(tmp_path, "refresh-canary-first")

    async def reply(writer: asyncio.StreamWriter, head: str) -> None:
        process.send_signal(number)
        await as_json({"access_token": "access-canary-0000", "token_type": "Bearer", "refresh_token": NEXT})(
            writer, head
        )

    async with serving({"/token": reply}) as server:
        client = f"{{token_url: '{server.url}/token', client_id: {CLIENT}, auth_method: none"
        (tmp_path / "acme.yml").write_text(
            f"name: acme\nnetworks: {{allow: [127.0.0.0/8]}}\ntargets: ['{server.url}']\ncredentials:\n"
            f"  - {{name: acme, origin: '{server.url}', "
            f"oauth2: {client}, grant: refresh_token, token_file: {file.name}}}}}\n"
        )
        log = tmp_path / "log"
        with log.open("wb") as output:
            process = PreloadedProcess(
                [PROGRAM, *command, "--definition", "acme.yml"], cwd=tmp_path, stdout=output, stderr=output
            )
        code = await asyncio.to_thread(process.wait, PATIENCE_SECONDS)
    assert (code, file.read_text().strip()) == (-number, NEXT), log.read_text()


async def test_two_probers_do_not_use_one_refresh_token(tmp_path: Path) -> None:
    with serving_provider("none") as (provider, token_url), agent_of(provider) as (_, url):
        provider.refresh_tokens.append("refresh-canary-first")
        asked = refreshed(url, token_url, stored_token(tmp_path, "refresh-canary-first"))
        async with probing(**asked) as first, probing(**asked) as second:
            assert results(await first.see(url))["message"] == "ok"
            observation = await second.see(url)
            assert results(observation)["message"] == NO_TOKEN
            assert "token_file" in layer(observation.message).reason
    assert len(provider.forms) == 1


async def test_a_revoked_refresh_token_is_a_fault_of_the_credential(tmp_path: Path) -> None:
    with serving_provider("none") as (provider, token_url), agent_of(provider) as (_, url):
        file = stored_token(tmp_path, "refresh-canary-revoked")
        async with probing(**refreshed(url, token_url, file)) as probes:
            observation = await probes.see(url)
            assert results(observation)["message"] == NO_TOKEN
            assert "invalid_grant" in layer(observation.message).reason
            assert "refresh-canary" not in observation.model_dump_json()
    assert file.read_text() == "refresh-canary-revoked"
