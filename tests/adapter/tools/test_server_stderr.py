import os

import pytest

from lifesign.adapter.tools.server_stderr import (
    MAX_LINE_BYTES,
    MAX_LINES_PER_SECOND,
    ServerLog,
    ServerLogPipe,
)
from lifesign.domain.credentials.secret import Scrubber


def test_logged_lines_per_second_are_limited_and_the_rest_is_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now_s = 10.0
    words = ServerLog("acme", lambda: now_s)
    for number in range(MAX_LINES_PER_SECOND + 7):
        words.log_line(b"line %d" % number)
    assert len(caplog.messages) == MAX_LINES_PER_SECOND
    now_s = 11.5
    words.log_line(b"again")
    left_out, again = caplog.records[-2:]
    assert (left_out.args, again.getMessage()) == (("acme", 7), "acme wrote: again")


def test_lines_dropped_before_the_end_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    pipe = ServerLogPipe(ServerLog("acme", lambda: 10.0))
    writing = os.dup(pipe.write_fd)
    pipe.begin()
    with os.fdopen(writing, "wb") as opened:
        opened.write(b"line\n" * (MAX_LINES_PER_SECOND + 7))
    pipe.finish()
    assert [record.args for record in caplog.records[MAX_LINES_PER_SECOND:]] == [("acme", 7)]
    pipe.finish()
    assert len(caplog.messages) == MAX_LINES_PER_SECOND + 1


def test_stderr_is_read_to_its_end_with_long_lines_cut(caplog: pytest.LogCaptureFixture) -> None:
    pipe = ServerLogPipe(ServerLog("acme"))
    writing = os.dup(pipe.write_fd)
    pipe.begin()
    with os.fdopen(writing, "wb") as opened:
        opened.write(b"one\n\n\xfftwo\n" + b"x" * 300_000 + b"\nlast")
    pipe.finish()
    assert not pipe.is_alive()
    assert caplog.messages[0] == "acme wrote: one"
    assert caplog.messages[1] == "acme wrote: \ufffdtwo"
    assert caplog.messages[2].startswith("acme wrote: xxx")
    assert max(map(len, caplog.messages)) <= MAX_LINE_BYTES + len("acme wrote: ")
    assert caplog.messages[-1] == "acme wrote: last"


def test_secrets_are_removed_from_logged_lines(caplog: pytest.LogCaptureFixture) -> None:
    words = ServerLog("acme", scrubber=Scrubber(["of-the-server"]))
    words.log_line(b"key of-the-server, of\xe2\x80\x8b-the-server")
    words.log_line(b"x" * (MAX_LINE_BYTES - 10) + b"of-the-server")
    assert "of-the" not in caplog.text
    assert "REMOVED" in caplog.messages[1]
