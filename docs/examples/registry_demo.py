"""Demo: the decisions of a registry when one agent drains and another is killed.

    make demo                                       or
    .venv/bin/python docs/examples/registry_demo.py

Starts `lifesign serve` and three agents, each in a process of its own on this machine. One is asked
to drain. Another one is killed while it holds a lease, and the third acquires the lease. Exits with 0 if the
registry's event log contains all of this.
"""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from demo_programs import COMMAND, PATIENCE_SECONDS, address, exit_with, first_line, process, say

from lifesign.client import RegistryClient
from lifesign.client.registry_errors import Conflict, Stale
from lifesign.domain.lifecycle.status_table import Status
from lifesign.domain.models.agents import AgentRecord

HERE = Path(__file__).parent
STATE = ("monthly-report", "draft")
WORKERS = ("worker-1", "worker-2", "worker-3")


def key_file(directory: str, agent_id: str) -> Path:
    """Return the file with an agent's own key."""
    return Path(directory, f"{agent_id}.key")


async def until(client: RegistryClient, agent_id: str, status: Status) -> AgentRecord:
    """Wait until the registry reports this status of an agent."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (record := await client.agents.get(agent_id)).status is not status:
        if time.monotonic() > deadline:
            raise SystemExit(f"{agent_id} is {record.status}, not {status}: {record.explanation}")
        await asyncio.sleep(0.05)
    return record


async def run_scenario(
    client: RegistryClient, url: str, keys: dict[str, str], agents: dict[str, "subprocess.Popen[str]"]
) -> None:
    """Drain one agent and kill another, and print the decisions of the registry."""
    killed = RegistryClient(url, key=keys["worker-1"])
    heir = RegistryClient(url, key=keys["worker-2"])
    async with killed, heir:
        pool = (await client.agents.list(role_id="reporter")).pool
        say(f"three agents are active; their pool has capacity for {pool and pool.available_capacity} tasks")

        await client.agents.send_command("worker-3", "drain", reason="maintenance")
        record = await until(client, "worker-3", Status.DEREGISTERED)
        say(f"worker-3 was asked to drain, and is {record.status} ({record.reason})")

        first = await killed.leases.acquire(f"intent:{STATE[0]}/{STATE[1]}")
        await killed.states.write(*STATE, {"page": 1}, fencing_token=first.fencing_token)
        say(f"worker-1 took the monthly report with fencing token {first.fencing_token}, and wrote page 1")
        try:
            await heir.leases.acquire(f"intent:{STATE[0]}/{STATE[1]}")
        except Conflict as error:
            say(f"worker-2 requests the same lease: {error.status} {error.code}")

        agents["worker-1"].send_signal(signal.SIGKILL)
        say("worker-1 is killed (SIGKILL)")
        for status in (Status.UNHEALTHY, Status.DEAD):
            record = await until(client, "worker-1", status)
            say(f"worker-1 is {record.status}: {record.explanation}")

        second = await heir.leases.acquire(f"intent:{STATE[0]}/{STATE[1]}")
        say(
            f"the lease of worker-1 has ended: worker-2 has the report now, with token {second.fencing_token}"
        )
        try:
            await killed.states.write(*STATE, {"page": "late"}, fencing_token=first.fencing_token)
        except (Stale, Conflict) as error:
            say(f"a late write with token {first.fencing_token} is refused: {error.status} {error.code}")
        state = await heir.states.read(*STATE)
        if state.state != {"page": 1} or second.fencing_token <= first.fencing_token:
            raise SystemExit("the late write went through")


async def show_events(client: RegistryClient) -> None:
    """Show the events of the demo in the event log."""
    print("\nThe event log, in which each event contains the hash of the previous one:")
    async for event in client.events.each(types=["agent.lifecycle", "lease.acquired", "lease.expired"]):
        payload = event.payload
        what = (
            f"{payload['previous_status']} -> {payload['new_status']} ({payload['reason']})"
            if event.type == "agent.lifecycle"
            else f"{payload['resource']} token {payload['fencing_token']} {payload.get('reason', '')}"
        )
        who = payload.get("agent_id") or payload.get("holder")
        print(f"  {event.sequence:3}  {event.type:16} {who:9} {what}  {event.hash[:12]}")


async def follow(url: str, key: str, directory: str, agents: dict[str, "subprocess.Popen[str]"]) -> None:
    """Run the demo, then show the registry's log."""
    for running in agents.values():
        first_line(running)
    keys = {agent_id: key_file(directory, agent_id).read_text().strip() for agent_id in agents}
    async with RegistryClient(url, key=key) as client:
        await run_scenario(client, url, keys, agents)
        await show_events(client)


def main() -> int:
    print("A registry and three agents, each in its own process (seconds since the start of this part):\n")
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="lifesign-demo-"))
        database = {
            "LIFESIGN_SERVER_DATABASE": f"sqlite:///{directory}/registry.db",
            "LIFESIGN_SERVER_STATE_DIR": f"{directory}/state",
        }
        create = [*COMMAND, "keys", "create", "--role", "admin", "--name", "demo"]
        made = subprocess.run(
            create, env={**os.environ, **database}, capture_output=True, text=True, check=True
        )
        key = made.stdout.strip()
        server = stack.enter_context(process([*COMMAND, "serve", "--port", "0"], database))
        url = address(server)
        environment = {"LIFESIGN_REGISTRY": url, "LIFESIGN_KEY": key}
        script = str(HERE / "registered_agent.py")
        agents = {
            agent_id: stack.enter_context(
                process([sys.executable, script, agent_id, str(key_file(directory, agent_id))], environment)
            )
            for agent_id in WORKERS
        }
        asyncio.run(follow(url, key, directory, agents))
        verify = [*COMMAND, "events", "verify"]
        print("\n$ lifesign events verify", flush=True)
        return subprocess.run(verify, env={**os.environ, **database}, check=False).returncode


if __name__ == "__main__":
    exit_with(main)
