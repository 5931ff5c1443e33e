import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from tests.support.servers import PATIENCE_SECONDS

from lifesign.serving.ending_signals import ending_signals

SPEAKS_AFTERWARDS = """
import sys
from lifesign.serving.ending_signals import redirect_closed_terminal
print("begun", flush=True)
sys.stdin.readline()
if sys.argv[1] == "left":
    redirect_closed_terminal()
sys.stderr.write("and what came of it\\n")
"""


@pytest.fixture
def _hang_up_as_before() -> Iterator[None]:
    before = signal.getsignal(signal.SIGHUP)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("_hang_up_as_before")
def test_closed_terminal_ends_a_command_unless_it_runs_under_nohup() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    assert set(ending_signals()) == {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    assert set(ending_signals()) == {signal.SIGINT, signal.SIGTERM}


@pytest.mark.parametrize(("how", "code"), [("left", {0}), ("kept", {1, 120})])
def test_output_to_a_closed_terminal_is_dropped(how: str, code: set[int]) -> None:
    terminal, other_side = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", SPEAKS_AFTERWARDS, how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=other_side,
    ) as process:
        os.close(other_side)
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        os.close(terminal)
        process.communicate(b"\n", timeout=PATIENCE_SECONDS)
    assert process.returncode in code
