import logging

import pytest

from lifesign.cli.output.serve_lines import log_prepared, log_ready, say_prepared, say_ready
from lifesign.registry.run_server import Prepared

KEY = "ahk_the-first-one"
Captured = pytest.CaptureFixture[str]


@pytest.mark.parametrize("write", [say_prepared, log_prepared])
def test_first_admin_key_is_shown_and_not_logged(
    write: object, capsys: Captured, caplog: pytest.LogCaptureFixture
) -> None:
    assert callable(write)
    with caplog.at_level(logging.INFO, "lifesign.registry"):
        write(Prepared(database="the database", admin_key=KEY, needs_admin_key=False))
    assert capsys.readouterr().out.splitlines()[-1].strip() == KEY
    assert KEY not in str([record.__dict__ for record in caplog.records])


def test_log_records_have_the_facts_as_attributes(caplog: pytest.LogCaptureFixture, capsys: Captured) -> None:
    with caplog.at_level(logging.INFO, "lifesign.registry"):
        log_prepared(Prepared(database="the database", admin_key=None, needs_admin_key=True))
        log_ready("http://127.0.0.1:8440")
    prepared, ready = (record.__dict__ for record in caplog.records)
    assert (prepared["msg"], prepared["database"], prepared["needs_admin_key"]) == (
        "server.prepared",
        "the database",
        True,
    )
    assert (ready["msg"], ready["url"]) == ("server.ready", "http://127.0.0.1:8440")
    assert capsys.readouterr().out == ""


def test_control_characters_in_a_database_name_are_replaced(capsys: Captured) -> None:
    say_prepared(Prepared(database="a\x1b[2Jb", admin_key=None, needs_admin_key=False))
    say_ready("http://127.0.0.1:8440")
    prepared, ready = capsys.readouterr().out.splitlines()
    assert "\x1b" not in prepared
    assert ready.endswith("http://127.0.0.1:8440")
