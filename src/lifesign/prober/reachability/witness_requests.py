"""Requests to witnesses: over new connections, after new lookups, within a few seconds."""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from typing import Final, Protocol

from yarl import URL

from lifesign.domain.common.fast_dataclass import fast_dataclass
from lifesign.domain.net.allowed_addresses import Address, AddressRefused, TargetUrl
from lifesign.http_client.answer import read_head
from lifesign.http_client.failures import FAILURES
from lifesign.prober.network.connector import Unreached, VettedConnector
from lifesign.prober.network.dns_lookup import DnsChannel, NameAnswer, open_channel, uncached_name
from lifesign.prober.network.exclusion_list import OptOuts
from lifesign.prober.reachability.target_contact import NetworkClasses

MAX_TRIED_ADDRESSES: Final = 2
"""Addresses of one witness that are tried, one after the other."""
_MAX_NAME_CHARS: Final = 253


@fast_dataclass(kw_only=True)
class WitnessReply:
    """Answer of a witness: a target or canary that was requested to test the network."""

    status: int | None = None
    """HTTP status; None without an answer."""
    is_looked_up: bool = False
    """Whether its name was looked up for this request, by name servers that do not only use a cache."""
    clock_offset_s: float | None = None
    """How many seconds this machine's clock is ahead of the time in the answer; None without one."""
    reason: str = ""
    """Reason why there was no answer, for people; empty if there was one."""


class WitnessRequester(Protocol):
    """Sends requests to witnesses: targets or canaries that show whether the network works."""

    async def ask(self, urls: Sequence[str], network_class: str, timeout_s: float) -> Sequence[WitnessReply]:
        """Request all these URLs at the same time, only at addresses of one network class.

        Return their replies in order.
        """
        ...


class WitnessRequests:
    """Sends requests to witnesses over a connector of its own. Created within a running loop."""

    def __init__(
        self,
        connector: VettedConnector,
        classes: NetworkClasses,
        *,
        name_servers: Sequence[str] = (),
        user_agent: str,
        opt_outs: OptOuts | None = None,
        note_looked_up: Callable[[str], None] | None = None,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        """`name_servers`: those that resolve the names of targets; none: those of the system.

        `note_looked_up` is called with the name of each witness that they looked up. `wall_s`: the clock by
        which certificates are verified.
        """
        self._note_looked_up = note_looked_up
        self._connector = connector
        self._classes = classes
        self._name_servers = tuple(name_servers)
        self._user_agent = user_agent
        self._opt_outs = opt_outs or None
        self._wall_s = wall_s
        self._loop = asyncio.get_running_loop()

    async def ask(self, urls: Sequence[str], network_class: str, timeout_s: float) -> Sequence[WitnessReply]:
        """Request all these URLs at the same time, only at addresses of one network class."""
        deadline_s = self._loop.time() + timeout_s
        # Channels that are new have forgotten all names.
        usual = open_channel(self._name_servers, timeout_s)
        servers = open_channel(self._name_servers, timeout_s, reads_hosts_file=False)
        with closing(usual), closing(servers):

            async def ask_one(url: str) -> WitnessReply:
                try:
                    return await self._ask_one(url, network_class, (usual, servers), deadline_s)
                except (ValueError, IndexError) as error:
                    # A value that another prober reported may be an invalid URL, for which yarl raises both.
                    return WitnessReply(reason=f"it cannot be requested: {error}")

            return await asyncio.gather(*(ask_one(url) for url in urls))

    async def _ask_one(
        self, url: str, network_class: str, channels: tuple[DnsChannel, DnsChannel], deadline_s: float
    ) -> WitnessReply:
        """Ask one witness; `channels`: the usual one, and one that reads no hosts file."""
        entry = None if self._opt_outs is None else self._opt_outs.entry_for(url)
        if entry is not None:
            return WitnessReply(reason=f"opted out: {entry}")
        target = self._connector.guard.vet_url(URL(url, encoded=True))
        if isinstance(target, AddressRefused):
            return WitnessReply(reason=target.reason)
        addresses: tuple[Address, ...] = () if target.address is None else (target.address,)
        is_looked_up = False
        usual, servers = channels
        if target.address is None:
            answer = await self._look_up(target.host, usual, deadline_s)
            addresses, is_looked_up = answer.addresses, answer.ttl_s > 0
            if not addresses:
                return WitnessReply(reason=f"no address: {answer.unclear or 'the name does not resolve'}")
        of_class = [address for address in addresses if self._classes.of(address) == network_class]
        reply = WitnessReply(reason=f"it has no address in {network_class}")
        for number, address in enumerate(of_class[:MAX_TRIED_ADDRESSES]):
            now_s = self._loop.time()
            left = len(of_class[:MAX_TRIED_ADDRESSES]) - number
            reply = await self._connect(url, replace(target, address=address), now_s, deadline_s, left)
            if reply.status is not None:
                if target.address is None and not is_looked_up:
                    # A TTL of 0 is that of the hosts file, and of some name servers.
                    is_looked_up = bool((await self._look_up(target.host, servers, deadline_s)).addresses)
                is_looked_up = is_looked_up and await self._resolves_uncached(
                    target.host, servers, deadline_s
                )
                if is_looked_up and self._note_looked_up is not None:
                    self._note_looked_up(target.host)
                return replace(reply, is_looked_up=is_looked_up)
        return reply

    async def _resolves_uncached(self, host: str, servers: DnsChannel, deadline_s: float) -> bool:
        """Return whether the name servers answer for a random name below a host, which none has cached.

        A name server that has lost its upstream server answers from its cache alone.
        """
        name = uncached_name(host)
        return len(name) <= _MAX_NAME_CHARS and not (await self._look_up(name, servers, deadline_s)).unclear

    async def _look_up(self, host: str, channel: DnsChannel, deadline_s: float) -> NameAnswer:
        answered: asyncio.Future[NameAnswer] = self._loop.create_future()

        def settle(answer: NameAnswer) -> None:
            if not answered.done():
                answered.set_result(answer)

        channel.look_up(host, settle)
        with suppress(TimeoutError):
            async with asyncio.timeout_at(deadline_s):
                return await answered
        return NameAnswer(unclear="the name could not be looked up in time")

    async def _connect(
        self, url: str, target: TargetUrl, now_s: float, deadline_s: float, left: int
    ) -> WitnessReply:
        """Ask at one address, which gets its share of the time that is left."""
        until_s = now_s + (deadline_s - now_s) / left
        opened = await self._connector.open(target, until_s)
        if isinstance(opened, Unreached):
            return WitnessReply(reason=opened.reason)
        opened.expire_at(until_s)
        try:
            reply = await opened.ask(self._written(URL(url, encoded=True)))
        except FAILURES as error:
            return WitnessReply(reason=f"no answer: {type(error).__name__}")
        finally:
            opened.expire_at(None)
            opened.abort()
        served_at = read_head(reply)["served_at"]
        offset_s = None if served_at is None else self._wall_s() - served_at.timestamp()
        return WitnessReply(status=reply.status, clock_offset_s=offset_s)

    def _written(self, url: URL) -> bytes:
        fields = f"Host: {url.host_port_subcomponent}\r\nUser-Agent: {self._user_agent}\r\n"
        return f"GET {url.raw_path_qs} HTTP/1.1\r\n{fields}Accept: */*\r\nConnection: close\r\n\r\n".encode(
            "ascii"
        )
