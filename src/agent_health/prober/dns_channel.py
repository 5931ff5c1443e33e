"""Who is asked about a name: c-ares, or the system's own resolver in threads?

c-ares serves any number of names at once in one thread. Where it cannot start, as without inotify, a few
threads ask the system, which is slower but knows the same names.
"""

import asyncio
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from ipaddress import ip_address
from logging import getLogger
from typing import Any, Final, Protocol

import aiodns
import pycares

from agent_health.errors import InvalidSetting
from agent_health.target_address import Address

MAX_ADDRESSES: Final = 32
"""Of one name, so many are looked at."""
TRIES: Final = 2
"""Of each name server; the second waits twice as long."""
MAX_THREADS: Final = 16
"""Names that are looked up at once where c-ares cannot start."""
DEFAULT_TTL_SECONDS: Final = 60.0
"""Of an answer that does not say how long it holds: the system's resolver does not."""

# With these it is known that there is no address; with all others nothing is known.
_NO_ADDRESS: Final = frozenset({
    aiodns.error.ARES_ENOTFOUND, aiodns.error.ARES_ENODATA, aiodns.error.ARES_EBADNAME,
})  # fmt: skip
_NO_ADDRESS_IN_SYSTEM: Final = frozenset(
    getattr(socket, name) for name in ("EAI_NONAME", "EAI_NODATA", "EAI_ADDRFAMILY") if hasattr(socket, name)
)
_logger = getLogger("agent_health.prober")


@dataclass(frozen=True, slots=True)
class NameAnswer:
    """What came back about a name."""

    addresses: tuple[Address, ...] = ()
    ttl_s: float = 0.0
    """How long they hold, 0 or more."""
    unclear: str = ""
    """Why it is not known whether there are addresses; empty if it is."""


class DnsChannel(Protocol):
    """What names are looked up with."""

    def look_up(self, host: str) -> "asyncio.Future[Any]":
        """Ask for the addresses of a name, as it stands; `read` tells what came back."""
        ...

    def read(self, answer: "asyncio.Future[Any]") -> NameAnswer:
        """Tell what a future of `look_up` came to, once it is done."""
        ...

    def renewed(self) -> "DnsChannel | None":
        """Return one that has forgotten all answers; None if none is needed, or none to be had."""
        ...

    async def close(self) -> None:
        """Let what is under way fail."""
        ...


def open_channel(servers: Sequence[str], timeout_s: float) -> DnsChannel:
    """Start c-ares, or else threads; within a running loop.

    `servers`: addresses with an optional port, asked in this order; none: those of the system.
    InvalidSetting for a server that is no address, and where only threads are left, which know no others.
    """
    try:
        return _Cares(servers, timeout_s)
    except pycares.AresError as error:
        if servers:
            expected = "addresses of name servers that c-ares can ask"
            raise InvalidSetting("resolver.servers", list(servers), expected) from error
        _logger.warning("c-ares cannot start (%s): names are looked up in %d threads", error, MAX_THREADS)
        return _Threads()


async def answers_for_root(servers: Sequence[str], timeout_s: float) -> bool:
    """Whether a name server answers at all: every one knows who serves the root.

    It is asked anew each time: c-ares remembers the answer of one that is gone.
    """
    try:
        resolver = _cares(servers, timeout_s)
    except pycares.AresError:
        return False
    try:
        async with asyncio.timeout(timeout_s):
            await resolver.query_dns(".", "NS")
    except aiodns.error.DNSError as error:
        return error.args[0] in _NO_ADDRESS
    except TimeoutError:
        return False
    finally:
        await resolver.close()
    return True


class _Cares:
    """c-ares, in a thread of its own."""

    def __init__(self, servers: Sequence[str], timeout_s: float) -> None:
        self._servers = servers
        self._timeout_s = timeout_s
        self._resolver = _cares(servers, timeout_s)

    def look_up(self, host: str) -> "asyncio.Future[pycares.AddrInfoResult]":
        return self._resolver.getaddrinfo(host, socket.AF_UNSPEC, type=socket.SOCK_STREAM)

    def read(self, answer: "asyncio.Future[pycares.AddrInfoResult]") -> NameAnswer:
        error = None if answer.cancelled() else answer.exception()
        if isinstance(error, aiodns.error.DNSError):
            code, told = error.args
            return NameAnswer() if code in _NO_ADDRESS else NameAnswer(unclear=_told(told))
        if answer.cancelled() or error is not None:
            return NameAnswer(unclear=_told(error or "it was given up"))
        nodes = answer.result().nodes[:MAX_ADDRESSES]
        addresses = tuple(ip_address(node.addr[0].decode()) for node in nodes)
        return NameAnswer(addresses, float(max(0, min((node.ttl for node in nodes), default=0))))

    def renewed(self) -> "_Cares | None":
        try:
            return _Cares(self._servers, self._timeout_s)
        except pycares.AresError:
            return None

    async def close(self) -> None:
        await self._resolver.close()


class _Threads:
    """The system's resolver; nothing cancels what it does, but its own timeouts."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(MAX_THREADS, "look-up")

    def look_up(self, host: str) -> "asyncio.Future[list[Any]]":
        loop = asyncio.get_running_loop()
        return loop.run_in_executor(self._threads, _system_addresses, host)

    def read(self, answer: "asyncio.Future[list[Any]]") -> NameAnswer:
        error = None if answer.cancelled() else answer.exception()
        if isinstance(error, socket.gaierror) and error.errno in _NO_ADDRESS_IN_SYSTEM:
            return NameAnswer()
        if answer.cancelled() or error is not None:
            return NameAnswer(unclear=_told(error or "it was given up"))
        texts = list(dict.fromkeys(address[0] for *_, address in answer.result()))
        addresses = tuple(ip_address(text) for text in texts[:MAX_ADDRESSES])
        return NameAnswer(addresses, DEFAULT_TTL_SECONDS)

    def renewed(self) -> None:
        return None

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def _cares(servers: Sequence[str], timeout_s: float) -> aiodns.DNSResolver:
    return aiodns.DNSResolver(
        servers or None,
        flags=pycares.ARES_FLAG_NOSEARCH,
        # Files first, whatever the system says.
        lookups="fb",
        tries=TRIES,
        # The second try waits twice as long: together less than all of the time.
        timeout=timeout_s / (2 * TRIES),
    )


def _system_addresses(host: str) -> list[Any]:
    return list(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM))


def _told(error: object) -> str:
    told = error.decode() if isinstance(error, bytes) else str(error)
    return f"could not be looked up: {told}"
