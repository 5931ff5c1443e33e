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
"""Short, so that the lease of the killed holder expires soon; less may be too short on a busy machine."""
PATIENCE_SECONDS = 90
"""The start of the agent takes a few seconds, and longer on a busy machine."""
TOOLS = f"""
upstreams:
  desk:
    command: [{sys.executable}, {HERE / "desk_tools.py"}]
    tools:
      look_up: {{usd_per_call: 0.01}}
"""


def adapter(directory: Path, name: str, seconds: float) -> list[str]:
    """Return the command of an adapter whose agent takes `seconds` for each section."""
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


def wait_for_event(running: "subprocess.Popen[str]", what: str) -> dict[str, Any]:
    """Return the next event of this kind that an adapter prints."""
    texts: list[str] = []
    for line in running.stdout or ():
        read: dict[str, Any] = json.loads(line)
        if read["what"] == what:
            return read
        texts.append(read["text"])
    raise SystemExit("\n".join([f"an adapter ended without the event {what}:", *texts]))


def is_there(pid: int) -> bool:
    """Return whether a process exists."""
    return Path(f"/proc/{pid}").exists()


async def until(client: RegistryClient, task_id: str, is_so: Callable[[TaskRecord], object]) -> TaskRecord:
    """Wait until a condition holds for the task."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_so(task := await client.tasks.get(task_id)):
        if time.monotonic() > deadline:
            raise SystemExit(f"the task has been {task.status} for too long: {task.explanation}")
        await asyncio.sleep(0.05)
    return task


async def run_scenario(client: RegistryClient, url: str, directory: Path, stack: ExitStack) -> None:
    """Kill the first holder of a task, and print what happens to the task."""
    work = {"sections": ["hero", "prices", "contact"]}
    budget = {"usd": 0.05}
    task = await client.tasks.create(
        "Write the landing page", role_id="writers", input=work, budget=budget, lease_seconds=LEASE_SECONDS
    )
    say("a task is queued: three sections to write, with 0.05 USD for tools")

    first = stack.enter_context(process(adapter(directory, "writer-1", 30), {}))
    started = wait_for_event(first, "started")
    say(f"writer-1 has the task with fencing token {started['fencing_token']}; its agent is working")
    now = await until(client, task.task_id, lambda task: task.latest_report)
    report = now.latest_report.report if now.latest_report else {}
    say(f"the agent has called a tool for {now.budget.settled.usd} USD, and reported: {report['summary']}")

    second = stack.enter_context(process(adapter(directory, "writer-2", 0.1), {}))
    wait_for_event(second, "waiting")
    first.send_signal(signal.SIGKILL)
    say("writer-1 is killed (SIGKILL); writer-2 waits for a task")
    granted = wait_for_event(second, "started")
    say(f"the lease has expired: writer-2 has the task with token {granted['fencing_token']}, and the report")

    agent = int(started["text"].split()[1])
    if is_there(agent):
        raise SystemExit(f"the agent of writer-1 is still running: process {agent}")
    say("no process of the agent of writer-1 is left")
    zombie = HeldRun(task_id=task.task_id, run_id=started["run_id"], fencing_token=started["fencing_token"])
    # The adapter has a directory for each registry.
    (key_file,) = (directory / "writer-1" / "own-keys").glob("*/writer-1.key")
    async with RegistryClient(url, key=key_file.read_text().strip()) as late:
        try:
            await late.tasks.mark_complete(zombie, {"page": []})
            raise SystemExit("the late write went through")
        except Stale as error:
            say(f"a late write with token {started['fencing_token']} is refused: {error.status} {error.code}")

    wait_for_event(second, "completed")
    done = await until(client, task.task_id, lambda task: task.status == "review")
    say(
        f"writer-2 continued from the report: the task is in {done.status}, and cost "
        f"{done.budget.settled.usd} USD in all"
    )
    say("the page that it wrote:")
    for line in (done.output or {}).get("page", []):
        print(f"            {line}")
    runs = [f"{run.holder} {run.exit_reason}" for run in reversed(done.runs)]
    say(f"its runs: {', '.join(runs)}")
    reviewed = await client.tasks.review(task.task_id, "accept")
    say(f"a reviewer accepts it: {reviewed.task.status}")


async def follow(url: str, key: str, directory: Path, stack: ExitStack) -> None:
    """Run the demo."""
    async with RegistryClient(url, key=key) as client:
        await run_scenario(client, url, directory, stack)


def main() -> int:
    print("A task, and two adapters that each run an agent (seconds since the start of this part):\n")
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
