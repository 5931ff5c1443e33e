"""The verdicts of the demo's registry."""

import re
import subprocess
import sys

from tests.support.servers import PATIENCE_SECONDS, REPOSITORY


def test_demo_shows_a_drain_a_death_and_a_lease_takeover() -> None:
    command = [sys.executable, "docs/examples/registry_demo.py"]
    done = subprocess.run(
        command, cwd=REPOSITORY, capture_output=True, text=True, timeout=4 * PATIENCE_SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [re.sub(r"^ *[\d.]+ s +", "", line) for line in done.stdout.splitlines()]
    assert any(re.match(r"worker-3 .* deregistered \(drain_completed\)$", line) for line in lines)
    assert any(
        re.match(r"worker-1 is dead: no heartbeat for [\d.]+ s, more than 5 s", line) for line in lines
    )
    assert any(re.search("worker-2 has .* token 2$", line) for line in lines)
    assert any(re.search("token 1 is refused: 412 stale_token$", line) for line in lines)
    assert any(line.startswith("the log ") for line in lines)
