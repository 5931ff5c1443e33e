"""Exceptions as one line of text."""

from lifesign.domain.text.counts import pluralize


def error_line(error: BaseException) -> str:
    """Return the class of an exception and the first line of its text.

    The class alone if the exception has no text, or if its `__str__` raises. For a group, such as that of a
    TaskGroup, the line of its first exception, and how many others there are.
    """
    others = 0
    while isinstance(error, BaseExceptionGroup):
        others += len(error.exceptions) - 1
        error = error.exceptions[0]
    try:
        lines = str(error).strip().splitlines()
    except Exception:  # noqa: BLE001 - the method belongs to the author of the class
        lines = []
    line = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return f"{line} (and {pluralize(others, 'other error')})" if others else line
