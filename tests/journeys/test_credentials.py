"""A crawl of agents behind a login that send the secret back in every encoding.

Real processes. The secret is looked for in everything that they leave behind.
"""

import asyncio
import gzip
import json
import os
import re
import sys
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from pathlib import Path
from textwrap import wrap
from urllib.parse import quote

import pytest
from tests.support.agent_check import card, document
from tests.support.hostile_server import CARD_PATH, HEALTH_PATH, Reply, answer, as_json, serving
from tests.support.oauth_provider import (
    AUTHORIZE_PATH,
    CLIENT,
    CLIENT_SECRET,
    RIGHTS,
    TOKEN_PATH,
    Provider,
    serving_provider,
)
from tests.support.process_tree import descendants
from tests.support.registry_server import KEYS, registry_server
from tests.support.repetitions import in_faults
from tests.support.servers import PATIENCE_SECONDS

from lifesign.cli.doctor.http import fetch
from lifesign.client.environment_variables import KEY_VARIABLE
from lifesign.domain.access.permissions import Role

TOKEN, FILED = "canary-4e21~of+the/variable", "canary-77aa~of+the/file"
ENCODINGS: dict[str, Callable[[str], str]] = {
    "plain": lambda text: text,
    "base64": lambda text: b64encode(text.encode()).decode(),
    "base64_1": lambda text: b64encode(b"x" + text.encode()).decode(),
    "base64_2": lambda text: b64encode(b"xy" + text.encode()).decode(),
    "base64url": lambda text: urlsafe_b64encode(text.encode()).decode(),
    "hex": lambda text: text.encode().hex(),
    "url": lambda text: quote(text, safe=""),
    "url_twice": lambda text: quote(quote(text, safe=""), safe=""),
    "json": lambda text: "".join(f"\\u{ord(each):04x}" if each in "cf~/" else each for each in text),
    "json_slashes": lambda text: json.dumps(text)[1:-1].replace("/", "\\/").replace("-", "\\x2d"),
    "mixed": lambda text: "".join(
        (each, f"%{ord(each):02x}", f"\\u{ord(each):04x}")[place % 3] for place, each in enumerate(text)
    ),
    "base64_lines": lambda text: "\n".join(wrap(b64encode(b"x" + text.encode()).decode(), 8)),
    "base64_escaped": lambda text: b64encode(text.encode()).decode().replace("/", "\\/").replace("+", "%2b"),
    "hex_lines": lambda text: text.encode().hex("\n", 4).upper(),
}
RPC = "/rpc"

pytestmark = pytest.mark.fault


def echoing(secret: str, text: str, seen: asyncio.Event) -> Reply:
    """Fail with the secret in the error, once it was sent; before that, ask for it."""
    failure = {"jsonrpc": "2.0", "id": 1, "error": {"code": -32603, "message": text}}

    async def reply(writer: asyncio.StreamWriter, head: str) -> None:
        if secret in head:
            seen.set()
            # The test inspects the processes during this time.
            await asyncio.sleep(0.3)
        await (as_json(failure) if secret in head else answer(401))(writer, head)

    return reply


def forms(secret: str) -> list[bytes]:
    """Return the secret in each encoding, without the ends that depend on the surrounding bytes."""
    return [encode(secret).strip("=")[4:-4].encode() for encode in ENCODINGS.values()]


def leaks(data: bytes, secrets: Iterable[str] = (TOKEN, FILED)) -> bool:
    """Return whether any form of a secret is in some bytes, also once their escapes are decoded."""
    wanted = [form for secret in secrets for form in forms(secret)]
    for _ in range(3):
        lowered = data.lower()
        if any(form in data or form.lower() in lowered for form in wanted):
            return True
        data = unescaped(data)
    return False


def unescaped(data: bytes) -> bytes:
    data = re.sub(rb"(?:%|\\u00|\\x)([0-9A-Fa-f]{2})", lambda found: bytes.fromhex(found[1].decode()), data)
    return re.sub(rb"\\[nrt]|[\\\s]", b"", data)


def about(pid: int, name: str) -> bytes:
    return Path(f"/proc/{pid}/{name}").read_bytes()


def files_in(directory: Path) -> list[Path]:
    own = {"lab.token", "acme.refresh"}
    return [file for file in directory.rglob("*") if file.is_file() and file.name not in own]


def content(file: Path) -> bytes:
    data = file.read_bytes()
    return gzip.decompress(data) if file.suffix == ".gz" else data


def core_limits(pids: Iterable[int]) -> list[list[str]]:
    lines = [line for pid in pids for line in about(pid, "limits").decode().splitlines()]
    return [line.split()[4:6] for line in lines if "core file" in line]


@pytest.mark.parametrize("database", ["registry.db", *in_faults("lab.db")])
async def test_crawl_leaves_no_secret_in_files_or_output(database: str, tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        options: list[str] = []
        url = ""
        if database == "registry.db":
            registry = stack.enter_context(registry_server(tmp_path))
            url = registry.url
            options = ["--registry", url]
        seen = {secret: asyncio.Event() for secret in (TOKEN, FILED)}
        urls, credentials = [], []
        number = 1
        for secret, source in ((TOKEN, "env: LAB_TOKEN"), (FILED, "file: lab.token")):
            for encoding, encode in ENCODINGS.items():
                number += 1
                host = f"127.0.0.{number}"
                server = await stack.enter_async_context(
                    serving({RPC: echoing(secret, encode(secret), seen[secret])}, host=host)
                )
                text = encode(secret)
                server.replies[CARD_PATH] = as_json(card(name=text, url=server.url + RPC), ETag=f'"{text}"')
                server.replies[HEALTH_PATH] = as_json(document(agent_id=text))
                urls.append(server.url)
                name = f"{'file' if secret is FILED else 'env'}-{encoding}".replace("_", "-")
                credentials.append(f"  - {{name: {name}, origin: '{server.url}', bearer: {{{source}}}}}\n")
        (tmp_path / "lab.token").touch(mode=0o600)
        (tmp_path / "lab.token").write_text(FILED)
        (tmp_path / "lab.yml").write_text(
            "name: lab\ncontact: mailto:tests@agent.example\nnetworks: {allow: [127.0.0.0/8]}\n"
            "ask: {message: {text: hello}}\nlimits: {concurrency: 4}\n"
            "evidence: {directory: evidence}\nresults: {jsonl: seen.jsonl}\n"
            f"targets: [{', '.join(map(repr, urls))}]\ncredentials:\n{''.join(credentials)}"
        )
        process = await asyncio.create_subprocess_exec(
            Path(sys.executable).with_name("lifesign"),
            "crawl", "lab.yml", "--once", "--workers", "2", "--report", "report", "--log-format", "json",
            *options,
            cwd=tmp_path,
            env=os.environ | {"LAB_TOKEN": TOKEN, KEY_VARIABLE: KEYS[Role.PROBER]},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        output = asyncio.create_task(process.communicate())
        async with asyncio.timeout(PATIENCE_SECONDS):
            await asyncio.wait(
                [output, asyncio.create_task(seen[TOKEN].wait())], return_when=asyncio.FIRST_COMPLETED
            )
            workers = descendants(process.pid)
            arguments = [about(pid, "cmdline") for pid in (process.pid, *workers)]
            environments = [about(pid, "environ") for pid in workers]
            cores = core_limits([process.pid, *workers])
            written = b"".join(await output)
        if options:
            for path in ("/metrics", "/api/v1/events?limit=1000", "/api/v1/targets", "/api/v1/monitor"):
                shown = await asyncio.to_thread(fetch, url + path, KEYS[Role.ADMIN], 10_000_000)
                assert shown is not None
                assert (shown[0], leaks(shown[2])) == (200, False), path
    assert process.returncode == 0, written
    assert len(workers) >= 2
    assert not any(map(leaks, [*arguments, *environments, written]))
    assert KEYS[Role.PROBER].encode() not in b"".join(environments)
    # Processes that only keep track of resources have no secret.
    assert cores.count(["1", "1"]) >= 3
    left = files_in(tmp_path)
    assert {database, "seen.jsonl"} <= {file.name for file in left}
    assert any("evidence" in file.parts for file in left)
    for file in left:
        assert not leaks(content(file)), file.name
    results = (tmp_path / "seen.jsonl").read_text()
    assert results.count("REMOVED-SECRET") >= len(urls)
    assert all(event.is_set() for event in seen.values())


BROWSER = """#!{python}
import pathlib, sys, urllib.request
here = pathlib.Path(sys.argv[0]).parent
facts = b"".join(pathlib.Path("/proc/self", name).read_bytes() for name in ("environ", "cmdline"))
(here / "browser.facts").write_bytes(facts)
parent = pathlib.Path("/proc/self/stat").read_text().rpartition(")")[2].split()[1]
(here / "login.limits").write_text(pathlib.Path("/proc", parent, "limits").read_text())
(here / "login.cmdline").write_bytes(pathlib.Path("/proc", parent, "cmdline").read_bytes())
urllib.request.urlopen(sys.argv[1], timeout=30)
"""


def returning(provider: Provider, encode: Callable[[str], str], seen: asyncio.Event) -> Reply:
    """Fail with the access token in the error if there is a valid one; else ask for it."""

    async def reply(writer: asyncio.StreamWriter, head: str) -> None:
        token = next((each for each in provider.valid if each in head), None)
        if token is None:
            await answer(401, WWW_Authenticate="Bearer")(writer, head)
            return
        seen.set()
        await asyncio.sleep(0.3)
        failure = {"jsonrpc": "2.0", "id": 1, "error": {"code": -32603, "message": encode(token)}}
        await as_json(failure)(writer, head)

    return reply


async def run(directory: Path, *arguments: str, **variables: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        Path(sys.executable).with_name("lifesign"),
        *arguments,
        cwd=directory,
        env=os.environ | {"CLIENT_SECRET": CLIENT_SECRET, KEY_VARIABLE: KEYS[Role.PROBER]} | variables,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def test_a_login_and_the_crawl_with_its_token_leave_no_secret_behind(tmp_path: Path) -> None:
    browser = tmp_path / "browser"
    browser.write_text(BROWSER.format(python=sys.executable))
    browser.chmod(0o700)
    async with AsyncExitStack() as stack:
        registry = stack.enter_context(registry_server(tmp_path))
        provider, token_url = stack.enter_context(serving_provider())
        seen = asyncio.Event()
        server = await stack.enter_async_context(serving({}))
        urls = [f"{server.url}/{name}" for name in ENCODINGS]
        for name, encode in ENCODINGS.items():
            server.replies[f"/{name}{RPC}"] = returning(provider, encode, seen)
            server.replies[f"/{name}{CARD_PATH}"] = as_json(card(url=f"{server.url}/{name}{RPC}"))
        (tmp_path / "lab.yml").write_text(
            "name: lab\ncontact: mailto:tests@agent.example\nnetworks: {allow: [127.0.0.0/8]}\n"
            "ask: {message: {text: hello}}\nlimits: {concurrency: 4}\n"
            "evidence: {directory: evidence}\nresults: {jsonl: seen.jsonl}\n"
            f"targets: [{', '.join(map(repr, urls))}]\ncredentials:\n"
            f"  - name: acme\n    origin: '{server.url}'\n    oauth2:\n      token_url: '{token_url}'\n"
            f"      authorization_url: '{token_url.replace(TOKEN_PATH, AUTHORIZE_PATH)}'\n"
            f"      client_id: {CLIENT}\n      client_secret: {{env: CLIENT_SECRET}}\n"
            f"      grant: refresh_token\n      token_file: acme.refresh\n      scope: {RIGHTS}\n"
        )
        login = await run(
            tmp_path, "credentials", "login", "acme", "--definition", "lab.yml", "--yes",
            BROWSER=f"{browser} %s",
        )  # fmt: skip
        async with asyncio.timeout(PATIENCE_SECONDS):
            written = b"".join(await login.communicate())
        assert login.returncode == 0, written
        crawl = await run(
            tmp_path, "crawl", "lab.yml", "--once", "--workers", "2", "--log-format", "json",
            "--registry", registry.url,
        )  # fmt: skip
        output = asyncio.create_task(crawl.communicate())
        async with asyncio.timeout(PATIENCE_SECONDS):
            await asyncio.wait(
                [output, asyncio.create_task(seen.wait())], return_when=asyncio.FIRST_COMPLETED
            )
            pids = [crawl.pid, *descendants(crawl.pid)]
            processes = b"".join(about(pid, "cmdline") for pid in pids)
            processes += b"".join(about(pid, "environ") for pid in pids[1:])
            cores = core_limits(pids)
            written += b"".join(await output)
        assert crawl.returncode == 0, written
        redeemed = provider.forms[0]
        secrets = [CLIENT_SECRET, *provider.issued, *provider.refresh_tokens]
        secrets += [redeemed["code"], redeemed["code_verifier"]]
        for path in ("/metrics", "/api/v1/events?limit=1000", "/api/v1/targets", "/api/v1/monitor"):
            shown = await asyncio.to_thread(fetch, registry.url + path, KEYS[Role.ADMIN], 10_000_000)
            assert shown is not None
            assert (shown[0], leaks(shown[2], secrets)) == (200, False), path
    # The refresh token was used once, and replaced.
    assert [form["grant_type"] for form in provider.forms] == ["authorization_code", "refresh_token"]
    assert (tmp_path / "acme.refresh").read_text().strip() == provider.refresh_tokens[-1]
    assert len(secrets) == 7
    assert not leaks(written + processes, secrets)
    assert KEYS[Role.PROBER].encode() not in processes + (tmp_path / "browser.facts").read_bytes()
    assert cores.count(["1", "1"]) >= 3
    assert ["1", "1"] in [
        line.split()[4:6] for line in (tmp_path / "login.limits").read_text().splitlines() if "core" in line
    ]
    left = files_in(tmp_path)
    assert {"registry.db", "seen.jsonl", "browser.facts"} <= {file.name for file in left}
    for file in left:
        assert not leaks(content(file), secrets), file.name
    assert (tmp_path / "seen.jsonl").read_text().count("REMOVED-SECRET") >= len(urls)
