"""The demo's MCP servers, whose tool fails behind HTTP 200."""

import re
import subprocess
import sys

from tests.support.servers import PATIENCE_SECONDS, REPOSITORY


def test_demo_finds_both_servers_with_a_failing_tool() -> None:
    command = [sys.executable, "docs/examples/mcp_demo.py"]
    done = subprocess.run(
        command, cwd=REPOSITORY, capture_output=True, text=True, timeout=4 * PATIENCE_SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    shown = [re.sub(r"^ *[\d.]+ s +", "", line) for line in done.stdout.splitlines()]
    assert any("20 x HTTP 200" in line for line in shown)
    assert any(re.match(r"wrapped: .* AVOID", line) for line in shown)
    rows = [line.split()[:3] for line in shown]
    assert ["tool", "call", "http_error"] in rows
    assert rows.count(["server", "ok", "200"]) == 2
    assert any(row[-1:] == ["assertion_failed"] for row in rows)
