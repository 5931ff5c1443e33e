"""Memory and processor time of a process and of all its descendants."""

import os
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

SAMPLE_SECONDS = 0.2
MIB = 1 << 20


def resident_bytes(pid: int) -> int:
    """Return the memory of a process and of its descendants; what they share counts for each."""
    try:
        resident = next(
            int(line.split()[1]) * 1024
            for line in Path(f"/proc/{pid}/status").read_text().splitlines()
            if line.startswith("VmRSS:")
        )
    except (OSError, StopIteration):
        # The process has ended. A zombie takes no memory.
        return 0
    return resident + sum(map(resident_bytes, _children(pid)))


def cpu_seconds(pid: int) -> float:
    """Return the processor time of a process, of its descendants, and of those that it has waited for."""
    try:
        taken = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]
    except OSError:
        return 0.0
    return sum(map(int, taken)) / os.sysconf("SC_CLK_TCK") + sum(map(cpu_seconds, _children(pid)))


def _children(pid: int) -> list[int]:
    found: list[int] = []
    # Each thread has those that it started itself.
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += map(int, children.read_text().split())
        except OSError:
            continue
    return found


class PeakMemory:
    """Looks at the memory of a process and of its descendants, again and again, until the block ends."""

    def __init__(self, pid: int) -> None:
        self.bytes = 0
        """The most of all moments that were looked at."""
        self._pid = pid
        self._has_ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._has_ended.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._has_ended.wait(SAMPLE_SECONDS):
            self.bytes = max(self.bytes, resident_bytes(self._pid))
