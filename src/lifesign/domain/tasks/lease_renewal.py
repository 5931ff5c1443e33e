"""Times of a lease: renewal, retries, and the request to end its work (lease protocol; protocol 6.5).

Leases that were granted together must not be renewed together. Times are seconds on one monotonic clock.
"""

from math import isfinite
from typing import Final

RENEW_RATIO: Final = 0.6
"""Share of the window after which a lease is renewed: the rest is for further tries."""
SPREAD_RATIO: Final = 0.05
"""Share of the window by which a renewal is earlier or later, at random."""
NOTICE_RATIO: Final = 0.2
"""Maximum share of the window before the deadline in which unfinished work is asked to end."""
TRY_RATIO: Final = 0.5
"""Share of the remaining time for one try, so that one that hangs leaves room for another."""
MIN_TRY_S: Final = 0.25
FIRST_WAIT_S: Final = 0.5
"""The most that is waited after the first try in vain; doubled with each further one."""
MAX_WAIT_S: Final = 30.0
"""Maximum wait until a client notices that the registry is reachable again."""
MIN_WAIT_S: Final = 0.05
MAX_DOUBLINGS: Final = 10


def renewal_due_s(requested_at_s: float, window_s: float, chance: float) -> float:
    """Return when to renew a lease that was requested at `requested_at_s` and lasts `window_s`.

    `chance` is from 0 to 1.
    """
    return requested_at_s + window_s * (RENEW_RATIO + SPREAD_RATIO * (2.0 * chance - 1.0))


def notice_at_s(deadline_s: float, window_s: float, grace_s: float) -> float:
    """Return when to ask work to end, so that its grace period is over at the lease's deadline.

    The next holder may begin at the deadline. The request never comes so early that there was no time to
    renew.
    """
    return deadline_s - min(max(grace_s, 0.0), max(window_s, 0.0) * NOTICE_RATIO)


def grace_left_s(now_s: float, deadline_s: float, grace_s: float) -> float:
    """Return for how many seconds work may continue after the request to end: up to its lease's deadline."""
    return max(0.0, min(grace_s, deadline_s - now_s))


def try_ends_s(now_s: float, deadline_s: float) -> float:
    """Return when to give up an attempt to renew that begins now; never after the deadline."""
    return min(deadline_s, now_s + max(MIN_TRY_S, (deadline_s - now_s) * TRY_RATIO))


def next_try_s(
    now_s: float, deadline_s: float, failures: int, chance: float, retry_after_s: float | None = None
) -> float:
    """Return the time of the next attempt to renew after failures in a row: random, with back-off.

    A wait that the registry requested (`retry_after_s`, None if none) is added, as long as it leaves time for
    one more try before the deadline.
    """
    doubled_s = FIRST_WAIT_S * 2.0 ** min(max(failures - 1, 0), MAX_DOUBLINGS)
    wait_s = chance * min(doubled_s, MAX_WAIT_S)
    if retry_after_s is not None and isfinite(retry_after_s):
        wait_s += max(retry_after_s, 0.0)
    return now_s + max(MIN_WAIT_S, min(wait_s, (deadline_s - now_s) * TRY_RATIO))
