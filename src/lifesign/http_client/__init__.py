"""The bounded, SSRF-guarded HTTP client of client, prober, registry and MCP tools.

The prober sends its requests over its own connections (`prober/network/connection.py`), with the same guard
and the same byte counter. Needs the extra `client`.
"""
