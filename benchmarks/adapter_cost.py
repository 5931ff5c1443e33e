"""Cost of an adapter while its agent works: resident memory and share of one core.

Measured is `lifesign run` over a real registry in three cases: with an agent that waits, with one that has
called a tool of its task (which loads an HTTP server into the adapter), and with one that has called a tool
of a server in the tools file (which loads the MCP SDK). The process watcher is measured beside it.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # it may be started as a file
from benchmarks.interleaved import is_quick, print_table, verdict
from tests.support.registry_server import ADMIN_KEY, KEYS, RegistryServer, registry_server

from lifesign.client import RegistryClient
from lifesign.domain.access.permissions import Role

MIB_TARGET = 70.0
FREE = {"usd_per_call": 0}
CORE_TARGET = 0.005
WAITS = "print('ready', flush=True); import time; time.sleep(1000)"
CALLS = """
import asyncio, json, os, sys, httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

async def main():
    headers = {"Authorization": "Bearer " + os.environ["LIFESIGN_RUN_TOKEN"]}
    async with httpx2.AsyncClient(headers=headers, timeout=60) as http:
        url = os.environ["LIFESIGN_PROXY_URL"]
        async with Client(streamable_http_client(url, http_client=http)) as tools:
            called = await tools.call_tool(sys.argv[1], json.loads(sys.argv[2]))
            print("failed" if called.is_error else "ready", flush=True)
            await asyncio.sleep(1000)

asyncio.run(main())
"""
SERVER = Path(__file__).parents[1] / "tests" / "support" / "upstream_tools.py"


def mib_of(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def seconds_of(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def queue(url: str) -> None:
    async with RegistryClient(url, key=ADMIN_KEY) as client:
        await client.tasks.create("bench", role_id="bench")


def measure(
    server: RegistryServer, directory: str, code: Sequence[str], tools: Sequence[str], seconds: float
) -> tuple[float, float, float]:
    """Return the adapter's memory, its share of a core, and the process watcher's memory."""
    asyncio.run(queue(server.url))
    environment = {
        **os.environ,
        "LIFESIGN_KEY": KEYS[Role.ENROLL],
        "LIFESIGN_REGISTRY": server.url,
    }
    command = [str(Path(sys.executable).with_name("lifesign")), "run", "--pool", "bench", "--once"]
    options = [*tools, "--workspaces", f"{directory}/runs", "--", sys.executable, "-c", *code]
    with subprocess.Popen(
        [*command, *options], env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as running:
        if running.stdout is None or running.stdout.readline() != b"ready\n":
            raise SystemExit("the adapter's agent did not start, or its call has failed")
        time.sleep(1)
        # Started first of all; a server of tools is no part of an adapter.
        warden, *_ = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
        began_s, spent_s = time.monotonic(), seconds_of(running.pid)
        time.sleep(seconds)
        share = (seconds_of(running.pid) - spent_s) / (time.monotonic() - began_s)
        found = mib_of(running.pid), share, mib_of(int(warden))
        running.terminate()
        time.sleep(0.2)
        running.terminate()
    return found


def main() -> None:
    seconds = 10.0 if is_quick(__doc__) else 120.0
    rows = []
    with (
        tempfile.TemporaryDirectory(prefix="lifesign-bench-") as directory,
        registry_server(Path(directory)) as server,
    ):
        file = Path(directory) / "tools.yml"
        named = {"command": [sys.executable, str(SERVER), f"{directory}/record"], "tools": {"fetch": FREE}}
        file.write_text(json.dumps({"upstreams": {"acme": named}}))
        for name, code, tools in (
            ("its agent waits", [WAITS], []),
            (
                "its agent has called a tool of its task",
                [CALLS, "report_progress", '{"summary": "begun"}'],
                [],
            ),
            ("its agent has called a tool of a server", [CALLS, "fetch", "{}"], ["--tools", str(file)]),
        ):
            mib, share, warden_mib = measure(server, directory, code, tools, seconds)
            rows.append(
                [
                    name,
                    f"{mib:.0f}",
                    verdict(mib, at_most=MIB_TARGET),
                    f"{share:.4f}",
                    verdict(share, at_most=CORE_TARGET),
                    f"{warden_mib:.0f}",
                ]
            )
    print_table(
        f"one adapter, for {seconds:g} s",
        ["", "MiB", "target", "of one core", "target", "its watcher, MiB"],
        rows,
    )


if __name__ == "__main__":
    main()
