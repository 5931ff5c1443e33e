"""Permits for requests to hosts, with limits per host and per address.

A target that may not start yet waits in the queue of its host or address and delays no other one. A queue is
first come, first served, except that urgent targets come first. The address of a host is known only after its
name was looked up. Before it connects, a probe calls `admit`, and is scheduled again if the address is busy.

A card or a redirect may lead a probe to any host. Such visits have a request rate per host of their own, so
that they delay no target of that host.
"""

import heapq
from collections import OrderedDict, deque
from contextvars import ContextVar
from typing import Any, Final, Generic, TypeVar

MAX_CROWDED_HOSTS: Final = 65_536
"""Maximum of hosts for which it is remembered that their address was busy."""
MAX_VISIT_WAIT_SECONDS: Final = 10.0
"""Maximum time for which a probe waits until it may send a request to a host that is not its target's."""

T = TypeVar("T")


class AddressBusy(Exception):
    """The limit of concurrent probes of this address is reached. Nothing was sent."""

    def __init__(self, address: str) -> None:
        super().__init__(f"{address} is being probed by the maximum number of probes")
        self.address = address


class Permit(Generic[T]):
    """Permission to send requests to a host, from `HostLimiter.take` to `end` or `put_off`."""

    __slots__ = ("addresses", "expected", "host", "is_urgent", "item", "pace")

    def __init__(self, pace: "HostLimiter[T]", host: str, item: T, *, is_urgent: bool = False) -> None:
        self.pace = pace
        self.host = host
        self.item = item
        self.is_urgent = is_urgent
        self.addresses: list[str] = []
        """Addresses at which it is counted."""
        self.expected: str | None = None
        """The one of them that was counted before the host's name was looked up, until that is done."""

    def begin(self) -> None:
        """Use this permit for all connections of the current task, and of tasks that it starts."""
        _current.set(self)


_current: ContextVar[Permit[Any] | None] = ContextVar("turn", default=None)


def admit(address: object) -> None:
    """Count a connection to an address before it is made; AddressBusy if the address is at its limit.

    Without a permit, as in a probe of a single agent, every address is admitted.
    """
    turn = _current.get()
    if turn is not None:
        turn.pace.admit(turn, str(address))


def book_visit(host: str, now_s: float, max_wait_s: float) -> float | None:
    """Reserve a request of the current probe to a host; return the seconds to wait before it is sent.

    None: the wait would be longer than `max_wait_s` or MAX_VISIT_WAIT_SECONDS; nothing was reserved. There is
    no wait for the host of the permit, and without a permit. `now_s` is the time of the event loop.
    """
    turn = _current.get()
    if turn is None or turn.host == host:
        return 0.0
    return turn.pace.book_visit(host, now_s, min(max_wait_s, MAX_VISIT_WAIT_SECONDS))


class _Host:
    """State of one host."""

    __slots__ = ("free_at_s", "has_timer", "in_flight", "urgent", "waiting")

    def __init__(self) -> None:
        self.in_flight = 0
        """Turns that it has given, taken or not."""
        self.free_at_s = 0.0
        """When the rate limit allows the next request."""
        self.has_timer = False
        self.waiting: deque[Permit[Any]] | None = None
        """Queue; None until a target waits: most hosts have one target."""
        self.urgent = 0
        """Number of urgent targets in it; they are at its front."""


class HostLimiter(Generic[T]):
    """Queues targets by host, and decides which may be probed now. Times: seconds of a monotonic clock."""

    def __init__(
        self, *, concurrency: int, per_host: int, per_address: int, host_requests_per_second: float
    ) -> None:
        self.concurrency = concurrency
        """Maximum of permits in use; may be changed at any time."""
        self.in_flight = 0
        """Turns taken and not ended."""
        self.waiting = 0
        """Offered items whose permit was not taken yet."""
        self._per_host = per_host
        self._per_address = per_address
        self._spacing_s = 1 / host_requests_per_second
        self._hosts: dict[str, _Host] = {}
        self._in_host_lines = 0
        self._ready: deque[Permit[T]] = deque()
        self._urgent: deque[Permit[T]] = deque()
        """Permits that may start before other ready ones."""
        self._timers: list[tuple[float, str]] = []
        """When hosts may be requested again, or forgotten; at most one entry per host."""
        self._at_address: dict[str, int] = {}
        self._lines: dict[str, deque[Permit[T]]] = {}
        """Targets that wait for busy addresses; they keep the permit of their host."""
        self._crowded: OrderedDict[str, str] = OrderedDict()
        """Hosts and the address at which they were put off."""
        self._next_visit_s: OrderedDict[str, float] = OrderedDict()
        """When each host that was visited lately may be visited again."""

    @property
    def ready(self) -> int:
        """Number of targets that could start now if only the limit of all probes were higher."""
        return len(self._ready) + len(self._urgent)

    def offer(self, host: str, item: T, now_s: float, *, is_urgent: bool = False) -> None:
        """Add a target to its host's queue. Urgent ones come before all others."""
        self.waiting += 1
        turn = Permit(self, host, item, is_urgent=is_urgent)
        known = self._hosts.get(host)
        if known is None:
            known = self._hosts[host] = _Host()
        elif known.waiting or known.in_flight >= self._per_host or known.free_at_s > now_s:
            if known.waiting is None:
                known.waiting = deque()
            if is_urgent:
                known.waiting.insert(known.urgent, turn)
                known.urgent += 1
            else:
                known.waiting.append(turn)
            self._in_host_lines += 1
            self._set_timer(host, known)
            return
        self._give(known, turn, now_s)

    def take(self, now_s: float) -> Permit[T] | None:
        """Return a permit for the next target that may be probed; None if there is none now."""
        while self._timers and self._timers[0][0] <= now_s:
            _, host = heapq.heappop(self._timers)
            known = self._hosts[host]
            known.has_timer = False
            self._move_up(host, known, now_s)
        while (line := self._urgent or self._ready) and self.in_flight < self.concurrency:
            turn = line.popleft()
            if turn.host in self._crowded and not turn.addresses and not self._book_expected(turn):
                continue
            self.in_flight += 1
            self.waiting -= 1
            return turn
        return None

    def next_at_s(self) -> float | None:
        """Return when `take` may return a permit although no other permit has ended; None if never."""
        return self._timers[0][0] if self._in_host_lines and self._timers else None

    def admit(self, turn: Permit[T], address: str) -> None:
        """Count a probe at an address; AddressBusy if the address is at its limit."""
        if address == turn.expected:
            turn.expected = None
        elif address not in turn.addresses:
            if not self._book(address):
                raise AddressBusy(address)
            turn.addresses.append(address)

    def book_visit(self, host: str, now_s: float, max_wait_s: float) -> float | None:
        """Reserve a request to a host whose permit the probe lacks; see the function of this name."""
        wait_s = max(0.0, self._next_visit_s.get(host, 0.0) - now_s)
        if wait_s > max_wait_s:
            return None
        self._next_visit_s[host] = now_s + wait_s + self._spacing_s
        self._next_visit_s.move_to_end(host)
        while next(iter(self._next_visit_s.values())) <= now_s:
            self._next_visit_s.popitem(last=False)
        return wait_s

    def end(self, turn: Permit[T], requests: int, now_s: float) -> None:
        """End a permit after this number of requests, so that others can start; 0 if nothing was sent."""
        self.in_flight -= 1
        if turn.expected is not None:
            # The entry is outdated: the target has moved to another queue or was removed.
            self._crowded.pop(turn.host, None)
        self._leave_addresses(turn)
        known = self._hosts[turn.host]
        known.in_flight -= 1
        known.free_at_s += (requests - 1) * self._spacing_s
        self._move_up(turn.host, known, now_s)

    def put_off(self, turn: Permit[T], busy: AddressBusy) -> None:
        """Let a permit wait until its address has room; `take` then returns it again."""
        self.in_flight -= 1
        self.waiting += 1
        self._leave_addresses(turn)
        self._crowded[turn.host] = busy.address
        self._crowded.move_to_end(turn.host)
        if len(self._crowded) > MAX_CROWDED_HOSTS:
            self._crowded.popitem(last=False)
        # Targets may have been removed since: the queue is checked when it is used.
        self._make_ready(turn)

    def _give(self, known: _Host, turn: Permit[T], now_s: float) -> None:
        known.in_flight += 1
        # One request is certain; the actual number is known when the permit ends.
        known.free_at_s = max(known.free_at_s, now_s) + self._spacing_s
        self._make_ready(turn)

    def _make_ready(self, turn: Permit[T]) -> None:
        (self._urgent if turn.is_urgent else self._ready).append(turn)

    def _set_timer(self, host: str, known: _Host) -> None:
        # While all its turns are given, it is the end of one that matters.
        if not known.has_timer and known.in_flight < self._per_host:
            known.has_timer = True
            heapq.heappush(self._timers, (known.free_at_s, host))

    def _move_up(self, host: str, known: _Host, now_s: float) -> None:
        """Give permits to items that wait for a host; forget a host without any."""
        while known.waiting and known.in_flight < self._per_host and known.free_at_s <= now_s:
            self._in_host_lines -= 1
            turn = known.waiting.popleft()
            known.urgent -= turn.is_urgent
            self._give(known, turn, now_s)
        if known.waiting or (not known.in_flight and known.free_at_s > now_s):
            self._set_timer(host, known)
        elif not known.in_flight and not known.has_timer:
            del self._hosts[host]

    def _book(self, address: str) -> bool:
        under_way = self._at_address.get(address, 0)
        if under_way >= self._per_address:
            return False
        self._at_address[address] = under_way + 1
        return True

    def _book_expected(self, turn: Permit[T]) -> bool:
        """Count a permit at the address that was busy before; otherwise let it wait there."""
        address = self._crowded[turn.host]
        if not self._book(address):
            line = self._lines.setdefault(address, deque())
            line.insert(sum(each.is_urgent for each in line) if turn.is_urgent else len(line), turn)
            return False
        turn.addresses.append(address)
        turn.expected = address
        return True

    def _leave_addresses(self, turn: Permit[T]) -> None:
        for address in turn.addresses:
            line = self._lines.get(address)
            if line is None:
                self._at_address[address] -= 1
                if not self._at_address[address]:
                    del self._at_address[address]
                continue
            # The permit goes directly to the next waiting target, so that others do not take it.
            first = line.popleft()
            first.addresses.append(address)
            first.expected = address
            self._make_ready(first)
            if not line:
                del self._lines[address]
        turn.addresses = []
        turn.expected = None
