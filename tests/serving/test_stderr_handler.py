import io
import logging
import os
import select
import sys
from collections.abc import Iterator

import pytest
from tests.support.servers import until

from lifesign.serving import line_writer
from lifesign.serving.stderr_handler import StderrHandler, stderr_handler


@pytest.fixture
def pipe() -> Iterator[tuple[StderrHandler, int]]:
    """A handler that writes to a pipe, and the end of the pipe from which to read."""
    read, written = os.pipe()
    handler = StderrHandler(written, "utf-8")
    yield handler, read
    handler.close()
    os.close(read)


def record(text: str) -> logging.LogRecord:
    return logging.makeLogRecord({"name": "test", "levelname": "INFO", "msg": text})


def test_line_is_written_at_once_and_without_a_thread(pipe: tuple[StderrHandler, int]) -> None:
    handler, unread = pipe
    handler.emit(record("\u00e9 \ud800"))
    assert os.read(unread, 100) == b"\xc3\xa9 \\ud800\n"
    assert handler._stream._lines is None


def test_reader_that_stands_still_delays_no_record(
    pipe: tuple[StderrHandler, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_writer, "MAX_WAITING", 10)
    handler, unread = pipe
    for number in range(1_000):
        handler.emit(record(f"{number} {'x' * 1_000}"))
    lines = handler._stream._lines
    assert lines is not None
    found = b""
    while (is_more := bool(select.select([unread], [], [], 0.01)[0])) or lines._waiting.unfinished_tasks:
        found += os.read(unread, 65_536) if is_more else b""
    handler.emit(record("afterwards"))
    until("the last line is written", lambda: lines.is_idle)
    *shown, last = (found + os.read(unread, 65_536)).decode().splitlines()
    kept = [line for line in shown if line.endswith("x")]
    dropped = [int(line.split()[0]) for line in shown if not line.endswith("x")]
    numbers = [int(line.split()[0]) for line in kept]
    assert numbers == sorted(numbers)
    assert dropped
    assert len(kept) + sum(dropped) == 1_000
    assert last == "afterwards"


def test_long_line_is_written_as_a_whole(pipe: tuple[StderrHandler, int]) -> None:
    handler, unread = pipe
    handler.emit(record("x" * 8_000))
    handler.close()
    assert len(os.read(unread, 65_536)) == 8_001


def test_reader_that_left_is_no_error() -> None:
    read, written = os.pipe()
    os.close(read)
    handler = StderrHandler(written, "utf-8")
    for text in ("x", "x" * 8_000):
        handler.emit(record(text))
    handler.close()


def test_standard_error_without_a_file_is_written_to_as_usual(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    handler = stderr_handler()
    handler.emit(record("a line"))
    handler.close()
    assert capfd.readouterr().err == "a line\n"
    for stream in (io.StringIO(), None):
        monkeypatch.setattr(sys, "stderr", stream)
        assert type(stderr_handler()) is logging.StreamHandler
