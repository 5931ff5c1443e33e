"""By which option did a wrong setting come in?

What a command calls knows settings; whoever typed the command knows its options.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from lifesign.errors import InvalidSetting


@contextmanager
def options(**names: str) -> Iterator[None]:
    """Let InvalidSetting for one of these settings name the option that it was given by."""
    try:
        yield
    except InvalidSetting as error:
        if error.name not in names:
            raise
        raise InvalidSetting(names[error.name], error.given, error.expected) from None
