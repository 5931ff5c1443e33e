"""Requests and answers of operations: authentication, bodies, cursors, errors."""
