"""Rate limits per caller.

The generic cell rate algorithm keeps one number per caller: the time of its next request at an even rate.
Requests that are early by less than a burst are allowed, and nothing has to be refilled.
"""

import math
from collections import OrderedDict
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, ip_address

from lifesign.errors import InvalidValue

MAX_CALLERS = 10_000
HOST_BITS = 64
"""Bits of an IPv6 address that its owner sets at will (RFC 4291 2.5.1)."""
TOLERANCE_RATIO = 0.01
"""Share of the spacing between two requests: rounding must not refuse the last one of a burst."""


@dataclass(frozen=True, slots=True)
class RateLimit:
    """Rate limit of one caller; InvalidValue for a limit that would allow no request.

    Within any span of t seconds at most `burst + per_second * t` requests pass.
    """

    per_second: float
    """Average rate, above 0."""
    burst: int
    """Size of a burst, from 1."""
    spacing_s: float = field(init=False, repr=False, compare=False)
    """Time between two requests of a caller at a constant rate."""
    lead_s: float = field(init=False, repr=False, compare=False)
    """Maximum time by which a request may be early."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.per_second) and self.per_second > 0):
            raise InvalidValue("per_second", self.per_second, "a finite number above 0")
        if self.burst < 1:
            raise InvalidValue("burst", self.burst, "1 or more")
        object.__setattr__(self, "spacing_s", 1 / self.per_second)
        object.__setattr__(self, "lead_s", (self.burst - 1 + TOLERANCE_RATIO) / self.per_second)


def ask(limit: RateLimit, theoretical_arrival_s: float, now_s: float) -> tuple[float, float]:
    """Count one request; return the new theoretical arrival, and the seconds to wait (0: it is allowed).

    A new caller may have any theoretical arrival that is not in the future. A refused request does not count.
    After a clock was set back, no caller waits longer than a full burst takes.
    """
    ahead_s = theoretical_arrival_s - now_s
    if ahead_s <= 0:
        return now_s + limit.spacing_s, 0.0
    if ahead_s <= limit.lead_s:
        return theoretical_arrival_s + limit.spacing_s, 0.0
    most_s = limit.spacing_s * limit.burst
    if ahead_s > most_s:
        theoretical_arrival_s, ahead_s = now_s + most_s, most_s
    return theoretical_arrival_s, ahead_s - limit.spacing_s * (limit.burst - 1)


def caller_at(address: str) -> str:
    """Return the caller that an address counts as: an IPv4 address, or a whole IPv6 /64 network.

    A household has at least one such network, and may use another address in it for every request. An IPv4
    address in IPv6 notation counts as IPv4; other texts are returned unchanged.
    """
    try:
        parsed = ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, IPv4Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return f"{IPv6Address(int(parsed) >> HOST_BITS << HOST_BITS)}/{128 - HOST_BITS}"


class RateLimiter:
    """Applies the same rate limit to each of many callers.

    At most `max_callers` are remembered; beyond that the least recent one is dropped, and may send a burst
    again.
    """

    def __init__(self, limit: RateLimit, max_callers: int = MAX_CALLERS) -> None:
        if max_callers < 1:
            raise InvalidValue("max_callers", max_callers, "1 or more")
        self.limit = limit
        self.max_callers = max_callers
        # The caller with the oldest request comes first.
        self._theoretical_arrivals_s: OrderedDict[str | bytes, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._theoretical_arrivals_s)

    def wait_s(self, caller: str | bytes, now_s: float) -> float:
        """Count one request of this caller; return the seconds to wait, 0 if it is allowed.

        `now_s` is read from one clock for all calls, best one that began lately (such as a monotonic
        one): a rate of a million per second is finer than the digits of a time since 1970.
        """
        arrivals_s = self._theoretical_arrivals_s
        known_s = arrivals_s.get(caller)
        if known_s is None:
            if len(arrivals_s) >= self.max_callers:
                arrivals_s.popitem(last=False)
            arrivals_s[caller] = now_s + self.limit.spacing_s
            return 0.0
        arrivals_s[caller], wait_s = ask(self.limit, known_s, now_s)
        arrivals_s.move_to_end(caller)
        return wait_s
