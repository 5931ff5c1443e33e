"""Cost of MCP servers beside A2A agents: per request of a probe, and of a census of a mostly dead list.

Probes of both kinds ask the same targets in turns, in one process on uvloop. Both censuses ask a fleet with
the same shares of failures, one after the other; the processor time of the prober's processes is compared.
"""

import itertools
import sys
import tempfile
import time
from pathlib import Path

import uvloop

sys.path.insert(0, str(Path(__file__).parents[1]))  # it may be started as a file
from benchmarks.fetch_cost import AT_ONCE, Contestant, staying
from benchmarks.interleaved import Measured, is_quick, print_table, verdict
from benchmarks.probe_cost import definition, fetching
from benchmarks.prober_census import count
from benchmarks.target_fleet import MCP_PATH, OLDER_MCP_PATH, RunningFleet, TargetFleet, running_fleet

from lifesign.domain.observation.probe_memory import ProbeMemory
from lifesign.domain.observation.results import ResultClass
from lifesign.domain.targets.target import StatedKind, target_id
from lifesign.prober.probe.steps import Prober
from lifesign.prober.registry_exchange.ledger import TargetEntry

MAX_PROBE_RATIO = 1.3
"""Of the processor time per request of an A2A probe."""
MAX_CENSUS_RATIO = 1.2
"""Of the processor time of a census of A2A agents."""
A2A = "A2A agent"
FORMS = {
    A2A: (StatedKind.A2A, "/", 3),
    "MCP server, server/discover": (StatedKind.MCP, MCP_PATH.decode(), 2),
    "MCP server, handshake": (StatedKind.MCP, OLDER_MCP_PATH.decode(), 5),
}
"""Kind, path and requests of a first probe, the health document included."""


class FirstProbes:
    """First probes of targets of one form."""

    def __init__(self, prober: Prober, running: RunningFleet, form: str) -> None:
        self._prober = prober
        self._running = running
        self._kind, self._path, self._requests = FORMS[form]

    async def ask(self, number: int) -> None:
        """Probe a target of which nothing is known."""
        url = f"http://{self._running.fleet.host(number)}:{self._running.port}{self._path}"
        entry = TargetEntry(subject_id=target_id(url), url=url, memory=ProbeMemory(), kind=self._kind)
        report = await self._prober.probe(entry, time.time())
        seen = report.observation
        if seen.result is not ResultClass.OK or seen.document is None or report.requests != self._requests:
            raise SystemExit(f"{url} was not seen as it should, by {report.requests} requests: {seen}")


async def probe(running: RunningFleet, *, targets: int, rounds: int) -> Measured:
    """Return the processor time per request in µs; the first round warms up and is dropped."""
    wanted = definition(running)
    async with fetching(wanted) as fetcher:
        prober = Prober(fetcher, wanted)
        contestants = {
            form: Contestant(
                staying(FirstProbes(prober, running, form).ask), gets, itertools.cycle(range(targets))
            )
            for form, (_, _, gets) in FORMS.items()
        }
        for turn in range(rounds + 1):
            names = list(contestants)
            first = turn % len(names)
            for name in names[first:] + names[:first]:
                await contestants[name].sample(targets)
    return Measured({name: [us / each.gets for us in each.cpu_us[1:]] for name, each in contestants.items()})


def show_probes(targets: int, rounds: int) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="lifesign-bench-") as directory,
        running_fleet(TargetFleet(targets, {}), Path(directory)) as running,
    ):
        cpu = uvloop.run(probe(running, targets=targets, rounds=rounds))
    rows = []
    for name, (_, _, gets) in FORMS.items():
        ratio = cpu.ratio(name, A2A)
        judged = "" if name == A2A else verdict(ratio, at_most=MAX_PROBE_RATIO)
        rows.append([name, str(gets), f"{cpu.median(name):.0f}", f"{ratio:.2f}", judged])
    print_table(
        f"First probes, {AT_ONCE} targets at once, one process",
        ["", "requests", "CPU µs per request", "of A2A", "target"],
        rows,
    )


def show_censuses(size: int, rounds: int) -> bool:
    counts = {kind: [count(size, kind) for _ in range(rounds)] for kind in ("a2a", "mcp")}
    cpu_us = Measured(
        {kind: [each.cpu_s / size * 1e6 for each in censuses] for kind, censuses in counts.items()}
    )
    rows = []
    for kind, censuses in counts.items():
        ratio = cpu_us.ratio(kind, "a2a")
        judged = "" if kind == "a2a" else verdict(ratio, at_most=MAX_CENSUS_RATIO)
        wrong = sum(sum(each.wrong.values()) for each in censuses)
        rows.append([kind, f"{size:,}", f"{cpu_us.median(kind):.0f}", f"{ratio:.2f}", judged, str(wrong)])
    columns = ["", "targets", "CPU µs each", "of A2A", "target", "wrong"]
    print_table("A census of a mostly dead list", columns, rows)
    return all(row[-1] == "0" for row in rows)


def main() -> int:
    quick = is_quick(__doc__)
    show_probes(*((500, 3) if quick else (2_000, 9)))
    return 0 if show_censuses(*((2_000, 1) if quick else (20_000, 3))) else 1


if __name__ == "__main__":
    sys.exit(main())
