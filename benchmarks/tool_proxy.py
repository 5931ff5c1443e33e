"""Cost of a call that an agent makes at its tool proxy.

An agent under `lifesign run` calls two tools: one of its task, and a free one of a server in the tools file.
It uses plain HTTP, so that no client library is measured. `--beside SRC` takes turns with the code of another
source tree, for example `src` of an earlier commit.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # it may be started as a file
from benchmarks.interleaved import Measured, in_rounds, print_table
from tests.support.registry_server import ADMIN_KEY, KEYS, RegistryServer, registry_server

from lifesign.client import RegistryClient
from lifesign.domain.access.permissions import Role

FREE = {"usd_per_call": 0}
SERVER = Path(__file__).parents[1] / "tests" / "support" / "upstream_tools.py"
HERE = Path(__file__).parents[1] / "src"
SHAPES = {
    "handshake, 1 at a time": ("2025-11-25", 1),
    "handshake, 8 at once": ("2025-11-25", 8),
    "2026-07-28, 1 at a time": ("2026-07-28", 1),
    "2026-07-28, 8 at once": ("2026-07-28", 8),
}
TOOLS = {"report_progress": {"summary": "begun"}, "fetch": {}}
AGENT = """
import asyncio, json, os, sys, time, aiohttp

URL, TOKEN = os.environ["LIFESIGN_PROXY_URL"], os.environ["LIFESIGN_RUN_TOKEN"]
version, at_once, calls, name, arguments = sys.argv[1:]
at_once, calls = int(at_once), int(calls)
META = {"io.modelcontextprotocol/protocolVersion": version, "io.modelcontextprotocol/clientCapabilities": {}}

async def main():
    headers = {"Authorization": "Bearer " + TOKEN, "Accept": "application/json, text/event-stream",
        "Mcp-Protocol-Version": version, "Mcp-Method": "tools/call", "Mcp-Name": name}
    async with aiohttp.ClientSession(headers=headers) as session:
        async def call(number):
            given = {**json.loads(arguments), **({"idempotencyKey": f"k{number}"} if name != "fetch" else {})}
            params = {"name": name, "arguments": given, "_meta": META if version > "2026" else {}}
            asked = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}
            async with session.post(URL, json=asked) as answer:
                body = await answer.json()
            if body.get("result", {"isError": True}).get("isError"):
                raise SystemExit(f"refused: {body}")
        began_s = time.perf_counter()
        await call(-1)
        first_s = time.perf_counter() - began_s
        numbers = iter(range(calls))
        async def work():
            for number in numbers:
                await call(number)
        began_s = time.perf_counter()
        await asyncio.gather(*(work() for _ in range(at_once)))
        print(json.dumps({"rate": calls / (time.perf_counter() - began_s), "first_s": first_s}), flush=True)

asyncio.run(main())
"""


async def queue(url: str) -> None:
    async with RegistryClient(url, key=ADMIN_KEY) as client:
        await client.tasks.create("bench", role_id="bench")


class Run:
    """One run of an adapter from a source tree; a sample is the calls per second of its agent."""

    def __init__(self, server: RegistryServer, directory: Path, source: Path, calls: int) -> None:
        self._server = server
        self._directory = directory
        self._source = source
        self._calls = calls
        self.first_s: list[float] = []
        """How long each first call took, which loads the server of tools."""

    def rate(self, shape: str, tool: str) -> float:
        """Return the calls per second of an agent that makes all its calls in this shape."""
        asyncio.run(queue(self._server.url))
        version, at_once = SHAPES[shape]
        arguments = [version, str(at_once), str(self._calls), tool, json.dumps(TOOLS[tool])]
        command = [
            sys.executable,
            "-c",
            "import sys; from lifesign.cli import main; sys.exit(main())",
            "run",
        ]
        options = ["--pool", "bench", "--once", "--json", "--workspaces", str(self._directory / "runs")]
        tools = ["--tools", str(self._directory / "tools.yml")] if tool == "fetch" else []
        ended = subprocess.run(
            [*command, *options, *tools, "--", sys.executable, "-c", AGENT, *arguments],
            env={
                **os.environ,
                "PYTHONPATH": str(self._source),
                "LIFESIGN_KEY": KEYS[Role.ENROLL],
                "LIFESIGN_REGISTRY": self._server.url,
            },
            capture_output=True,
            text=True,
            check=False,
        )
        results = [line for line in ended.stderr.splitlines() if line.startswith('{"rate"')]
        if not results:
            raise SystemExit(f"the agent did not end its calls: {ended.stdout}{ended.stderr}")
        figures = json.loads(results[0])
        self.first_s.append(figures["first_s"])
        return float(figures["rate"])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="few rounds, only to see that it runs")
    parser.add_argument("--beside", type=Path, metavar="SRC", help="a source tree to take turns with")
    asked = parser.parse_args()
    rounds, calls = (1, 200) if asked.quick else (5, 1_000)
    trees = {"now": HERE, **({} if asked.beside is None else {"beside": asked.beside})}
    rows = []
    with (
        tempfile.TemporaryDirectory(prefix="lifesign-bench-") as directory,
        registry_server(Path(directory)) as server,
    ):
        named = {"command": [sys.executable, str(SERVER), f"{directory}/record"], "tools": {"fetch": FREE}}
        (Path(directory) / "tools.yml").write_text(json.dumps({"upstreams": {"acme": named}}))
        runs = {name: Run(server, Path(directory), source, calls) for name, source in trees.items()}
        for tool in TOOLS:
            for shape in SHAPES:

                def sampler(run: Run, shape: str = shape, tool: str = tool) -> Callable[[], float]:
                    return lambda: run.rate(shape, tool)

                found = in_rounds({name: sampler(run) for name, run in runs.items()}, rounds=rounds)
                rows.append([f"{tool}, {shape}", *_cells(found)])
    print_table(
        "calls per second of one agent", ["", *trees, *(["now / beside"] if asked.beside else [])], rows
    )
    for name, run in runs.items():
        first = sorted(run.first_s)
        print(f"\nfirst call, {name}: median {first[len(first) // 2]:.2f} s, least {first[0]:.2f} s")


def _cells(found: Measured) -> list[str]:
    cells = [f"{found.median(name):.0f}" for name in found.samples]
    return [*cells, f"{found.ratio('now', 'beside'):.2f}"] if "beside" in found.samples else cells


if __name__ == "__main__":
    main()
