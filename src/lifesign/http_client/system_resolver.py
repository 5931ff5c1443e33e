"""Name look-ups for aiohttp by the system's resolver, in threads of their own.

aiohttp's `ThreadedResolver` uses the default executor of the event loop. A program may fill that executor
with calls of `asyncio.to_thread`, and no look-up would begin until one of these calls ends.
"""

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address
from typing import Any, Final

from aiohttp.abc import AbstractResolver, ResolveResult

MAX_THREADS: Final = 2
"""Maximum of concurrent look-ups of one resolver. A cancelled look-up ends by the system's timeouts."""

_NUMERIC: Final = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV


class SystemResolver(AbstractResolver):
    """Resolver for aiohttp that needs neither the event loop's default executor nor the package aiodns."""

    def __init__(self) -> None:
        """A thread starts with the first look-up."""
        self._threads = ThreadPoolExecutor(MAX_THREADS, "look-up")

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Return a name's addresses in the order of `addresses_of`; OSError if it has none."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, _look_up, host, port, family)

    async def close(self) -> None:
        """Let the threads end, without waiting for look-ups in progress."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def addresses_of(
    host: str, port: int, family: socket.AddressFamily = socket.AF_UNSPEC, flags: int = 0
) -> list[tuple[Any, ...]]:
    """Return the answer of getaddrinfo in its order, but ::1 last; OSError if there is none.

    Nearly all servers on loopback listen on 127.0.0.1. Another user could listen on ::1, which many systems
    return first for `localhost`, and would receive the secrets in requests for such a server. No name server
    may send requests for `localhost` elsewhere (RFC 6761 6.3).
    """
    found = socket.getaddrinfo(host, port, family, socket.SOCK_STREAM, flags=flags)
    is_foreign = any(not ip_address(each[4][0]).is_loopback for each in found)
    if is_foreign and host.lower().removesuffix(".") == "localhost":
        raise OSError("localhost leads to another machine: add a line for it to /etc/hosts")
    return sorted(found, key=lambda each: each[4][0] == "::1")


def _look_up(host: str, port: int, family: socket.AddressFamily) -> list[ResolveResult]:
    found = addresses_of(host, port, family, socket.AI_ADDRCONFIG)
    return [
        ResolveResult(
            hostname=host,
            # Unlike getaddrinfo, getnameinfo adds the zone of a link-local IPv6 address.
            host=socket.getnameinfo(address, socket.NI_NUMERICHOST | socket.NI_NUMERICSERV)[0],
            port=port,
            family=family_found,
            proto=protocol,
            flags=_NUMERIC,
        )
        for family_found, _, protocol, _, address in found
    ]
