"""JSON form of a census (`schemas/census.schema.json`)."""

from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from lifesign.census.result_groups import Group
from lifesign.domain.health.document import Quantity, Ratio, Time
from lifesign.domain.models.census import Deadlines
from lifesign.domain.observation.results import ResultClass

CENSUS_VERSION: Final = "1.0"
MAX_NAME_CHARS: Final = 256

Count = Annotated[int, Field(ge=0)]
"""A whole number, 0 or more."""


class _Shown(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class GroupCounts(_Shown):
    """How many targets there are of each group."""

    alive: Count = 0
    """They answer, possibly with a request for credentials or payment."""
    not_alive: Count = 0
    """They were probed, and no agent answered."""
    unknown: Count = 0
    """They were looked at, and nothing is known."""
    never_measured: Count = 0
    """They were never probed."""

    @property
    def listed(self) -> int:
        """All of them."""
        return self.alive + self.not_alive + self.unknown + self.never_measured

    @property
    def measured(self) -> int:
        """Number of targets with a measured result."""
        return self.alive + self.not_alive

    @property
    def alive_ratio(self) -> float | None:
        """The share of the measured that is alive, 0 to 1; None if none was: no evidence is not zero."""
        return ratio(self.alive, self.measured)


class ResultCount(_Shown):
    """How many ended with one result class."""

    result: Annotated[ResultClass, Field(strict=False)]
    """Result class."""
    group: Annotated[Group, Field(strict=False)]
    """Group of that class."""
    count: Count
    """How many."""
    share: Ratio | None
    """Share of all that are counted beside it, 0 to 1."""


class LatencySummary(_Shown):
    """How long answers took."""

    count: Count
    """Number of answers that it is computed from."""
    p50_ms: Quantity
    """Half of them took no longer."""
    p90_ms: Quantity
    """Nine of ten took no longer."""
    p99_ms: Quantity
    """99 of 100 took no longer."""


class LayerShares(_Shown):
    """Results of one layer, over all probes of the period."""

    layer: Annotated[str, Field(max_length=MAX_NAME_CHARS)]
    """`discovery`: the card; `transport`: the interface; `readiness`: the health document; `message`."""
    count: Count
    """Number of probes of the layer; `not_measured` does not count."""
    results: tuple[ResultCount, ...]
    """The most frequent first; shares of `count`."""
    not_asked: Count = 0
    """Number of probes that skipped the layer, as it is known: a card is read once a day."""
    latency: LatencySummary | None = None
    """Latency of the answers in the period; null: there was none."""


class NamedGroups(_Shown):
    """The groups of a part: a platform or a directory."""

    name: Annotated[str, Field(max_length=MAX_NAME_CHARS)]
    """Name of the part."""
    groups: GroupCounts
    """Its targets by group."""
    alive_ratio: Ratio | None
    """Share of the measured, 0 to 1; null if none was."""


class OtherPlatforms(_Shown):
    """Platforms that are not listed separately."""

    platforms: Count
    """How many."""
    groups: GroupCounts
    """Groups of all of them together."""
    alive_ratio: Ratio | None
    """Share of the measured, 0 to 1; null if none was."""
    lowest_alive_ratio: Ratio | None
    """Lowest value of the platforms among them with a measured target."""
    highest_alive_ratio: Ratio | None
    """Likewise."""


class NamedCount(_Shown):
    """How many there are of one kind."""

    name: Annotated[str, Field(max_length=MAX_NAME_CHARS)]
    """Name of the kind."""
    count: Count
    """How many."""
    share: Ratio | None
    """Share of all kinds, 0 to 1."""


class CensusPass(_Shown):
    """One pass over all targets, and how it differs from the pass before."""

    began_at: Time
    """When the first probe began."""
    ended_at: Time | None
    """When all were probed; null: it goes on, or was broken off."""
    groups: GroupCounts
    """Targets by group in this pass; those without a result are unknown here."""
    alive_ratio: Ratio | None
    """Share of the measured, 0 to 1; null if none was."""
    change: Annotated[float, Field(ge=-1, le=1, allow_inf_nan=False)] | None
    """Change of `alive_ratio` since the previous pass; null if one of them is unknown, or there was none."""
    other_list_of: Count | None
    """How many targets the pass before had, if over a tenth more or fewer: not the same list; else null."""


class Census(_Shown):
    """Results of all targets at one moment."""

    census_version: Literal["1.0"] = CENSUS_VERSION
    """Version of this form."""
    name: Annotated[str, Field(max_length=MAX_NAME_CHARS)]
    """Name of the census: the probe definition's, or that of a list."""
    made_at: Time
    """When it was counted."""
    evidence_at: Time | None = None
    """When a probe of any target last measured something; null: none ever did."""
    old: tuple[NamedCount, ...] = ()
    """Targets whose last measured result is too old, by the reason; they are among the unknown."""
    since: Time | None
    """The beginning of the period that layers and latencies are counted over; null: there was no probe."""
    until: Time | None
    """Its end."""
    deadlines: Deadlines | None = None
    """Deadlines of the last pass's requests; null: no pass, unknown, or different ones."""
    not_read: tuple[Annotated[str, Field(max_length=MAX_NAME_CHARS)], ...] = ()
    """Directories that could not be read for the last pass: who they listed before counts."""
    listed: Count
    """How many targets there are."""
    groups: GroupCounts
    """Targets by group."""
    alive_ratio: Ratio | None
    """Share of the measured, 0 to 1; null if none was."""
    results: tuple[ResultCount, ...]
    """Last measured result of each target, the most frequent first; shares of `listed`."""
    layers: tuple[LayerShares, ...]
    """Results of each layer."""
    platforms: tuple[NamedGroups, ...]
    """By registrable domain, the one with the most targets first."""
    other_platforms: OtherPlatforms | None
    """null: all are named."""
    generations: tuple[NamedCount, ...]
    """Living targets by the protocol version of their card."""
    health: tuple[NamedCount, ...]
    """Health that living targets report; `unknown`: that status, or no valid and fresh document."""
    directories: tuple[NamedGroups, ...]
    """By name; a target in two directories counts in both."""
    shown: tuple[NamedCount, ...]
    """Living targets by evidence: `a card only` does not prove that an agent works behind it."""
    gone: tuple[NamedCount, ...]
    """Former targets by reason; they are not among the listed."""
    runs: tuple[CensusPass, ...]
    """The oldest first."""


def ratio(part: int, whole: int) -> float | None:
    """Return which share a part is of the whole, 0 to 1; None of nothing."""
    return part / whole if whole else None
