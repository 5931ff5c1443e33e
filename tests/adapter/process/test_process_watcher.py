import os
import signal
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
from tests.support.servers import PATIENCE_SECONDS

from lifesign.adapter.process import process_watcher
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


def test_agent_is_killed_before_the_adapter_when_memory_runs_out(tmp_path: Path) -> None:
    score = Path("/proc/self/oom_score_adj")
    before = int(score.read_text())
    # The agent keeps the value when its watcher's is restored.
    code = f"import time; time.sleep(0.2); open('score', 'w').write(open({str(score)!r}).read())"
    job = {"command": [sys.executable, "-c", code], "input": None, "cwd": str(tmp_path)}
    agent = process_watcher._started({**job, "environment": {}, "user": None})
    assert agent.wait(PATIENCE_SECONDS) == 0
    assert int((tmp_path / "score").read_text()) == min(1000, before + process_watcher.OOM_SCORE_ADDED)
    assert int(score.read_text()) == before
