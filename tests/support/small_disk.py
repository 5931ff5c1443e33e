"""A disk that can be filled."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def mounted(place: Path, options: str) -> Iterator[Path]:
    """A disk of its own, mounted with options such as `size=1m`; the test is skipped where none may be."""
    place.mkdir(exist_ok=True)
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", place], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip(f"NOT RUN, a tmpfs may not be mounted here (root is needed): {made.stderr.decode()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


def fill(place: Path) -> int:
    """Write until the disk is full; return how much went in."""
    path = place / "filling"
    with path.open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    assert os.statvfs(place).f_bavail == 0
    return path.stat().st_size
