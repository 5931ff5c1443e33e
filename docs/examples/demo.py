"""Demo: the health documents of three agents, one of which works.

    make demo                                       or
    .venv/bin/python docs/examples/demo.py --keep   to keep the agents running afterwards

Starts the three agents of sample_agents.py, each in a process of its own on this machine, sends each
the same messages with the A2A SDK's own client, and shows their health documents and a consumer's decision
on each. Exits with 0 if all three documents and decisions are as expected.
"""

import argparse
import asyncio
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
from a2a.client import ClientConfig, ClientFactory
from a2a.helpers import new_text_message
from a2a.types import Role, SendMessageRequest
from a2a.utils.errors import A2AError

from lifesign.client import HealthCheck, fetch_health

MESSAGES = 40
"""Messages to each agent; every other one is streamed."""
AT_ONCE = 8
MOST_COLUMNS = 100
PATIENCE_SECONDS = 10

AGENTS = {
    "well": ("answers", {"healthy"}),
    "half": ("its model fails every second time", {"degraded", "unhealthy"}),
    "crash": ("raises after it has begun to work", {"unhealthy"}),
}
NOTE = (
    "In a document, `excluded` is the number of requests that count in no ratio, such as for the card.\n"
    "`first-byte` has the time until streamed answers begin."
)


@contextmanager
def agent_process(kind: str, log: Path) -> Iterator[str]:
    """Run an agent while the body runs, and yield its URL."""
    command = [sys.executable, str(Path(__file__).with_name("sample_agents.py")), kind]
    with (
        log.open("w") as errors,
        # A session of its own: Ctrl-C is for the demo, which then ends the agent.
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        ) as process,
    ):
        try:
            if process.stdout is None or not (url := process.stdout.readline().strip()):
                raise SystemExit(f"the agent {kind!r} did not start:\n{log.read_text()}")
            yield url
        finally:
            process.terminate()
            try:
                process.wait(PATIENCE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()


async def converse(url: str) -> Counter[int]:
    """Send an agent its messages; return the number of answers by HTTP status."""
    statuses: Counter[int] = Counter()

    async def note_status(response: httpx.Response) -> None:
        if response.request.method == "POST":
            statuses[response.status_code] += 1

    async with httpx.AsyncClient(event_hooks={"response": [note_status]}) as http:
        unary, streaming = [
            await ClientFactory(ClientConfig(httpx_client=http, streaming=is_streamed)).create_from_url(url)
            for is_streamed in (False, True)
        ]
        turn = asyncio.Semaphore(AT_ONCE)

        async def send(number: int) -> None:
            message = new_text_message(f"message {number}", role=Role.ROLE_USER)
            async with turn:
                try:
                    async for _ in (streaming if number % 2 else unary).send_message(
                        SendMessageRequest(message=message)
                    ):
                        pass
                except A2AError:
                    pass  # The crashing agent answers with an error.

        await asyncio.gather(*(send(number) for number in range(MESSAGES)))
    return statuses


async def settled_check(url: str) -> HealthCheck:
    """Request the agent's health until its document, which is computed every second, counts all messages."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        check = await fetch_health(url)
        calibration = check.document and check.document.calibration
        if (calibration and calibration.sample_count >= MESSAGES) or time.monotonic() > deadline:
            return check
        await asyncio.sleep(0.1)


async def visit(url: str) -> tuple[Counter[int], HealthCheck]:
    """Send messages to one agent, then request its health."""
    return await converse(url), await settled_check(url)


def show(kind: str, statuses: Counter[int], check: HealthCheck) -> None:
    seen = ", ".join(f"{count} x HTTP {status}" for status, count in sorted(statuses.items()))
    print(f"\n{kind}: {AGENTS[kind][0]}")
    print(f"  answers to {MESSAGES} A2A messages, half of them streamed: {seen}")
    print(f"  GET {check.health_url}")
    if check.document is not None:
        print(compact_json(json.loads(check.document.to_json()), indent="  "))
    print(f"  should I call it? {check.decision.action.upper()}: {'; '.join(check.decision.reasons)}")


def compact_json(value: Any, *, indent: str) -> str:
    """Return JSON with one line for each member; a long member is split in the same way."""
    lines = []
    for name, member in value.items():
        line = f"{indent}  {json.dumps(name)}: {json.dumps(member)}"
        if len(line) > MOST_COLUMNS and isinstance(member, dict):
            line = f"{indent}  {json.dumps(name)}: {compact_json(member, indent=indent + '  ').lstrip()}"
        lines.append(line)
    return f"{indent}{{\n" + ",\n".join(lines) + f"\n{indent}}}"


async def visit_all(urls: dict[str, str]) -> dict[str, HealthCheck]:
    visits = await asyncio.gather(*(visit(url) for url in urls.values()))
    checks = {}
    for kind, (statuses, check) in zip(urls, visits, strict=True):
        show(kind, statuses, check)
        checks[kind] = check
    return checks


def show_way_on(urls: dict[str, str]) -> None:
    with suppress(KeyboardInterrupt):
        print("\nThe agents run until Ctrl-C. In another terminal:")
        for url in urls.values():
            print(f"  .venv/bin/lifesign check {url}")
        print(f"  curl -s {urls['half']}/.well-known/agent-health")
        print(f"  curl -si {urls['half']}/.well-known/agent-card.json", flush=True)
        while True:
            # Short sleeps: a signal just before a longer one would not end it.
            time.sleep(0.2)


def main() -> int:
    parser = argparse.ArgumentParser(description="Three real A2A agents and their health documents.")
    parser.add_argument("--keep", action="store_true", help="keep the agents running until Ctrl-C")
    is_kept = parser.parse_args().keep
    print("Three agents, built with the A2A SDK; one line in each publishes its health.")
    print(NOTE)
    with ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lifesign-demo-")))
        urls = {kind: stack.enter_context(agent_process(kind, logs / kind)) for kind in AGENTS}
        checks = asyncio.run(visit_all(urls))
        if is_kept:
            show_way_on(urls)
    if any(checks[kind].decision.status not in expected for kind, (_, expected) in AGENTS.items()):
        print("\nNot every agent got the expected decision.", file=sys.stderr)
        return 1
    if not is_kept:
        print("\nTo keep the agents running, use: .venv/bin/python docs/examples/demo.py --keep")
    return 0


def end_in_order(*_: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    # SIGINT too: a shell that starts this program in the background lets it ignore SIGINT.
    for ending in (signal.SIGTERM, signal.SIGINT):
        signal.signal(ending, end_in_order)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
