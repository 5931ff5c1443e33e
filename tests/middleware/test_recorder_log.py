import logging

import pytest
from tests.support.hand_clock import HandClock

from lifesign.middleware.recorder_log import RecorderLog


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


def fail(log: RecorderLog, what: str) -> None:
    try:
        int(what)
    except ValueError:
        log.failure(what)


def test_each_failure_is_logged_with_its_traceback_once_a_minute(
    clock: HandClock, caplog: pytest.LogCaptureFixture
) -> None:
    log = RecorderLog("agent", clock.clock)
    for minute in (1, 2):
        for what in ("first", "second") * 3:
            fail(log, what)
        assert len(caplog.records) == 2 * minute
        assert all(record.exc_info is not None for record in caplog.records)
        clock.advance(60)


def test_warnings_name_the_agent(clock: HandClock, caplog: pytest.LogCaptureFixture) -> None:
    log = RecorderLog("urn:agent", clock.clock)
    log.compressed_answer("gzip")
    log.removed_files()
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    assert all("urn:agent" in record.getMessage() for record in caplog.records)


def test_only_the_beginning_of_an_encoding_is_logged(
    clock: HandClock, caplog: pytest.LogCaptureFixture
) -> None:
    RecorderLog("agent", clock.clock).compressed_answer("x" * 10_000)
    assert caplog.text.count("x") < 100
