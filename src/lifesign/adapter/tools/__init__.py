"""The metered MCP proxy: tools for an agent while it holds a task."""
