"""Name lookups by c-ares, or by the system's resolver in threads.

c-ares looks up any number of names at once within the event loop. (aiodns runs it in a thread of its own, and
the two threads wait for each other's lock: twice the processor time for each name.) If c-ares cannot start, a
few threads use the system's resolver, which is slower but finds the same names.
"""

import asyncio
import contextlib
import secrets
import socket
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address
from logging import getLogger
from typing import Any, Final, Protocol

import pycares

from lifesign.domain.common.fast_dataclass import fast_dataclass
from lifesign.domain.net.allowed_addresses import Address
from lifesign.errors import InvalidValue

MAX_ADDRESSES: Final = 32
"""Maximum of addresses per name."""
TRIES: Final = 2
"""Tries per name server; the second one waits twice as long."""
TICK_SECONDS: Final = 0.25
"""Interval at which c-ares looks for queries that have timed out."""
MAX_THREADS: Final = 16
"""Number of concurrent lookups if c-ares cannot start."""
DEFAULT_TTL_SECONDS: Final = 60.0
"""Lifetime of an answer without a TTL, such as those of the system's resolver."""

# ares.h; pycares has no name for it. To sort the addresses of a name, c-ares would open a socket to each of
# them: seven system calls. Which address is tried first is decided by the connector.
_DO_NOT_SORT: Final = 1 << 7
# These results prove that there is no address; all others leave it unknown.
_NO_ADDRESS: Final = frozenset({
    pycares.errno.ARES_ENOTFOUND, pycares.errno.ARES_ENODATA, pycares.errno.ARES_EBADNAME,
})  # fmt: skip
_NO_ADDRESS_IN_SYSTEM: Final = frozenset(
    getattr(socket, name) for name in ("EAI_NONAME", "EAI_NODATA", "EAI_ADDRFAMILY") if hasattr(socket, name)
)
_logger = getLogger("lifesign.prober")


@fast_dataclass()
class NameAnswer:
    """Result of looking up a name."""

    addresses: tuple[Address, ...] = ()
    ttl_s: float = 0.0
    """Lifetime of the addresses, 0 or more."""
    unclear: str = ""
    """Reason why it is unknown whether there are addresses; empty if it is known."""
    is_lost: bool = False
    """Whether that is unknown because no name server answered in time."""
    records: int = 0
    """Number of records in the answer, aliases included: c-ares caches all of them."""


Report = Callable[[NameAnswer], None]


class DnsChannel(Protocol):
    """Looks up the addresses of names: by c-ares, or by the operating system in threads."""

    def look_up(self, host: str, report: Report) -> None:
        """Look up the addresses of a name; `report` is called once with the answer, possibly at once."""
        ...

    def renewed(self) -> "DnsChannel | None":
        """Return a new channel with an empty cache; None if this one has no cache."""
        ...

    def close(self) -> None:
        """Cancel running lookups, which then fail."""
        ...


def open_channel(servers: Sequence[str], timeout_s: float, *, reads_hosts_file: bool = True) -> DnsChannel:
    """Return a channel for lookups with c-ares, or with threads if it cannot be used.

    `servers`: addresses with an optional port, queried in this order; none: those of the system. InvalidValue
    for a server that is no address, and for any server if only threads are available, which cannot use them.
    `reads_hosts_file`: False to query only name servers, which threads cannot.
    """
    try:
        return _Cares(servers, timeout_s, reads_hosts_file=reads_hosts_file)
    except pycares.AresError as error:
        if servers:
            expected = "addresses of name servers that c-ares can use"
            raise InvalidValue("resolver.servers", list(servers), expected) from error
        _logger.warning("c-ares cannot start (%s): names are looked up in %d threads", error, MAX_THREADS)
        return _Threads()


async def answers_for_root(servers: Sequence[str], timeout_s: float) -> bool:
    """Return whether a name server works, by a question about the DNS root that every server can answer.

    The query is sent each time: c-ares would return a cached answer of a server that is gone.
    """
    answered: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()

    def report(_result: object, code: int | None) -> None:
        if not answered.done():
            answered.set_result(code)

    try:
        channel = _Cares(servers, timeout_s)
    except pycares.AresError:
        return False
    with contextlib.closing(channel), contextlib.suppress(TimeoutError, pycares.AresError):
        channel.query_root(report)
        async with asyncio.timeout(timeout_s):
            code = await answered
            return code is None or code in _NO_ADDRESS
    return False


async def answers_uncached(servers: Sequence[str], host: str, timeout_s: float) -> bool:
    """Return whether the name servers answer for a random name below a host.

    A name server that has lost its upstream server answers from its cache alone.
    """
    name = uncached_name(host)
    answered: asyncio.Future[NameAnswer] = asyncio.get_running_loop().create_future()

    def report(answer: NameAnswer) -> None:
        if not answered.done():
            answered.set_result(answer)

    try:
        channel = _Cares(servers, timeout_s, reads_hosts_file=False)
    except pycares.AresError:
        return False
    with contextlib.closing(channel), contextlib.suppress(TimeoutError, pycares.AresError):
        channel.look_up(name, report)
        async with asyncio.timeout(timeout_s):
            return not (await answered).unclear
    return False


def uncached_name(host: str) -> str:
    """Return a random name below a host, which no name server has cached; too long if the host's name is."""
    return f"{secrets.token_hex(4)}.{host}"


class _Cares:
    """c-ares, woken by the event loop."""

    def __init__(self, servers: Sequence[str], timeout_s: float, *, reads_hosts_file: bool = True) -> None:
        self._servers = servers
        self._timeout_s = timeout_s
        self._reads_hosts_file = reads_hosts_file
        self._loop = asyncio.get_running_loop()
        self._reading: set[int] = set()
        self._writing: set[int] = set()
        self._tick: asyncio.TimerHandle | None = None
        self._channel = pycares.Channel(
            flags=pycares.ARES_FLAG_NOSEARCH,
            servers=servers or None,
            lookups=None if reads_hosts_file else "b",
            tries=TRIES,
            # The second try waits twice as long: together less than all of the time.
            timeout=timeout_s / (2 * TRIES),
            sock_state_cb=self._watch,
        )

    def look_up(self, host: str, report: Report) -> None:
        """Look up a name in both families: a route to an address is known only once the address is."""
        self._channel.getaddrinfo(
            host,
            None,
            family=socket.AF_UNSPEC,
            type=socket.SOCK_STREAM,
            flags=_DO_NOT_SORT,
            callback=lambda result, code: report(_read(result, code)),
        )

    def query_root(self, report: Callable[[object, int | None], None]) -> None:
        """Query the name servers of the DNS root, and call `report` with the answer and the error code."""
        self._channel.query(".", pycares.QUERY_TYPE_NS, callback=report)

    def renewed(self) -> "_Cares | None":
        try:
            return _Cares(self._servers, self._timeout_s, reads_hosts_file=self._reads_hosts_file)
        except pycares.AresError:
            return None

    def close(self) -> None:
        self._channel.cancel()
        self._channel.close()
        if self._tick is not None:
            self._tick.cancel()
            self._tick = None
        # It closes its sockets a moment later, in a thread.
        for descriptor in self._reading:
            self._loop.remove_reader(descriptor)
        for descriptor in self._writing:
            self._loop.remove_writer(descriptor)
        self._reading.clear()
        self._writing.clear()

    def _watch(self, descriptor: int, is_read: bool, is_written: bool) -> None:  # noqa: FBT001 - c-ares'
        """Watch one of c-ares' sockets, or stop watching it; c-ares calls this before it closes one."""
        if is_read:
            self._reading.add(descriptor)
            self._loop.add_reader(descriptor, self._process, descriptor, pycares.ARES_SOCKET_BAD)
        elif descriptor in self._reading:
            self._reading.discard(descriptor)
            self._loop.remove_reader(descriptor)
        if is_written:
            self._writing.add(descriptor)
            self._loop.add_writer(descriptor, self._process, pycares.ARES_SOCKET_BAD, descriptor)
        elif descriptor in self._writing:
            self._writing.discard(descriptor)
            self._loop.remove_writer(descriptor)
        self._keep_ticking()

    def _keep_ticking(self) -> None:
        if self._tick is None and self._reading:
            self._tick = self._loop.call_later(TICK_SECONDS, self._check_overdue)

    def _process(self, read: int, written: int) -> None:
        self._channel.process_fd(read, written)

    def _check_overdue(self) -> None:
        self._tick = None
        self._process(pycares.ARES_SOCKET_BAD, pycares.ARES_SOCKET_BAD)
        self._keep_ticking()


class _Threads:
    """The system's resolver; its lookups cannot be cancelled and end by their own timeouts."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._threads = ThreadPoolExecutor(MAX_THREADS, "look-up")

    def look_up(self, host: str, report: Report) -> None:
        found = self._loop.run_in_executor(self._threads, _ask_system, host)
        found.add_done_callback(
            lambda done: report(NameAnswer(unclear="was given up") if done.cancelled() else done.result())
        )

    def renewed(self) -> None:
        return None

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def _read(result: pycares.AddrInfoResult | None, code: int | None) -> NameAnswer:
    if result is None or code is not None:
        if code in _NO_ADDRESS:
            return NameAnswer()
        text = pycares.errno.strerror(code or pycares.errno.ARES_EBADRESP)
        is_lost = code == pycares.errno.ARES_ETIMEOUT
        return NameAnswer(unclear=f"could not be looked up: {text!s}", is_lost=is_lost)
    nodes = result.nodes[:MAX_ADDRESSES]
    addresses = tuple(ip_address(node.addr[0].decode()) for node in nodes)
    ttl_s = float(max(0, min((node.ttl for node in nodes), default=0)))
    return NameAnswer(addresses, ttl_s, records=len(result.nodes) + len(result.cnames))


def _ask_system(host: str) -> NameAnswer:
    try:
        found: Iterator[Any] = iter(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM))
    except socket.gaierror as error:
        if error.errno in _NO_ADDRESS_IN_SYSTEM:
            return NameAnswer()
        return NameAnswer(unclear=f"could not be looked up: {error.strerror}")
    except (OSError, UnicodeError) as error:
        return NameAnswer(unclear=f"could not be looked up: {error}")
    texts = list(dict.fromkeys(address[0] for *_, address in found))
    return NameAnswer(tuple(ip_address(text) for text in texts[:MAX_ADDRESSES]), DEFAULT_TTL_SECONDS)
