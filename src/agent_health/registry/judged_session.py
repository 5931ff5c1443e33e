"""How is somebody contacted at an address that somebody else chose?

The name is resolved once, each address is judged, and the connection goes to one that was judged: a
name that resolves otherwise a moment later leads nowhere else. Cookies are not kept, nothing is
decompressed, and neither a proxy nor another name is ever asked.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from ipaddress import ip_address

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from agent_health.target_address import Address, Network, Refused, TargetUrl, judge_address, judge_url

MAX_HEADER_BYTES = 8_190
FAILURES = (aiohttp.ClientError, OSError, ValueError)
"""What may come of it besides NotContacted, and TimeoutError where there is a deadline."""


class NotContacted(Exception):
    """Nothing was sent; the text says why, without the URL: it may hold a secret."""


@asynccontextmanager
async def judged_session(
    url: str, allowed: Sequence[Network]
) -> AsyncIterator[tuple[aiohttp.ClientSession, URL]]:
    """Yield a session that reaches the host of a URL alone, and the URL to ask it for. NotContacted."""
    target = judge_url(url, allowed)
    if isinstance(target, Refused):
        raise NotContacted(target.reason)
    read = URL(url)
    host = (read.raw_host or "").removesuffix(".")
    if (read.scheme, host, read.port) != (target.scheme, target.host, target.port):
        raise NotContacted("its URL is read in two ways")
    addresses = await _addresses(target)
    judged = [address for address in addresses if judge_address(address, allowed) is None]
    if not judged:
        refused = judge_address(addresses[0], allowed) if addresses else None
        raise NotContacted("its name leads nowhere" if refused is None else refused.reason)
    connector = aiohttp.TCPConnector(
        resolver=_Pinned(target.host, judged[0]), use_dns_cache=False, limit=1, force_close=True
    )
    async with aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        max_line_size=MAX_HEADER_BYTES,
        max_field_size=MAX_HEADER_BYTES,
    ) as session:
        yield session, read.with_host(target.host)


async def _addresses(target: TargetUrl) -> list[Address]:
    if target.address is not None:
        return [target.address]
    found = await asyncio.get_running_loop().getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    return [ip_address(address[0]) for *_, address in found]


class _Pinned(AbstractResolver):
    """Knows one name and the one address that was judged for it."""

    def __init__(self, host: str, address: Address) -> None:
        self._host = host
        self._address = address

    async def resolve(
        self,
        host: str,
        port: int = 0,
        family: socket.AddressFamily = socket.AF_INET,  # noqa: ARG002 - aiohttp's; we have one address
    ) -> list[ResolveResult]:
        if host != self._host:
            raise OSError(None, "another name than the one that was judged")
        is_v6 = self._address.version == 6
        return [
            ResolveResult(
                hostname=host,
                host=str(self._address),
                port=port,
                family=socket.AF_INET6 if is_v6 else socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
        ]

    async def close(self) -> None:
        """Nothing is open."""
