"""The demo's directory in the registry."""

import re
import subprocess
import sys

from tests.support.servers import PATIENCE_SECONDS, REPOSITORY


def test_the_demo_shows_who_of_a_directory_is_alive_and_what_becomes_of_one_that_is_killed() -> None:
    command = [sys.executable, "docs/examples/crawl_demo.py"]
    done = subprocess.run(
        command, cwd=REPOSITORY, capture_output=True, text=True, timeout=4 * PATIENCE_SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    told = [re.sub(r"^ *[\d.]+ s +", "", line) for line in done.stdout.splitlines()]
    assert "well is active by its first sign of life, and calls itself healthy" in told
    assert "half is active by its first sign of life, and calls itself degraded" in told
    assert "well was seen refused, and is active: one failure is no death" in told
    assert "2 of 7 measured targets are alive (28.6 %), 1 of them behind a gate." in told
