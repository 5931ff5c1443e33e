import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.open_files import open_files

from lifesign.adapter.process.output import MAX_KEPT_BYTES, OutputCopy

HALF = MAX_KEPT_BYTES // 2


def a_pipe(directory: Path) -> None:
    (directory / "stdout.log").unlink()
    os.mkfifo(directory / "stdout.log")


def a_directory(directory: Path) -> None:
    (directory / "stdout.log").unlink()
    (directory / "stdout.log").mkdir()


@pytest.mark.parametrize("put", [a_pipe, a_directory])
def test_fifo_instead_of_the_log_file_does_not_block(tmp_path: Path, put: Callable[[Path], None]) -> None:
    # A full directory at this name prevents the rotation of the planted file.
    (tmp_path / "stdout.log.older" / "full").mkdir(parents=True)
    reading, passed_on = os.pipe()
    before = open_files()
    directory_fd = os.open(tmp_path, os.O_RDONLY)
    output = OutputCopy(directory_fd, stdout_to=passed_on, stderr_to=passed_on)
    os.close(directory_fd)
    writing = os.dup(output.stdout_fd)
    output.begin()
    os.write(writing, b"first")
    assert os.read(reading, 5) == b"first"
    put(tmp_path)
    with os.fdopen(reading, "rb") as copied:
        left = HALF + 4096
        while left:
            left -= os.write(writing, bytes(min(left, 4096)))
            copied.read1(65_536)
        os.write(writing, b"last")
        read = b""
        while not read.endswith(b"last"):
            read = copied.read1(65_536)
        # One of these has the number of the file that was given up, were it closed already.
        others = [os.open(os.devnull, os.O_RDONLY) for _ in range(32)]
        os.close(writing)
        output.finish()
        for fd in others:
            os.close(fd)
        assert open_files() <= before
    os.close(passed_on)
