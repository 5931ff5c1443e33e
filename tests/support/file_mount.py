"""A file that is mounted by itself, as containers mount single files."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest


def run_with_mounted(file: Path, code: str) -> str:
    """Mount a file onto itself for one new process, which runs Python code; return what the code prints.

    The code gets the path of the file as `sys.argv[1]`.
    """
    namespace = ["unshare", "--map-root-user", "--mount"]
    if shutil.which("unshare") is None or subprocess.run([*namespace, "true"], check=False).returncode != 0:
        pytest.skip("NOT RUN: this test needs user and mount namespaces")
    script = 'mount --bind "$1" "$1" && exec "$2" -c "$3" "$1"'
    command = [*namespace, "sh", "-c", script, "sh", str(file), sys.executable, code]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.strip()
