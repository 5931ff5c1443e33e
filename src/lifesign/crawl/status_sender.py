"""Sends the messages of a process of a crawl to its parent, without waiting for the parent.

A parent that is stopped or busy reads nothing. The process probes meanwhile: a thread writes to the pipe.
"""

import queue
import threading
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Final

from lifesign.crawl.worker_config import WorkerStatus

MAX_WAITING: Final = 1_000
"""Maximum number of messages that wait for the parent; further ones are dropped."""
FLUSH_SECONDS: Final = 10.0
"""Time at the end for messages that wait for the parent."""


class StatusSender:
    """Sends messages in their order. Threads may share it."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._waiting: queue.Queue[bytes] = queue.Queue(MAX_WAITING)
        self._ends = False
        self._skipped: WorkerStatus | None = None
        self._thread = threading.Thread(target=self._run, name="status", daemon=True)
        self._thread.start()

    def send(self, status: WorkerStatus) -> None:
        """Send a message, which is dropped if too many wait."""
        with suppress(queue.Full):
            self._waiting.put_nowait(bytes(ForkingPickler.dumps(status)))

    def send_progress(self, status: WorkerStatus) -> None:
        """Send a message that the next one replaces; while others wait, only the last one is kept."""
        self._skipped = status if self._waiting.unfinished_tasks else None
        if self._skipped is None:
            self.send(status)

    def finish(self) -> None:
        """Wait a short time until all messages are sent."""
        if self._skipped is not None:
            self.send(self._skipped)
        self._ends = True
        with suppress(queue.Full):
            self._waiting.put_nowait(b"")
        self._thread.join(FLUSH_SECONDS)

    def _run(self) -> None:
        # OSError: the parent is gone.
        with suppress(OSError):
            while not (self._ends and self._waiting.empty()):
                if message := self._waiting.get():
                    self._pipe.send_bytes(message)
                self._waiting.task_done()
