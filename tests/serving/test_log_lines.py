import json
import logging
import logging.config
import sys

import pytest

from lifesign.serving.log_lines import MAX_LINE_CHARACTERS, MAX_MEMBERS, LogFormat, LogLine, log_config


def record(message: str, *arguments: object, failed: bool = False) -> logging.LogRecord:
    information = None
    if failed:
        try:
            int("on\npurpose")
        except ValueError:
            information = sys.exc_info()
    made = logging.LogRecord("lifesign", logging.INFO, __file__, 1, message, arguments, information)
    made.created, made.msecs = 1_763_640_000.25, 250.0
    return made


def test_log_line_has_time_level_logger_and_text() -> None:
    assert LogLine().format(record("value %s", "7")) == "2025-11-20T12:00:00.250Z INFO lifesign: value 7"


@pytest.mark.parametrize("broken", ["a\nb", "a\r\nb", "a\x1b[2Jb", "a\u2028b", "a\x85b", "a\ud800b"])
def test_log_lines_cannot_be_injected(broken: str) -> None:
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
def test_requests_are_logged_only_if_configured(access_log: bool) -> None:  # noqa: FBT001 - a parameter of the test
    logging.config.dictConfig(dict(log_config(access_log=access_log)))
    assert logging.getLogger("uvicorn.access").isEnabledFor(logging.INFO) is access_log


def test_extra_members_of_a_record_are_on_its_line() -> None:
    made = record("done")
    made.agent_id, made.count, made.note = "a b", 3, 'say "x"\n'
    line = LogLine().format(made)
    assert line == '2025-11-20T12:00:00.250Z INFO lifesign: done agent_id="a b" count=3 note="say \\"x\\"\\n"'


def test_json_log_format_writes_one_object_per_line() -> None:
    made = record("it\u2028is %s", "so\n\ud800", failed=True)
    made.agent_id, made.nested, made.color_message = "a", {"b": [1]}, "colours"
    line = LogLine("json").format(made)
    assert line.isascii()
    assert line.isprintable()
    members = json.loads(line)
    assert list(members)[:4] == ["time", "level", "logger", "event"]
    assert members["time"] == "2025-11-20T12:00:00.250Z"
    assert members["event"] == "it\u2028is so\n\ud800"
    assert "ValueError" in members["exception"]
    assert members["agent_id"] == "a"
    assert "color_message" not in members


@pytest.mark.parametrize("log_format", ["console", "json"])
def test_keys_and_passwords_are_removed_from_log_lines(log_format: LogFormat) -> None:
    made = record("ahk_%s and postgresql://u:hunter2@h/d", "x" * 43)
    made.given = "Authorization: Bearer abc.def-ghi"
    line = LogLine(log_format).format(made)
    assert "xxx" not in line
    assert "hunter2" not in line
    assert "abc.def" not in line


@pytest.mark.parametrize("log_format", ["console", "json"])
def test_log_record_is_cut_to_the_line_limit(log_format: LogFormat) -> None:
    made = record("so")
    for number in range(100):
        setattr(made, f"member_{number}", "x" * 100_000)
    assert len(LogLine(log_format).format(made)) < (MAX_LINE_CHARACTERS + 200) * (MAX_MEMBERS + 2)
