"""Format of the server's log: one line per record, on standard error, for people or for programs.

Records of lifesign and of libraries have the same form: time, level, logger, event, and further members
(`extra`). A line is always one line, of limited length, without keys.
"""

import logging
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final, Literal

from structlog.processors import ExceptionRenderer, JSONRenderer, LogfmtRenderer
from structlog.stdlib import ExtraAdder, ProcessorFormatter
from structlog.typing import EventDict

from lifesign.domain.access.permissions import KEY_PREFIX
from lifesign.domain.net.allowed_addresses import without_passwords
from lifesign.domain.text.times import utc_text
from lifesign.serving.stderr_handler import stderr_handler

MAX_LINE_CHARACTERS = 8_000
"""Maximum length of one record with its traceback; the middle is cut."""
MAX_MEMBERS: Final = 32
"""Maximum of further members of a record."""

LogFormat = Literal["console", "json"]

_KEY = re.compile(rf"{KEY_PREFIX}[A-Za-z0-9_-]+|(?i:\bbearer\s+)[A-Za-z0-9._~+/=-]+")
# Members that libraries add for their own terminals.
_IGNORED_ATTRIBUTES: Final = frozenset({"color_message"})
_FIRST: Final = ("time", "level", "logger", "event")
_JSON: Final = JSONRenderer()
_LOGFMT: Final = LogfmtRenderer(bool_as_flag=False)


class LogLine(ProcessorFormatter):
    """Formats a log record as one line, even if it contains text of callers; times are in UTC."""

    def __init__(self, log_format: LogFormat = "console") -> None:
        super().__init__(
            processors=[_masked, _as_json if log_format == "json" else _as_text],
            foreign_pre_chain=[ExtraAdder(), ExceptionRenderer(), _complete],
        )


class LogTo(logging.Handler):
    """Passes each line of the log on to a function, such as one that sends it to the parent process."""

    def __init__(self, report: Callable[[str], None], log_format: LogFormat = "console") -> None:
        super().__init__()
        self._tell = report
        self.setFormatter(LogLine(log_format))

    def emit(self, record: logging.LogRecord) -> None:
        """Pass one line on; errors are ignored."""
        with suppress(OSError, ValueError):
            self._tell(self.format(record))


def _complete(_logger: object, _method: str, members: EventDict) -> EventDict:
    """Put the common members of all lines first, and remove members for other outputs."""
    record: logging.LogRecord = members["_record"]
    first = {
        "time": utc_text(datetime.fromtimestamp(record.created, UTC), "milliseconds"),
        "level": record.levelname,
        "logger": record.name,
        "event": members["event"],
    }
    rest = {
        name: value
        for name, value in members.items()
        if name not in first and name not in _IGNORED_ATTRIBUTES and not name.startswith("_")
    }
    return first | dict(list(rest.items())[:MAX_MEMBERS])


def _masked(_logger: object, _method: str, members: EventDict) -> EventDict:
    """Hide texts that look like keys or passwords, and shorten long texts in the middle."""
    return {name: _bounded(value) for name, value in members.items()}


def _bounded(value: object) -> object:
    if value is None or isinstance(value, bool | int | float):
        return value
    text = without_passwords(_KEY.sub("(hidden)", str(value)))
    if len(text) > MAX_LINE_CHARACTERS:
        half = MAX_LINE_CHARACTERS // 2
        text = f"{text[:half]} ... {text[-half:]}"
    return text


def _as_json(_logger: object, _method: str, members: EventDict) -> str:
    # Only ASCII: half a surrogate pair and a line separator are escaped.
    written = _JSON(None, "", members)
    assert isinstance(written, str)  # noqa: S101 - the serializer's own type
    return written


def _as_text(_logger: object, _method: str, members: EventDict) -> str:
    """Return a line for people: the common members, then the others as `name=value`."""
    at, level, logger, event = (members.pop(name) for name in _FIRST)
    exception = members.pop("exception", None)
    text = f"{at} {level} {logger}: {event}"
    if members:
        text += f" {_LOGFMT(None, '', {name: _plain(value) for name, value in members.items()})}"
    if exception is not None:
        text += f"\n{exception}"
    if len(text) > MAX_LINE_CHARACTERS:
        half = MAX_LINE_CHARACTERS // 2
        text = f"{text[:half]} ... {text[-half:]}"
    # A line break becomes \n, so that clients cannot write lines of their own.
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
        for character in text
    )


def _plain(value: object) -> object:
    return value if value is None or isinstance(value, bool | int | float) else str(value)


def log_config(*, access_log: bool, log_format: LogFormat = "console") -> Mapping[str, Any]:
    """Return the argument of `logging.config.dictConfig`."""
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "line": {"()": f"{LogLine.__module__}.{LogLine.__qualname__}", "log_format": log_format}
        },
        "handlers": {
            "stderr": {
                "()": f"{stderr_handler.__module__}.{stderr_handler.__qualname__}",
                "formatter": "line",
            }
        },
        "root": {"level": "WARNING", "handlers": ["stderr"]},
        "loggers": {
            "lifesign": {"level": "INFO"},
            "uvicorn": {"level": "INFO"},
            "uvicorn.access": {"level": "INFO" if access_log else "CRITICAL"},
        },
    }
