"""Targets per second that are imported, and probe results per second that are stored.

A directory is imported, all its shards are claimed, and results are reported in batches of 500: of targets
that refuse (60 %), have no address (25 %), are no agents (10 %) or time out (5 %), for the first time and
again; then of a tenth of the targets as alive. This runs in one process, as a crawl without a server does,
and over HTTP to a server process, as several machines do. CPU is the time of this process or, over HTTP,
of the server.
"""

import asyncio
import itertools
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # it may be started as a file
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from benchmarks.fleet import new_url
from benchmarks.heartbeats import serve_registry
from benchmarks.interleaved import is_quick, print_table, verdict
from benchmarks.over_http import server
from tests.support.databases import KINDS

from lifesign.client import RegistryClient
from lifesign.crawl.local_ledger import LocalLedger
from lifesign.crawl.local_registry import LocalDirectories, LocalRegistry
from lifesign.domain.access.permissions import KEY_BYTES, Role, StoredKey, digest_of, key_of
from lifesign.domain.health.document import HealthStatus
from lifesign.domain.models.directories import MAX_PAGE_URLS, ImportPageRequest
from lifesign.domain.observation.probe_memory import ProbeMemory
from lifesign.domain.observation.results import LayerResult, Observation, Phases, ProbedDocument, ResultClass
from lifesign.domain.probing.shard_share import MAX_TTL_SECONDS
from lifesign.domain.targets.target import host_of, shard_of, target_id
from lifesign.prober.network.clock import SYSTEM_CLOCK
from lifesign.prober.registry_exchange.ledger import (
    Ledger,
    ProbeReport,
    ShardBatch,
    ShardClaim,
)
from lifesign.prober.registry_exchange.registry_ledger import RegistryLedger
from lifesign.storage.engine import schema_version
from lifesign.storage.engine.database import open_database
from lifesign.storage.engine.transaction import Database, Transaction
from lifesign.storage.keys import key_rows

BATCH = 500
MOST_US_PER_RESULT = 100.0
"""A census of 181,666 targets in 120 s on two cores leaves so much for storing."""
MOST_CLAIM_MS = 50.0
INTERVAL_SECONDS = 300.0
NUMBERS = itertools.count(1)
"""Of results, under whatever token."""
KEY = key_of(bytes(KEY_BYTES))
COLUMNS = ["", "per second", "CPU µs each", "target"]

Make = Callable[[str, int, int], ProbeReport]

_DEAD = [
    *[LayerResult(result=ResultClass.REFUSED, reason="10.0.0.1 refused the connection")] * 60,
    *[LayerResult(result=ResultClass.DNS_FAILURE, reason="the name has no address")] * 25,
    *[LayerResult(result=ResultClass.NOT_AN_AGENT, status_code=404, latency_ms=41.25)] * 10,
    *[LayerResult(result=ResultClass.TIMEOUT, reason="no answer within 5 s")] * 5,
]
_ANSWERED = LayerResult(
    result=ResultClass.OK,
    status_code=200,
    latency_ms=12.5,
    phases=Phases(dns_ms=1.0, connect_ms=2.0, first_byte_ms=8.0, last_byte_ms=0.5),
    evidence="ab" * 32,
)


def fleet(size: int) -> list[str]:
    """Return targets, each on a host of its own, shard by shard as a census probes them."""
    urls = [f"https://agent-{number}.hosting-{number % 977}.example/card.json" for number in range(size)]
    return sorted(urls, key=lambda url: shard_of(host_of(url)))


def mixed(urls: Sequence[str]) -> list[str]:
    """Return them in the order of no shard, as they are due when each has its own phase."""
    several = list(urls)
    random.Random(1).shuffle(several)  # noqa: S311 - always the same order
    return several


def dead(url: str, number: int, turn: int) -> ProbeReport:
    seen = Observation(target_url=url, observed_at=datetime.now(UTC), discovery=_DEAD[number % 100])
    memory = ProbeMemory(
        probed_at_s=time.time(), result=seen.result, failures_in_row=turn, confirm_at_s=time.time() + 30
    )
    return ProbeReport(subject_id=target_id(url), observation=seen, memory=memory)


def alive(url: str, _number: int, turn: int) -> ProbeReport:
    now = datetime.now(UTC)
    seen = Observation(
        target_url=url,
        observed_at=now,
        discovery=_ANSWERED,
        transport=_ANSWERED,
        readiness=_ANSWERED,
        document=ProbedDocument(
            status=HealthStatus.HEALTHY, timestamp=now, max_age_s=60, response_ratio=0.99, sample_count=1000
        ),
        reported_agent_id="itself",
    )
    memory = ProbeMemory(
        probed_at_s=time.time(),
        result=ResultClass.OK,
        failures_in_row=turn,
        card_url=url,
        card_read_at_s=time.time(),
        card_etag='W/"1"',
        card_digest="cd" * 32,
        interface_url=url,
        protocol_version="1.0",
        health_url=url,
    )
    return ProbeReport(subject_id=target_id(url), observation=seen, memory=memory)


def batch_of(reports: Sequence[ProbeReport], claims: Mapping[int, ShardClaim]) -> list[ShardBatch]:
    by_shard: dict[int, list[ProbeReport]] = {}
    for report in reports:
        host = host_of(report.observation.target_url or "")
        by_shard.setdefault(shard_of(host), []).append(report)
    now_s = SYSTEM_CLOCK.boot_s()
    return [
        ShardBatch(
            claim=claims[shard],
            reports=some,
            numbers=[next(NUMBERS) for _ in some],
            made_at_s=[now_s] * len(some),
        )
        for shard, some in by_shard.items()
    ]


@dataclass(slots=True)
class Spent:
    """Time that was spent on a number of items."""

    cpu_s: Callable[[], float]
    """Return the CPU time of the measured process so far."""
    count: int = 0
    wall_s: float = 0.0
    spent_cpu_s: float = 0.0

    @contextmanager
    def on(self, count: int) -> Iterator[None]:
        """Add what a block takes."""
        began_s, began_cpu_s = time.perf_counter(), self.cpu_s()
        yield
        self.wall_s += time.perf_counter() - began_s
        self.spent_cpu_s += self.cpu_s() - began_cpu_s
        self.count += count

    def row(self, name: str, most_us: float | None = None) -> list[str]:
        """Return a row of the table, beside the most that each may take."""
        cpu_us = self.spent_cpu_s / self.count * 1e6
        target = "" if most_us is None else verdict(cpu_us, at_most=most_us)
        return [name, f"{self.count / self.wall_s:.0f}", f"{cpu_us:.1f}", target]


async def reported(
    ledger: Ledger, urls: Sequence[str], make: Make, turn: int, cpu_s: Callable[[], float]
) -> Spent:
    """Report one result of each target, and return what that took besides the making of it."""
    claims = {claim.shard: claim for claim in (await ledger.claim("bench", MAX_TTL_SECONDS, {})).claims}
    spent = Spent(cpu_s)
    for first in range(0, len(urls), BATCH):
        some = urls[first : first + BATCH]
        batch = batch_of([make(url, first + place, turn) for place, url in enumerate(some)], claims)
        with spent.on(len(some)):
            if (await ledger.report(batch, INTERVAL_SECONDS)).lost:
                raise SystemExit("a shard was lost")
    return spent


async def rounds(
    name: str, ledger: Ledger, urls: Sequence[str], cpu_s: Callable[[], float]
) -> list[list[str]]:
    """Report dead targets twice, then some as if they were alive, twice."""
    any_order = mixed(urls)
    some = any_order[: len(urls) // 10]
    asked: list[tuple[str, Sequence[str], Make, float | None]] = [
        ("dead, first time, shard by shard", urls, dead, MOST_US_PER_RESULT),
        ("dead, again, shard by shard", urls, dead, MOST_US_PER_RESULT),
        ("dead, again, in any order", any_order, dead, None),
        ("alive, first time", some, alive, None),
        ("alive, again", some, alive, None),
    ]
    rows = []
    for turn, (what, whom, make, most_us) in enumerate(asked):
        spent = await reported(ledger, whom, make, turn, cpu_s)
        rows.append(spent.row(f"{name}: {what}", most_us))
    return rows


async def in_process(kind: str, urls: Sequence[str], directory: Path) -> list[list[str]]:
    """Import, claim and report as a crawl without a server does."""
    database = open_database(new_url(kind, directory))
    try:
        if kind == "sqlite":
            await database.write(schema_version.set_up_or_check)
        rows = [await imported(kind, database, urls)]
        ledger = LocalLedger(database)
        rows += await claimed(kind, ledger)
        return rows + await rounds(kind, ledger, urls, time.process_time)
    finally:
        await database.close()


async def imported(name: str, database: Database, urls: Sequence[str]) -> list[str]:
    lists = LocalDirectories(LocalRegistry(database, Role.ADMIN))
    spent = Spent(time.process_time)
    with spent.on(len(urls)):
        pages = [urls[first : first + MAX_PAGE_URLS] for first in range(0, len(urls), MAX_PAGE_URLS)]
        for number, page in enumerate(pages, 1):
            await lists.put_page("bench", "one", number, ImportPageRequest(urls=list(page)))
        record = await lists.apply("bench", "one", pages=len(pages))
        while record.is_under_way:
            record = await lists.apply("bench", "one", pages=len(pages))
    if record.added != len(urls):
        raise SystemExit(f"{record.added} of {len(urls)} targets were added")
    return spent.row(f"{name}: targets imported")


async def claimed(name: str, ledger: Ledger) -> list[list[str]]:
    """Claim all shards for the first time, then renew them."""
    held: dict[int, int] = {}
    rows = []
    for what in ("claimed", "renewed"):
        spent = Spent(time.process_time)
        for _ in range(5):
            known = held if what == "renewed" else {}
            if not known:
                await ledger.leave("bench")
            with spent.on(1):
                granted = await ledger.claim("bench", MAX_TTL_SECONDS, known)
                held = {claim.shard: claim.fencing_token for claim in granted.claims}
        rows.append(spent.row(f"{name}: all shards {what}", 1000 * MOST_CLAIM_MS))
    return rows


async def over_http(kind: str, urls: Sequence[str], directory: Path) -> list[list[str]]:
    """Report to a server process, as any number of machines do."""
    url = new_url(kind, directory)
    database = open_database(url)

    def set_up(transaction: Transaction) -> None:
        if kind == "sqlite":
            schema_version.set_up_or_check(transaction)
        digest = digest_of(KEY)
        stored = StoredKey(key_id="key_bench", name="", role=Role.ADMIN, digest=digest, created_at_s=0.0)
        key_rows.add(transaction, stored)

    await database.write(set_up)
    await database.close()
    with server(url, file=__file__, is_pinned=False) as served:
        async with RegistryClient(served.url, key=KEY, timeout_seconds=60) as client:
            await client.directories.put("bench", urls)
            return await rounds(f"{kind}, HTTP", RegistryLedger(client), urls, served.cpu_seconds)


def show(*, targets: int) -> None:
    urls = fleet(targets)
    rows: list[list[str]] = []
    for kind in KINDS:
        for measure in (in_process, over_http):
            with tempfile.TemporaryDirectory(prefix="lifesign-bench-") as directory:
                rows += asyncio.run(measure(kind, urls, Path(directory)))
    print_table(f"{targets} targets, results in batches of {BATCH}", COLUMNS, rows)


def main() -> None:
    if sys.argv[1:2] == ["--serve"]:
        serve_registry(sys.argv[2])
        return
    show(targets=5_000 if is_quick(__doc__) else 181_666)


if __name__ == "__main__":
    main()
