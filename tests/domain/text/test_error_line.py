"""Exceptions as one line of text."""

import pytest

from lifesign.domain.text.error_line import error_line


class Untold(Exception):
    """Its text cannot be read."""

    def __str__(self) -> str:
        raise TypeError("no text")


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("no answer"), "ValueError: no answer"),
        (ValueError("\nfirst\nsecond"), "ValueError: first"),
        (ValueError(), "ValueError"),
        (ValueError(" \n"), "ValueError"),
        (Untold("anything"), "Untold"),
        (ExceptionGroup("errors of a TaskGroup", [ValueError("no answer")]), "ValueError: no answer"),
        (
            ExceptionGroup("", [ExceptionGroup("", [ValueError(), TypeError()]), TypeError(), TypeError()]),
            "ValueError (and 3 other errors)",
        ),
    ],
)
def test_line_has_the_class_and_the_first_line_of_the_text(error: Exception, line: str) -> None:
    assert error_line(error) == line
