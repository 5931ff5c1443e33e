"""Mass silence: most addresses of a network class fell silent together, so that none of them is a witness.

Without canaries only other targets can prove that a prober reaches a network. Where most of them stopped
answering at about the same time, a fault of the prober's own network is as likely as their death. Times are
seconds since the epoch by the registry's clock.

A prober key may be hostile, and its reports false. So the addresses of all keys count together, or of all
keys but one, which may report invented addresses that answer. And no single key may make the difference:
without any one of the others, a quarter of the addresses must be silent together.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from lifesign.domain.common.fast_dataclass import fast_dataclass
from lifesign.domain.lifecycle.heartbeat_timeout import PROBE_THRESHOLDS
from lifesign.errors import InvalidValue

MIN_ADDRESSES = 3
"""A class with fewer is never in mass silence: one address of two says nothing about the other."""
MAX_FEW_ADDRESSES = 11
FEW_RATIO = 0.75
"""Share of 3 to 11 addresses that must be silent."""
RATIO = 0.5
"""Share of more addresses."""
QUARTER = 0.25
"""Share of the addresses that must be silent without any single key.

Three keys with equal shares always reach it if half of all addresses are silent.
"""
MIN_SILENT_WITHOUT_ONE_KEY = 2
"""The same as a number: one dead agent and a hostile key must not be a mass silence."""
MAX_LEFT_OUT = 8
"""Keys that are left out, one at a time: those whose addresses answer most, and those whose addresses are
silent most.
"""
TOGETHER_INTERVALS = 2
"""Addresses whose last answers lie within so many probe intervals may have fallen silent at the same moment.

Probes are spread over the interval, so the last answers before an outage are, too.
"""
MAX_SILENT_CLASSES = 1_000
"""Maximum of stored classes, the largest ones: probers name classes, and their number is unlimited."""
DAY_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MassSilencePolicy:
    """Times that decide which silent addresses count together; InvalidValue outside the allowed range."""

    expected_seconds: float = PROBE_THRESHOLDS.dead_after_s + DAY_S
    """Only addresses that answered within this time count, 1 to 2,592,000."""
    together_seconds: float = PROBE_THRESHOLDS.unhealthy_after_s
    """Addresses fell silent together if their last answers lie within this time, 1 to 86,400.

    Never less than `TOGETHER_INTERVALS` of the longest interval at which the addresses are probed.
    """

    def __post_init__(self) -> None:
        for name, value_s, most_s in (
            ("expected_seconds", self.expected_seconds, 30 * DAY_S),
            ("together_seconds", self.together_seconds, DAY_S),
        ):
            if not 1 <= value_s <= most_s:
                raise InvalidValue(name, value_s, f"1 to {most_s:g}")


DEFAULT_POLICY = MassSilencePolicy()


@fast_dataclass(kw_only=True)
class ClassCounts:
    """How many addresses of one network class should answer, and how many of them are silent."""

    addresses: int
    """Number of addresses; an IPv6 /64 network counts as one."""
    silent_s: tuple[float, ...]
    """Last answers of the silent addresses, in any order."""
    interval_s: float = 0.0
    """Longest probe interval of the workers that report the addresses; 0 if it is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MassSilence:
    """Network classes in which most addresses fell silent together (mass silence)."""

    counted_at_s: float = 0.0
    classes: Mapping[str, float] = field(default_factory=dict)
    """Each class with the time at which its mass silence was noticed, for any key."""
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Prober keys for which no target of the class is a witness, by class."""

    def classes_for(self, key: str) -> list[str]:
        """Return the network classes in mass silence for a prober key."""
        return sorted(name for name, keys in self.keys.items() if key in keys)


def needed(addresses: int) -> int | None:
    """Return how many of these addresses must be silent for a mass silence; None if there are too few."""
    if addresses < MIN_ADDRESSES:
        return None
    return math.ceil((FEW_RATIO if addresses <= MAX_FEW_ADDRESSES else RATIO) * addresses)


def is_mass_silence(counts: ClassCounts, policy: MassSilencePolicy = DEFAULT_POLICY) -> bool:
    """Return whether so many addresses fell silent together that none of the class can be a witness."""
    least = needed(counts.addresses)
    return least is not None and _fell_silent_at_once(counts, least, policy)


def silent_keys(
    by_key: Mapping[str, ClassCounts], policy: MassSilencePolicy = DEFAULT_POLICY
) -> tuple[str, ...]:
    """Return the prober keys for which a network class is in mass silence.

    A class is if the key's own addresses fell silent, or those of all keys together, or of all but one other
    key. In the latter cases a quarter must be silent without any single one of the other keys, too.
    """
    silent = {key for key, counts in by_key.items() if is_mass_silence(counts, policy)}
    answering = sorted(by_key, key=lambda key: (2 * len(by_key[key].silent_s) - by_key[key].addresses, key))
    for left_out in (None, *answering[:MAX_LEFT_OUT]):
        rest = {key: counts for key, counts in by_key.items() if key != left_out}
        if silent.issuperset(rest) or not is_mass_silence(_together(rest), policy):
            continue
        decisive = _decisive_keys(rest, policy)
        # A key may rely on its own reports.
        silent |= {key for key in rest if decisive <= {key}}
    return tuple(sorted(silent))


def _decisive_keys(by_key: Mapping[str, ClassCounts], policy: MassSilencePolicy) -> set[str]:
    """Return the prober keys without whose reports too few of these addresses would be silent together."""
    most_silent = sorted(by_key, key=lambda key: (by_key[key].addresses - 4 * len(by_key[key].silent_s), key))
    # Its interval decides which addresses fell silent together.
    slowest = max(by_key, key=lambda key: (by_key[key].interval_s, key))
    return {
        key
        for key in {*most_silent[:MAX_LEFT_OUT], slowest}
        if not _is_quarter_silent(_together(by_key, key), policy)
    }


def _is_quarter_silent(counts: ClassCounts, policy: MassSilencePolicy) -> bool:
    least = max(MIN_SILENT_WITHOUT_ONE_KEY, math.floor(QUARTER * counts.addresses))
    return _fell_silent_at_once(counts, least, policy)


def _fell_silent_at_once(counts: ClassCounts, least: int, policy: MassSilencePolicy) -> bool:
    """Return whether so many addresses, 1 or more, fell silent together."""
    if len(counts.silent_s) < least:
        return False
    together_s = max(policy.together_seconds, TOGETHER_INTERVALS * counts.interval_s)
    last_s = sorted(counts.silent_s)
    return any(
        last_s[first + least - 1] - last_s[first] <= together_s for first in range(len(last_s) - least + 1)
    )


def _together(by_key: Mapping[str, ClassCounts], left_out: str | None = None) -> ClassCounts:
    counted = [counts for key, counts in by_key.items() if key != left_out]
    return ClassCounts(
        addresses=sum(counts.addresses for counts in counted),
        silent_s=tuple(at_s for counts in counted for at_s in counts.silent_s),
        interval_s=max((counts.interval_s for counts in counted), default=0.0),
    )


def next_mass_silence(
    before: MassSilence,
    counted: Mapping[str, Mapping[str, ClassCounts]],
    now_s: float,
    policy: MassSilencePolicy = DEFAULT_POLICY,
) -> MassSilence:
    """Return the mass silences after a new count. Classes that were in mass silence keep their begin.

    `counted` has the counts of each class by the prober key that reported its targets.
    """
    keys = {name: silent_keys(by_key, policy) for name, by_key in counted.items()}
    addresses = {name: sum(counts.addresses for counts in counted[name].values()) for name in counted}
    silent = [name for name in counted if keys[name]]
    largest = sorted(sorted(silent, key=lambda name: (-addresses[name], name))[:MAX_SILENT_CLASSES])
    return MassSilence(
        counted_at_s=now_s,
        classes={name: before.classes.get(name, now_s) for name in largest},
        keys={name: keys[name] for name in largest},
    )
