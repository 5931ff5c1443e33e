"""A small agent that works under a lease.

    lifesign run --pool writers --tools tools.yml -- python page_agent.py

It does not import lifesign: it needs an MCP client and the environment variables of the adapter. It
continues from the latest progress report, reports its progress, calls a metered tool for each section, and
submits its result.
"""

import argparse
import asyncio
import json
import os
from pathlib import Path
from typing import Any

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client


def left_behind(name: str) -> dict[str, Any]:
    """Return a JSON file of the workspace; empty if it is absent."""
    file = Path(os.environ["LIFESIGN_WORKSPACE"], name)
    return dict(json.loads(file.read_text())) if file.exists() else {}


async def write_page(tools: Client, seconds: float) -> None:
    """Write one section after another; each takes `seconds`."""
    written = list(left_behind("latest_report.json").get("beliefs", []))
    sections = left_behind("input.json")["sections"]
    for section in sections[len(written) :]:
        found = await tools.call_tool("look_up", {"section": section})
        if found.is_error:
            # The exit code ends the run, and the task's retry settings decide what follows.
            raise SystemExit(f"look_up failed: {found.content}")
        written.append(f"{section}: {found.content[0].text}")  # type: ignore[union-attr]
        report = {"summary": f"{len(written)} of {len(sections)} sections", "beliefs": written}
        await tools.call_tool("report_progress", report)
        await asyncio.sleep(seconds)
    await tools.call_tool("mark_complete", {"output": {"page": written}})


async def main(seconds: float) -> None:
    """Connect to the tools of this run, and work."""
    headers = {"Authorization": f"Bearer {os.environ['LIFESIGN_RUN_TOKEN']}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=60, trust_env=False) as http,
        Client(streamable_http_client(os.environ["LIFESIGN_PROXY_URL"], http_client=http)) as tools,
    ):
        await write_page(tools, seconds)


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description="Write a page, section by section.")
    arguments.add_argument(
        "seconds", type=float, nargs="?", default=1.0, help="seconds for each section (default 1)"
    )
    given = arguments.parse_args()
    if "LIFESIGN_PROXY_URL" not in os.environ:
        arguments.error("it works under a lease: lifesign run -- python page_agent.py")
    asyncio.run(main(given.seconds))
