"""An agent that claims tasks of a pool.

    export LIFESIGN_REGISTRY=http://127.0.0.1:8440 LIFESIGN_KEY=ahk_...
    .venv/bin/python docs/examples/task_worker.py writer-1.key

It claims tasks of the pool `writers`, and counts the `words` in their input. After SIGTERM, Ctrl-C, or
`lifesign agents drain writer-1` it finishes its tasks, then ends.
"""

import argparse
from collections.abc import Mapping
from typing import Any

from lifesign.agent import Agent, ClaimedTask, on_assignment, run_agent
from lifesign.domain.models.agents import HeartbeatConfig

arguments = argparse.ArgumentParser(description="Count words, for tasks of the pool `writers`.")
arguments.add_argument("key_file", help="file for the agent's own key, which the first registration creates")


@Agent(
    "writer-1",
    role_id="writers",
    capacity=2,
    tasks=True,
    # Short, so that the effects of missed heartbeats are visible soon.
    heartbeat=HeartbeatConfig(interval_seconds=1, unhealthy_after_seconds=3, dead_after_seconds=6),
    key_file=arguments.parse_args().key_file,
)
class Writer:
    """Counts words, and reports its progress."""

    @on_assignment
    async def work(self, task: ClaimedTask) -> Mapping[str, Any]:
        """Work on one task; the result then waits for a review."""
        print(f"begun: {task.title}", flush=True)
        if task.latest_report is not None:
            print(f"continues from: {task.latest_report['summary']}", flush=True)
        words = task.input.get("words")
        if not isinstance(words, list):
            await task.request_help("which words?")
            return {}
        await task.report_progress("read the input", next_step="count the words")
        return {"count": len(words)}


if __name__ == "__main__":
    print(f"left: {run_agent(Writer())}", flush=True)
