"""Texts of durations and latencies."""

import math

from lifesign.domain.text.counts import UNKNOWN


def duration_text(seconds: float) -> str:
    """Return a duration for people in its two largest units, such as `3 h 5 min`; below zero is `0 s`."""
    whole = max(0, math.floor(seconds))
    minutes, hours, days = whole // 60, whole // 3600, whole // 86_400
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return _two(minutes, "min", whole % 60, "s")
    if whole < 86_400:
        return _two(hours, "h", minutes % 60, "min")
    return _two(days, "d", hours % 24, "h")


def latency_text(milliseconds: float | None) -> str:
    """Return a latency: `7.5 ms`, `120 ms`, from ten seconds on as a duration."""
    if milliseconds is None:
        return UNKNOWN
    if milliseconds < 10:
        return f"{milliseconds:.1f} ms"
    return f"{milliseconds:,.0f} ms" if milliseconds < 10_000 else duration_text(milliseconds / 1000)


def precise_text(seconds: float) -> str:
    """Return a duration for people with tenths of a second, for settings and measurements."""
    return f"{math.floor(round(seconds * 10, 3)) / 10:g} s" if 0 <= seconds < 60 else duration_text(seconds)


def excess_text(seconds: float, limit_s: float) -> str:
    """Return in words a duration that exceeds its limit: `1 min 31 s, more than 1 min 30 s`.

    The duration is rounded up in its last unit and the limit down: 90.02 s, which is more than 90 s, must not
    look equal. Below a minute both have a tenth of a second if needed.
    """
    return f"{_rounded_up(seconds)}, more than {precise_text(limit_s)}"


def _rounded_up(seconds: float) -> str:
    tenths_s = math.ceil(round(seconds, 3) * 10) / 10
    if tenths_s < 60:
        return f"{tenths_s:g} s"
    # Days are shown with hours, hours with minutes.
    unit_s = 1 if tenths_s < 3600 else 60 if tenths_s < 86_400 else 3600
    return duration_text(math.ceil(round(seconds, 3) / unit_s) * unit_s)


def _two(large: int, large_unit: str, small: int, small_unit: str) -> str:
    return f"{large} {large_unit} {small} {small_unit}" if small else f"{large} {large_unit}"
