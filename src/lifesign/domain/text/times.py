"""Text of times, for programs and for the command line."""

from datetime import UTC, datetime
from typing import Literal

Precision = Literal["auto", "seconds", "milliseconds"]


def utc_text(at: datetime, precision: Precision = "auto") -> str:
    """Return a time with a zone as RFC 3339 text in UTC that ends with Z.

    `auto` keeps all that `at` has, as an answer of the API does: no fraction, or microseconds.
    """
    return at.astimezone(UTC).isoformat(timespec=precision).removesuffix("+00:00") + "Z"
