"""Retention: pruning of old data, and archives of old events."""
