"""Ledgers and files for observations, and their evidence."""
