"""What becomes of what a server of tools writes beside its answers?

It is logged, line by line, and so shown like everything that a peer has written. A thread reads its standard
error: whoever reads our log may be slow, and must not keep the lease from being renewed.
"""

import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Final

MAX_LINE_BYTES: Final = 4_096
"""Of a line that is logged; the rest of it is left out."""
MAX_LINES_PER_SECOND: Final = 50
"""Of one server; how many more there were is logged with the first that follows, or at its end."""
JOIN_SECONDS: Final = 1.0
"""For the last of it, when the server has ended."""
_PIECE_BYTES: Final = 65_536

_log = logging.getLogger("lifesign.adapter.tools")


class ServerLog:
    """Logs what one server writes beside its answers, so many lines a second."""

    def __init__(self, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._name = name
        self._clock = clock
        self._lock = threading.Lock()
        self._second = 0
        self._lines = 0

    def log_line(self, line: bytes) -> None:
        """Log a line, unless there are too many."""
        text = line[:MAX_LINE_BYTES].decode("utf-8", "replace").strip()
        if not text:
            return
        with self._lock:
            second = int(self._clock())
            is_new = second != self._second
            omitted = self._take_omitted() if is_new else 0
            self._second = second
            self._lines += 1
            is_shown = self._lines <= MAX_LINES_PER_SECOND
        self._log_omitted(omitted)
        if is_shown:
            _log.warning("%s wrote: %s", self._name, text)

    def finish(self) -> None:
        """Log how many lines were left out since it was told last; the server has ended."""
        with self._lock:
            omitted = self._take_omitted()
        self._log_omitted(omitted)

    def _take_omitted(self) -> int:
        """Return how many lines of the second were left out, and count anew."""
        omitted, self._lines = max(0, self._lines - MAX_LINES_PER_SECOND), 0
        return omitted

    def _log_omitted(self, lines: int) -> None:
        if lines:
            _log.warning("%s wrote %d more lines, which are left out", self._name, lines)


class ServerLogPipe(threading.Thread):
    """What a server's standard error has to be, and what reads it until its end."""

    def __init__(self, words: ServerLog) -> None:
        super().__init__(name="a server's standard error", daemon=True)
        self._words = words
        self._read_fd, self.write_fd = os.pipe2(os.O_CLOEXEC)

    def begin(self) -> None:
        """Read from now on; to be called when the server has its descriptor, or will never have it."""
        os.close(self.write_fd)
        self.start()

    def run(self) -> None:
        """Tell one line after the other."""
        rest = b""
        while piece := os.read(self._read_fd, _PIECE_BYTES):
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                self._words.log_line(line)
            # Of a line without an end, the beginning is told in its time.
            rest = rest[:MAX_LINE_BYTES]
        self._words.log_line(rest)
        os.close(self._read_fd)

    def finish(self) -> None:
        """Wait a moment until all is told; what somebody else still holds open is left."""
        self.join(JOIN_SECONDS)
        self._words.finish()
