"""Demo: two MCP servers whose tool fails behind HTTP 200.

    make demo                                       or
    .venv/bin/python docs/examples/mcp_demo.py

Starts both servers of sample_servers.py. One is wrapped by the middleware: its health document shows the
failed calls. The other one is not: a probe reports it as alive until a probe definition names a tool to
call. Exits with 0 if the failures of both are found.
"""

import asyncio
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import httpx2
from demo_programs import COMMAND, PATIENCE_SECONDS, exit_with, first_line, process, say
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from lifesign.client import HealthCheck, fetch_health

CALLS = 20
DEFINITION = """\
name: weather
targets:
  - url: {url}
    kind: mcp
    ask: {{tools: true, call: {{tool: forecast, arguments: {{city: Lisbon}}}}}}
    assertions: [{{of: tool, text_contains: Lisbon}}]
networks: {{allow: [127.0.0.0/8]}}
"""


async def call_tool(url: str) -> tuple[int, Counter[int]]:
    """Call the tool of a server; return the number of failures, and of answers by HTTP status."""
    statuses: Counter[int] = Counter()

    async def note_status(response: httpx2.Response) -> None:
        statuses[response.status_code] += b"tools/call" in response.request.content

    failed = 0
    async with (
        httpx2.AsyncClient(event_hooks={"response": [note_status]}, trust_env=False) as http,
        Client(streamable_http_client(url, http_client=http)) as client,
    ):
        for _ in range(CALLS):
            failed += (await client.call_tool("forecast", {"city": "Lisbon"})).is_error
    return failed, +statuses


async def settled_check(url: str) -> HealthCheck:
    """Request the server's health until its document, which is computed every second, counts all calls."""
    deadline_s = time.monotonic() + PATIENCE_SECONDS
    while True:
        check = await fetch_health(url)
        calibration = check.document and check.document.calibration
        if (calibration and calibration.sample_count >= CALLS) or time.monotonic() > deadline_s:
            return check
        await asyncio.sleep(0.1)


def probe(url: str, *arguments: str) -> int:
    """Run `lifesign probe`, show its output and return its exit code."""
    print(f"\n$ lifesign probe {' '.join((url, *arguments))}", flush=True)
    return subprocess.run([*COMMAND, "probe", url, *arguments], check=False).returncode


def main() -> int:
    print("Two MCP servers, built with the MCP SDK; the tool of both raises an exception")
    print("(seconds since the start of this part):\n")
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="lifesign-demo-"))
        script = str(Path(__file__).with_name("sample_servers.py"))
        wrapped, bare = [
            first_line(stack.enter_context(process([sys.executable, script, kind], {})))
            for kind in ("wrapped", "bare")
        ]
        failed, statuses = asyncio.run(call_tool(wrapped))
        shown = ", ".join(f"{count} x HTTP {status}" for status, count in sorted(statuses.items()))
        say(f"wrapped: {failed} of {CALLS} calls failed; its answers were {shown}")
        check = asyncio.run(settled_check(wrapped))
        decision = check.decision
        say(f"wrapped: should I call it? {decision.action.upper()}: {'; '.join(decision.reasons)}")

        say("bare has no health document; without a tool call it looks alive")
        is_alive = probe(bare, "--kind", "mcp", "--allow-network", "127.0.0.0/8") == 0
        definition = Path(directory, "weather.yml")
        definition.write_text(DEFINITION.format(url=bare))
        print(f"\n{definition.name}:\n{definition.read_text()}", end="", flush=True)
        is_found = probe(bare, "--definition", str(definition)) != 0
    if decision.action == "proceed" or not (is_alive and is_found):
        print("\nNot every server got the expected result.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    exit_with(main)
