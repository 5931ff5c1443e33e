import math
from ipaddress import IPv4Address, IPv6Address
from itertools import accumulate

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lifesign.domain.access.rate_limit import (
    RateLimit,
    RateLimiter,
    ask,
    caller_at,
)
from lifesign.errors import InvalidValue

LIMITS = st.builds(RateLimit, st.floats(0.01, 10_000), st.integers(1, 50))
TIMES = st.floats(0, 1_000_000)
# In spacings of the limit at hand, so that every limit is met at its edges.
STEPS = st.lists(st.one_of(st.just(0.0), st.just(1.0), st.floats(0, 3), st.floats(0, 100)), max_size=200)


def times_allowed(limit: RateLimit, times_s: list[float]) -> list[float]:
    """Return at which of these times a caller was admitted."""
    arrival_s, allowed = 0.0, []
    for now_s in times_s:
        arrival_s, wait_s = ask(limit, arrival_s, now_s)
        if wait_s == 0:
            allowed.append(now_s)
    return allowed


def test_burst_is_allowed_and_then_one_request_per_spacing() -> None:
    limit = RateLimit(per_second=10, burst=3)
    assert times_allowed(limit, [100.0] * 5) == [100.0] * 3
    assert times_allowed(limit, [100.0] * 5 + [100.05, 100.1, 100.15, 100.2]) == [100.0] * 3 + [100.1, 100.2]


def test_idle_caller_regains_exactly_its_burst() -> None:
    limit = RateLimit(per_second=10, burst=3)
    assert times_allowed(limit, [100.0] * 3 + [9_000.0] * 9) == [100.0] * 3 + [9_000.0] * 3


@given(LIMITS, TIMES, STEPS)
def test_no_period_exceeds_burst_and_rate(limit: RateLimit, start_s: float, steps: list[float]) -> None:
    times_s = list(accumulate((step * limit.spacing_s for step in steps), initial=start_s))
    allowed = times_allowed(limit, times_s)
    for first in range(len(allowed)):
        for last in range(first, len(allowed)):
            most = limit.burst + (allowed[last] - allowed[first]) * limit.per_second
            assert last - first + 1 <= most + 0.02


@given(LIMITS, TIMES, STEPS)
def test_caller_that_waits_as_long_as_requested_is_admitted(
    limit: RateLimit, start_s: float, steps: list[float]
) -> None:
    arrival_s, now_s = 0.0, start_s
    for step in steps:
        now_s += step * limit.spacing_s / 2
        arrival_s, wait_s = ask(limit, arrival_s, now_s)
        assert 0 <= wait_s <= limit.spacing_s * 1.01
        if wait_s > 0:
            now_s += wait_s
            arrival_s, wait_s = ask(limit, arrival_s, now_s)
            assert wait_s == 0


@given(LIMITS, TIMES)
@example(RateLimit(1_000, 20_000), 1_000_000.0)
@example(RateLimit(0.1, 3), 0.0)
def test_rounding_does_not_reduce_a_burst(limit: RateLimit, now_s: float) -> None:
    assert len(times_allowed(limit, [now_s] * (limit.burst + 1))) == limit.burst


@given(LIMITS, TIMES)
def test_refused_request_does_not_count_against_the_limit(limit: RateLimit, now_s: float) -> None:
    arrival_s = 0.0
    for _ in range(limit.burst):
        arrival_s, _ = ask(limit, arrival_s, now_s)
    after_s, wait_s = ask(limit, arrival_s, now_s)
    assert wait_s > 0
    assert after_s == pytest.approx(arrival_s)


@given(LIMITS, TIMES, st.floats(0, 1_000_000))
def test_clock_setback_delays_by_one_spacing_at_most(limit: RateLimit, now_s: float, back_s: float) -> None:
    arrival_s, wait_s = ask(limit, now_s + back_s, now_s)
    assert 0 <= wait_s <= limit.spacing_s * 1.001
    assert arrival_s - now_s <= limit.spacing_s * limit.burst * 1.001 + limit.spacing_s


@pytest.mark.parametrize("per_second", [0, -1, math.nan, math.inf])
def test_invalid_rate_is_refused(per_second: float) -> None:
    with pytest.raises(InvalidValue, match="per_second"):
        RateLimit(per_second, 1)


def test_burst_of_zero_and_max_callers_of_zero_are_refused() -> None:
    with pytest.raises(InvalidValue, match="burst"):
        RateLimit(1, 0)
    with pytest.raises(InvalidValue, match="max_callers"):
        RateLimiter(RateLimit(1, 1), max_callers=0)


# Many callers


def test_callers_are_counted_apart() -> None:
    limiter = RateLimiter(RateLimit(per_second=1, burst=1))
    assert limiter.wait_s("a", 0.0) == 0
    assert limiter.wait_s("b", 0.0) == 0
    assert limiter.wait_s(b"a", 0.0) == 0
    assert limiter.wait_s("a", 0.25) == 0.75
    assert limiter.wait_s("b", 1.0) == 0


@given(LIMITS, TIMES, STEPS)
def test_limiter_allows_one_caller_the_same_requests_as_the_limit(
    limit: RateLimit, start_s: float, steps: list[float]
) -> None:
    limiter = RateLimiter(limit)
    times_s = list(accumulate((step * limit.spacing_s for step in steps), initial=start_s))
    assert [now_s for now_s in times_s if limiter.wait_s("a", now_s) == 0] == times_allowed(limit, times_s)


def test_oldest_caller_is_evicted_first() -> None:
    limiter = RateLimiter(RateLimit(per_second=0.001, burst=1), max_callers=2)
    for caller in ("a", "b"):
        assert limiter.wait_s(caller, 0.0) == 0
    # Refused, and yet it asked.
    assert limiter.wait_s("a", 1.0) > 0
    assert limiter.wait_s("c", 2.0) == 0
    assert limiter.wait_s("a", 3.0) > 0
    assert limiter.wait_s("b", 4.0) == 0


@given(st.lists(st.integers(0, 20), max_size=100), st.integers(1, 5))
def test_limiter_stores_at_most_max_callers(callers: list[int], most: int) -> None:
    limiter = RateLimiter(RateLimit(per_second=1, burst=1), max_callers=most)
    for now_s, caller in enumerate(callers):
        limiter.wait_s(str(caller), float(now_s))
        assert len(limiter) <= most


@given(st.ip_addresses(v=4))
def test_each_notation_of_an_ipv4_address_is_one_caller(address: IPv4Address) -> None:
    assert caller_at(str(address)) == caller_at(f"::ffff:{address}") == str(address)


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
@example(0x20010DB8_00000000, 1, 2)
def test_all_addresses_of_an_ipv6_network_are_one_caller(network: int, one: int, other: int) -> None:
    if network == 0:
        # IPv4 addresses in the form of IPv6 ones.
        return
    first, second = (str(IPv6Address(network << 64 | host)) for host in (one, other))
    assert caller_at(first) == caller_at(second) == caller_at(f"{first}%eth0")
    assert caller_at(first) != caller_at(str(IPv6Address((network ^ 1) << 64 | one)))


@pytest.mark.parametrize("text", ["", "unknown", "testclient", "1.2.3", "::1::"])
def test_non_address_counts_as_itself(text: str) -> None:
    assert caller_at(text) == text
