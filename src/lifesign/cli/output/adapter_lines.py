"""Lines of an adapter, for people or as JSON."""

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Final

from lifesign.adapter.run_events import CALLED_SERVER, Emit, RunEvent, RunEventKind
from lifesign.domain.net.peer_text import printable
from lifesign.domain.text.error_line import error_line
from lifesign.domain.text.times import utc_text
from lifesign.serving.line_writer import LineWriter

_OF_TOOLS: Final = ("lifesign.adapter.tools", "lifesign.mcp", "mcp", "client", "uvicorn", "httpx2")
"""Loggers of the tool proxy; the SDK has one with the name `client`."""
_SDK_SERVER: Final = "mcp.server"
"""Logger of the SDK's server. Its warnings concern requests of the agent, which also gets them as answers."""
REPEAT_SECONDS: Final = 10.0
"""Period in which a repeated line of a library is shown once."""
_KEPT: Final = frozenset({RunEventKind.HELP_REQUESTED, RunEventKind.FAILED, RunEventKind.UNREPORTED})
"""Events of runs whose workspace is kept."""


@contextmanager
def event_writer(*, as_json: bool) -> Iterator[Emit]:
    """Yield a function that writes each event: JSON to standard output, else lines to standard error.

    It returns at once, even without a reader. At the end of the block the remaining lines have FLUSH_SECONDS.
    """
    stream, line_of = (sys.stdout, _json_line) if as_json else (sys.stderr, _line)

    def omission_line(text: str) -> str:
        return line_of(_now_text(), RunEvent(what=RunEventKind.OMITTED, text=text))

    lines = LineWriter(stream, "lines about runs", omission_line)
    lines.start()
    try:
        yield lambda event: lines.write(line_of(_now_text(), event))
    finally:
        lines.finish()


def _now_text() -> str:
    return utc_text(datetime.now(UTC), "milliseconds")


class LogForwarder(logging.Handler):
    """Logging handler that writes log records as events of `lifesign run`."""

    def __init__(self, write_event: Emit) -> None:
        super().__init__(logging.WARNING)
        self._emit = write_event
        self._last_line: tuple[str, str] | None = None
        self._last_line_at_s = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        """Write one log record as an event."""
        if record.name.startswith(_SDK_SERVER) and record.levelno < logging.ERROR:
            # An agent could fill the log with them.
            return
        is_of_tools = any(record.name == name or record.name.startswith(f"{name}.") for name in _OF_TOOLS)
        text = record.getMessage().strip()
        if record.exc_info and record.exc_info[1] is not None:
            # Tracebacks and the further lines of a library are not for people.
            text = f"{text}: {error_line(record.exc_info[1])}"
        if (server := CALLED_SERVER.get()) is not None and not _is_lifesign_record(record):
            text = f"{server.name}: {server.without_secrets(text)}"
        if not self._is_repeated(record, text):
            self._emit(RunEvent(what=RunEventKind.TOOLS if is_of_tools else RunEventKind.REGISTRY, text=text))

    def _is_repeated(self, record: logging.LogRecord, text: str) -> bool:
        """Return whether a library logged the same recently: it may send several requests at once."""
        line, former, at_s = (record.name, text), self._last_line, self._last_line_at_s
        if not _is_lifesign_record(record) and line == former and record.created - at_s < REPEAT_SECONDS:
            return True
        self._last_line, self._last_line_at_s = line, record.created
        return False


def _is_lifesign_record(record: logging.LogRecord) -> bool:
    return record.name.partition(".")[0] == "lifesign"


def _json_line(at: str, event: RunEvent) -> str:
    members = {
        "at": at,
        "what": event.what,
        "text": event.text,
        "task_id": event.task_id,
        "run_id": event.run_id,
        "fencing_token": event.fencing_token,
        "exit_reason": event.exit_reason,
        "exit_code": event.exit_code,
        "workspace": event.workspace,
    }
    return json.dumps({name: value for name, value in members.items() if value is not None}) + "\n"


def _line(at: str, event: RunEvent) -> str:
    whose = "" if event.task_id is None else f"{printable(event.task_id)}: "
    why = "" if event.exit_reason is None else f" ({event.exit_reason})"
    kept = f"; kept: {printable(event.workspace)}" if event.what in _KEPT and event.workspace else ""
    return f"{at}  {event.what:<10}  {whose}{printable(event.text)}{why}{kept}\n"
