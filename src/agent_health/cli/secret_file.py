"""How does a command read a key or a token from a file?"""

import sys
from functools import cache
from pathlib import Path

from agent_health.cli.terminal import printable
from agent_health.client import secret_file


def read_secret(file: Path, option: str, what: str) -> str:
    """Return what a file holds, as `secret_file` reads it; complaints go to standard error."""
    return secret_file.read_secret(file, option, what, _warn)


@cache
def _warn(complaint: str) -> None:
    """Say it once, however often the file is read."""
    sys.stderr.write(f"agent-health: {printable(f'warning: {complaint}')}\n")
