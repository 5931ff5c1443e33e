import os
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from lifesign.serving import line_writer
from lifesign.serving.line_writer import LineWriter

FLUSH_SECONDS = 0.1


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, int]]:
    """A pipe, and a short time for its reader at the end."""
    monkeypatch.setattr(line_writer, "FLUSH_SECONDS", FLUSH_SECONDS)
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def writer_to(fd: int) -> LineWriter:
    with os.fdopen(fd, "w", encoding="ascii", closefd=False) as stream:
        writer = LineWriter(stream, "test", lambda text: f"{text}!\n")
    writer.start()
    return writer


def test_lines_are_written_in_order(pipe: tuple[int, int]) -> None:
    writer = writer_to(pipe[1])
    for line in ("one\n", "tw\u00f6\n"):
        writer.write(line)
    writer.finish()
    writer.join()
    assert os.read(pipe[0], 100) == b"one\ntw?\n"


def test_reader_that_stopped_delays_neither_a_line_nor_the_end(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_writer, "MAX_WAITING", 3)
    writer = writer_to(pipe[1])
    for _ in range(100):
        writer.write("x" * 65_535 + "\n")
    began_s = time.monotonic()
    writer.finish()
    assert time.monotonic() - began_s >= FLUSH_SECONDS
    assert writer.is_alive()
    # The thread may end at any moment: then nothing more can be read.
    os.set_blocking(pipe[0], False)
    while writer.is_alive():
        with suppress(BlockingIOError):
            os.read(pipe[0], 65_536)
        writer.join(0.001)


def test_reader_that_left_is_no_error(pipe: tuple[int, int]) -> None:
    read, written = os.pipe()
    os.close(read)
    writer = writer_to(written)
    writer.write("line\n")
    writer.join()
    writer.write("line\n")
    writer.finish()
    os.close(written)
