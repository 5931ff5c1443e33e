"""An agent and its task after its adapter was stopped or killed."""

import asyncio
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.support.adapting import World, adapter_process, world_of
from tests.support.registry_server import KEYS, RegistryServer, registry_server
from tests.support.renewing import LONG_SECONDS
from tests.support.servers import PATIENCE_SECONDS, until

from lifesign.adapter.credentials import agent_key_file
from lifesign.adapter.process import process_watcher
from lifesign.client import RegistryClient
from lifesign.client.registry_errors import Gone, Stale
from lifesign.client.registry_tasks import HeldRun
from lifesign.domain.access.permissions import Role
from lifesign.serving.ending_signals import REPEAT_SECONDS

AGENT = """
import os, subprocess, sys, time
child = subprocess.Popen(["sleep", "1000"])
if os.fork() == 0:
    os.setsid()
    time.sleep(1000)
print("ready", flush=True)
time.sleep(1000)
"""
"""Starts a child, and leaves another process behind in a session of its own."""
COMMAND = ("--", sys.executable, "-c", AGENT)


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryServer]:
    """A real registry on loopback."""
    with registry_server(tmp_path_factory.mktemp("registry")) as server:
        yield server


@pytest.fixture
async def world(registry: RegistryServer, tmp_path: Path) -> AsyncIterator[World]:
    """A task for the pool whose lease is short."""
    async with world_of(registry, tmp_path) as world:
        yield await world.leased_for(3.0)


async def status_is(world: World, *statuses: str) -> None:
    """Wait until the task is there."""
    give_up_s = time.monotonic() + PATIENCE_SECONDS
    while (await world.now()).status not in statuses:
        assert time.monotonic() < give_up_s, await world.now()
        await asyncio.sleep(0.1)


def own_key_of(world: World, agent_id: str) -> str:
    return agent_key_file(world.directory / "runs", world.registry.url, agent_id).read_text().strip()


def read_of(pid: int, what: str) -> bytes:
    return Path(f"/proc/{pid}/{what}").read_bytes()


@pytest.mark.fault
@pytest.mark.long
async def test_case_25_killed_adapter_leaves_no_process_and_its_task_is_claimed_again(
    world: World,
) -> None:
    with adapter_process(
        world.registry, world.directory, "--pool", "coder", "--agent-id", "killed", *COMMAND
    ) as adapter:
        granted = adapter.until("started")
        until("the agent is ready", lambda: "ready\n" in adapter.errors)
        below = set(process_watcher.descendants(adapter.process.pid))
        # The watcher, the agent, its child and its orphan.
        assert len(below) == 4
        adapter.process.kill()
        until("nothing is left", lambda: not below & process_watcher.processes().keys())
        await status_is(world, "queued")
    assert await world.runs() == [("lease_expired", None)]
    with adapter_process(
        world.registry, world.directory, "--pool", "coder", "--agent-id", "next", "--once", "--", "true"
    ) as following:
        assert following.end() == 0
        assert following.until("granted")["fencing_token"] > granted["fencing_token"]
    assert (await world.now()).status == "review"


@pytest.mark.fault
@pytest.mark.long
async def test_case_4_adapter_suspended_past_its_deadline_kills_its_agent_and_writes_nothing(
    world: World,
) -> None:
    with adapter_process(
        world.registry, world.directory, "--pool", "coder", "--agent-id", "sleeper", "--once", *COMMAND
    ) as adapter:
        started = adapter.until("started")
        until("the agent is ready", lambda: "ready\n" in adapter.errors)
        below = set(process_watcher.descendants(adapter.process.pid))
        adapter.process.send_signal(signal.SIGSTOP)
        # The watcher ends the agent: the task is queued again while the adapter is still stopped.
        until("nothing of the agent is left", lambda: not below & process_watcher.processes().keys())
        await status_is(world, "queued")
        adapter.process.send_signal(signal.SIGCONT)
        assert adapter.end() == 4
        failed = adapter.until("failed")
        assert failed["exit_reason"] == "lease_expired"
        # Dead agents are not asked.
        assert [line for line in adapter.lines if line["what"] == "stopping"] == []
        assert not below & process_watcher.processes().keys()
    own_key = own_key_of(world, "sleeper")
    late = HeldRun(task_id=started["task_id"], run_id=started["run_id"], fencing_token=1)
    async with RegistryClient(world.registry.url, key=own_key) as zombie:
        with pytest.raises((Stale, Gone)):
            await zombie.tasks.mark_complete(late, {"late": True})
    assert (await world.now()).status == "queued"


async def test_command_lines_of_processes_contain_no_secret(world: World) -> None:
    world = await world.leased_for(LONG_SECONDS)
    with adapter_process(
        world.registry, world.directory, "--pool", "coder", "--agent-id", "seen", *COMMAND
    ) as adapter:
        adapter.until("started")
        own_key = own_key_of(world, "seen")
        below = process_watcher.descendants(adapter.process.pid)
        shown = b"".join(read_of(pid, "cmdline") for pid in (adapter.process.pid, *below))
        environments = b"".join(read_of(pid, "environ") for pid in below)
        token = [
            part.partition(b"=")[2]
            for part in environments.split(b"\0")
            if part.startswith(b"LIFESIGN_RUN_TOKEN=")
        ]
        assert token
        for secret in (own_key.encode(), KEYS[Role.ENROLL].encode(), token[0]):
            assert secret not in shown
        for key in (own_key, KEYS[Role.ENROLL]):
            assert key.encode() not in environments
            assert key not in "".join([*map(str, adapter.lines), *adapter.errors])
        adapter.process.send_signal(signal.SIGTERM)
        await asyncio.sleep(REPEAT_SECONDS)
        adapter.process.send_signal(signal.SIGINT)
        assert adapter.end() == 0
