"""Exceptions as one line of text."""


def error_line(error: BaseException) -> str:
    """Return the class of an exception and the first line of its text.

    The class alone if the exception has no text, or if its `__str__` raises.
    """
    try:
        lines = str(error).strip().splitlines()
    except Exception:  # noqa: BLE001 - the method belongs to the author of the class
        lines = []
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
