"""Text stream that waits for no reader.

A reader that stands still, such as a stuck log collector or a terminal after Ctrl-S, would stop the event
loop with the first text that does not fit into the pipe. Usually the stream writes a text itself, so that
none is lost if the process is killed. A text that would have to wait goes to a thread, with all that follow
until they are written.
"""

import os
import select
from collections.abc import Callable
from contextlib import suppress
from typing import TextIO

from lifesign.serving.line_writer import LineWriter, write_all


def copied_descriptor(stream: TextIO) -> int | None:
    """Return a new descriptor of a stream's file; None if it has none, or if the platform cannot poll it."""
    if not hasattr(select, "poll"):
        return None
    try:
        return os.dup(stream.fileno())
    except (AttributeError, OSError, ValueError):
        return None


class NonBlockingStream:
    """Writes each text at once, or in a thread if the reader is slow. It closes its descriptor.

    `omission_line` returns a line about dropped texts, from a text about their number. If not `is_at_once`,
    the thread writes all texts: a terminal may have room for a part of one.
    """

    def __init__(
        self, fd: int, encoding: str, omission_line: Callable[[str], str], *, is_at_once: bool = True
    ) -> None:
        self.encoding = encoding
        self._fd = fd
        self._omission_line = omission_line
        self._is_at_once = is_at_once
        self._is_closed = False
        self._room = select.poll()
        self._room.register(self._fd, select.POLLOUT)
        self._lines: LineWriter | None = None
        self._pid = os.getpid()

    def write(self, text: str) -> int:
        """Write a text; errors of the descriptor are ignored."""
        if self._is_closed:
            return 0
        if self._pid != os.getpid():
            # A fork has no thread.
            self._lines, self._pid = None, os.getpid()
        written = text.encode(self.encoding, "backslashreplace")
        # No write of this size waits if there is room at all.
        is_short = self._is_at_once and len(written) <= select.PIPE_BUF
        if is_short and self.is_idle and self._room.poll(0):
            with suppress(OSError):
                write_all(self._fd, written)
            return len(text)
        if self._lines is None:
            with os.fdopen(self._fd, "w", encoding=self.encoding, closefd=False) as stream:
                self._lines = LineWriter(stream, "log", self._omission_line)
            self._lines.start()
        self._lines.write(text)
        return len(text)

    def flush(self) -> None:
        """Do nothing: no text waits for a flush."""

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._fd

    def isatty(self) -> bool:
        """Return whether the file is a terminal."""
        return not self._is_closed and os.isatty(self._fd)

    @property
    def is_idle(self) -> bool:
        """Whether no text waits for the reader."""
        return self._lines is None or self._lines.is_idle

    def close(self) -> None:
        """Wait a short time for texts that are not written yet."""
        lines, self._lines = self._lines, None
        if lines is not None and self._pid == os.getpid():
            lines.finish()
        if not self._is_closed and (lines is None or not lines.is_alive()):
            os.close(self._fd)
        self._is_closed = True
