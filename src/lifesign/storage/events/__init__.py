"""Statements about the event log and webhooks."""
