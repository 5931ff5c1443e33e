"""Logging handler for standard error that waits for no reader.

A reader that stands still, such as a stuck log collector, would stop the event loop with the first line that
does not fit into the pipe. Usually the handler writes a line itself, so that none is lost if the process is
killed. A line that would have to wait goes to a thread, with all that follow until they are written.
"""

import logging
import os
import select
import sys
from contextlib import suppress

from lifesign.serving.line_writer import LineWriter, write_all


def stderr_handler() -> logging.Handler:
    """Return the handler; a plain one if standard error is no file, or if the platform cannot poll it."""
    try:
        copy_fd = os.dup(sys.stderr.fileno())
    except (AttributeError, OSError, ValueError):
        return logging.StreamHandler()
    if not hasattr(select, "poll"):
        os.close(copy_fd)
        return logging.StreamHandler()
    return StderrHandler(copy_fd, sys.stderr.encoding or "utf-8")


class StderrHandler(logging.Handler):
    """Writes each line at once, or in a thread if its reader is slow. It closes its descriptor."""

    def __init__(self, fd: int, encoding: str) -> None:
        super().__init__()
        self._fd, self._encoding = fd, encoding
        self._is_closed = False
        self._room = select.poll()
        self._room.register(self._fd, select.POLLOUT)
        self._lines: LineWriter | None = None
        self._pid = os.getpid()

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record; errors of the descriptor are ignored."""
        if self._is_closed:
            return
        try:
            line = f"{self.format(record)}\n"
        except Exception:  # noqa: BLE001 - as all handlers do
            self.handleError(record)
            return
        if self._pid != os.getpid():
            # A fork has no thread.
            self._lines, self._pid = None, os.getpid()
        written = line.encode(self._encoding, "backslashreplace")
        is_next = self._lines is None or self._lines.is_idle
        # No write of this size waits if there is room at all.
        if is_next and len(written) <= select.PIPE_BUF and self._room.poll(0):
            with suppress(OSError):
                write_all(self._fd, written)
            return
        if self._lines is None:
            with os.fdopen(self._fd, "w", encoding=self._encoding, closefd=False) as stream:
                self._lines = LineWriter(stream, "log", self._omission_line)
            self._lines.start()
        self._lines.write(line)

    def close(self) -> None:
        """Wait a short time for lines that are not written yet."""
        lines, self._lines = self._lines, None
        if lines is not None and self._pid == os.getpid():
            lines.finish()
        if not self._is_closed and (lines is None or not lines.is_alive()):
            os.close(self._fd)
        self._is_closed = True
        super().close()

    def _omission_line(self, text: str) -> str:
        members = {"name": "lifesign", "levelno": logging.WARNING, "levelname": "WARNING", "msg": text}
        return f"{self.format(logging.makeLogRecord(members))}\n"
