"""Cost that a probe adds to its requests by reading, classifying and remembering the answers.

Card and document of the same targets, each with its own name and address, are requested by bare aiohttp, by
the safe fetcher and by probes, in turns, in one process on uvloop.
"""

import contextlib
import itertools
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import uvloop

sys.path.insert(0, str(Path(__file__).parents[1]))  # it may be started as a file
from benchmarks.fetch_cost import AT_ONCE, Ask, Bare, Contestant, Safe, staying
from benchmarks.interleaved import Measured, is_quick, print_table, verdict
from benchmarks.target_fleet import RunningFleet, TargetFleet, running_fleet

from lifesign.domain.observation.probe_memory import ProbeMemory
from lifesign.domain.observation.results import ResultClass
from lifesign.domain.targets.target import target_id
from lifesign.prober.definition.models import ProbeDefinition
from lifesign.prober.network.fetch import Fetcher
from lifesign.prober.network.resolver import Resolver
from lifesign.prober.probe.steps import Prober
from lifesign.prober.registry_exchange.ledger import TargetEntry

BARE, SAFE = "card and document, bare aiohttp", "card and document, safe"
UNCHANGED = "probed again, card unchanged"
MIN_RATIO = 0.6
"""Of the bare two GETs, by CPU time; scheduling and storing come on top of a probe."""


class Probes:
    """Probes targets of a fleet, and remembers what every one leaves behind."""

    def __init__(self, running: RunningFleet, fetcher: Fetcher, wanted: ProbeDefinition) -> None:
        self._running = running
        self._prober = Prober(fetcher, wanted)
        self.memories: dict[int, ProbeMemory] = {}

    async def first(self, number: int) -> None:
        """Probe a target of which nothing is known."""
        await self._probe(number, ProbeMemory())

    async def unchanged(self, number: int) -> None:
        """Probe it again when its card is due, which is what it was."""
        await self._probe(number, self.memories[number].model_copy(update={"card_read_at_s": 0.0}))

    async def not_due(self, number: int) -> None:
        """Probe it again within a day: for its document alone."""
        await self._probe(number, self.memories[number])

    async def _probe(self, number: int, memory: ProbeMemory) -> None:
        url = f"http://{self._running.fleet.host(number)}:{self._running.port}/"
        entry = TargetEntry(subject_id=target_id(url), url=url, memory=memory)
        report = await self._prober.probe(entry, time.time())
        seen = report.observation
        layers = [seen.discovery, seen.transport, seen.readiness]
        if any(layer is not None and layer.result is not ResultClass.OK for layer in layers):
            raise SystemExit(f"{url} was not seen as it should: {seen}")
        self.memories[number] = report.memory


def definition(running: RunningFleet, **ask: bool) -> ProbeDefinition:
    return ProbeDefinition.model_validate(
        {
            "name": "bench",
            "contact": "https://agent.example",
            "targets": ["https://agent.example"],
            "ask": ask,
            "networks": {"allow": ["127.0.0.0/8"]},
            "opt_out": {"robots_txt": False},
            "resolver": {"servers": [running.dns_server]},
        }
    )


@contextlib.asynccontextmanager
async def fetching(wanted: ProbeDefinition) -> AsyncIterator[Fetcher]:
    async with (
        Resolver(wanted.resolver.servers, timeout_s=wanted.timeouts.dns_seconds) as resolver,
        Fetcher(
            timeouts=wanted.timeouts,
            networks=wanted.networks_allowed,
            user_agent=wanted.user_agent,
            resolver=resolver,
        ) as fetcher,
    ):
        yield fetcher


@contextlib.asynccontextmanager
async def asking(running: RunningFleet) -> AsyncIterator[dict[str, Contestant]]:
    two, three = definition(running, transport=False), definition(running)
    everyone = range(running.fleet.size)
    # All are known from an earlier probe; their names are forgotten with the fetcher that looked them up.
    async with fetching(two) as fetcher:
        earlier = Probes(running, fetcher, two)
        await Contestant(staying(earlier.first), 2, iter(everyone)).sample(running.fleet.size)
    names = aiohttp.AsyncResolver(nameservers=[running.dns_server])
    async with (
        fetching(two) as fetcher,
        aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(resolver=names, limit=0, keepalive_timeout=2),
            cookie_jar=aiohttp.DummyCookieJar(),
        ) as session,
    ):
        probes, whole = Probes(running, fetcher, two), Probes(running, fetcher, three)
        probes.memories = earlier.memories
        bare = Bare(running, session)
        asks: dict[str, tuple[Ask, int]] = {
            BARE: (bare.get_named, 2),
            SAFE: (Safe(running, fetcher).get_named, 2),
            "probed for the first time": (probes.first, 2),
            UNCHANGED: (probes.unchanged, 2),
            "probed again, card not due": (probes.not_due, 1),
            "with its interface, for the first time": (whole.first, 3),
        }
        yield {
            name: Contestant(staying(ask), gets, itertools.cycle(everyone))
            for name, (ask, gets) in asks.items()
        }
        await bare.close()


async def run(running: RunningFleet, *, targets: int, rounds: int) -> dict[str, Contestant]:
    """Let all contestants ask in each round; the first one warms up and is dropped."""
    async with asking(running) as contestants:
        names = list(contestants)
        for turn in range(rounds + 1):
            first = turn % len(names)
            for name in names[first:] + names[:first]:
                await contestants[name].sample(targets)
    for contestant in contestants.values():
        del contestant.cpu_us[0], contestant.rate[0]
    return contestants


def show(contestants: dict[str, Contestant]) -> None:
    cpu = Measured({name: contestant.cpu_us for name, contestant in contestants.items()})
    rate = Measured({name: contestant.rate for name, contestant in contestants.items()})
    rows = [
        [
            name,
            str(contestant.gets),
            f"{cpu.median(name):.0f}",
            f"{cpu.added(name, SAFE):+.0f}" if contestant.gets == 2 else "",
            f"{cpu.ratio(BARE, name):.2f}",
            verdict(cpu.ratio(BARE, name), at_least=MIN_RATIO) if name == UNCHANGED else "",
            f"{rate.median(name):.0f}",
        ]
        for name, contestant in contestants.items()
    ]
    print_table(
        f"{AT_ONCE} targets at once, one process",
        ["", "GETs", "CPU µs per target", "beyond safe", "of the bare one", "target", "targets/s"],
        rows,
    )


def main() -> None:
    targets, rounds = (500, 3) if is_quick(__doc__) else (2_000, 9)
    with tempfile.TemporaryDirectory(prefix="lifesign-bench-") as directory:
        fleet = TargetFleet(targets * (rounds + 1), {})
        with running_fleet(fleet, Path(directory)) as running:
            show(uvloop.run(run(running, targets=targets, rounds=rounds)))


if __name__ == "__main__":
    main()
