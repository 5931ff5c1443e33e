"""Resolver of names that distinguishes faults of a name from faults of its own name servers.

Each process has one resolver with a cache. Names are queried unchanged, without search domains, since
directories list full names. `/etc/hosts` counts, and `localhost` is this machine.

If it is unknown whether a name has an address, some name server is at fault. The prober's own name server is
not, if it found another name meanwhile, or at least answers for the root, and still finds any names. After
many such names in a row, it must answer for a random name below that of a witness instead.
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from lifesign.domain.net.allowed_addresses import Address
from lifesign.prober.network.dns_lookup import (
    DnsChannel,
    NameAnswer,
    answers_for_root,
    answers_uncached,
    open_channel,
)
from lifesign.prober.network.lookup_width import LookupWidth

MIN_TTL_SECONDS: Final = 5.0
"""A name that changes with every question is one name for the few requests of a probe."""
MAX_TTL_SECONDS: Final = 3600.0
"""Maximum time for which an answer is cached."""
RENEWAL_SECONDS: Final = 2.0
"""Time for a second lookup of a name whose addresses are known. They are used if no answer comes."""
NO_ADDRESS_SECONDS: Final = 5.0
"""Thousands of targets may share one dead host. A second check after half a minute makes a new lookup."""
MAX_LOOKUPS_OF_CHANNEL: Final = 20_000
"""c-ares remembers every answer until it is too old, with about 2 kB each; a new one has forgotten them."""
MAX_RECORDS_OF_CHANNEL: Final = 100_000
"""Maximum number of records in these answers: a name with 4,000 addresses takes half a megabyte."""
RENEW_SECONDS: Final = 10.0
"""Interval at which c-ares is restarted while no name server answers."""
MAX_NAMES: Final = 2 * MAX_LOOKUPS_OF_CHANNEL
"""Maximum of cached names: more than c-ares caches."""
SLOT_SECONDS: Final = 0.5
"""Time for which a lookup counts against the limit of concurrent ones; names without a server take longer."""
MAX_UNANSWERED: Final = 2_000
"""Maximum of lookups without an answer, those included that no longer count."""
ROOT_QUERIES: Final = 3
"""Number of queries for the root, all of which a name server answers that is not overloaded."""
DROPPING_SECONDS: Final = 30.0
"""Time after such a drop for which an unanswered name is a fault of the name servers."""
MAX_UNCLEAR_NAMES: Final = 10
"""Maximum number of failed names since the last success. Above it, answers for the root prove nothing."""
ROOT_SECONDS: Final = 1.0
"""Time for a name server to answer for the root or a random name, after the deadline of a name."""


@dataclass(frozen=True, slots=True)
class NoAddress:
    """Reason why a name has no address."""

    reason: str
    """Fault of the name, for people."""
    is_resolver_fault: bool = False
    """Whether the name is unknown because all name servers failed."""
    is_given_up: bool = False
    """Whether the name is unknown because the caller had no time left."""


Found = tuple[Address, ...]
"""Addresses, at least one."""


class _Kept(NamedTuple):
    """A cached answer. The times are those of the loop's clock."""

    answer: Found | NoAddress
    kept_at_s: float
    expires_at_s: float


_Question = Callable[[], Coroutine[Any, Any, bool]]


class _Proof(NamedTuple):
    """A question that shows whether the name servers work."""

    answer: asyncio.Task[bool]
    asked_at_s: float


_UNKNOWN_NAME: Final = NoAddress("it does not exist, or has no address")
_GIVEN_UP: Final = NoAddress("could not be looked up in the remaining time", is_given_up=True)


@dataclass(slots=True, eq=False)
class _Lookup:
    """A name that is being resolved, or waits for it."""

    host: str
    waiting: list[asyncio.Future[NameAnswer | None]]
    """Callers that wait for the answer; some may have left."""
    until_s: float = 0.0
    """Time until which the lookup runs, from its first attempt on."""
    timer: asyncio.TimerHandle | None = None
    """Ends it then; None before its first turn."""


class Resolver:
    """Looks up the addresses of names, and caches them. Used with `async with`."""

    def __init__(self, servers: Iterable[str] = (), *, timeout_s: float = 5.0) -> None:
        """`servers`: addresses with an optional port, asked in this order; none: those of the system.

        InvalidValue for servers that cannot be asked.
        """
        self.lookups = 0
        """Questions that memory could not answer."""
        self.faults = 0
        """Lookups that failed because all name servers failed."""
        self._loop = asyncio.get_running_loop()
        self._servers = tuple(servers)
        self._timeout_s = timeout_s
        self._channel = open_channel(self._servers, timeout_s)
        self._lookups_left = MAX_LOOKUPS_OF_CHANNEL
        self._records_left = MAX_RECORDS_OF_CHANNEL
        self._renewed_at_s = self._loop.time()
        self._answered: set[str] = set()
        """Names that the channel has answered, and may have cached."""
        self._kept: dict[str, _Kept] = {}
        """Cached answers, the oldest first."""
        self._pending: dict[str, _Lookup] = {}
        self._under_way = 0
        """Lookups that count against the limit."""
        self._unanswered = 0
        self._width = LookupWidth()
        self._overload_check: asyncio.Task[None] | None = None
        self._dropped_at_s = -math.inf
        """When the name servers were last seen to drop queries that they could answer."""
        self._queued: deque[_Lookup] = deque()
        """Lookups that have not started."""
        self._repeated: deque[_Lookup] = deque()
        """Lookups whose answers were lost."""
        self._is_repeats_turn = False
        """Whether the latest turn was theirs: every second one is."""
        self._found_at_s = -1.0
        self._unclear: set[str] = set()
        """Names that could not be looked up since one was found."""
        self._witness: str | None = None
        """The name of the witness that was looked up last."""
        self._proofs: dict[_Question, _Proof] = {}
        """The last question of each kind."""
        self._retiring: set[asyncio.Task[None]] = set()
        self._is_closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Cancel running lookups, and release sockets and threads."""
        self._is_closed = True
        tasks = [*self._retiring, *(proof.answer for proof in self._proofs.values())]
        if self._overload_check is not None:
            tasks.append(self._overload_check)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._channel.close()
        self._queued.clear()
        self._repeated.clear()
        for lookup in [*self._pending.values()]:
            self._end(lookup, NameAnswer(unclear="was given up"))

    def remembered(self, host: str) -> Found | NoAddress | None:
        """Return the cached answer for a name; None if there is none."""
        kept = self._kept.get(host)
        if kept is None:
            return None
        if kept.expires_at_s <= self._loop.time():
            del self._kept[host]
            return None
        return kept.answer

    async def look_up_again(self, host: str, failed_at_s: float | None = None) -> None:
        """Look up a cached name again, because a request to it failed. Concurrent callers share an answer.

        A name without an address, and addresses found before `failed_at_s`, are forgotten; `failed_at_s` is
        when the name failed, on the loop's clock. None: the name did not fail. Then its addresses are kept if
        no others are found within RENEWAL_SECONDS: an outage of the name servers hides no death.
        """
        if self.remembered(host) is None:
            return
        kept = self._kept[host]
        if isinstance(kept.answer, NoAddress) or (failed_at_s is not None and kept.kept_at_s <= failed_at_s):
            del self._kept[host]
        elif kept.kept_at_s + MIN_TTL_SECONDS <= self._loop.time():
            self.lookups += 1
            await self._answer(host, self._loop.time() + RENEWAL_SECONDS)
            if isinstance(self.remembered(host), NoAddress | None):
                self._kept[host] = kept

    def note_looked_up(self, host: str) -> None:
        """Record that the name servers answer for names below the name of a witness."""
        self._witness = host
        self._found_at_s = self._loop.time()
        self._unclear.clear()

    async def resolve(self, host: str, deadline_s: float = math.inf) -> Found | NoAddress:
        """Return the addresses of a name (in the form of `TargetUrl`), or the reason why there are none.

        Concurrent lookups of one name share an answer. Once started, a lookup takes up to `timeout_s`, and
        `ROOT_SECONDS` more if no server answers; waiting included, it ends at `deadline_s` on the loop's
        clock.
        """
        known = self.remembered(host)
        if known is not None:
            return known
        began_at_s = self._loop.time()
        self.lookups += 1
        answer = await self._answer(host, deadline_s)
        if answer is None:
            return _GIVEN_UP
        if not answer.unclear:
            return answer.addresses or _UNKNOWN_NAME
        try:
            async with asyncio.timeout_at(deadline_s):
                is_found_elsewhere = await self._is_found_elsewhere(began_at_s)
        except TimeoutError:
            # uvloop may wake up a millisecond early.
            return _GIVEN_UP
        if self._loop.time() >= deadline_s:
            return _GIVEN_UP
        return NoAddress(answer.unclear) if is_found_elsewhere else self._own_fault(answer)

    def _own_fault(self, answer: NameAnswer) -> NoAddress:
        self.faults += 1
        if not self._is_closed and self._loop.time() >= self._renewed_at_s + RENEW_SECONDS:
            # The machine may have got other name servers meanwhile.
            self._renew_channel()
        return NoAddress(f"no name server answered ({answer.unclear})", is_resolver_fault=True)

    async def _answer(self, host: str, deadline_s: float) -> NameAnswer | None:
        """Wait for the answer about a name; None if it does not come in time.

        Each caller has its own future and timer: a caller that leaves does not cancel the answer for others.
        """
        waiting: asyncio.Future[NameAnswer | None] = self._loop.create_future()
        lookup = self._pending.get(host)
        if lookup is not None:
            lookup.waiting.append(waiting)
        else:
            lookup = self._pending[host] = _Lookup(host, [waiting])
            self._queued.append(lookup)
            self._start_next()
        if deadline_s == math.inf:
            return await waiting
        timer = self._loop.call_at(deadline_s, _settle, waiting, None)
        try:
            return await waiting
        finally:
            timer.cancel()

    def _start_next(self) -> None:
        while self._under_way < self._width.at_once and self._unanswered < MAX_UNANSWERED:
            self._is_repeats_turn = not self._is_repeats_turn
            queues = (
                (self._repeated, self._queued) if self._is_repeats_turn else (self._queued, self._repeated)
            )
            if not (waiting := queues[0] or queues[1]):
                return
            lookup = waiting.popleft()
            if all(future.done() for future in lookup.waiting):
                self._end(lookup, NameAnswer(unclear="was given up"))
            else:
                self._start(lookup)

    def _start(self, lookup: _Lookup) -> None:
        """Send one query; a lost query is repeated while there is time for another one of this length."""
        self._lookups_left -= 1
        if self._lookups_left < 0 or self._records_left < 0 or lookup.host in self._answered:
            # c-ares would answer from its own cache, which keeps an answer without records for an hour.
            self._renew_channel()
        self._unanswered += 1
        requested_at_s = self._loop.time()
        if lookup.timer is None:
            lookup.until_s = requested_at_s + self._timeout_s
            late = NameAnswer(unclear=f"could not be looked up within {self._timeout_s:g} s")
            lookup.timer = self._loop.call_at(lookup.until_s, self._end, lookup, late)

        free = self._take_slot()

        def settle(answer: NameAnswer) -> None:
            now_s = self._loop.time()
            self._unanswered -= 1
            free()
            self._records_left -= answer.records
            if self._width.note(is_lost=answer.is_lost):
                self._check_overload()
            is_awaited = not all(waiting.done() for waiting in lookup.waiting)
            if answer.is_lost and is_awaited and 2 * now_s - requested_at_s <= lookup.until_s:
                self._repeated.append(lookup)
            else:
                self._keep(lookup.host, answer)
                self._end(lookup, answer)
            if self._queued or self._repeated:
                # Not within this call: it may have come from within another one.
                self._loop.call_soon(self._start_next)

        self._channel.look_up(lookup.host, settle)

    def _take_slot(self) -> Callable[[], None]:
        """Count a lookup against the limit; return the function to call at its end.

        It counts for SLOT_SECONDS at most, because names without a server must not delay the others; but to
        its end if the name servers are overloaded.
        """
        self._under_way += 1
        is_taken = True

        def free() -> None:
            nonlocal is_taken
            timer.cancel()
            self._under_way -= is_taken
            is_taken = False

        def free_early() -> None:
            if not self._width.is_overloaded:
                free()
                self._start_next()

        timer = self._loop.call_later(SLOT_SECONDS, free_early)
        return free

    def _check_overload(self) -> None:
        """Find out whether the name servers answer each of several queries for the root."""
        if not self._is_closed and (self._overload_check is None or self._overload_check.done()):
            self._overload_check = asyncio.create_task(self._query_root_often())

    async def _query_root_often(self) -> None:
        answered = await asyncio.gather(*(self._answers_for_root() for _ in range(ROOT_QUERIES)))
        is_overloaded = not all(answered)
        self._width.note_check(is_overloaded=is_overloaded)
        if is_overloaded:
            self._dropped_at_s = self._loop.time()

    def _end(self, lookup: _Lookup, answer: NameAnswer) -> None:
        """Pass the answer of a lookup to all waiting callers; a later answer only goes to the cache."""
        if self._pending.get(lookup.host) is lookup:
            del self._pending[lookup.host]
        if lookup.timer is not None:
            lookup.timer.cancel()
        for waiting in lookup.waiting:
            _settle(waiting, answer)

    def _keep(self, host: str, answer: NameAnswer) -> None:
        if answer.unclear:
            if len(self._unclear) < MAX_UNCLEAR_NAMES:
                self._unclear.add(host)
            return
        now_s = self._loop.time()
        self._answered.add(host)
        if not answer.addresses:
            self._kept[host] = _Kept(_UNKNOWN_NAME, now_s, now_s + NO_ADDRESS_SECONDS)
        else:
            if answer.ttl_s:
                # Entries of /etc/hosts have no TTL and prove nothing about name servers.
                self._found_at_s = now_s
                self._unclear.clear()
            ttl_s = min(max(answer.ttl_s, MIN_TTL_SECONDS), MAX_TTL_SECONDS)
            self._kept[host] = _Kept(answer.addresses, now_s, now_s + ttl_s)
        if len(self._kept) > MAX_NAMES:
            del self._kept[next(iter(self._kept))]

    async def _is_found_elsewhere(self, since_s: float) -> bool:
        """Return whether the name servers answer for other names."""
        if self._overload_check is not None and not self._is_closed:
            await asyncio.shield(self._overload_check)
        if self._is_closed or self._loop.time() < self._dropped_at_s + DROPPING_SECONDS:
            return False
        if len(self._unclear) >= MAX_UNCLEAR_NAMES:
            return self._witness is not None and await self._proved(self._answers_uncached, since_s)
        return self._found_at_s > since_s or await self._proved(self._answers_for_root, since_s)

    async def _proved(self, ask: _Question, since_s: float) -> bool:
        """Return the answer of a question that is asked after this time; concurrent callers share it."""
        proof = self._proofs.get(ask)
        if proof is None or (proof.answer.done() and proof.asked_at_s < since_s):
            proof = _Proof(asyncio.create_task(ask()), self._loop.time())
            self._proofs[ask] = proof
        return await asyncio.shield(proof.answer)

    async def _answers_for_root(self) -> bool:
        return await answers_for_root(self._servers, ROOT_SECONDS)

    async def _answers_uncached(self) -> bool:
        host = self._witness
        is_answered = host is not None and await answers_uncached(self._servers, host, ROOT_SECONDS)
        if host is not None and is_answered:
            self.note_looked_up(host)
        return is_answered

    def _renew_channel(self) -> None:
        self._lookups_left = MAX_LOOKUPS_OF_CHANNEL
        self._records_left = MAX_RECORDS_OF_CHANNEL
        self._renewed_at_s = self._loop.time()
        self._answered.clear()
        renewed = self._channel.renewed()
        if renewed is None:
            return
        waiting = [future for lookup in self._pending.values() for future in lookup.waiting]
        task = asyncio.create_task(self._retire(self._channel, waiting))
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)
        self._channel = renewed

    async def _retire(self, channel: DnsChannel, waiting: "list[asyncio.Future[NameAnswer | None]]") -> None:
        try:
            if waiting:
                await asyncio.wait(waiting, timeout=self._timeout_s)
        finally:
            channel.close()


def _settle(waiting: "asyncio.Future[NameAnswer | None]", answer: NameAnswer | None) -> None:
    if not waiting.done():
        waiting.set_result(answer)
