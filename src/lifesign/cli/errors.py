"""Errors of the command line."""

from lifesign.domain.errors import InvalidFile


class InvalidConfig(InvalidFile):
    """A settings file is invalid."""
