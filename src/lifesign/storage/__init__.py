"""SQLite and PostgreSQL.

Statements take a transaction and facts, and return facts; they contain no rule and no threshold.
"""
