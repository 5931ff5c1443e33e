"""Storage of counts: in files that all workers share, or in the memory of this process."""

import errno
import logging
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from lifesign.domain.health.rolling_window import WINDOW_BYTES
from lifesign.errors import InvalidValue
from lifesign.middleware.published_document import PublishedDocument
from lifesign.middleware.settings import RecorderSettings

_log = logging.getLogger("lifesign")

# Errors of a directory that worked before.
_DISK_TROUBLES = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO})


@dataclass(frozen=True, slots=True)
class RecorderClock:
    """The two clocks of a recorder: one for durations, and the calendar time."""

    monotonic_ns: Callable[[], int] = time.perf_counter_ns
    """Nanoseconds of a clock that all processes of this machine share and that is never set."""
    wall_ns: Callable[[], int] = time.time_ns
    """Nanoseconds since 1970, UTC."""


class Windows(Protocol):
    """The counts of one agent's workers, as one worker uses them. Times are those of the common time base."""

    block: memoryview
    """Block to which this worker writes."""
    open_requests: memoryview
    """One lane: the number of requests that a kill of this worker would lose. The next one counts them."""
    offset_ns: int

    def blocks(self, now_ns: int) -> list[memoryview]:
        """Return the counts of all workers."""

    def is_removed(self) -> bool:
        """Return whether other workers can no longer find the block of this one."""

    def oldest_living_start_ns(self) -> int:
        """Return when the oldest living worker process started."""

    def published_document(self) -> PublishedDocument | None:
        """Return the document that any worker published last; None if there is none yet."""

    def publishing(self) -> AbstractContextManager[bool]:
        """Reserve the right to publish until the block ends; yields whether it was free."""

    def publish(self, notice: PublishedDocument) -> None:
        """Publish a document for all workers. Only within `publishing`."""

    def close(self) -> None:
        """Close all files."""


class _PrivateWindows:
    """The window of a process that shares with none and leaves nothing behind."""

    def __init__(self, now_ns: int) -> None:
        self.block = memoryview(bytearray(WINDOW_BYTES))
        self.open_requests = memoryview(bytearray(8)).cast("Q")
        self.offset_ns = 0
        self._started_ns = now_ns
        self._notice: PublishedDocument | None = None

    def blocks(self, now_ns: int) -> list[memoryview]:  # noqa: ARG002 - as shared windows take it
        return [self.block]

    def is_removed(self) -> bool:
        return False

    def oldest_living_start_ns(self) -> int:
        return self._started_ns

    def published_document(self) -> PublishedDocument | None:
        return self._notice

    def publishing(self) -> AbstractContextManager[bool]:
        return nullcontext(enter_result=True)

    def publish(self, notice: PublishedDocument) -> None:
        self._notice = notice

    def close(self) -> None:
        pass


def open_windows(settings: RecorderSettings, clock: RecorderClock, now_ns: int) -> Windows:
    """Open the workers' counts as the settings require; in memory, with a warning, if the disk fails."""
    if settings.state_dir is None:
        return _PrivateWindows(now_ns)
    # Imported late: only sharing needs POSIX.
    from lifesign.middleware.shared_windows import Shape, WindowFiles  # noqa: PLC0415

    shape = Shape(settings.agent_id, settings.window_ns, settings.counting)
    try:
        return WindowFiles(settings.state_dir, shape, monotonic_ns=now_ns, wall_ns=clock.wall_ns())
    except OSError as error:
        _log.warning(
            (
                "lifesign: the state directory cannot be used (%s); until its next start, this worker "
                "reports only its own numbers and loses them when it ends"
            ),
            error,
        )
        return _PrivateWindows(now_ns)


def check_state_dir(state_dir: Path | None) -> None:
    """Raise InvalidValue for a state directory that cannot work. Lack of disk space is not checked here."""
    if state_dir is None:
        return
    try:
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        if error.errno in _DISK_TROUBLES:
            return
        expected = f"a directory that can be created and written to ({error.strerror})"
        raise InvalidValue("state_dir", str(state_dir), expected) from error
    if os.statvfs(state_dir).f_flag & os.ST_RDONLY:
        return
    if not os.access(state_dir, os.R_OK | os.W_OK | os.X_OK):
        raise InvalidValue("state_dir", str(state_dir), "a directory that this user can read and write")
