"""Errors of the command line."""

from lifesign.domain.errors import InvalidFile


class InvalidConfig(InvalidFile):
    """A file of settings does not say what it should."""
