"""SQLite and PostgreSQL.

Statements take a transaction and facts, and return facts; they hold no rule and no threshold.
"""
