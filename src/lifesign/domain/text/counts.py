"""Texts of counts and ratios."""

from typing import Final

UNKNOWN: Final = "\N{EN DASH}"
"""Shown in place of an unknown number."""


def pluralize(count: int, noun: str) -> str:
    """Return a count with thousands separators, and its noun: `1 agent`, `1,200 agents`."""
    return f"{count:,} {plural(count, noun)}"


def plural(count: int, noun: str, several: str | None = None) -> str:
    """Return a noun in the form for this count. `several`: the plural, if it is not just an s."""
    if count == 1:
        return noun
    return f"{noun}s" if several is None else several


def count_text(count: int) -> str:
    """Return a count with a comma between its thousands."""
    return f"{count:,}"


def percent_text(ratio: float | None) -> str:
    """Return a ratio, 0 to 1, in percent with one decimal; only exactly 0 and 1 are `0 %` and `100 %`."""
    if ratio is None:
        return UNKNOWN
    if 0 < ratio < 0.001:
        return "< 0.1 %"
    if 0.999 < ratio < 1:
        return "> 99.9 %"
    return f"{ratio * 100:.1f} %" if 0 < ratio < 1 else f"{ratio * 100:.0f} %"
