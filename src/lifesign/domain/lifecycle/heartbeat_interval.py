"""Times of an agent's heartbeats, and its clock drift (RFC-0016 4).

Agents that started together must not send heartbeats together, nor return together to a registry that was
unreachable. Times are seconds on a monotonic clock, except those that are compared for drift.
"""

from math import isfinite
from typing import Final

from lifesign.domain.lifecycle.heartbeat_timeout import has_drifted

EARLY_RATIO: Final = 0.2
"""Share of the interval by which a heartbeat may come early; it never comes late.

Late ones use up the timeout.
"""
MIN_GAP_RATIO: Final = 0.1
"""Share of the interval: minimum wait after an answer that came later than the next heartbeat was due."""
FIRST_WAIT_S: Final = 1.0
"""The most that is waited after the first try in vain; doubled with each further one."""
MAX_WAIT_S: Final = 60.0
"""Maximum wait, at most one interval, until an agent notices that the registry is reachable again."""
MIN_WAIT_S: Final = 0.05
MAX_RETRY_AFTER_S: Final = 300.0
"""Longer waits that a registry requests are cut to this."""
MAX_RETRY_AFTER_RATIO: Final = 0.5
"""The same for heartbeats, as a share of the interval: a proxy may request any wait, and agents without
heartbeats die.
"""
MAX_DOUBLINGS: Final = 16


def first_heartbeat_at_s(registered_at_s: float, interval_s: float, chance: float) -> float:
    """Return the time of the first heartbeat after a registration: random within the interval.

    `chance` is from 0 to 1. A registration is a liveness signal, so that the first interval may be shortened;
    agents that registered together are then spread over the interval.
    """
    return registered_at_s + interval_s * max(MIN_GAP_RATIO, chance)


def next_heartbeat_at_s(sent_at_s: float, now_s: float, interval_s: float, chance: float) -> float:
    """Return the time of the next heartbeat, after one was answered now. `chance` is random, 0 to 1."""
    due_s = sent_at_s + interval_s * (1.0 - EARLY_RATIO * chance)
    return max(due_s, now_s + interval_s * MIN_GAP_RATIO)


def next_try_at_s(
    now_s: float, interval_s: float, failures: int, chance: float, retry_after_s: float | None = None
) -> float:
    """Return the time of the next attempt after failures in a row: random, with exponential back-off.

    The wait is never longer than the interval, so that every agent reports within one interval after an
    outage. A wait that the registry requested (`retry_after_s`, None if none) is added.
    """
    doubled_s = FIRST_WAIT_S * 2.0 ** min(max(failures - 1, 0), MAX_DOUBLINGS)
    wait_s = max(MIN_WAIT_S, chance * min(doubled_s, interval_s, MAX_WAIT_S))
    if retry_after_s is not None and isfinite(retry_after_s):
        wait_s += min(max(retry_after_s, 0.0), MAX_RETRY_AFTER_S)
    return now_s + wait_s


def next_beat_try_at_s(
    now_s: float, interval_s: float, failures: int, chance: float, retry_after_s: float | None
) -> float:
    """Return when to try again after 1 or more failures of a registration, a heartbeat or a claim of tasks.

    A requested wait counts up to a part of the interval: a proxy may name hours for an outage of seconds.
    """
    if retry_after_s is not None:
        retry_after_s = min(retry_after_s, interval_s * MAX_RETRY_AFTER_RATIO)
    return next_try_at_s(now_s, interval_s, failures, chance, retry_after_s)


def next_claim_at_s(now_s: float, dead_after_s: float, chance: float) -> float:
    """Return when to try again to register, while another process is registered as this agent."""
    return now_s + dead_after_s * (0.5 + 0.5 * chance)


def clock_differs_by_s(sent_s: float, answered_s: float, server_s: float) -> float:
    """Return by how many seconds the registry's clock is ahead of ours, at least.

    Below 0 if it is behind, 0 if they may agree.

    All are wall clocks, in seconds since the epoch: ours when a heartbeat was sent and when it was answered,
    and the registry's between the two. A slow answer is no drift.
    """
    if server_s > max(sent_s, answered_s):
        return server_s - max(sent_s, answered_s)
    return min(0.0, server_s - min(sent_s, answered_s))


def is_adrift(difference_s: float, interval_s: float) -> bool:
    """Return whether clocks differ so much that the registry warns of it too (RFC-0016 4.5)."""
    return has_drifted(difference_s, 0.0, interval_s)
