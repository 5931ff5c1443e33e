"""Statements about keys and sessions."""
