"""Witnesses: other targets that prove that a failed target could have been reached."""
