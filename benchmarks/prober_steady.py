"""Punctuality of the prober at a steady rate of 606 targets a second.

That rate is due if 181,666 targets are probed every 300 s. Here one process, which also classifies and
stores, probes 18,180 targets of the same kinds every 30 s. Back-off is switched off: otherwise failing
targets would be probed less often.
"""

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop

sys.path.insert(0, str(Path(__file__).parents[1]))  # it may be started as a file
from benchmarks.interleaved import is_quick, print_table, verdict
from benchmarks.prober_census import definition
from benchmarks.process_tree import MIB, resident_bytes
from benchmarks.target_fleet import RunningFleet, TargetFleet, cpu_seconds, running_fleet

from lifesign.crawl.backend import open_local_backend
from lifesign.crawl.directory_import import DirectoryImporter
from lifesign.crawl.prober_assembly import open_prober
from lifesign.crawl.process import run_worker
from lifesign.crawl.worker_config import WorkerStatus
from lifesign.prober.definition.file import read_definition_file
from lifesign.prober.directories.fetching import fetching_with

PER_SECOND = 606
INTERVAL_SECONDS = 30
CADENCE = f"""\
cadence:
  allow_fast_cadence: true
  interval_seconds: {INTERVAL_SECONDS}
  max_backoff_seconds: {INTERVAL_SECONDS}
"""
MAX_LATE_MS = 1000
MAX_GROWTH_RATIO = 1.05
"""From the first look at the memory to the last one."""


@dataclass(frozen=True, slots=True)
class Look:
    """Where the prober stands at one moment."""

    at_s: float
    cpu_s: float
    fleet_cpu_s: float
    resident_bytes: int
    probed: int
    missed: int
    late_p99_ms: float | None


# --- the process that probes ------------------------------------------------------------------------------


async def probe_on(directory: Path) -> None:
    """Probe until stdin is closed; report the progress on stdout regularly."""
    wanted = read_definition_file(directory / "bench.yml")
    stop = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), stop.set)
    async with open_local_backend(f"sqlite:///{directory}/bench.db") as home:
        async with open_prober(wanted) as opened:
            importer = DirectoryImporter(wanted, home.lists, fetching_with(opened.fetcher))
            await importer.import_directory(wanted.directories[0])
        tending = asyncio.create_task(home.tend())
        try:
            await run_worker(home.shares(wanted, 1, None)[0], stop, _print_progress)
        finally:
            tending.cancel()
            await asyncio.gather(tending, return_exceptions=True)


def _print_progress(status: WorkerStatus) -> None:
    progress = status.progress
    if progress is not None:
        figures = (progress.probed, progress.missed, progress.start_error_p99_ms)
        print(json.dumps(figures), flush=True)


# --- who watches it ---------------------------------------------------------------------------------------


def looks(running: RunningFleet, directory: Path, seconds: float) -> Iterator[Look]:
    """Start the prober, and look at it until time is up."""
    command = [sys.executable, __file__, "--probe", str(directory)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as probing:
        assert probing.stdin is not None  # noqa: S101 - as asked for
        assert probing.stdout is not None  # noqa: S101 - as asked for
        began_s = time.monotonic()
        for line in probing.stdout:
            probed, missed, late_p99_ms = json.loads(line)
            at_s = time.monotonic() - began_s
            yield Look(
                at_s,
                cpu_seconds(probing.pid),
                running.cpu_seconds(),
                resident_bytes(probing.pid),
                probed,
                missed,
                late_p99_ms,
            )
            if at_s >= seconds:
                break
        probing.stdin.close()
        # The rest of its output is ignored, but must be read, or the process would block.
        probing.stdout.read()
    if probing.returncode:
        raise SystemExit(f"the prober ended with {probing.returncode}")


def show(seconds: float, settled_s: float) -> bool:
    fleet = TargetFleet(PER_SECOND * INTERVAL_SECONDS)
    with tempfile.TemporaryDirectory(prefix="lifesign-bench-") as name:
        directory = Path(name)
        with running_fleet(fleet, directory) as running:
            fleet.write_list(directory / "fleet.txt", running.port, running.closed_port)
            (directory / "bench.yml").write_text(definition(running, CADENCE))
            seen = list(looks(running, directory, seconds))
    last = seen[-1]
    settled = next((look for look in seen if look.at_s >= settled_s), last)
    if settled is last or last.late_p99_ms is None:
        raise SystemExit("the prober ended before it had settled")
    spent_s = last.at_s - settled.at_s
    growth = last.resident_bytes / settled.resident_bytes
    rows: list[list[Any]] = [
        ["probes/s", f"{(last.probed - settled.probed) / spent_s:.0f}", f"{PER_SECOND} are due"],
        ["start error p99, ms", f"{last.late_p99_ms:.0f}", verdict(last.late_p99_ms, at_most=MAX_LATE_MS)],
        ["ticks that were missed", str(last.missed), verdict(last.missed, at_most=0)],
        ["of a core", f"{(last.cpu_s - settled.cpu_s) / spent_s:.0%}", ""],
        ["of a core, the fleet", f"{(last.fleet_cpu_s - settled.fleet_cpu_s) / spent_s:.0%}", ""],
        [f"MiB after {settled.at_s:.0f} s", f"{settled.resident_bytes / MIB:.0f}", ""],
        [f"MiB after {last.at_s:.0f} s", f"{last.resident_bytes / MIB:.0f}", ""],
        ["growth", f"{growth:.3f}", verdict(growth, at_most=MAX_GROWTH_RATIO)],
    ]
    title = f"{fleet.size:,} targets every {INTERVAL_SECONDS} s, for {seconds:g} s"
    print_table(title, ["", "", "target"], rows)
    return last.probed > settled.probed


def main() -> int:
    if sys.argv[1:2] == ["--probe"]:
        uvloop.run(probe_on(Path(sys.argv[2])))
        return 0
    is_smoke = is_quick(__doc__)
    return 0 if show(40 if is_smoke else 300, 20 if is_smoke else 60) else 1


if __name__ == "__main__":
    sys.exit(main())
