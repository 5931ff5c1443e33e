"""Statements about targets and directories."""
