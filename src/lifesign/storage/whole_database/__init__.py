"""Backups, totals and the state of a whole database."""
