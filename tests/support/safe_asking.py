"""Sends requests as the prober does: guarded, with names of the test's own."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from tests.support.dns_server import Answer, DnsServer, Names, dns_serving
from yarl import URL

from lifesign.domain.net.allowed_addresses import read_networks
from lifesign.prober.definition.pacing_settings import Timeouts
from lifesign.prober.network.fetch import Fetcher
from lifesign.prober.network.fetched import Fetched
from lifesign.prober.network.request import Request
from lifesign.prober.network.resolver import Resolver

LOOPBACK = ("127.0.0.0/8", "::1/128")
USER_AGENT = "lifesign-prober/test (+mailto:tests@example.org)"
MAX_BYTES = 100_000
SHORT = Timeouts(
    dns_seconds=0.4, connect_seconds=0.4, tls_seconds=0.4, first_byte_seconds=0.4, total_seconds=0.8
)
"""Settings for peers slower than any timeout."""
PATIENT = Timeouts(
    dns_seconds=60, connect_seconds=60, tls_seconds=60, first_byte_seconds=60, total_seconds=60
)
"""For all others, so that a slow machine changes nothing."""
LATE_ANSWER = PATIENT.model_copy(update={"first_byte_seconds": 0.4})
"""For reachable peers slower than any timeout."""
HERE: Answer = ("127.0.0.1",)


@dataclass
class Asker:
    """A fetcher, and the name server that it asks."""

    fetcher: Fetcher
    resolver: Resolver
    dns: DnsServer

    async def get(self, url: str | URL, **more: Any) -> Fetched:
        return await self.ask(url, **more)

    async def post(self, url: str | URL, body: bytes = b"{}", **more: Any) -> Fetched:
        return await self.ask(url, method="POST", body=body, **more)

    async def ask(self, url: str | URL, *, seconds: float = 60, **more: Any) -> Fetched:
        settings: dict[str, Any] = {
            "url": URL(url),
            "max_bytes": MAX_BYTES,
            "deadline_s": asyncio.get_running_loop().time() + seconds,
        }
        return await self.fetcher.fetch(Request(**(settings | more)))


@contextlib.asynccontextmanager
async def asking(
    names: Names | None = None,
    *,
    timeouts: Timeouts | None = None,
    networks: Sequence[str] = LOOPBACK,
    ttl_s: int = 60,
) -> AsyncIterator[Asker]:
    """Run a name server with these names and a fetcher that asks it, until the block ends."""
    timeouts = timeouts or PATIENT
    async with (
        dns_serving(names or {}, ttl_s=ttl_s) as dns,
        Resolver([dns.address], timeout_s=timeouts.dns_seconds) as resolver,
        Fetcher(
            timeouts=timeouts, networks=read_networks(networks), user_agent=USER_AGENT, resolver=resolver
        ) as fetcher,
    ):
        yield Asker(fetcher, resolver, dns)
