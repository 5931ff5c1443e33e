"""Heartbeats that follow from the activity of an agent in sessions of another server."""
