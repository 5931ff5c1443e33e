"""Prometheus metrics of a crawl.

Each process of a crawl has series of its own; a replaced process starts at zero, like a restarted program.
docs/monitoring.md lists all metrics.
"""

from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING

from lifesign.domain.observation.assertion import AssertionOutcome
from lifesign.domain.observation.results import ResultClass
from lifesign.prober.worker.progress_counts import Progress

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from lifesign.crawl.run import Crawl

PREFIX = "lifesign_prober_"

Of = Callable[[Progress], float | None]

_GAUGES: tuple[tuple[str, str, Of], ...] = (
    ("shards", "Shards that are held.", lambda now: now.shards),
    ("targets", "Targets in these shards.", lambda now: now.targets),
    ("targets_left", "Targets that a census has not probed yet.", lambda now: now.left),
    ("in_flight", "Probes under way.", lambda now: now.in_flight),
    (
        "waiting",
        "Targets that are due and wait because too many other probes are running.",
        lambda now: now.waiting,
    ),
    (
        "backed_off",
        "Targets that are probed at longer intervals, because they keep failing or requested it.",
        lambda now: now.backed_off,
    ),
    (
        "start_delay_p99_seconds",
        "Delay of probes after their due time, 99th percentile since the start, in seconds.",
        lambda now: None if now.start_error_p99_ms is None else now.start_error_p99_ms / 1000,
    ),
    ("event_loop_lag_seconds", "Event loop lag, 99th percentile, in seconds.", lambda now: now.lag_p99_s),
    (
        "slow",
        "1 if the prober is slow, so that timeouts are not measured.",
        lambda now: now.slowness is not None,
    ),
    (
        "unreached_classes",
        "Network classes in which no witness answered the last requests.",
        lambda now: len(now.unreached_classes),
    ),
    ("failures_waiting", "Failures that wait for a witness.", lambda now: now.waiting_failures),
    (
        "clock_offset_seconds",
        "Offset of this machine's clock from the registry's, in seconds; positive if it is ahead.",
        lambda now: now.clock_offset_s,
    ),
    ("ledger_unreachable", "1 if results cannot be stored.", lambda now: now.is_ledger_unreachable),
    ("results_buffered", "Results that wait to be stored.", lambda now: now.held),
)
_COUNTERS: tuple[tuple[str, str, Of], ...] = (
    (
        "failures_unwitnessed",
        "Failures without a witness, reported as not measured.",
        lambda now: now.unwitnessed,
    ),
    ("witness_rounds", "Rounds of requests to witnesses.", lambda now: now.witness_rounds),
    ("probes_missed", "Probes that were due and did not take place.", lambda now: now.missed),
    ("results_reported", "Results that were stored.", lambda now: now.reported),
    ("results_lost", "Results that were dropped.", lambda now: now.given_up),
    ("unanswered_lookups", "DNS lookups that no name server answered.", lambda now: now.unanswered),
)


def crawl_families(crawl: "Crawl") -> "Iterator[Metric]":
    """Return all metrics of a crawl with their present values."""
    from prometheus_client.core import (  # noqa: PLC0415 - the extra `metrics` may not be installed
        CounterMetricFamily,
        GaugeMetricFamily,
        SummaryMetricFamily,
    )

    workers: Mapping[str, Progress] = {} if crawl.statuses is None else crawl.statuses.now
    build = GaugeMetricFamily(f"{PREFIX}build_info", "Version of lifesign.", labels=["version"])
    build.add_metric([version("lifesign")], 1)
    yield build
    yield GaugeMetricFamily(f"{PREFIX}workers", "Processes that probe.", value=len(workers))
    states = GaugeMetricFamily(
        f"{PREFIX}directories", "Directories by the state of their last reading.", labels=["state"]
    )
    outcomes = [
        "failed" if outcome.has_failed else "suspended" if outcome.is_suspended else "read"
        for outcome in crawl.outcomes.values()
    ]
    for state in ("read", "suspended", "failed"):
        states.add_metric([state], outcomes.count(state))
    yield states
    for name, text, of in _GAUGES:
        gauge = GaugeMetricFamily(PREFIX + name, text, labels=["worker"])
        for worker, now in workers.items():
            if (value := of(now)) is not None:
                gauge.add_metric([worker], float(value))
        yield gauge
    for name, text, of in _COUNTERS:
        counter = CounterMetricFamily(PREFIX + name, text, labels=["worker"])
        for worker, now in workers.items():
            counter.add_metric([worker], of(now) or 0)
        yield counter
    probes = CounterMetricFamily(
        f"{PREFIX}probes", "Finished probes, by result.", labels=["worker", "result"]
    )
    assertions = CounterMetricFamily(
        f"{PREFIX}assertions", "Evaluated assertions, by result.", labels=["worker", "result"]
    )
    delays = SummaryMetricFamily(
        f"{PREFIX}start_delay_seconds", "Delay of probes after their due time.", labels=["worker"]
    )
    for worker, now in workers.items():
        for result in ResultClass:
            probes.add_metric([worker, result.value], now.classes.get(result, 0))
        for outcome in AssertionOutcome:
            assertions.add_metric([worker, outcome.value], now.assertions.get(outcome, 0))
        delays.add_metric([worker], now.starts, now.start_delay_s)
    yield probes
    yield assertions
    yield delays
