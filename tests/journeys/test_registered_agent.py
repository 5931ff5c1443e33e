"""The example of an agent returns after a crash and drains in order."""

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

from tests.support.registry_server import ADMIN_KEY, registry_server
from tests.support.servers import PATIENCE_SECONDS, REPOSITORY

from lifesign.cli import main
from lifesign.client.environment_variables import KEY_VARIABLE, URL_VARIABLE


def started(url: str, file: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "docs/examples/registered_agent.py", "worker-1", str(file)],
        cwd=REPOSITORY,
        env={**os.environ, URL_VARIABLE: url, KEY_VARIABLE: ADMIN_KEY},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def first_line(running: "subprocess.Popen[str]") -> str:
    assert running.stdout is not None
    return running.stdout.readline()


def test_example_agent_restarts_after_a_crash_and_exits_after_a_drain(tmp_path: Path) -> None:
    file = tmp_path / "worker-1.key"
    with registry_server(tmp_path) as server:
        with started(server.url, file) as crashed:
            assert first_line(crashed) == "worker-1 is active, incarnation 1\n"
            crashed.send_signal(signal.SIGKILL)
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        with started(server.url, file) as again:
            assert first_line(again) == "worker-1 is active, incarnation 2\n"
            key_file = tmp_path / "admin.key"
            key_file.write_text(ADMIN_KEY)
            asked = ["--registry", server.url, "--key-file", str(key_file)]
            assert main(["agents", "deregister", "worker-1", *asked]) == 0
            output, complaints = again.communicate(timeout=PATIENCE_SECONDS)
        assert (again.returncode, complaints) == (0, "")
        assert "410" in output
