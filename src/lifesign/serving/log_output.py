"""Destination and format of the log while a command runs."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum


class LogFormat(StrEnum):
    """Format of log lines."""

    CONSOLE = "console"
    JSON = "json"


@contextmanager
def logging_to(handler: logging.Handler) -> Iterator[None]:
    """Send warnings and errors of this process to one handler only, until the end of the block."""
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    try:
        yield
    finally:
        root.handlers = handlers
        root.setLevel(level)
