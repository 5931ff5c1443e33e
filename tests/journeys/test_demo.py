"""`make demo` shows what it promises and leaves no process behind."""

import os
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.support.repetitions import in_faults
from tests.support.servers import PATIENCE_SECONDS, REPOSITORY, until

COMMAND = [sys.executable, "docs/examples/demo.py"]


class Demo:
    """One run of the demo, whose processes carry a mark in their environment."""

    def __init__(self, directory: Path) -> None:
        self._mark = f"DEMO_MARK={uuid.uuid4()}"
        self._directory = directory

    @contextmanager
    def running(self, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
        name, _, value = self._mark.partition("=")
        with subprocess.Popen(
            [*COMMAND, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=REPOSITORY,
            env={**os.environ, name: value, "TMPDIR": str(self._directory)},
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def processes(self) -> list[int]:
        """All processes that carry the mark."""
        found = []
        for environment in Path("/proc").glob("[0-9]*/environ"):
            try:
                if self._mark.encode() in environment.read_bytes():
                    found.append(int(environment.parent.name))
            except OSError:  # It ended meanwhile, or is none of ours.
                continue
        return found

    def nothing_is_left(self) -> bool:
        return not self.processes() and not list(self._directory.glob("lifesign-demo-*"))


@pytest.fixture
def demo(tmp_path: Path) -> Demo:
    return Demo(tmp_path)


def test_demo_reports_three_agents_correctly_and_leaves_no_process(demo: Demo) -> None:
    with demo.running() as process:
        shown, _ = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, shown
    assert shown.count("40 x HTTP 200") == 3
    assert re.findall(r'"status": "(\w+)"', shown) == ["healthy", "degraded", "unhealthy"]
    assert re.findall(r"should I call it\? (\w+)", shown) == ["PROCEED", "PROCEED_WITH_CAUTION", "AVOID"]
    assert re.findall(r'"response_ratio": ([\d.]+)', shown) == ["1.0", "0.5", "0.0"]
    assert '{"answered": 20, "task_failed": 20, ' in shown
    introduction = shown.partition("{")[0]
    assert "`excluded`" in introduction
    assert "`first-byte`" in introduction
    assert demo.nothing_is_left()


def read_until_kept(process: "subprocess.Popen[str]") -> list[str]:
    """Read the output until the agents keep running; return their URLs."""
    assert process.stdout is not None
    urls = []
    for line in process.stdout:
        if found := re.search(r"lifesign check (\S+)", line):
            urls.append(found[1])
        if "curl -si" in line:
            break
    return urls


@pytest.mark.parametrize("ending", [signal.SIGTERM, *in_faults(signal.SIGINT)])
def test_agents_run_until_they_are_terminated(demo: Demo, ending: signal.Signals) -> None:
    with demo.running("--keep") as process:
        assert len(read_until_kept(process)) == 3
        assert len(demo.processes()) == 4
        process.send_signal(ending)
        assert process.wait(PATIENCE_SECONDS) == 0
        assert demo.nothing_is_left()


def test_the_agents_end_also_if_the_demo_is_killed(demo: Demo) -> None:
    with demo.running("--keep") as process:
        read_until_kept(process)
        process.kill()
        process.wait(PATIENCE_SECONDS)
        until("no agent is left", lambda: not demo.processes())


def test_demo_fails_with_a_message_if_an_agent_does_not_start(demo: Demo) -> None:
    command = [sys.executable, "-c", "import runpy, sys; sys.executable = '/bin/false'; "]
    command[-1] += "runpy.run_path('docs/examples/demo.py', run_name='__main__')"
    done = subprocess.run(
        command, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS
    )
    assert done.returncode == 1
    assert "the agent 'well' did not start" in done.stderr
