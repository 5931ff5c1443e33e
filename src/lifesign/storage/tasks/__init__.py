"""Statements about tasks and leases."""
