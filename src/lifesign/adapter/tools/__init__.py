"""The metered MCP proxy: the tools that an agent gets while it holds a task."""
