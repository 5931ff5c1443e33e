"""Prometheus metrics of a crawl.

Each process of a crawl has series of its own; a replaced process starts at zero, like a restarted program.
docs/monitoring.md lists all metrics.
"""

from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING

from lifesign.domain.observation.results import ResultClass
from lifesign.prober.worker.progress import Progress

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from lifesign.crawl.run import Crawl

PREFIX = "lifesign_prober_"

Of = Callable[[Progress], float | None]

_GAUGES: tuple[tuple[str, str, Of], ...] = (
    ("shards", "Shards that are held.", lambda now: now.shards),
    ("targets", "Targets that lie in them.", lambda now: now.targets),
    ("targets_left", "Targets that a census has not probed yet.", lambda now: now.left),
    ("in_flight", "Probes under way.", lambda now: now.in_flight),
    ("waiting", "Targets whose turn it is not yet: too many others are asked.", lambda now: now.waiting),
    (
        "backed_off",
        "Targets that are asked less often than is usual: they keep failing, or asked for it.",
        lambda now: now.backed_off,
    ),
    (
        "start_delay_p99_seconds",
        "How late probes began, the 99th percentile since the start.",
        lambda now: None if now.start_error_p99_ms is None else now.start_error_p99_ms / 1000,
    ),
    ("event_loop_lag_seconds", "How late the event loop is, the 99th percentile.", lambda now: now.lag_p99_s),
    ("slow", "Whether the prober is slow: timeouts are not measured.", lambda now: now.slowness is not None),
    (
        "unreached_classes",
        "Network classes in which no witness answered when one was asked last.",
        lambda now: len(now.unreached_classes),
    ),
    ("failures_waiting", "Failures that wait for a witness.", lambda now: now.waiting_failures),
    (
        "clock_offset_seconds",
        "How far this machine's clock is ahead of the registry's.",
        lambda now: now.clock_offset_s,
    ),
    ("ledger_unreachable", "Whether results cannot be handed over.", lambda now: now.is_ledger_unreachable),
    ("results_buffered", "Results that wait to be handed over.", lambda now: now.held),
)
_COUNTERS: tuple[tuple[str, str, Of], ...] = (
    (
        "failures_unwitnessed",
        "Failures without a witness, reported as not measured.",
        lambda now: now.unwitnessed,
    ),
    ("witness_rounds", "Rounds of requests to witnesses.", lambda now: now.witness_rounds),
    ("probes_missed", "Probes that were due and did not take place.", lambda now: now.missed),
    ("results_reported", "Results that were handed over.", lambda now: now.reported),
    ("results_lost", "Results that were given up.", lambda now: now.given_up),
    ("unanswered_lookups", "Look-ups of names that no name server answered.", lambda now: now.unanswered),
)


def crawl_families(crawl: "Crawl") -> "Iterator[Metric]":
    """Return all families of a crawl as it is now."""
    from prometheus_client.core import (  # noqa: PLC0415 - the extra `metrics` may not be installed
        CounterMetricFamily,
        GaugeMetricFamily,
        SummaryMetricFamily,
    )

    workers: Mapping[str, Progress] = {} if crawl.statuses is None else crawl.statuses.now
    build = GaugeMetricFamily(f"{PREFIX}build_info", "Which version this is.", labels=["version"])
    build.add_metric([version("lifesign")], 1)
    yield build
    yield GaugeMetricFamily(f"{PREFIX}workers", "Processes that probe.", value=len(workers))
    states = GaugeMetricFamily(
        f"{PREFIX}directories", "Directories by what became of their last reading.", labels=["state"]
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
        f"{PREFIX}probes", "Probes that ended, by what they came to.", labels=["worker", "result"]
    )
    delays = SummaryMetricFamily(
        f"{PREFIX}start_delay_seconds", "How much later than due probes began.", labels=["worker"]
    )
    for worker, now in workers.items():
        for result in ResultClass:
            probes.add_metric([worker, result.value], now.classes.get(result, 0))
        delays.add_metric([worker], now.starts, now.start_delay_s)
    yield probes
    yield delays
