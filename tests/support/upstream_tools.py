"""An upstream MCP server: a real process that talks over its pipes.

`python upstream_tools.py FILE` writes a line to FILE for each call that it carries out.
"""

import asyncio
import os
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcp.server import Server, ServerRequestContext
from mcp.server.stdio import stdio_server
from mcp_types import (
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    Tool,
)

COST_KEY = "acme/cost"
NAMES = ("fetch", "report_progress", "costly", "fail", "die", "wait", "long", "refuse", "grow")
SCHEMA = {"type": "object", "additionalProperties": True}
TYPED = Tool(
    name="typed",
    description="Does typed.",
    input_schema=SCHEMA,
    output_schema={
        "type": "object",
        "properties": {"word": {"type": "string"}},
        "required": ["word"],
        "additionalProperties": False,
    },
)
"""It promises which form its structured content has."""
GROWN = Tool(name="grown", description="Does grown.", input_schema=SCHEMA)
"""It is listed once `grow` was called, which may give it another name."""
PAGES = {None: "empty", "empty": "last", "last": None}
"""Cursors of the pages of the list of tools, each with the next one."""


def new_server(record: Path) -> Server[dict[str, Any]]:
    """Return a server whose tools do what their names say."""

    added: list[Tool] = []

    async def list_tools(
        _context: ServerRequestContext[dict[str, Any]], asked: PaginatedRequestParams | None
    ) -> ListToolsResult:
        cursor = asked.cursor if asked else None
        plain = [Tool(name=name, description=f"Does {name}.", input_schema=SCHEMA) for name in NAMES]
        pages = {None: plain, "empty": [], "last": [TYPED, *added]}
        return ListToolsResult(tools=pages[cursor], next_cursor=PAGES[cursor])

    async def call_tool(
        _context: ServerRequestContext[dict[str, Any]], asked: CallToolRequestParams
    ) -> CallToolResult:
        with record.open("a") as result:
            result.write(f"{asked.name}\n")
        arguments = asked.arguments or {}
        if asked.name == "grow":
            added.append(GROWN.model_copy(update={"name": arguments.get("name", GROWN.name)}))
        if asked.name == "wait":
            await _exists(Path(arguments.get("until", "/never")))
        cost = arguments.get("cost")
        return CallToolResult(
            content=[TextContent(type="text", text=_text(asked.name, arguments))],
            structured_content=_structured(arguments) if asked.name == TYPED.name else None,
            is_error=asked.name == "fail" or bool(arguments.get("fails")),
            _meta=None if cost is None else {COST_KEY: cost},
        )

    return Server("acme", on_list_tools=list_tools, on_call_tool=call_tool)


def _structured(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return what keeps the promise of TYPED, or what does not, of a call that fails."""
    return {"fault": "none of its words"} if arguments.get("fails") else {"word": arguments["word"]}


def _text(name: str, arguments: Mapping[str, Any]) -> str:
    match name:
        case "die":
            os._exit(3)
        case "refuse":
            raise ValueError("not today")
        case "long":
            return "x" * int(arguments["bytes"])
        case _:
            return str(arguments.get("text", name))


async def _exists(file: Path) -> None:
    """Wait until a file exists; the caller's timeout ends first."""
    while True:
        if await asyncio.to_thread(file.exists):
            return
        await asyncio.sleep(0.01)


@dataclass(frozen=True)
class HttpUpstream:
    """It serves on loopback, and has noted what it carried out."""

    url: str
    record: Path

    def carried_out(self) -> list[str]:
        return self.record.read_text().split() if self.record.exists() else []


@contextmanager
def http_upstream(record: Path) -> Iterator[HttpUpstream]:
    """Serve over HTTP, in a thread, until the block ends."""
    import uvicorn  # noqa: PLC0415 - the process that talks over its pipes starts without

    app = new_server(record).streamable_http_app(
        streamable_http_path="/mcp", json_response=True, stateless_http=True, host="127.0.0.1"
    )
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(
        uvicorn.Config(app, log_level="warning", lifespan="on", ws="none", timeout_graceful_shutdown=1)
    )
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listening])), daemon=True)
    thread.start()
    try:
        yield HttpUpstream(f"http://127.0.0.1:{listening.getsockname()[1]}/mcp", record)
    finally:
        server.should_exit = True
        thread.join(60)
        assert not thread.is_alive()


async def main(record: Path) -> None:
    """Serve the parent process."""
    server = new_server(record)
    async with stdio_server() as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
