"""Lines for a reader that may be slow, or may have stopped reading: nothing waits for it."""

import os
import queue
import select
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TextIO

from lifesign.domain.text.counts import plural, pluralize

MAX_WAITING: Final = 10_000
"""Maximum number of lines that wait for a reader; further lines are counted and dropped."""
FLUSH_SECONDS: Final = 2.0
"""Time at the end for lines that wait for a reader."""


class LineWriter(threading.Thread):
    """Thread that writes lines to a stream at the speed of their reader.

    `omission_line` returns a line about dropped lines, from a text about their number.
    """

    def __init__(self, stream: TextIO, name: str, omission_line: Callable[[str], str]) -> None:
        super().__init__(name=name, daemon=True)
        # Not through the stream: a blocked thread would hold its lock until the process has ended.
        self._fd, self._encoding = stream.fileno(), stream.encoding
        self._omission_line = omission_line
        self._waiting: queue.Queue[bytes] = queue.Queue(MAX_WAITING)
        self._omitted = 0
        self._ends = False
        self.failure: OSError | None = None
        """Why nothing is written any more, such as a reader that has left."""

    def write(self, line: str) -> None:
        """Write a line, which ends with a line break; returns at once."""
        if self._omitted and self._put(self._omission_line(_omitted_text(self._omitted))):
            self._omitted = 0
        self._omitted += not self._put(line)

    @property
    def is_idle(self) -> bool:
        """Whether all lines are written, and dropped ones reported."""
        return self._waiting.unfinished_tasks == 0 and not self._omitted

    def finish(self) -> None:
        """Wait a short time until all lines are written; the rest is dropped if it is not read."""
        self._ends = True
        with suppress(queue.Full):
            self._waiting.put_nowait(b"")
        self.join(FLUSH_SECONDS)

    def run(self) -> None:
        """Write lines until the end, or until the reader has left."""
        try:
            while not (self._ends and self._waiting.empty()):
                write_all(self._fd, self._waiting.get())
                self._waiting.task_done()
        except OSError as error:
            self.failure = error

    def _put(self, line: str) -> bool:
        try:
            self._waiting.put_nowait(line.encode(self._encoding, "replace"))
        except queue.Full:
            return False
        return True


def _omitted_text(lines: int) -> str:
    return (
        f"{pluralize(lines, 'line')} {plural(lines, 'was', 'were')} dropped because the reader was too slow"
    )


def write_all(fd: int, piece: bytes) -> None:
    """Write all bytes to a descriptor, and wait for its reader.

    Another process that shares the pipe or terminal may have made the descriptor non-blocking.
    """
    left = memoryview(piece)
    while left:
        try:
            left = left[os.write(fd, left) :]
        except BlockingIOError:
            writable = select.poll()
            writable.register(fd, select.POLLOUT)
            writable.poll()
