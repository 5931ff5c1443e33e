"""Lines of an adapter, for people or as JSON."""

import json
import logging
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Final, TextIO

from lifesign.adapter.process.output import write_all
from lifesign.adapter.run_events import CALLED_SERVER, Emit, RunEvent, RunEventKind
from lifesign.domain.net.peer_text import printable
from lifesign.domain.text.counts import plural, pluralize
from lifesign.domain.text.error_line import error_line
from lifesign.domain.text.times import utc_text

_OF_TOOLS: Final = ("lifesign.adapter.tools", "lifesign.mcp", "mcp", "client", "uvicorn", "httpx2")
"""Loggers of the tool proxy; the SDK has one with the name `client`."""
_SDK_SERVER: Final = "mcp.server"
"""Logger of the SDK's server. Its warnings concern requests of the agent, which also gets them as answers."""
REPEAT_SECONDS: Final = 10.0
"""Period in which a repeated line of a library is shown once."""
MAX_WAITING: Final = 10_000
"""Maximum number of lines that wait for a reader; further lines are counted and dropped."""
FLUSH_SECONDS: Final = 2.0
"""Time at the end for lines that wait for a reader."""
_KEPT: Final = frozenset({RunEventKind.HELP_REQUESTED, RunEventKind.FAILED, RunEventKind.UNREPORTED})
"""Events of runs whose workspace is kept."""


@contextmanager
def event_writer(*, as_json: bool) -> Iterator[Emit]:
    """Yield a function that writes each event: JSON to standard output, else lines to standard error.

    It returns at once, even without a reader. At the end of the block the remaining lines have FLUSH_SECONDS.
    """
    lines = _Lines(sys.stdout if as_json else sys.stderr, _json_line if as_json else _line)
    lines.start()
    try:
        yield lines.write_event
    finally:
        lines.finish()


class _Lines(threading.Thread):
    """Writes lines at the speed of their reader: a lease must not wait for it."""

    def __init__(self, stream: TextIO, line_of: Callable[[str, RunEvent], str]) -> None:
        super().__init__(name="lines about runs", daemon=True)
        # Not through the stream: a blocked thread would hold its lock until the process has ended.
        self._fd, self._encoding = stream.fileno(), stream.encoding
        self._line_of = line_of
        self._waiting: queue.Queue[bytes] = queue.Queue(MAX_WAITING)
        self._omitted = 0
        self._ends = False

    def write_event(self, event: RunEvent) -> None:
        if self._omitted and self._put(
            RunEvent(what=RunEventKind.OMITTED, text=_omitted_text(self._omitted))
        ):
            self._omitted = 0
        self._omitted += not self._put(event)

    def finish(self) -> None:
        """Wait a short time until all lines are written; the rest is dropped if it is not read."""
        self._ends = True
        with suppress(queue.Full):
            self._waiting.put_nowait(b"")
        self.join(FLUSH_SECONDS)

    def run(self) -> None:
        # The reader may have left; runs continue.
        with suppress(OSError):
            while not (self._ends and self._waiting.empty()):
                write_all(self._fd, self._waiting.get())

    def _put(self, event: RunEvent) -> bool:
        at = utc_text(datetime.now(UTC), "milliseconds")
        try:
            self._waiting.put_nowait(self._line_of(at, event).encode(self._encoding, "replace"))
        except queue.Full:
            return False
        return True


def _omitted_text(lines: int) -> str:
    return (
        f"{pluralize(lines, 'line')} {plural(lines, 'was', 'were')} dropped because the reader was too slow"
    )


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
