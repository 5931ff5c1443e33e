import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.open_files import open_files
from tests.support.servers import until

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


def test_output_is_passed_on_completely_to_a_non_blocking_pipe(tmp_path: Path) -> None:
    reading, passed_on = os.pipe()
    os.set_blocking(passed_on, False)
    directory_fd = os.open(tmp_path, os.O_RDONLY)
    output = OutputCopy(directory_fd, stdout_to=passed_on, stderr_to=passed_on)
    os.close(directory_fd)
    writing = os.dup(output.stdout_fd)
    output.begin()
    full = os.write(passed_on, bytes(10_000_000))
    given = os.urandom(400_000)
    writer = threading.Thread(target=os.write, args=(writing, given))
    writer.start()
    # Each piece is kept before it is passed on.
    until("a piece is kept", lambda: (tmp_path / "stdout.log").stat().st_size)
    with os.fdopen(reading, "rb") as copied:
        assert copied.read(full + len(given))[full:] == given
    os.close(writing)
    writer.join()
    output.finish()
    os.close(passed_on)


def test_lack_of_threads_is_an_error_of_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    directory_fd = os.open(tmp_path, os.O_RDONLY)
    output = OutputCopy(directory_fd)
    monkeypatch.setattr(threading.Thread, "start", fail)
    with pytest.raises(OSError, match="new thread") as refused:
        output.begin()
    assert refused.value.errno == errno.EAGAIN
    os.close(directory_fd)
