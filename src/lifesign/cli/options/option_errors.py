"""Errors of settings under the names of their options.

Commands call functions with settings; the user knows options.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from lifesign.cli.options.duration import in_durations
from lifesign.errors import InvalidValue


@contextmanager
def options(**names: str) -> Iterator[None]:
    """In the block, let an InvalidValue about one of these settings name the option instead."""
    try:
        yield
    except InvalidValue as error:
        if error.name not in names:
            raise
        if error.name.endswith("_seconds"):
            raise in_durations(names[error.name], error) from None
        raise InvalidValue(names[error.name], error.given, error.expected) from None
