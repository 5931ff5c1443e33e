"""Times from the future, which were stored while a clock was wrong.

Clocks differ by seconds or minutes. A time further ahead was stored before a clock was set back: using it
would make the registry wait, or treat present events as late, until the clock gets there.
"""

from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from lifesign.domain.text.durations import duration_text

MAX_AHEAD_SECONDS: Final = 300
"""Maximum time by which a timestamp may be in the future, since clocks differ."""

T = TypeVar("T")


def is_in_future(at_s: float, now_s: float) -> bool:
    """Return whether a time is further in the future than clocks may differ.

    Both are seconds since the epoch.
    """
    return at_s - now_s > MAX_AHEAD_SECONDS


def not_before(at_s: float, last_s: float | None, now_s: float | None = None) -> float:
    """Return `at_s`, or `last_s` if that is later, so that times never go back.

    A previous time far ahead of now (of `at_s` without `now_s`) was written before a clock was set back, and
    does not count.
    """
    if last_s is None or is_in_future(last_s, at_s if now_s is None else now_s):
        return at_s
    return max(at_s, last_s)


def offset_text(offset_s: float) -> str:
    """Return by how much a clock is off, for people: `5 min ahead of` or `5 min behind`."""
    return f"{duration_text(abs(offset_s))} {'ahead of' if offset_s > 0 else 'behind'}"


def last_not_ahead(latest_first: Iterable[T], began_at_s: Callable[[T], float], now_s: float) -> T | None:
    """Return the latest item that did not begin in the future, else the latest of all; None without items."""
    known = list(latest_first)
    believed = (each for each in known if not is_in_future(began_at_s(each), now_s))
    return next(believed, known[0] if known else None)
