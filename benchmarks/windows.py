"""Cost of the windows: memory, recording a latency, and building the document."""

import math
import random
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

from hdrh.histogram import HdrHistogram
from prometheus_client import CollectorRegistry, Histogram

from lifesign import AgentHealth
from lifesign.domain.health.rolling_window import SLOTS_PER_WINDOW, WINDOW_BYTES
from lifesign.middleware.window_storage import RecorderClock

sys.path.insert(0, str(Path(__file__).parents[1]))  # it may be started as a file
from benchmarks.interleaved import Deed, is_quick, measure, print_table, repeated, verdict

WORKERS = (1, 4, 32)
HOUR_NS = 3_600_000_000_000
SECOND_NS = 1_000_000_000
MOST_REFRESH_MS = {1: 0.5, 32: 5.0}
MOST_MEGABYTES = 4.0
_CHANCE = random.Random(1)  # noqa: S311 - the same samples every time
LATENCIES_MS = [_CHANCE.lognormvariate(math.log(20), 1.5) for _ in range(500)]
"""They fill many bins."""


class Agent:
    """The worker processes of one agent, played within this process by hand-wound clocks.

    Each holds its own window file, as a process of its own would; the first publishes.
    """

    def __init__(self, directory: Path, workers: int) -> None:
        self.now_ns = 1_000 * HOUR_NS
        # A wall clock that is wound along, so that every run sees the same slots.
        clock = RecorderClock(monotonic_ns=lambda: self.now_ns, wall_ns=lambda: self.now_ns)
        self.workers = [
            AgentHealth(
                agent_id="https://agent.example.com", refresh_seconds=1, state_dir=directory, clock=clock
            )
            for _ in range(workers)
        ]
        self.publisher = self.workers[0]

    def enter_next_hour(self) -> None:
        """Go to where the next hour begins."""
        self.now_ns += HOUR_NS - self.now_ns % HOUR_NS

    def be_busy(self) -> None:
        """Let all workers record."""
        for worker in self.workers:
            for latency_ms in LATENCIES_MS:
                worker.record(latency_ms=latency_ms, first_byte_ms=latency_ms)

    def fill_windows(self) -> None:
        """Let all workers be busy in every hour of both windows."""
        for _ in range(2 * SLOTS_PER_WINDOW):
            self.enter_next_hour()
            self.be_busy()

    def refresh(self) -> None:
        """Make and publish the document, as what was published has expired."""
        self.now_ns += SECOND_NS
        self.publisher.published(self.now_ns)

    def close(self) -> None:
        """Let go of all window files."""
        for worker in self.workers:
            worker.close()


@contextmanager
def agent_with_full_windows(workers: int) -> Iterator[Agent]:
    """Give an agent all of whose workers were busy in every hour of both windows."""
    with tempfile.TemporaryDirectory(prefix="lifesign-bench-") as directory:
        agent = Agent(Path(directory), workers)
        try:
            agent.fill_windows()
            agent.refresh()
            yield agent
        finally:
            agent.close()


def show_memory() -> None:
    """Show what one worker allocates; window files are shared and mapped, and counted apart."""
    rows = [["both windows of a worker", f"{WINDOW_BYTES / 1e6:.2f}", "", ""]]
    for title, workers in (("in memory", 0), ("publisher of 1 file", 1), ("publisher of 32 files", 32)):
        with tempfile.TemporaryDirectory(prefix="lifesign-bench-") as directory, ExitStack() as peers:
            state_dir = Path(directory) if workers else None
            if workers > 1:
                other = Agent(Path(directory), workers - 1)
                peers.callback(other.close)
                other.fill_windows()
                now_ns = other.now_ns
            else:
                now_ns = 1_000 * HOUR_NS
            mapped = workers * WINDOW_BYTES / 1e6
            heap, peak = _heap_of_publisher(state_dir, now_ns)
            own = heap + (WINDOW_BYTES / 1e6 if workers else 0)
            own_peak = peak + (WINDOW_BYTES / 1e6 if workers else 0)
            rows.append([title, f"{own:.2f}", f"{own_peak:.2f}", f"{mapped:.2f}"])
            rows[-1].append(verdict(own_peak, at_most=MOST_MEGABYTES))
    rows[0].append(verdict(WINDOW_BYTES / 1e6, at_most=MOST_MEGABYTES))
    print_table(
        "Memory after heavy traffic, MB: heap and own window file of one worker",
        ["", "held", "at its peak", "all files (shared)", "target"],
        rows,
    )


def _heap_of_publisher(state_dir: Path | None, now_ns: int) -> tuple[float, float]:
    """Return held and peak megabytes of a worker's heap while it records and publishes."""
    tracemalloc.start()
    try:
        clock = RecorderClock(monotonic_ns=lambda: now_ns, wall_ns=lambda: now_ns)
        health = AgentHealth(
            agent_id="https://agent.example.com", refresh_seconds=1, state_dir=state_dir, clock=clock
        )
        for _ in range(100):
            for latency_ms in LATENCIES_MS:
                health.record(latency_ms=latency_ms, first_byte_ms=latency_ms)
            now_ns += 2 * SECOND_NS
            health.published(now_ns)
        held, peak = tracemalloc.get_traced_memory()
        health.close()
    finally:
        tracemalloc.stop()
    return held / 1e6, peak / 1e6


def show_refresh(*, rounds: int, hours: int) -> None:
    with ExitStack() as stack:
        agents = {workers: stack.enter_context(agent_with_full_windows(workers)) for workers in WORKERS}
        functions: dict[str, Deed] = {
            str(workers): repeated(agent.refresh) for workers, agent in agents.items()
        }
        measured = measure(functions, times=1, rounds=rounds)
        rows = []
        for workers, agent in agents.items():
            usual_ms = measured.median(str(workers)) / 1e6
            most_ms = MOST_REFRESH_MS.get(workers)
            rows.append(
                [
                    f"{workers} worker{'s' * (workers > 1)}",
                    f"{usual_ms:.2f}",
                    verdict(usual_ms, at_most=most_ms),
                    f"{measured.ratio(str(workers), '1'):.1f}",
                    f"{_first_refresh_ms(agent, hours):.2f}",
                ]
            )
    print_table(
        "One refresh, ms: sum all full windows, make the document, publish it",
        ["", "usual", "target", "x 1 worker", "first of an hour"],
        rows,
    )


def _first_refresh_ms(agent: Agent, hours: int) -> float:
    """Return the median duration of the first refresh of an hour, which sums all slots again."""
    durations = []
    for _ in range(hours):
        agent.enter_next_hour()
        began_ns = time.perf_counter_ns()
        agent.refresh()
        durations.append(time.perf_counter_ns() - began_ns)
        agent.be_busy()
    return median(durations) / 1e6


def show_record(rounds: int) -> None:
    """Show one latency recorded by us, in memory and in a file, and by others."""
    histogram = HdrHistogram(128, HOUR_NS, 2)
    prometheus = Histogram("latency", "Latency in seconds", registry=CollectorRegistry())
    with tempfile.TemporaryDirectory(prefix="lifesign-bench-") as directory:
        private = AgentHealth(agent_id="private", refresh_seconds=3600)
        shared = AgentHealth(agent_id="shared", refresh_seconds=3600, state_dir=directory)
        now_ns = time.perf_counter_ns()
        functions = {
            "HdrHistogram.record_value": repeated(lambda: histogram.record_value(12_300_000)),
            "prometheus_client Histogram.observe": repeated(lambda: prometheus.observe(0.0123)),
            "count, in memory": repeated(lambda: private.count(0, 12_300_000, None, now_ns)),
            "count, in a shared file": repeated(lambda: shared.count(0, 12_300_000, None, now_ns)),
            "record, in memory": repeated(lambda: private.record(latency_ms=12.3)),
            "record, in a shared file": repeated(lambda: shared.record(latency_ms=12.3)),
        }
        measured = measure(functions, times=1000, rounds=rounds)
        shared.close()
    base = "HdrHistogram.record_value"
    rows = [[name, f"{measured.median(name):.0f}", f"{measured.ratio(name, base):.2f}"] for name in functions]
    print_table("One latency recorded", ["", "ns", f"x {base}"], rows)


def main() -> None:
    is_smoke = is_quick(__doc__)
    show_memory()
    show_refresh(rounds=20 if is_smoke else 300, hours=3 if is_smoke else 24)
    show_record(rounds=30 if is_smoke else 300)


if __name__ == "__main__":
    main()
