"""MCP server of the task demo, with one tool that costs money; `task_demo.py` sets its price."""

from mcp.server import MCPServer

FACTS = {
    "hero": "the org chart, animated",
    "prices": "three plans, from 9 USD a month",
    "contact": "a form, and a telephone number",
}

desk = MCPServer("desk")


@desk.tool()
def look_up(section: str) -> str:
    """Return the content of a section of the page."""
    return FACTS.get(section, "nothing is known of it")


if __name__ == "__main__":
    desk.run()
