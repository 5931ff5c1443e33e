"""Databases, transactions and table definitions."""
