"""Tools of the registry for models, over MCP. Needs the extra `mcp`."""
