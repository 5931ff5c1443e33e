"""Values of a parameter with which a test runs in `make faults` alone."""

from typing import Any

import pytest


def in_faults(*values: object) -> list[Any]:
    """Return values for `parametrize`: more repetitions than prove the rule in `make test`.

    A tuple has the values of several parameters.
    """
    return [
        pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.long)
        for value in values
    ]
