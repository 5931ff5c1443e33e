"""An agent that registers, sends heartbeats, drains, and returns after a crash (RFC-0016 3 to 5).

    export LIFESIGN_REGISTRY=http://127.0.0.1:8440 LIFESIGN_KEY=ahk_...
    .venv/bin/python docs/examples/registered_agent.py worker-1 worker-1.key

The key needs the permission to register agents. The file keeps the agent's own key for the next start. The
program runs until SIGTERM, Ctrl-C, or a drain that the registry requests.
"""

import argparse
import asyncio
import os
import signal
from pathlib import Path

from lifesign.client import RegistryClient
from lifesign.client.registry_errors import Gone
from lifesign.domain.lifecycle.status_table import Status
from lifesign.domain.models.agents import HeartbeatConfig

CONFIG = HeartbeatConfig(interval_seconds=1, unhealthy_after_seconds=2, dead_after_seconds=5)
"""Short, so that the effects of missed heartbeats are visible soon."""


def kept_key(file: Path) -> str:
    """Return the key that an earlier incarnation has stored, if there is one."""
    return file.read_text().strip() if file.exists() else ""


def keep_key(file: Path, key: str) -> None:
    """Store the key, which the registry shows only once, in a private file."""
    file.touch(mode=0o600)
    file.write_text(f"{key}\n")


async def register(registry: str, agent_id: str, file: Path) -> str:
    """Register the agent, and return its own key, which is valid for this agent only."""
    known = kept_key(file)
    # After a crash, the former incarnation may still be active. The agent's own key may end it.
    async with RegistryClient(registry, key=known or os.environ["LIFESIGN_KEY"]) as client:
        record = await client.agents.register(
            agent_id,
            role_id="reporter",
            capabilities=["report"],
            max_concurrent_tasks=2,
            heartbeat_config=CONFIG,
            supersede=bool(known),
        )
    if record.agent_key is not None:
        keep_key(file, record.agent_key)
    print(f"{agent_id} is {record.status}, incarnation {record.incarnation}", flush=True)
    return known or record.agent_key or ""


async def send_heartbeat(client: RegistryClient, agent_id: str, leaving: asyncio.Event) -> None:
    """Send one heartbeat per interval until the agent has to stop, then report that it drains."""
    while not leaving.is_set():
        reply = await client.agents.heartbeat(agent_id, current_load=0)
        if reply.agent_status is Status.DRAINING or reply.pending_commands:
            break
        try:
            await asyncio.wait_for(leaving.wait(), CONFIG.interval_seconds)
        except TimeoutError:
            continue
    # A real agent would finish its work here.
    await client.agents.heartbeat(agent_id, status="draining")


async def main(registry: str, agent_id: str, file: Path) -> None:
    """Run one incarnation, from the registration to the end."""
    leaving = asyncio.Event()
    for ending in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(ending, leaving.set)
    async with RegistryClient(registry, key=await register(registry, agent_id, file)) as client:
        try:
            await send_heartbeat(client, agent_id, leaving)
        except Gone as error:
            # The agent was drained or deregistered between two heartbeats.
            print(error)


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description="Send heartbeats until the agent has to stop.")
    arguments.add_argument("agent_id")
    arguments.add_argument("key_file", type=Path, help="file with the agent's own key for the next start")
    given = arguments.parse_args()
    needed = {"LIFESIGN_REGISTRY"} | (set() if given.key_file.exists() else {"LIFESIGN_KEY"})
    if missing := needed - os.environ.keys():
        arguments.error(f"not set: {', '.join(sorted(missing))}")
    asyncio.run(main(os.environ["LIFESIGN_REGISTRY"], given.agent_id, given.key_file))
