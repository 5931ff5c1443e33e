"""Demo: a task whose agent is killed while it works.

    make demo                                       or
    .venv/bin/python docs/examples/task_demo.py

Starts `lifesign serve` and two adapters (`lifesign run`), each with an agent (`page_agent.py`) that
reports progress and calls a tool that costs money. The first adapter is killed; the task moves to the second
one, with a higher fencing token and the latest report. Exits with 0 if all of this happened.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from demo_programs import COMMAND, address, exit_with, process, say

from lifesign.client import RegistryClient
from lifesign.client.registry_errors import Stale
from lifesign.client.registry_tasks import HeldRun
from lifesign.domain.models.tasks import TaskRecord

HERE = Path(__file__).parent
LEASE_SECONDS = 20.0
"""Short, so that a lost holder is seen to lose it; a busy machine may starve one that has less."""
PATIENCE_SECONDS = 90
"""To start the agent takes a few seconds, and many on a busy machine."""
TOOLS = f"""
upstreams:
  desk:
    command: [{sys.executable}, {HERE / "desk_tools.py"}]
    tools:
      look_up: {{usd_per_call: 0.01}}
"""


def adapter(directory: Path, name: str, seconds: float) -> list[str]:
    """Return the command that works at tasks, with an agent that takes so long for each section."""
    options = [
        "--agent-id",
        name,
        "--pool",
        "writers",
        "--once",
        "--json",
        "--workspaces",
        str(directory / name),
    ]
    agent = ["--tools", str(directory / "tools.yml"), "--", sys.executable, str(HERE / "page_agent.py")]
    return [*COMMAND, "run", *options, *agent, str(seconds)]


def told(running: "subprocess.Popen[str]", what: str) -> dict[str, Any]:
    """Wait until an adapter prints this."""
    said: list[str] = []
    for line in running.stdout or ():
        read: dict[str, Any] = json.loads(line)
        if read["what"] == what:
            return read
        said.append(read["text"])
    raise SystemExit("\n".join([f"an adapter ended, and was not {what}:", *said]))


def is_there(pid: int) -> bool:
    """Whether a process is there."""
    return Path(f"/proc/{pid}").exists()


async def until(client: RegistryClient, task_id: str, is_so: Callable[[TaskRecord], object]) -> TaskRecord:
    """Wait until something is true of the task."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_so(task := await client.tasks.get(task_id)):
        if time.monotonic() > deadline:
            raise SystemExit(f"the task is {task.status} for too long: {task.explanation}")
        await asyncio.sleep(0.05)
    return task


async def tell(client: RegistryClient, url: str, directory: Path, stack: ExitStack) -> None:
    """Let it all happen, and say what becomes of the task."""
    work = {"sections": ["hero", "prices", "contact"]}
    budget = {"usd": 0.05}
    task = await client.tasks.create(
        "Write the landing page", role_id="writers", input=work, budget=budget, lease_seconds=LEASE_SECONDS
    )
    say("a task is queued: three sections to write, with 0.05 USD for tools")

    first = stack.enter_context(process(adapter(directory, "writer-1", 30), {}))
    started = told(first, "started")
    say(f"writer-1 has it with fencing token {started['fencing_token']}; its agent works")
    now = await until(client, task.task_id, lambda task: task.latest_report)
    report = now.latest_report.report if now.latest_report else {}
    say(f"it has called a tool for {now.budget.settled.usd} USD, and reported: {report['summary']}")

    second = stack.enter_context(process(adapter(directory, "writer-2", 0.1), {}))
    told(second, "waiting")
    first.send_signal(signal.SIGKILL)
    say("writer-1 is killed (SIGKILL); writer-2 waits for a task")
    granted = told(second, "started")
    say(f"the lease is over: writer-2 has the task with token {granted['fencing_token']}, and the report")

    agent = int(started["text"].split()[1])
    if is_there(agent):
        raise SystemExit(f"the agent of writer-1 is still there: process {agent}")
    say("nothing is left of the agent of writer-1")
    zombie = HeldRun(task_id=task.task_id, run_id=started["run_id"], fencing_token=started["fencing_token"])
    own_key = (directory / "writer-1" / "own-keys" / "writer-1.key").read_text().strip()
    async with RegistryClient(url, key=own_key) as late:
        try:
            await late.tasks.mark_complete(zombie, {"page": []})
            raise SystemExit("the late write went through")
        except Stale as error:
            say(f"a late write with token {started['fencing_token']} is refused: {error.status} {error.code}")

    told(second, "completed")
    done = await until(client, task.task_id, lambda task: task.status == "review")
    say(
        f"writer-2 went on from there: the task is in {done.status}, for {done.budget.settled.usd} USD in all"
    )
    for line in (done.output or {}).get("page", []):
        print(f"            {line}")
    runs = [f"{run.holder} {run.exit_reason}" for run in reversed(done.runs)]
    say(f"its runs: {', '.join(runs)}")
    reviewed = await client.tasks.review(task.task_id, "accept")
    say(f"a reviewer accepts it: {reviewed.task.status}")


async def follow(url: str, key: str, directory: Path, stack: ExitStack) -> None:
    """Run the demo."""
    async with RegistryClient(url, key=key) as client:
        await tell(client, url, directory, stack)


def main() -> int:
    print("A task, and two adapters that run an agent each:\n")
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lifesign-demo-")))
        (directory / "tools.yml").write_text(TOOLS)
        database = {
            "LIFESIGN_SERVER_DATABASE": f"sqlite:///{directory}/registry.db",
            "LIFESIGN_SERVER_STATE_DIR": f"{directory}/state",
        }
        create = [*COMMAND, "keys", "create", "--role", "admin", "--name", "demo"]
        made = subprocess.run(
            create, env={**os.environ, **database}, capture_output=True, text=True, check=True
        )
        key = made.stdout.strip()
        url = address(stack.enter_context(process([*COMMAND, "serve", "--port", "0"], database)))
        os.environ |= {"LIFESIGN_REGISTRY": url, "LIFESIGN_KEY": key}
        asyncio.run(follow(url, key, directory, stack))
    return 0


if __name__ == "__main__":
    exit_with(main)
