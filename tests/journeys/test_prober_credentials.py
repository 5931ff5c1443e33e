"""Two probers of one registry, of which one has a credential and the other one lacks it."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.prober.secrets.test_credential_store import RPC, TOKEN, behind_login
from tests.support.agent_check import card
from tests.support.hostile_server import CARD_PATH, answer, as_json, serving
from tests.support.preloaded import PROGRAM, PreloadedProcess
from tests.support.registry_server import KEYS, registry_server
from tests.support.servers import PATIENCE_SECONDS

from lifesign.client import RegistryClient
from lifesign.client.environment_variables import KEY_VARIABLE
from lifesign.domain.access.permissions import Role

HOSTS = 8
"""Each with an address of its own, and so in a shard of its own."""

pytestmark = pytest.mark.fault


def definition(name: str, urls: list[str], credentials: str) -> str:
    return (
        f"name: lab\ncontact: mailto:tests@agent.example\nnetworks: {{allow: [127.0.0.0/8]}}\n"
        "opt_out: {robots_txt: false}\nask: {health: false}\n"
        "cadence: {allow_fast_cadence: true, interval_seconds: 0.5}\n"
        f"results: {{jsonl: {name}.jsonl, lease_seconds: 5}}\ntargets: [{', '.join(map(repr, urls))}]\n"
        f"{credentials}"
    )


@asynccontextmanager
async def crawl(directory: Path, name: str, registry: str) -> AsyncIterator[None]:
    """Run a prober in a separate process."""
    process = PreloadedProcess(
        [PROGRAM, "crawl", f"{name}.yml", "--registry", registry, "--workers", "1"],
        cwd=directory,
        env=os.environ | {KEY_VARIABLE: KEYS[Role.PROBER], "LAB_TOKEN": TOKEN},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await asyncio.to_thread(process.wait)


def reported(file: Path) -> list[dict[str, Any]]:
    """Return the results that a prober reported, without an incomplete line."""
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")]


def layers(reports: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [each[name] for each in reports for name in ("discovery", "transport") if name in each]


def classes(reports: list[dict[str, Any]]) -> set[str]:
    return {layer["result"] for layer in layers(reports)}


async def until(is_so: Callable[[], bool]) -> None:
    """Poll, since another process acts."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not is_so():  # noqa: ASYNC110 - another process acts
            await asyncio.sleep(0.1)


async def test_results_never_alternate_between_ok_and_gated(tmp_path: Path) -> None:
    with registry_server(tmp_path) as registry:
        async with AsyncExitStack() as stack:
            urls = []
            for number in range(2, HOSTS + 2):
                replies = {RPC: behind_login(answer(405))}
                server = await stack.enter_async_context(serving(replies, host=f"127.0.0.{number}"))
                server.replies[CARD_PATH] = behind_login(as_json(card(url=server.url + RPC)))
                urls.append(server.url)
            listed = "".join(
                f"  - {{name: host-{number}, origin: '{url}', bearer: {{env: LAB_TOKEN}}}}\n"
                for number, url in enumerate(urls)
            )
            (tmp_path / "with.yml").write_text(definition("with", urls, f"credentials:\n{listed}"))
            (tmp_path / "without.yml").write_text(definition("without", urls, ""))
            # The first one has all shards, and hands half of them over to the second one.
            await stack.enter_async_context(crawl(tmp_path, "with", registry.url))
            await until(
                lambda: len({each["target_url"] for each in reported(tmp_path / "with.jsonl")}) == HOSTS
            )
            await stack.enter_async_context(crawl(tmp_path, "without", registry.url))
            await until(lambda: len(reported(tmp_path / "without.jsonl")) > 2 * HOSTS)
            async with RegistryClient(registry.url, key=KEYS[Role.READER]) as client:
                monitor = await client.monitor.get()
                targets = await client.targets.list()
    # A busy machine misses probes.
    able, unable = (
        [
            each
            for each in reported(tmp_path / f"{name}.jsonl")
            if each.get("inconclusive_reason") != "not_probed"
        ]
        for name in ("with", "without")
    )
    assert classes(able) == {"ok"}
    assert classes(unable) == {"not_measured"}
    assert {each["inconclusive_reason"] for each in unable} == {"no_credential"}
    assert {target.result for target in targets.targets} == {"ok"}
    missing = monitor.missing_credentials
    assert {each.name for each in missing} == {f"host-{number}" for number in range(HOSTS)}
    assert len({each.holder for each in missing}) == len({each.held_by for each in missing}) == 1
    assert missing[0].holder != missing[0].held_by
    assert missing[0].held_by in "".join(layer["reason"] for layer in layers(unable))
