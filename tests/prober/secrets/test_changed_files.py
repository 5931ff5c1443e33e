from collections.abc import Callable

import pytest

from lifesign.errors import InvalidValue
from lifesign.prober.secrets.changed_files import ChangedFiles

Read = Callable[[Callable[[str], None]], str]


def reading(value: str, warning: str = "") -> Read:
    def read(complain: Callable[[str], None]) -> str:
        if warning:
            complain(warning)
        return value

    return read


def failing(reason: str) -> Read:
    def read(complain: Callable[[str], None]) -> str:
        complain("readable")
        raise InvalidValue("lab", None, reason)

    return read


def test_files_are_read_after_a_change_only(caplog: pytest.LogCaptureFixture) -> None:
    files = ChangedFiles("secret", {"lab": 1})
    assert files.read_again("lab", 1, reading("former")) is None
    assert files.read_again("lab", 2, reading("new", "readable")) == "new"
    assert files.read_again("lab", 2, reading("new")) is None
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2


def test_files_that_could_not_be_read_are_read_again_without_a_change(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A certificate may be valid from a later time, and a file descriptor may be missing for a moment."""
    files = ChangedFiles("certificate", {"bank": 1})
    for reason in ("valid later", "valid later", "Too many open files", "Too many open files"):
        assert files.read_again("bank", 2, failing(reason)) is None
    # Each reason once.
    assert len(caplog.records) == 3
    assert files.read_again("bank", 2, reading("new", "readable")) == "new"
    assert len(caplog.records) == 4
    assert files.read_again("bank", 2, reading("new")) is None
