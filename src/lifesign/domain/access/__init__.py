"""Roles, permissions and actors."""
