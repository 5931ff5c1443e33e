"""All tools, and those that a server offers."""

from collections.abc import Sequence
from typing import Final

from lifesign.mcp.check_agent import CHECK_AGENT
from lifesign.mcp.find_agents import FIND_AGENTS
from lifesign.mcp.heartbeat import HEARTBEAT
from lifesign.mcp.run_binding import of_any_run
from lifesign.mcp.task_tools import TASK_TOOLS
from lifesign.mcp.tool_definition import Tool

TOOLS: Final[Sequence[Tool]] = (HEARTBEAT, CHECK_AGENT, FIND_AGENTS, *TASK_TOOLS)
"""Tools in the order in which a model reads them."""


def offered(*, has_registry: bool, has_run: bool = False) -> tuple[Tool, ...]:
    """Return the usable tools: without a registry, those that need none.

    Without a run, callers pass it to the tools that write to a task.
    """
    return tuple(
        of_any_run(tool) if tool.is_in_run and not has_run else tool
        for tool in TOOLS
        if has_registry or not tool.needs_registry
    )
