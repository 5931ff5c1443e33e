"""An agent without HTTP, such as a queue worker, with a health document.

    python docs/examples/queue_worker.py

The agent counts its interactions itself, and prints the document. Yours writes it to a file or sends it.
"""

import queue
import time

from lifesign import AgentHealth, Outcome

health = AgentHealth(agent_id="urn:example:translator", baseline_p99_ms=2000)


def work(jobs: "queue.SimpleQueue[str]") -> None:
    """Answer all waiting jobs."""
    while not jobs.empty():
        with health.interaction() as interaction:
            if translate(jobs.get()) is None:
                interaction.outcome = Outcome.TASK_FAILED


def translate(text: str) -> str | None:
    return text.upper() if text.isascii() else None


def note_foreign_call(seconds: float) -> None:
    """Count a call that other code has timed, such as the hook of a client library."""
    health.record("answered", latency_ms=seconds * 1000)


if __name__ == "__main__":
    jobs: queue.SimpleQueue[str] = queue.SimpleQueue()
    for text in ["good morning"] * 19 + ["dzień dobry"]:
        jobs.put(text)
    began = time.perf_counter()
    work(jobs)
    note_foreign_call(time.perf_counter() - began)
    print(health.document().to_json().decode())
