"""How is a body sent to an address that somebody else chose?

The name is resolved once, each address is judged, and the connection goes to one that was judged: a
name that resolves otherwise a moment later leads nowhere else. Redirects are not followed, what comes
back is not read beyond its status, and nothing takes longer than `SEND_SECONDS`.
"""

import asyncio
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from agent_health.target_address import Address, Network, Refused, TargetUrl, judge_address, judge_url

SEND_SECONDS = 10.0
"""From the look-up of the name to the status."""
MAX_HEADER_BYTES = 8_190

_FAILURES = (aiohttp.ClientError, OSError, ValueError)


@dataclass(frozen=True, slots=True)
class Sent:
    """What became of it."""

    status: int | None
    """None if there was no answer."""
    error: str | None
    """In words, without the URL: it may hold a secret. None if it was taken: 200 to 299."""


async def safe_post(url: str, body: bytes, headers: Mapping[str, str], allowed: Sequence[Network]) -> Sent:
    """Send one POST; whatever goes wrong is told, not raised."""
    try:
        async with asyncio.timeout(SEND_SECONDS):
            return await _post(url, body, headers, allowed)
    except TimeoutError:
        return Sent(None, f"no answer within {SEND_SECONDS:g} s")
    except _FAILURES as error:
        return Sent(None, f"cannot be reached ({type(error).__name__})")


async def _post(url: str, body: bytes, headers: Mapping[str, str], allowed: Sequence[Network]) -> Sent:
    target = judge_url(url, allowed)
    if isinstance(target, Refused):
        return Sent(None, target.reason)
    read = URL(url)
    host = (read.raw_host or "").removesuffix(".")
    if (read.scheme, host, read.port) != (target.scheme, target.host, target.port):
        return Sent(None, "its URL is read in two ways")
    addresses = await _addresses(target)
    judged = [address for address in addresses if judge_address(address, allowed) is None]
    if not judged:
        refused = judge_address(addresses[0], allowed) if addresses else None
        return Sent(None, "its name leads nowhere" if refused is None else refused.reason)
    connector = aiohttp.TCPConnector(
        resolver=_Pinned(target.host, judged[0]), use_dns_cache=False, limit=1, force_close=True
    )
    async with (
        aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            max_line_size=MAX_HEADER_BYTES,
            max_field_size=MAX_HEADER_BYTES,
        ) as session,
        session.post(
            read.with_host(target.host), data=body, headers=headers, allow_redirects=False
        ) as response,
    ):
        # The body stays unread: the connection ends with the block.
        status = response.status
    return Sent(status, None if 200 <= status <= 299 else f"answered {status}")


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
