import os
import signal
import subprocess
import sys
from unittest.mock import Mock

import pytest

from lifesign.adapter.process.process_watcher import END, KILL, ProcessWatcher

JOB = {"deadline_ns": None}


@pytest.mark.parametrize(
    ("numbers", "order", "reported"),
    [
        ([signal.SIGTERM], None, b"signalled 15\n"),
        ([signal.SIGCHLD, signal.SIGHUP, signal.SIGTERM], None, b"signalled 1\n"),
        ([signal.SIGCHLD], None, b""),
        # The adapter has ended it: there is nothing to wait for.
        ([signal.SIGTERM], END, b""),
        ([signal.SIGTERM], KILL, b""),
    ],
)
def test_signal_that_comes_after_the_end_of_the_agent_is_reported(
    numbers: list[int], order: str | None, reported: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    (reads, status_fd), (woken, wakes) = os.pipe(), os.pipe()
    with subprocess.Popen([sys.executable, "-c", ""]) as agent:
        watcher = ProcessWatcher(JOB, b"", status_fd)
        watcher._agent = agent
        monkeypatch.setattr(watcher, "_signal_all", Mock())
        if order is not None:
            watcher._obey(f"{order}\n".encode())
        os.write(wakes, bytes(numbers))
        watcher._await_late_signal(woken)
    os.close(status_fd)
    assert os.read(reads, 100) == reported
    for fd in (reads, woken, wakes):
        os.close(fd)
