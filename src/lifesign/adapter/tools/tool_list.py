"""The list of tools that a server sends, within a limit of its size."""

import asyncio
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Final

from mcp import Client
from mcp_types import Tool

from lifesign.adapter.tools.tools_file import MAX_TOOLS
from lifesign.mcp.answer import MAX_NAME_CHARS

MAX_LIST_BYTES: Final = 2 * 1_048_576
"""Maximum size of a server's list of tools as JSON, on all its pages. It may take 20 times as much memory."""

MAX_NAMED: Final = 20
"""Maximum of a server's tools in a line or an error."""


class ListTooLong(ValueError):
    """The tools that a server has listed since its start exceed MAX_LIST_BYTES."""

    def __init__(self) -> None:
        super().__init__(f"its list of tools has more than {MAX_LIST_BYTES} bytes")


class ToolLister:
    """Requests the list of tools over one connection, as often as needed."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._sizes: dict[str, int] = {}
        """Bytes of each tool that was listed over this connection: the SDK keeps parts of them all."""
        self._lock = asyncio.Lock()

    async def list_tools(self) -> Mapping[str, Tool]:
        """Request the tools, at most MAX_TOOLS, and return them by name; ListTooLong if they are too long."""
        found: dict[str, Tool] = {}
        cursor: str | None = None
        sent: set[str | None] = {None}
        async with self._lock:
            for _ in range(MAX_TOOLS):
                page = await self._client.list_tools(cursor=cursor)
                for tool in page.tools:
                    written = tool.model_dump_json(by_alias=True, exclude_none=True)
                    self._sizes[tool.name] = len(written.encode())
                if sum(self._sizes.values()) > MAX_LIST_BYTES:
                    raise ListTooLong
                usable = [_without_tasks(tool) for tool in page.tools if not _needs_task(tool)]
                found.update({tool.name: tool for tool in usable[: MAX_TOOLS - len(found)]})
                cursor = page.next_cursor
                # A page may be empty and not the last one. A server that repeats a cursor repeats its pages.
                if cursor in sent or len(found) >= MAX_TOOLS:
                    break
                sent.add(cursor)
        return MappingProxyType(found)


def _needs_task(tool: Tool) -> bool:
    """Return whether a tool can be called only as a task of MCP 2025-11-25."""
    return tool.execution is not None and tool.execution.task_support == "required"


def _without_tasks(tool: Tool) -> Tool:
    return tool if tool.execution is None else tool.model_copy(update={"execution": None})


def offered_names(tools: Collection[str]) -> str:
    """Return in words which tools a server has."""
    return f"it has {listed_names(tools)}" if tools else "it has none"


def listed_names(tools: Collection[str]) -> str:
    """Return the names of the first of these; a server has chosen them, so each is cut."""
    names = ", ".join(tool[:MAX_NAME_CHARS] for tool in list(tools)[:MAX_NAMED])
    return f"{names} and {len(tools) - MAX_NAMED} more" if len(tools) > MAX_NAMED else names
