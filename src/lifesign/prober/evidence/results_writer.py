"""Writes lines to the file of observations, in a thread of its own.

Nothing waits for the file: on a full disk, or without the right to write, results still reach the ledger.
Lines wait in memory until the file can be written again. Beyond MAX_WAITING_BYTES the oldest are dropped.
"""

import logging
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

from lifesign.domain.observation.results import Observation
from lifesign.domain.text.counts import pluralize
from lifesign.prober.evidence.observation_file import ResultsFile, line_of

MAX_WAITING_BYTES: Final = 67_108_864
LINES_AT_ONCE: Final = 1_000
RETRY_SECONDS: Final = 5.0
CLOSE_SECONDS: Final = 10.0
"""Time at the end for lines that wait."""

_log = logging.getLogger("lifesign.prober")


class ResultsWriter:
    """Appends observations to a file, which it closes at its end. Threads may share it."""

    def __init__(self, file: ResultsFile) -> None:
        self._file = file
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._in_hand: Sequence[bytes] = ()
        """Lines that the thread writes now."""
        self._dropped = 0
        self._fault: str | None = None
        self._ends = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="results file", daemon=True)
        self._thread.start()

    def add(self, observations: Iterable[Observation]) -> None:
        """Let a line be written for each observation."""
        lines = [line_of(observation) for observation in observations]
        with self._changed:
            self._waiting.extend(lines)
            self._waiting_bytes += sum(map(len, lines))
            self._drop_oldest()
            self._changed.notify_all()

    def close(self) -> None:
        """Wait a short time for the lines that are not written yet, then close the file."""
        with self._changed:
            self._ends = True
            self._changed.notify_all()
        self._thread.join(CLOSE_SECONDS)
        if missing := self._dropped + len(self._waiting) + len(self._in_hand):
            _log.error("%s lacks %s (%s)", self._file.path, pluralize(missing, "result"), self._fault)
        # A thread that still writes has the file locked.
        if not self._thread.is_alive():
            self._file.close()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._ends)
                if not self._waiting:
                    return
                count = min(LINES_AT_ONCE, len(self._waiting))
                self._in_hand = [self._waiting.popleft() for _ in range(count)]
                self._waiting_bytes -= sum(map(len, self._in_hand))
                is_last_try = self._ends
            fault = self._append()
            with self._changed:
                self._note(fault)
                if fault is not None:
                    if is_last_try:
                        return
                    self._changed.wait_for(lambda: self._ends, RETRY_SECONDS)

    def _append(self) -> str | None:
        try:
            self._file.append(self._in_hand)
        except OSError as error:
            return error.strerror or str(error)
        return None

    def _note(self, fault: str | None) -> None:
        """Log a change. Lines that could not be written wait again."""
        path, lines, self._in_hand = self._file.path, self._in_hand, ()
        if fault is not None:
            self._waiting.extendleft(reversed(lines))
            self._waiting_bytes += sum(map(len, lines))
            self._drop_oldest()
            if self._fault is None:
                _log.warning("%s cannot be written, and its lines wait: %s", path, fault)
        elif self._fault is not None:
            _log.warning("%s is written again and lacks %s", path, pluralize(self._dropped, "result"))
            self._dropped = 0
        self._fault = fault

    def _drop_oldest(self) -> None:
        while self._waiting_bytes > MAX_WAITING_BYTES:
            self._waiting_bytes -= len(self._waiting.popleft())
            self._dropped += 1
