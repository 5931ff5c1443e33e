"""The demo's task outlives its agent."""

import re
import subprocess
import sys

import pytest
from tests.support.servers import PATIENCE_SECONDS, REPOSITORY


@pytest.mark.long
def test_demo_shows_a_task_claimed_again_after_its_adapter_is_killed() -> None:
    command = [sys.executable, "docs/examples/task_demo.py"]
    done = subprocess.run(
        command, cwd=REPOSITORY, capture_output=True, text=True, timeout=8 * PATIENCE_SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [re.sub(r"^ *[\d.]+ s +", "", line) for line in done.stdout.splitlines()]
    assert any(re.search("0.01 USD, .*: 1 of 3 ", line) for line in lines)
    assert any(re.search("writer-2 has .* token 2, ", line) for line in lines)
    assert "no process of the agent of writer-1 is left" in lines
    assert any(re.search("token 1 is refused: 412 stale_token$", line) for line in lines)
    assert any(re.match("writer-2 .* review, .* 0.03 USD ", line) for line in lines)
    assert "its runs: writer-1 lease_expired, writer-2 completed" in lines
    assert lines[-1].endswith(": done")
