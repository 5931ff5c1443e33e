"""Statements about probers and their results."""
