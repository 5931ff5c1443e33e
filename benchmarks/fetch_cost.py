"""Processor time of one safe request, beside the same request without the safety checks.

Each target has its own name and address. The bare contestants are aiohttp with its own resolver on c-ares
and, for targets that do not answer, a lookup and a connect without HTTP. All run in turns in one process on
uvloop. Only processor time is compared: wall time depends on what else runs on the machine.
"""

import asyncio
import contextlib
import itertools
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import aiodns
import aiohttp
import pycares
import uvloop
from yarl import URL

sys.path.insert(0, str(Path(__file__).parents[1]))  # it may be started as a file
from benchmarks.interleaved import Measured, is_quick, print_table, verdict
from benchmarks.target_fleet import CARD_PATH, HEALTH_PATH, RunningFleet, TargetFleet, running_fleet

from lifesign.domain.net.allowed_addresses import read_networks
from lifesign.domain.observation.results import ResultClass
from lifesign.prober.definition.pacing_settings import Timeouts
from lifesign.prober.network.connection_pool import WAIT_SECONDS
from lifesign.prober.network.fetch import Fetcher
from lifesign.prober.network.request import Request
from lifesign.prober.network.resolver import Resolver

SHARES = {"refused": 0.25, "unknown_name": 0.25}
AT_ONCE = 100
PATHS = (CARD_PATH.decode(), HEALTH_PATH.decode())
MIN_SHARE = 0.8
"""Of what bare aiohttp gets done in the same processor time."""
MAX_BYTES = 1 << 20
PATIENCE_SECONDS = 20


Ask = Callable[[int], Awaitable[None]]
"""Asks the target of a number."""
Opens = Callable[[], AbstractAsyncContextManager[Ask]]
"""Opens what is needed to ask, and closes it."""


class Bare:
    """Asks without any safety."""

    def __init__(self, running: RunningFleet, session: aiohttp.ClientSession) -> None:
        self._running = running
        self._session = session
        self._names = aiodns.DNSResolver([running.dns_server])
        self._loop = asyncio.get_running_loop()

    async def get_named(self, number: int) -> None:
        """Get card and document, by the target's name."""
        await self._get(self._running.fleet.host(number))

    async def get_addressed(self, number: int) -> None:
        """Get both by the target's address."""
        await self._get(str(self._running.fleet.address(number)))

    async def connect(self, number: int) -> None:
        """Look the name up, and be refused."""
        found = await self._look_up(number)
        with contextlib.suppress(ConnectionRefusedError), socket.socket() as calling:
            calling.setblocking(False)  # noqa: FBT003 - its name says it
            address = found.nodes[0].addr[0].decode()
            await self._loop.sock_connect(calling, (address, self._running.closed_port))

    async def look_up(self, number: int) -> None:
        """Look a name up that does not exist."""
        with contextlib.suppress(aiodns.error.DNSError):
            await self._look_up(number)

    async def close(self) -> None:
        """Stop looking up."""
        await self._names.close()

    async def _look_up(self, number: int) -> pycares.AddrInfoResult:
        host = self._running.fleet.host(number)
        return await self._names.getaddrinfo(host, socket.AF_UNSPEC, type=socket.SOCK_STREAM)

    async def _get(self, host: str) -> None:
        for path in PATHS:
            async with self._session.get(f"http://{host}:{self._running.port}{path}") as response:
                if not (await response.read()).startswith(b"{"):
                    raise SystemExit(f"{host} did not answer as it should")


class Safe:
    """Asks as the prober does."""

    def __init__(self, running: RunningFleet, fetcher: Fetcher) -> None:
        self._running = running
        self._fetcher = fetcher
        self._loop = asyncio.get_running_loop()

    async def get_named(self, number: int) -> None:
        """Get card and document, by the target's name."""
        for path in PATHS:
            await self._ask(f"{self._running.fleet.host(number)}:{self._running.port}{path}", ResultClass.OK)

    async def get_addressed(self, number: int) -> None:
        """Get both by the target's address."""
        for path in PATHS:
            address = self._running.fleet.address(number)
            await self._ask(f"{address}:{self._running.port}{path}", ResultClass.OK)

    async def connect(self, number: int) -> None:
        """Look the name up, and be refused."""
        place = f"{self._running.fleet.host(number)}:{self._running.closed_port}/"
        await self._ask(place, ResultClass.REFUSED)

    async def look_up(self, number: int) -> None:
        """Look a name up that does not exist."""
        await self._ask(f"{self._running.fleet.host(number)}/", ResultClass.DNS_FAILURE)

    async def _ask(self, place: str, expected: ResultClass) -> None:
        deadline_s = self._loop.time() + PATIENCE_SECONDS
        request = Request(url=URL(f"http://{place}"), max_bytes=MAX_BYTES, deadline_s=deadline_s)
        fetched = await self._fetcher.fetch(request)
        if fetched.result is not expected:
            raise SystemExit(f"expected {expected} of {place}, got {fetched.result}: {fetched.reason}")


@contextlib.asynccontextmanager
async def bare(running: RunningFleet, function: Callable[[Bare, int], Awaitable[None]]) -> AsyncIterator[Ask]:
    names = aiohttp.AsyncResolver(nameservers=[running.dns_server])
    connector = aiohttp.TCPConnector(resolver=names, limit=0, keepalive_timeout=WAIT_SECONDS)
    async with aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as session:
        asker = Bare(running, session)
        yield partial(function, asker)
        await asker.close()


@contextlib.asynccontextmanager
async def safe(running: RunningFleet, function: Callable[[Safe, int], Awaitable[None]]) -> AsyncIterator[Ask]:
    timeouts = Timeouts()
    async with (
        Resolver([running.dns_server], timeout_s=timeouts.dns_seconds) as resolver,
        Fetcher(
            timeouts=timeouts,
            networks=read_networks(["127.0.0.0/8"]),
            user_agent="lifesign-prober/0 (+https://agent.example)",
            resolver=resolver,
        ) as fetcher,
    ):
        yield partial(function, Safe(running, fetcher))


def staying(ask: Ask) -> Opens:
    """Ask with what stays open between the samples."""
    return lambda: contextlib.nullcontext(ask)


@dataclass
class Contestant:
    """A client that requests targets of one kind, with its samples."""

    opens: Opens
    gets: int
    """Of one target."""
    targets: Iterator[int]
    cpu_us: list[float] = field(default_factory=list)
    """Per target."""
    rate: list[float] = field(default_factory=list)
    """Targets per second."""

    async def sample(self, size: int) -> None:
        """Ask so many targets that it has not asked before; opening and closing is part of what it takes."""
        numbers = itertools.islice(self.targets, size)
        began_cpu_s, began_s = time.process_time(), time.perf_counter()
        async with self.opens() as ask:

            async def work() -> None:
                for number in numbers:
                    await ask(number)

            await asyncio.gather(*(work() for _ in range(AT_ONCE)))
        self.cpu_us.append((time.process_time() - began_cpu_s) / size * 1e6)
        self.rate.append(size / (time.perf_counter() - began_s))


async def run(running: RunningFleet, *, targets: int, rounds: int) -> dict[str, Contestant]:
    """Let all contestants ask in each round; the first one warms up and is dropped."""
    found = contestants(running)
    names = list(found)
    for turn in range(rounds + 1):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            await found[name].sample(targets)
    for contestant in found.values():
        del contestant.cpu_us[0], contestant.rate[0]
    return found


def contestants(running: RunningFleet) -> dict[str, Contestant]:
    def of(kind: str, opens: Opens, gets: int = 0) -> Contestant:
        fleet = running.fleet
        numbers = [number for number in range(fleet.size) if fleet.kind(number) == kind]
        return Contestant(opens, gets, itertools.cycle(numbers))

    return {
        "two GETs by name, bare aiohttp": of("alive", partial(bare, running, Bare.get_named), 2),
        "two GETs by name, safe": of("alive", partial(safe, running, Safe.get_named), 2),
        "two GETs by address, bare aiohttp": of("alive", partial(bare, running, Bare.get_addressed), 2),
        "two GETs by address, safe": of("alive", partial(safe, running, Safe.get_addressed), 2),
        "refused, bare look-up and connect": of("refused", partial(bare, running, Bare.connect)),
        "refused, safe": of("refused", partial(safe, running, Safe.connect)),
        "no such name, bare look-up": of("unknown_name", partial(bare, running, Bare.look_up)),
        "no such name, safe": of("unknown_name", partial(safe, running, Safe.look_up)),
    }


def show(found: dict[str, Contestant]) -> None:
    cpu = Measured({name: contestant.cpu_us for name, contestant in found.items()})
    rate = Measured({name: contestant.rate for name, contestant in found.items()})
    rows = []
    for bare_one, safe_one in zip(*[iter(found)] * 2, strict=True):
        for name in (bare_one, safe_one):
            gets, share = found[name].gets, cpu.ratio(bare_one, name)
            rows.append(
                [
                    name,
                    f"{cpu.median(name):.0f}",
                    f"{cpu.median(name) / gets:.0f}" if gets else "",
                    f"{share:.2f}",
                    verdict(share, at_least=MIN_SHARE) if name == safe_one and gets else "",
                    f"{rate.median(name):.0f}",
                ]
            )
    print_table(
        f"{AT_ONCE} targets at once, each of them new, one process",
        ["", "CPU µs per target", "per GET", "throughput of the bare one", "target", "targets/s"],
        rows,
    )


def main() -> None:
    quick = is_quick(__doc__)
    targets, rounds = (500, 2) if quick else (2_000, 9)
    with tempfile.TemporaryDirectory(prefix="lifesign-bench-") as directory:
        fleet = TargetFleet(4 * targets * (rounds + 1), SHARES)
        with running_fleet(fleet, Path(directory)) as running:
            show(uvloop.run(run(running, targets=targets, rounds=rounds)))


if __name__ == "__main__":
    main()
