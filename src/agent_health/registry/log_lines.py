"""What does the server's log look like? One line per record, on standard error."""

import logging
import time
from collections.abc import Mapping
from typing import Any

MAX_LINE_CHARACTERS = 8_000
"""Of one record, its traceback included; the middle is left out."""


class LogLine(logging.Formatter):
    """Writes a record as one line, whatever callers have put into it; times are in UTC."""

    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        text = super().format(record)
        if len(text) > MAX_LINE_CHARACTERS:
            half = MAX_LINE_CHARACTERS // 2
            text = f"{text[:half]} ... {text[-half:]}"
        # A line break as \n, so that no caller can write lines of its own.
        return "".join(
            character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
            for character in text
        )


def log_config(*, access_log: bool) -> Mapping[str, Any]:
    """Return what `logging.config.dictConfig` takes."""
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"line": {"()": f"{LogLine.__module__}.{LogLine.__qualname__}"}},
        "handlers": {
            "stderr": {
                "class": "logging.StreamHandler",
                "formatter": "line",
                "stream": "ext://sys.stderr",
            }
        },
        "root": {"level": "WARNING", "handlers": ["stderr"]},
        "loggers": {
            "agent_health": {"level": "INFO"},
            "uvicorn": {"level": "INFO"},
            "uvicorn.access": {"level": "INFO" if access_log else "CRITICAL"},
        },
    }
