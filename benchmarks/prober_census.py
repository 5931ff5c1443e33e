"""Duration of a census of a directory in which most targets do not work.

`lifesign crawl --once` runs with two processes, on two cores that it shares with the fleet and its name
server. Each target has a name and an address of its own. Afterwards the stored result of every target is
compared with the fleet's own list: one wrong result fails the benchmark.

    .venv/bin/python benchmarks/prober_census.py --million    # a million targets, too
"""

import argparse
import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # it may be started as a file
from benchmarks.interleaved import print_table, verdict
from benchmarks.process_tree import MIB, PeakMemory
from benchmarks.target_fleet import MCP_PATH, RunningFleet, TargetFleet, running_fleet

SIZES = (10_000, 50_000, 181_666)
"""The last one is the size of the census that started this project."""
MILLION = 1_000_000
MAX_SECONDS = {181_666: 120.0, MILLION: 300.0}
MAX_MIB = {181_666: 1024.0}
PROCESSES = 2
SILENCE_SECONDS = 5
RESULTS = {
    "refused": "refused",
    "unknown_name": "dns_failure",
    "not_found": "not_an_agent",
    "page": "not_an_agent",
    "silent": "timeout",
    "alive": "ok",
}
"""Expected result of a target of each kind."""
COLUMNS = ["targets", "s", "target", "targets/s", "CPU µs each", "fleet's", "peak MiB", "target", "wrong"]


@dataclass(frozen=True, slots=True)
class Census:
    """Cost and errors of one census."""

    seconds: float
    """From the command's start to its end, reading the directory included."""
    cpu_s: float
    fleet_cpu_s: float
    peak_bytes: int
    wrong: Counter[tuple[str, str | None]]
    """By the kind of the target and the result that was stored."""


def definition(running: RunningFleet, more: str = "", kind: str = "a2a") -> str:
    """Return a definition of a crawl over the fleet's list, in the directory where it stands."""
    return f"""\
name: bench
contact: mailto:ops@agent.example
directories: [{{file: fleet.txt, kinds: [{kind}]}}]
ask: {{card: true, transport: false, health: true}}
timeouts:
  dns_seconds: {SILENCE_SECONDS}
  connect_seconds: {SILENCE_SECONDS}
  first_byte_seconds: {SILENCE_SECONDS}
  total_seconds: {SILENCE_SECONDS}
limits: {{concurrency: 1000}}
opt_out: {{robots_txt: false}}
networks: {{allow: [127.0.0.0/8]}}
resolver: {{servers: ["{running.dns_server}"]}}
{more}"""


def count(size: int, kind: str = "a2a") -> Census:
    fleet = TargetFleet(size)
    path = MCP_PATH.decode() if kind == "mcp" else "/"
    with tempfile.TemporaryDirectory(prefix="lifesign-bench-") as name:
        directory = Path(name)
        with running_fleet(fleet, directory) as running:
            fleet.write_list(directory / "fleet.txt", running.port, running.closed_port, path)
            (directory / "bench.yml").write_text(definition(running, kind=kind))
            fleet_before_s, before_s = running.cpu_seconds(), children_cpu_s()
            began_s = time.perf_counter()
            peak_bytes = crawl(directory)
            seconds = time.perf_counter() - began_s
            cpu_s, fleet_cpu_s = children_cpu_s() - before_s, running.cpu_seconds() - fleet_before_s
        return Census(seconds, cpu_s, fleet_cpu_s, peak_bytes, wrong_results(fleet, directory / "bench.db"))


def crawl(directory: Path) -> int:
    """Run the command to its end; return the most memory that it took."""
    command = [str(Path(sys.executable).with_name("lifesign")), "crawl", "bench.yml", "--once"]
    command += ["--workers", str(PROCESSES)]
    log = directory / "bench.log"
    with (
        log.open("w") as errors,
        subprocess.Popen(command, cwd=directory, stderr=errors) as crawling,
        PeakMemory(crawling.pid) as peak,
    ):
        crawling.wait()
    if crawling.returncode:
        raise SystemExit(f"the crawl ended with {crawling.returncode}:\n{log.read_text()}")
    return peak.bytes


def children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def wrong_results(fleet: TargetFleet, database: Path) -> Counter[tuple[str, str | None]]:
    """Compare every stored result with what the fleet knows."""
    kinds = {fleet.host(number): fleet.kind(number) for number in range(fleet.size)}
    wrong: Counter[tuple[str, str | None]] = Counter()
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        for host, result in connection.execute(
            "SELECT host, result FROM targets LEFT JOIN probe_results ON probe_results.target = targets.id"
        ):
            kind = kinds.pop(host)
            if result != RESULTS[kind]:
                wrong[kind, result] += 1
    wrong.update((kind, "not listed") for kind in kinds.values())
    return wrong


def show(sizes: Sequence[int]) -> bool:
    rows = []
    is_right = True
    for size in sizes:
        census = count(size)
        wrong = sum(census.wrong.values())
        for (kind, result), times in sorted(census.wrong.items(), key=str):
            print(f"{times} that are {kind} were called {result}", file=sys.stderr)
        is_right = is_right and not wrong
        peak_mib = census.peak_bytes / MIB
        max_s, max_mib = MAX_SECONDS.get(size), MAX_MIB.get(size)
        rows.append(
            [
                f"{size:,}",
                f"{census.seconds:.1f}",
                "" if max_s is None else verdict(census.seconds, at_most=max_s),
                f"{size / census.seconds:.0f}",
                f"{census.cpu_s / size * 1e6:.0f}",
                f"{census.fleet_cpu_s / size * 1e6:.0f}",
                f"{peak_mib:.0f}",
                "" if max_mib is None else verdict(peak_mib, at_most=max_mib),
                str(wrong),
            ]
        )
    title = f"A census by {PROCESSES} processes, from the start of the command to its end"
    print_table(title, COLUMNS, rows)
    return is_right


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a small one, only to see that it runs")
    parser.add_argument("--million", action="store_true", help="of a million targets, too")
    asked = parser.parse_args()
    sizes = (5_000,) if asked.quick else (*SIZES, *((MILLION,) if asked.million else ()))
    return 0 if show(sizes) else 1


if __name__ == "__main__":
    sys.exit(main())
