"""The demo's directory in the registry."""

import re
import subprocess
import sys

import pytest
from tests.support.servers import PATIENCE_SECONDS, REPOSITORY


@pytest.mark.long
def test_demo_shows_alive_agents_and_a_killed_one() -> None:
    command = [sys.executable, "docs/examples/crawl_demo.py"]
    done = subprocess.run(
        command, cwd=REPOSITORY, capture_output=True, text=True, timeout=4 * PATIENCE_SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    lines = [re.sub(r"^ *[\d.]+ s +", "", line) for line in done.stdout.splitlines()]
    assert any(re.match("well is active .* healthy$", line) for line in lines)
    assert any(re.match("half is active .* degraded$", line) for line in lines)
    assert any(re.match("the probe of well is refused, .* active", line) for line in lines)
    assert any(re.match(r"2 of 7 .* \(28\.6 %\), 1 of ", line) for line in lines)
