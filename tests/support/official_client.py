"""Call the tools of an MCP server with the official Python SDK, and write the results.

`python official_client.py PLAN`: PLAN is a JSON file with the members of `official_clients.Plan`.
"""

import asyncio
import json
import os
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp_types import TextContent


async def transport(plan: dict[str, Any], opened: AsyncExitStack) -> Any:
    """Return the way to the server."""
    if plan["command"]:
        program, *arguments = plan["command"]
        started = StdioServerParameters(command=program, args=arguments, env=plan["environment"])
        return stdio_client(started)
    url = plan["url"] or os.environ["LIFESIGN_PROXY_URL"]
    token = plan["token"] or os.environ["LIFESIGN_RUN_TOKEN"]
    headers = {"Authorization": f"Bearer {token}"}
    http = await opened.enter_async_context(httpx2.AsyncClient(headers=headers, timeout=60, trust_env=False))
    return streamable_http_client(url, http_client=http)


async def answer_to(client: Client, call: dict[str, Any]) -> dict[str, Any]:
    """Return the result that the SDK gives its caller."""
    try:
        result = await client.call_tool(call["name"], call["arguments"])
    except (MCPError, RuntimeError) as error:
        return {"raised": str(error), "code": getattr(error, "code", None)}
    parts = [part.text for part in result.content if isinstance(part, TextContent)]
    return {
        "is_error": result.is_error,
        "text": "\n".join(parts),
        "meta": result.meta or {},
        "structured": result.structured_content,
    }


async def main(plan: dict[str, Any]) -> None:
    """Connect, list the tools, and call them one after the other."""
    async with AsyncExitStack() as opened:
        way = await transport(plan, opened)
        client = await opened.enter_async_context(Client(way, mode=plan["mode"]))
        tools = (await client.list_tools()).tools
        answers = [await answer_to(client, call) for call in plan["calls"]]
    shown = {"tools": [tool.name for tool in tools], "answers": answers}
    await asyncio.to_thread(Path(plan["to"]).write_text, json.dumps(shown))


if __name__ == "__main__":
    asyncio.run(main(json.loads(Path(sys.argv[1]).read_text())))
