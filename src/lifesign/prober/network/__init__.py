"""Connections, name resolution and limits per host."""
