"""Counts for a census from a database, and their period."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from lifesign.census.document import Census, LatencySummary
from lifesign.census.report import MAX_RUNS, CensusFacts, HostCount, LayerCount, RunFacts, compute_census
from lifesign.domain.a2a.interfaces import GENERATIONS, major_minor
from lifesign.domain.common.clock_skew import last_not_ahead
from lifesign.domain.health.document import HealthStatus
from lifesign.domain.observation.result_sums import NO_LATENCY, Layer, percentile_ms
from lifesign.domain.observation.results import ANSWERED, ResultClass
from lifesign.domain.targets.target import TargetKind
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.probing.result_history import (
    ALL_TARGETS,
    SECONDS_PER_HOUR,
    SumRow,
    hour_of,
    sums_between,
)
from lifesign.storage.targets import census_counts, target_rows
from lifesign.storage.targets.census_counts import StoredPass

WATCHED_SECONDS: Final = 86_400.0
"""Over which probes are counted, by whole hours, where there was no pass over all targets."""

Shown = tuple[TargetKind, Sequence[tuple[Layer, ResultClass]], int]
"""Kind and layer results of living targets, with their number."""

_HAS_CARD: Final = (Layer.DISCOVERY, ResultClass.OK)
_PROBED_LAYERS: Final = tuple(layer for layer in Layer if layer is not Layer.OVERALL)
OTHER_GENERATION: Final = "(another one)"


def census_of(transaction: Transaction, name: str | None) -> Census:
    """Return the census of a database as it is now.

    It covers the last pass with this name; earlier ones are its trend. None: the last pass of any name.
    """
    now_s = transaction.now_s
    if name is None:
        latest = census_counts.runs(transaction, None, 1)
        name = latest[0].name if latest else ""
    runs = census_counts.runs(transaction, name, MAX_RUNS)
    last = last_not_ahead(runs, lambda run: run.began_at_s, now_s)
    if last is not None:
        since_s, until_s = last.began_at_s, last.ended_at_s or now_s
        sums = census_counts.run_sums(transaction, last.run_id) or []
        ended_s = census_counts.NEVER_AGES if last.ended_at_s is None else last.ended_at_s
    else:
        ended_s = census_counts.ALWAYS_AGES
        hour, until_s = hour_of(now_s - WATCHED_SECONDS), now_s
        since_s = hour * SECONDS_PER_HOUR
        sums = sums_between(transaction, ALL_TARGETS, hour, hour_of(now_s) + 1)
    has_sums = bool(sums)
    living = sorted(ANSWERED)
    shown = [
        (kind, ended_of(results), count)
        for kind, results, count in census_counts.shown(transaction, living, pass_ended_s=ended_s)
    ]
    evidence = census_counts.evidence(transaction, pass_ended_s=ended_s)
    return compute_census(
        CensusFacts(
            name=name,
            made_at_s=now_s,
            since_s=since_s if has_sums else None,
            until_s=until_s if has_sums else None,
            evidence_at_s=evidence.newest_at_s,
            old=evidence.old,
            hosts=_hosts(transaction, ended_s),
            directories=[
                (directory, _result(result), count)
                for directory, result, count in census_counts.directories(transaction, pass_ended_s=ended_s)
            ],
            kinds=[
                (kind, _result(result), count)
                for kind, result, count in census_counts.kinds(transaction, pass_ended_s=ended_s)
            ],
            layers=layers_of(sums, shown),
            latencies=latencies_of(sums),
            health={
                HealthStatus(status): count
                for status, count in census_counts.health(transaction, pass_ended_s=ended_s).items()
            },
            shown=shown,
            gone=dict(target_rows.count_former(transaction)),
            deadlines=None if last is None else last.deadlines,
            not_read=() if last is None else last.not_read,
            runs=[_run(run) for run in runs],
        )
    )


def _hosts(transaction: Transaction, ended_s: float) -> Iterator[HostCount]:
    for host, result, version, count in census_counts.hosts(
        transaction, sorted(ANSWERED), pass_ended_s=ended_s
    ):
        yield HostCount(host, _result(result), generation_of(version), count)


def generation_of(version: str | None) -> str | None:
    """Return the generation of a protocol version; OTHER_GENERATION for an unknown version."""
    return None if version is None else GENERATIONS.get(major_minor(version) or "", OTHER_GENERATION)


def layers_of(sums: Iterable[SumRow], shown: Iterable[Shown]) -> Iterator[LayerCount]:
    """Yield the number of results per layer and class, and the number of probes that used a stored card."""
    counted: Counter[tuple[str, str]] = Counter()
    for layer, result, _, count in sums:
        counted[layer, result] += count
    if any(_HAS_CARD in layers for _, layers, _ in shown) and (kept := _kept_cards(counted)):
        yield LayerCount(Layer.DISCOVERY, None, kept)
    order = [*Layer]
    for layer, result in sorted(counted, key=lambda key: (order.index(Layer(key[0])), key[1])):
        if layer != Layer.OVERALL:
            yield LayerCount(layer, ResultClass(result), counted[layer, result])


def _kept_cards(counted: Mapping[tuple[str, str], int]) -> int:
    """Return how many probes did not request the card.

    Targets without liveness signals always get a request.
    """
    probes = sum(count for (layer, _), count in counted.items() if layer == Layer.OVERALL)
    requested = sum(count for (layer, _), count in counted.items() if layer == Layer.DISCOVERY)
    return max(0, min(probes - requested, counted.get((Layer.OVERALL, ResultClass.OK), 0)))


def latencies_of(sums: Iterable[SumRow]) -> dict[str, LatencySummary]:
    """Return the latencies of each layer that was ever answered."""
    buckets: defaultdict[str, Counter[int]] = defaultdict(Counter)
    for layer, _, bucket, count in sums:
        buckets[layer][bucket] += count
    latencies = {}
    for layer, counts in buckets.items():
        p50_ms, p90_ms, p99_ms = (percentile_ms(counts, percentile) for percentile in (50, 90, 99))
        if p50_ms is not None and p90_ms is not None and p99_ms is not None:
            answers = sum(count for bucket, count in counts.items() if bucket != NO_LATENCY)
            latencies[layer] = LatencySummary(count=answers, p50_ms=p50_ms, p90_ms=p90_ms, p99_ms=p99_ms)
    return latencies


def ended_of(results: Iterable[str | None]) -> list[tuple[Layer, ResultClass]]:
    """Return each layer with its result, in the order of layers; layers without a result are omitted."""
    return [
        (layer, ResultClass(result)) for layer, result in zip(_PROBED_LAYERS, results, strict=True) if result
    ]


def _run(run: StoredPass) -> RunFacts:
    counts: Mapping[ResultClass | None, int] = {
        _result(result): count for result, count in run.counts.items()
    }
    return RunFacts(began_at_s=run.began_at_s, ended_at_s=run.ended_at_s, counts=counts)


def _result(stored: str | None) -> ResultClass | None:
    return None if stored is None else ResultClass(stored)
