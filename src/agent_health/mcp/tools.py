"""Which tools are there, and which of them are offered here?"""

from collections.abc import Sequence
from typing import Final

from agent_health.mcp.check_agent import CHECK_AGENT
from agent_health.mcp.find_agents import FIND_AGENTS
from agent_health.mcp.heartbeat import HEARTBEAT
from agent_health.mcp.tool import Tool

TOOLS: Final[Sequence[Tool]] = (HEARTBEAT, CHECK_AGENT, FIND_AGENTS)
"""In the order in which a model reads of them."""


def offered(*, has_registry: bool) -> tuple[Tool, ...]:
    """Return the tools that can do something here: without a registry, those that need none."""
    return tuple(tool for tool in TOOLS if has_registry or not tool.needs_registry)
