"""Census: the share of a directory that is alive, by platform, by generation and over time.

The model is the draft's appendix B: how many targets are listed, how many answer, and what the others do.
`document` defines the form of the result; this module has the facts and the computation.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from ipaddress import ip_address
from typing import Final

from publicsuffixlist import PublicSuffixList

from lifesign.census.document import (
    MAX_NAME_CHARS,
    Census,
    CensusPass,
    GroupCounts,
    LatencySummary,
    LayerShares,
    NamedCount,
    NamedGroups,
    OtherPlatforms,
    ResultCount,
    ratio,
)
from lifesign.census.result_groups import GROUPS, Group
from lifesign.domain.health.document import HealthStatus
from lifesign.domain.models.census import Deadlines
from lifesign.domain.observation.evidence_age import UnknownReason
from lifesign.domain.observation.result_sums import Layer
from lifesign.domain.observation.results import ResultClass
from lifesign.domain.observation.summary_line import signs_in
from lifesign.domain.targets.target import TargetKind

MAX_PLATFORMS: Final = 1_000
"""Platforms that are listed separately, those with the most targets; the others are counted together."""
MAX_DIRECTORIES: Final = 1_000
MAX_RUNS: Final = 100
MAX_DRIFT_RATIO: Final = 0.1
"""A list that has grown or shrunk by more from one pass to the next is not the same one: its share of the
living is another list's."""
ADDRESSES: Final = "(IP addresses)"
"""The platform of all targets whose host is an IP address: they have no domain."""
UNNAMED: Final = "(not known)"
"""Generation of targets without a card, or without a version in it."""

GATE: Final = "behind a gate: credentials or payment first"
"""Evidence of targets that require credentials or payment first."""


_Tally = list[int]
"""Number of targets of each group, in their order. A million platforms may need one each."""
_PLACES: Final[Mapping[ResultClass | None, int]] = {
    result: tuple(Group).index(group) for result, group in GROUPS.items()
}


@dataclass(frozen=True, slots=True)
class HostCount:
    """Number of targets on one host with the same result and generation; a host may have several rows."""

    host: str
    result: ResultClass | None
    """None: never probed."""
    generation: str | None
    """A2A protocol version of the card: `0.1`, `0.2`, `0.3`, `1.0`; None: no card, or no version in it."""
    count: int


@dataclass(frozen=True, slots=True)
class LayerCount:
    """Number of layer results of one class."""

    layer: str
    result: ResultClass | None
    """None: the layer was not requested, because its facts are known."""
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CensusFacts:
    """All counts from which a census is computed."""

    name: str
    made_at_s: float
    """Time of the report, in seconds since the epoch, as all times here."""
    since_s: float | None = None
    """The period that `layers` and `latencies` are counted over; None: there was no probe."""
    until_s: float | None = None
    evidence_at_s: float | None = None
    """When a probe last measured something."""
    old: Mapping[UnknownReason, int] = field(default_factory=dict)
    """Targets whose last measured result is too old, by reason; elsewhere they count as NOT_MEASURED."""
    hosts: Iterable[HostCount]
    """Each target once; can be iterated once."""
    directories: Iterable[tuple[str, ResultClass | None, int]] = ()
    """Name, result, count; a target that two directories list counts in both."""
    kinds: Iterable[tuple[TargetKind, ResultClass | None, int]] = ()
    """Kind, result, count."""
    layers: Iterable[LayerCount] = ()
    latencies: Mapping[str, LatencySummary] = field(default_factory=dict)
    """By layer."""
    health: Mapping[HealthStatus, int] = field(default_factory=dict)
    """Health that living agents report in a valid and fresh document; the others are unknown."""
    shown: Iterable[tuple[TargetKind, Sequence[tuple[Layer, ResultClass]], int]] = ()
    """Kind and layer results of living targets, in the order of requests, with their number."""
    gone: Mapping[str, int] = field(default_factory=dict)
    """Former targets by reason: left the directory, or opted out. The listed targets do not include them."""
    deadlines: Deadlines | None = None
    """Deadlines of the last pass."""
    not_read: tuple[str, ...] = ()
    """Directories that could not be read for it."""
    runs: Sequence["RunFacts"] = ()
    """In any order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """One pass over all targets, with the number of targets by their result in it."""

    began_at_s: float
    ended_at_s: float | None
    """None: the pass is running, or was interrupted."""
    counts: Mapping[ResultClass | None, int]


def compute_census(facts: CensusFacts) -> Census:
    """Compute the shares of a census from its counts."""
    results: Counter[ResultClass | None] = Counter()
    generations: Counter[str | None] = Counter()
    platforms: defaultdict[str, _Tally] = defaultdict(_no_targets)
    for row in facts.hosts:
        results[row.result] += row.count
        platforms[platform_of(row.host)][_PLACES[row.result]] += row.count
        if GROUPS[row.result] is Group.ALIVE:
            generations[row.generation] += row.count
    kinds = _parts((kind.value, result, count) for kind, result, count in facts.kinds)
    # MCP servers have no card.
    servers = sum(part.groups.alive for part in kinds if part.name == TargetKind.MCP)
    generations[None] = max(0, generations[None] - servers)
    groups = _groups(results)
    named, others = _platforms(platforms)
    return Census(
        name=_name(facts.name),
        made_at=_time(facts.made_at_s),
        evidence_at=None if facts.evidence_at_s is None else _time(facts.evidence_at_s),
        old=_named({reason.value: count for reason, count in facts.old.items()}),
        since=None if facts.since_s is None else _time(facts.since_s),
        until=None if facts.until_s is None else _time(facts.until_s),
        deadlines=facts.deadlines,
        not_read=facts.not_read,
        listed=groups.listed,
        groups=groups,
        alive_ratio=groups.alive_ratio,
        results=_results(results, groups.listed),
        layers=_layers(facts),
        platforms=named,
        other_platforms=others,
        generations=_named({name or UNNAMED: count for name, count in generations.items()}),
        health=_health(facts.health, groups.alive),
        kinds=kinds,
        directories=_parts(facts.directories),
        shown=_shown(facts.shown),
        gone=_named(facts.gone),
        runs=_runs(facts.runs),
    )


@cache
def _suffixes() -> PublicSuffixList:
    """Return the public suffixes that registries run.

    Suffixes that companies registered for their customers (`vercel.app`) are left out: there the company's
    domain is the platform in question, and each customer's domain would be a platform of its own.
    """
    return PublicSuffixList(only_icann=True)


def platform_of(host: str) -> str:
    """Return the platform of a host: its registrable domain; ADDRESSES for an IP address.

    A name without one, such as `localhost`, is its own platform.
    """
    # Every label of an IPv4 address is a number, and no domain ends with one (RFC 1123 2.1).
    if ":" in host or host.rpartition(".")[2].isdecimal():
        try:
            ip_address(host)
        except ValueError:
            return host
        return ADDRESSES
    return _suffixes().privatesuffix(host) or host


def _no_targets() -> _Tally:
    return [0] * len(Group)


def _groups(counts: Mapping[ResultClass | None, int]) -> GroupCounts:
    tally = _no_targets()
    for result, count in counts.items():
        tally[_PLACES[result]] += count
    return _of_tally(tally)


def _of_tally(tally: _Tally) -> GroupCounts:
    return GroupCounts(**{group.value: count for group, count in zip(Group, tally, strict=True)})


def _results(counts: Mapping[ResultClass | None, int], whole: int) -> tuple[ResultCount, ...]:
    """Return the result classes that occur, the most frequent first, without `never probed`."""
    occurring = {result: count for result, count in counts.items() if result is not None and count}
    ordered = sorted(occurring.items(), key=lambda item: (-item[1], item[0]))
    return tuple(
        ResultCount(result=result, group=GROUPS[result], count=count, share=ratio(count, whole))
        for result, count in ordered
    )


def _platforms(
    tallies: Mapping[str, _Tally],
) -> tuple[tuple[NamedGroups, ...], OtherPlatforms | None]:
    """Name the platforms with the most targets, and sum up the others."""
    ordered = sorted(tallies, key=lambda name: (-sum(tallies[name]), name))
    named = tuple(_named_groups(name, tallies[name]) for name in ordered[:MAX_PLATFORMS])
    others = [tallies[name] for name in ordered[MAX_PLATFORMS:]]
    if not others:
        return named, None
    ratios = [known for tally in others if (known := _of_tally(tally).alive_ratio) is not None]
    groups = _of_tally([sum(counts) for counts in zip(*others, strict=True)])
    return named, OtherPlatforms(
        platforms=len(others),
        groups=groups,
        alive_ratio=groups.alive_ratio,
        lowest_alive_ratio=min(ratios, default=None),
        highest_alive_ratio=max(ratios, default=None),
    )


def _named_groups(name: str, tally: _Tally) -> NamedGroups:
    groups = _of_tally(tally)
    return NamedGroups(name=_name(name), groups=groups, alive_ratio=groups.alive_ratio)


def _parts(rows: Iterable[tuple[str, ResultClass | None, int]]) -> tuple[NamedGroups, ...]:
    tallies: defaultdict[str, _Tally] = defaultdict(_no_targets)
    for name, result, count in rows:
        tallies[name][_PLACES[result]] += count
    return tuple(_named_groups(name, tallies[name]) for name in sorted(tallies)[:MAX_DIRECTORIES])


def _layers(facts: CensusFacts) -> tuple[LayerShares, ...]:
    """Return the layers in the order in which they first come."""
    counted: defaultdict[str, Counter[ResultClass | None]] = defaultdict(Counter)
    for row in facts.layers:
        if row.result is not ResultClass.NOT_MEASURED:
            counted[row.layer][row.result] += row.count
    return tuple(
        LayerShares(
            layer=layer,
            count=(requested := counts.total() - counts[None]),
            results=_results(counts, requested),
            not_asked=counts[None],
            latency=facts.latencies.get(layer),
        )
        for layer, counts in counted.items()
    )


def _health(counts: Mapping[HealthStatus, int], alive: int) -> tuple[NamedCount, ...]:
    """Return the reported health of living agents; those without a document are unknown."""
    members = {status.value: count for status, count in counts.items() if status is not HealthStatus.UNKNOWN}
    return _named({**members, HealthStatus.UNKNOWN.value: max(0, alive - sum(members.values()))})


def _shown(
    rows: Iterable[tuple[TargetKind, Sequence[tuple[Layer, ResultClass]], int]],
) -> tuple[NamedCount, ...]:
    counts: Counter[str] = Counter()
    for kind, layers, count in rows:
        counts[signs_in(layers, kind) or GATE] += count
    return _named(counts)


def _named(counts: Mapping[str, int]) -> tuple[NamedCount, ...]:
    """Return the values that occur, the most frequent first."""
    whole = sum(counts.values())
    ordered = sorted((item for item in counts.items() if item[1]), key=lambda item: (-item[1], item[0]))
    return tuple(
        NamedCount(name=_name(name), count=count, share=ratio(count, whole)) for name, count in ordered
    )


def _runs(facts: Sequence[RunFacts]) -> tuple[CensusPass, ...]:
    """Return the latest MAX_RUNS, the oldest of them first."""
    runs: list[CensusPass] = []
    before: float | None = None
    listed: int | None = None
    for run in sorted(facts, key=lambda run: run.began_at_s)[-MAX_RUNS:]:
        groups = _groups(run.counts)
        now = groups.alive_ratio
        runs.append(
            CensusPass(
                began_at=_time(run.began_at_s),
                ended_at=None if run.ended_at_s is None else _time(run.ended_at_s),
                groups=groups,
                alive_ratio=now,
                change=None if now is None or before is None else now - before,
                other_list_of=None if _is_same_list(listed, groups.listed) else listed,
            )
        )
        before, listed = now, groups.listed
    return tuple(runs)


def _is_same_list(before: int | None, now: int) -> bool:
    """Return whether a list has about as many targets as before; empty lists do not count."""
    return not before or not now or abs(now - before) <= MAX_DRIFT_RATIO * before


def _name(text: str) -> str:
    return text[:MAX_NAME_CHARS]


def _time(at_s: float) -> datetime:
    return datetime.fromtimestamp(at_s, UTC)
