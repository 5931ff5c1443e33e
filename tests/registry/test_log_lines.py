"""Is every record one line, whatever is in it?"""

import logging
import logging.config
import sys

import pytest

from agent_health.registry.log_lines import MAX_LINE_CHARACTERS, LogLine, log_config


def record(message: str, *arguments: object, failed: bool = False) -> logging.LogRecord:
    information = None
    if failed:
        try:
            int("on\npurpose")
        except ValueError:
            information = sys.exc_info()
    made = logging.LogRecord("agent_health", logging.INFO, __file__, 1, message, arguments, information)
    made.created, made.msecs = 1_763_640_000.25, 250.0
    return made


def test_a_line_says_when_how_grave_who_and_what() -> None:
    assert (
        LogLine().format(record("it is %s", "so")) == "2025-11-20T12:00:00.250Z INFO agent_health: it is so"
    )


@pytest.mark.parametrize("broken", ["a\nb", "a\r\nb", "a\x1b[2Jb", "a\u2028b", "a\x85b", "a\ud800b"])
def test_nobody_writes_a_line_of_his_own(broken: str) -> None:
    line = LogLine().format(record("%s", broken))
    assert line.isprintable()
    assert line.isascii()


def test_a_traceback_is_on_the_same_line() -> None:
    line = LogLine().format(record("it failed", failed=True))
    assert line.isprintable()
    assert "ValueError" in line


def test_a_long_record_is_cut_in_its_middle() -> None:
    line = LogLine().format(record("begin %s end", "x" * 1_000_000))
    assert len(line) < MAX_LINE_CHARACTERS + 10
    assert line.endswith("end")


@pytest.mark.parametrize("access_log", [False, True])
def test_requests_are_logged_only_if_asked_for(access_log: bool) -> None:  # noqa: FBT001 - a parameter of the test
    logging.config.dictConfig(dict(log_config(access_log=access_log)))
    try:
        assert logging.getLogger("uvicorn.access").isEnabledFor(logging.INFO) is access_log
    finally:
        logging.getLogger().handlers.clear()
        logging.getLogger("uvicorn.access").setLevel(logging.NOTSET)
