"""Rows of the database as models of the API."""
