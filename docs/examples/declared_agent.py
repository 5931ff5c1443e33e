"""A class as an agent that registers, sends heartbeats, works and drains (RFC-0016 3.4).

    export LIFESIGN_REGISTRY=http://127.0.0.1:8440 LIFESIGN_KEY=ahk_...
    .venv/bin/python docs/examples/declared_agent.py reporter-1.key

Each line of standard input is a task: a number of seconds to wait. After SIGTERM, Ctrl-C, or `lifesign
agents drain reporter-1` the agent finishes its tasks, then ends. A second signal ends it at once, if
it comes more than a second after the first one.
"""

import argparse
import asyncio
import sys

from lifesign.agent import (
    Agent,
    AgentRunner,
    HeartbeatConfig,
    WorkDropped,
    WorkRefused,
    on_assignment,
    on_drain,
    run_agent,
)

arguments = argparse.ArgumentParser(
    description="Work on the lines of standard input until the agent is drained."
)
arguments.add_argument("key_file", help="file for the agent's own key, which the first registration creates")


@Agent(
    "reporter-1",
    role_id="reporter",
    capabilities=["report"],
    capacity=2,
    drain_timeout_seconds=60,
    # Short, so that the effects of missed heartbeats are visible soon.
    heartbeat=HeartbeatConfig(interval_seconds=1, unhealthy_after_seconds=3, dead_after_seconds=6),
    key_file=arguments.parse_args().key_file,
)
class Reporter:
    """Waits for the given number of seconds."""

    @on_assignment
    async def work(self, task: str) -> str:
        """Work on one task."""
        print(f"begun: {task}", flush=True)
        await asyncio.sleep(float(task))
        return f"report after {task} s"

    @on_drain
    async def leave(self) -> None:
        """Print a line. The SDK calls this once, when a drain begins."""
        print("draining", flush=True)


async def do(agent: AgentRunner, task: str) -> None:
    """Submit one task, and print its result."""
    try:
        print(await agent.assign(task), flush=True)
    except (WorkDropped, WorkRefused, ValueError) as error:
        print(error, flush=True)


async def take_tasks(agent: AgentRunner) -> None:
    """Submit each line of standard input as a task."""
    print(f"registered, incarnation {agent.incarnation}", flush=True)
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    async with asyncio.TaskGroup() as group:
        async for line in lines:
            group.create_task(do(agent, line.decode().strip()))


if __name__ == "__main__":
    print(f"left: {run_agent(Reporter(), beside=take_tasks)}", flush=True)
