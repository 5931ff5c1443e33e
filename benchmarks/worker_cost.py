"""Cost that a worker adds to a probe: scheduling, connection limits, memory and reports.

The probes answer at once and the ledger accepts everything, so that only the worker remains. Measured are a
census at full speed, targets at their ticks (606 a second, as for 181,666 of them at 300 s), and the memory
of waiting targets.
"""

import asyncio
import gc
import resource
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import uvloop

sys.path.insert(0, str(Path(__file__).parents[1]))  # it may be started as a file
from benchmarks.interleaved import is_quick, print_table, verdict

from lifesign.domain.observation.probe_memory import ProbeMemory
from lifesign.domain.observation.results import LayerResult, Observation, Phases, ResultClass
from lifesign.domain.probing.cadence import Cadence, after_probe
from lifesign.domain.targets.target import (
    SHARDS,
    host_of,
    shard_of,
    target_id,
)
from lifesign.prober.definition.models import ProbeDefinition
from lifesign.prober.registry_exchange.ledger import (
    NO_WITNESS_REPORT,
    Granted,
    ProbeReport,
    ReportAnswer,
    ShardBatch,
    ShardClaim,
    TargetEntry,
    TargetPage,
    WitnessReport,
)
from lifesign.prober.worker.main_loop import ProbeWorker

COLUMNS = ["what", "targets", "probes/s", "CPU µs/probe", "start error p99, ms", "MiB at rest", "kept?"]
CADENCE = Cadence()
KNOWN = ProbeMemory(
    card_url="https://agent-000000.example/.well-known/agent-card.json",
    card_etag='"0123456789abcdef"',
    card_digest="0" * 64,
    interface_url="https://agent-000000.example/a2a/v1",
    interface_binding="JSONRPC",
    protocol_version="1.0",
    health_url="https://agent-000000.example/.well-known/agent-health",
)
"""Memory of an agent that answers."""


class EmptyHands:
    """A ledger whose shards all belong to the one worker, and which takes what comes."""

    living_workers = None

    def __init__(self, targets: int, *, probed_at_s: float | None) -> None:
        self.targets_of: dict[int, list[str]] = {}
        for number in range(targets):
            url = f"https://agent-{number:06}.example/"
            self.targets_of.setdefault(shard_of(host_of(url)), []).append(url)
        self.left = targets
        self.probed_at_s = probed_at_s
        self.began_s = time.perf_counter()

    async def claim(
        self,
        worker: str,  # noqa: ARG002 - it is alone
        ttl_s: float,
        held: Mapping[int, int],  # noqa: ARG002
        companions: int = 0,  # noqa: ARG002
        standing: WitnessReport = NO_WITNESS_REPORT,  # noqa: ARG002
    ) -> Granted:
        """Grant all shards."""
        until_s = time.monotonic() + ttl_s
        claims = [ShardClaim(shard=shard, fencing_token=1, expires_at_s=until_s) for shard in range(SHARDS)]
        return Granted(claims=claims)

    async def targets(self, shard: int, _after_version: int | None, /) -> TargetPage:
        """Return all targets of a shard."""
        memory = ProbeMemory()
        if self.probed_at_s is not None:
            seen = {"probed_at_s": self.probed_at_s, "card_read_at_s": self.probed_at_s}
            memory = KNOWN.model_copy(update=seen)
        entries = [
            TargetEntry(subject_id=target_id(url), url=url, memory=memory)
            for url in self.targets_of.get(shard, ())
        ]
        return TargetPage(entries=entries, version=1)

    async def changed(self, versions: Mapping[int, int]) -> Collection[int]:
        """Nothing changes once it was read."""
        return [shard for shard, version in versions.items() if version < 1]

    async def report(self, batches: Sequence[ShardBatch], interval_s: float) -> ReportAnswer:  # noqa: ARG002
        """Take everything."""
        self.left -= sum(len(batch.reports) for batch in batches)
        return ReportAnswer()

    async def unprobed(self, _since_s: float, /) -> int:
        """Count what was not reported."""
        return self.left

    async def leave(self, _worker: str, /) -> None:
        """Do nothing: there is no other worker to take shards over."""


class AnswersAtOnce:
    """A prober that has seen what it will see."""

    def __init__(self) -> None:
        ok = LayerResult(
            result=ResultClass.OK,
            status_code=200,
            latency_ms=12.3,
            phases=Phases(dns_ms=1.0, connect_ms=2.0, tls_ms=3.0, first_byte_ms=4.0, last_byte_ms=0.1),
        )
        self.seen = Observation(
            target_url="https://agent.example/", observed_at=datetime.now(UTC), discovery=ok, transport=ok
        )
        self.after = after_probe(KNOWN, self.seen, CADENCE, time.time())

    async def probe(self, entry: TargetEntry, at_s: float) -> ProbeReport:
        """Return the same for everybody."""
        memory = self.after.model_copy(update={"probed_at_s": at_s})
        return ProbeReport(subject_id=entry.subject_id, observation=self.seen, memory=memory)


def definition_of(concurrency: int) -> ProbeDefinition:
    limits = {"concurrency": concurrency, "host_requests_per_second": 100.0}
    return ProbeDefinition.model_validate(
        {
            "name": "bench",
            "contact": "mailto:ops@example.org",
            "targets": ["https://a.example"],
            "limits": limits,
        }
    )


def mebibytes() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return 0.0


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def census(targets: int) -> list[str]:
    ledger = EmptyHands(targets, probed_at_s=None)
    worker = ProbeWorker(ledger, AnswersAtOnce(), definition_of(500), worker_name="bench")
    began_s, began_cpu_s = time.perf_counter(), cpu_s()
    await worker.run_once(time.time(), asyncio.Event())
    took_s, cost_us = time.perf_counter() - began_s, (cpu_s() - began_cpu_s) / targets * 1e6
    kept = verdict(cost_us, at_most=60)
    return ["census", f"{targets:,}", f"{targets / took_s:,.0f}", f"{cost_us:.1f}", "", "", kept]


async def watch(targets: int, seconds: float) -> list[str]:
    gc.collect()
    before_mib = mebibytes()
    ledger = EmptyHands(targets, probed_at_s=time.time() - 200)
    lists_mib = mebibytes() - before_mib
    worker = ProbeWorker(ledger, AnswersAtOnce(), definition_of(500), worker_name="bench")
    stop = asyncio.Event()
    running = asyncio.create_task(worker.run(stop))
    while worker.progress.targets < targets:  # noqa: ASYNC110 - that is how whoever shows it looks, too
        await asyncio.sleep(0.1)
    gc.collect()
    at_rest_mib = mebibytes() - before_mib - lists_mib
    await asyncio.sleep(1)
    began_s, began_cpu_s, began = time.perf_counter(), cpu_s(), worker.progress.probed
    await asyncio.sleep(seconds)
    probed = worker.progress.probed - began
    took_s, cost_us = time.perf_counter() - began_s, (cpu_s() - began_cpu_s) / max(1, probed) * 1e6
    late_ms = worker.progress.start_error_p99_ms or 0.0
    stop.set()
    await running
    figures = [f"{probed / took_s:,.0f}", f"{cost_us:.1f}", f"{late_ms:.1f}", f"{at_rest_mib:.0f}"]
    return ["watch", f"{targets:,}", *figures, verdict(late_ms, at_most=1000)]


def main() -> None:
    is_short = is_quick(__doc__)
    rows = [uvloop.run(census(20_000 if is_short else 200_000))]
    for targets in (20_000,) if is_short else (100_000, 181_666, 1_000_000):
        rows.append(uvloop.run(watch(targets, 5.0 if is_short else 30.0)))
        print_table("a worker with nothing to wait for", COLUMNS, rows)


if __name__ == "__main__":
    main()
