import os
import pty
import sys
from collections.abc import Iterator
from io import StringIO

import pytest
from tests.support.servers import until

from lifesign.serving.nonblocking_stream import NonBlockingStream, copied_descriptor


@pytest.fixture
def terminal() -> Iterator[tuple[NonBlockingStream, int]]:
    """A stream to a terminal, and the descriptor from which to read what it shows."""
    shown, written = pty.openpty()
    stream = NonBlockingStream(written, "utf-8", "{}\n".format, is_at_once=False)
    yield stream, shown
    os.close(shown)
    stream.close()


def test_terminal_that_is_not_read_delays_no_text(terminal: tuple[NonBlockingStream, int]) -> None:
    stream, shown = terminal
    assert stream.isatty()
    for _ in range(1_000):
        assert stream.write("x" * 1_000) == 1_000
    assert not stream.is_idle
    found = b""
    while len(found) < 1_000_000:
        found += os.read(shown, 65_536)
    until("all is written", lambda: stream.is_idle)
    assert found == b"x" * 1_000_000


def test_nothing_is_written_after_the_end() -> None:
    read, written = os.pipe()
    stream = NonBlockingStream(written, "utf-8", "{}\n".format)
    stream.write("one")
    stream.close()
    assert stream.write("two") == 0
    assert not stream.isatty()
    assert os.read(read, 100) == b"one"
    os.close(read)


def test_only_a_file_has_a_descriptor(capfd: pytest.CaptureFixture[str]) -> None:
    copy_fd = copied_descriptor(sys.stderr)
    assert copy_fd is not None
    os.close(copy_fd)
    assert copied_descriptor(StringIO()) is None
