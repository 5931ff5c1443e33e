"""Standard error of a tool server.

It is logged line by line, with the same escaping as other text of a peer. A thread reads it: a slow reader of
the log must not delay the renewal of the lease.
"""

import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Final

from lifesign.domain.credentials.secret import NO_SECRETS, Scrubber

MAX_LINE_BYTES: Final = 4_096
"""Maximum length of a logged line; the rest is cut."""
MAX_LINES_PER_SECOND: Final = 50
"""Maximum lines per second of one server.

The number of dropped ones is logged with the next line, or at its end.
"""
JOIN_SECONDS: Final = 1.0
"""Time to read the rest of its output after the server has ended."""
_PIECE_BYTES: Final = 65_536

_log = logging.getLogger("lifesign.adapter.tools")


class ServerLog:
    """Logs lines of one tool server's output that are not answers, up to a maximum per second."""

    def __init__(
        self, name: str, clock: Callable[[], float] = time.monotonic, *, scrubber: Scrubber = NO_SECRETS
    ) -> None:
        """Log lines of the tool server `name` without its secrets."""
        self._name = name
        self._scrubber = scrubber
        self._clock = clock
        self._lock = threading.Lock()
        self._second = 0
        self._lines = 0

    def log_line(self, line: bytes) -> None:
        """Log a line, unless this second's maximum of lines is reached."""
        text = line[:MAX_LINE_BYTES].decode("utf-8", "replace").strip()
        if not text:
            return
        with self._lock:
            second = int(self._clock())
            is_new = second != self._second
            omitted = self._pop_omitted() if is_new else 0
            self._second = second
            self._lines += 1
            is_shown = self._lines <= MAX_LINES_PER_SECOND
        self._log_omitted(omitted)
        if is_shown:
            _log.warning("%s wrote: %s", self._name, self._scrubber.clean_cut(text))

    def finish(self) -> None:
        """Log how many lines were dropped since the last such report. Call it when the server has ended."""
        with self._lock:
            omitted = self._pop_omitted()
        self._log_omitted(omitted)

    def _pop_omitted(self) -> int:
        """Return the number of dropped lines of the second, and start again at 0."""
        omitted, self._lines = max(0, self._lines - MAX_LINES_PER_SECOND), 0
        return omitted

    def _log_omitted(self, lines: int) -> None:
        if lines:
            _log.warning(
                "tool server %s wrote %d more lines within a second, which were dropped", self._name, lines
            )


class ServerLogPipe(threading.Thread):
    """Pipe for a server's standard error, and the thread that reads it to its end."""

    def __init__(self, words: ServerLog) -> None:
        super().__init__(name="a server's standard error", daemon=True)
        self._words = words
        self._read_fd, self.write_fd = os.pipe2(os.O_CLOEXEC)

    def begin(self) -> None:
        """Start to read. Call it when the server has its descriptor, or could not be started."""
        os.close(self.write_fd)
        self.start()

    def run(self) -> None:
        """Read the pipe to its end, and log each line."""
        rest = b""
        while piece := os.read(self._read_fd, _PIECE_BYTES):
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                self._words.log_line(line)
            # The beginning of a line without an end is logged in time.
            rest = rest[:MAX_LINE_BYTES]
        self._words.log_line(rest)
        os.close(self._read_fd)

    def finish(self) -> None:
        """Wait a short time until all is logged.

        If another process keeps the pipe open, later output is dropped.
        """
        self.join(JOIN_SECONDS)
        self._words.finish()
