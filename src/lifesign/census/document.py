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
    """Number of targets in each group."""

    alive: Count = 0
    """Agents that answered, possibly with a request for credentials or payment."""
    not_alive: Count = 0
    """Targets that were probed and where no agent answered."""
    unknown: Count = 0
    """Targets about which the probes showed nothing."""
    never_probed: Count = 0
    """They were never probed."""

    @property
    def listed(self) -> int:
        """Number of all targets."""
        return self.alive + self.not_alive + self.unknown + self.never_probed

    @property
    def measured(self) -> int:
        """Number of targets with a measured result."""
        return self.alive + self.not_alive

    @property
    def alive_ratio(self) -> float | None:
        """Share of the measured targets that are alive, 0 to 1; None if none was measured."""
        return ratio(self.alive, self.measured)


class ResultCount(_Shown):
    """Number of targets with one result class."""

    result: Annotated[ResultClass, Field(strict=False)]
    """Result class."""
    group: Annotated[Group, Field(strict=False)]
    """Group of that class."""
    count: Count
    """Number of targets."""
    share: Ratio | None
    """Share of the whole that the table counts, 0 to 1."""


class LatencySummary(_Shown):
    """Distribution of latencies."""

    count: Count
    """Number of answers behind the percentiles."""
    p50_ms: Quantity
    """Median."""
    p90_ms: Quantity
    """90th percentile."""
    p99_ms: Quantity
    """99th percentile."""


class LayerShares(_Shown):
    """Results of one layer, over all probes of the period."""

    layer: Annotated[str, Field(max_length=MAX_NAME_CHARS)]
    """`discovery`: the card; `transport`: the interface; `readiness`: the health document; `message`.

    Of an MCP server: what it says it is; its endpoint; the health document; the tool call.
    """
    count: Count
    """Number of probes that measured the layer; `not_measured` does not count."""
    results: tuple[ResultCount, ...]
    """Results, the most frequent first, as shares of `count`."""
    not_asked: Count = 0
    """Number of probes that skipped the layer because its result is still valid; a card is read daily."""
    latency: LatencySummary | None = None
    """Latency of the answers in the period; null without an answer."""


class NamedGroups(_Shown):
    """One part of a census, such as a platform, a directory or a kind of target, by group."""

    name: Annotated[str, Field(max_length=MAX_NAME_CHARS)]
    """Name of the part."""
    groups: GroupCounts
    """Its targets by group."""
    alive_ratio: Ratio | None
    """Share of the measured targets that are alive, 0 to 1; null without a measured target."""


class OtherPlatforms(_Shown):
    """Platforms that are not listed separately."""

    platforms: Count
    """Number of platforms."""
    groups: GroupCounts
    """Targets of all these platforms together, by group."""
    alive_ratio: Ratio | None
    """Share of the measured targets that are alive, 0 to 1; null without a measured target."""
    lowest_alive_ratio: Ratio | None
    """Lowest `alive_ratio` of these platforms; platforms without a measured target are left out."""
    highest_alive_ratio: Ratio | None
    """Likewise."""


class NamedCount(_Shown):
    """Number of targets of one kind."""

    name: Annotated[str, Field(max_length=MAX_NAME_CHARS)]
    """Name of the kind."""
    count: Count
    """Number of targets."""
    share: Ratio | None
    """Share of the targets of all kinds, 0 to 1."""


class CensusPass(_Shown):
    """One pass over all targets, and its differences from the previous pass."""

    began_at: Time
    """Start of the pass's first probe."""
    ended_at: Time | None
    """End of the pass; null if it is running or was interrupted."""
    groups: GroupCounts
    """Targets by group in this pass; targets without a result count as unknown."""
    alive_ratio: Ratio | None
    """Share of the measured targets that are alive, 0 to 1; null without a measured target."""
    change: Annotated[float, Field(ge=-1, le=1, allow_inf_nan=False)] | None
    """Change of `alive_ratio` since the previous pass; null if either ratio is unknown."""
    other_list_of: Count | None
    """Targets of the previous pass, if their number differs by over 10 % (another list); else null."""


class Census(_Shown):
    """Results of all targets at one moment."""

    census_version: Literal["1.0"] = CENSUS_VERSION
    """Version of this form."""
    name: Annotated[str, Field(max_length=MAX_NAME_CHARS)]
    """Name of the census: that of the probe definition or of the list."""
    made_at: Time
    """When it was counted."""
    evidence_at: Time | None = None
    """Time of the latest measurement of any target; null without one."""
    old: tuple[NamedCount, ...] = ()
    """Targets whose last measured result is too old, by reason; they count as unknown."""
    since: Time | None
    """Start of the period that layers and latencies cover; null without a probe."""
    until: Time | None
    """Its end."""
    deadlines: Deadlines | None = None
    """Time limits of the last pass's requests; null without a pass, if unknown, or if they differ."""
    not_read: tuple[Annotated[str, Field(max_length=MAX_NAME_CHARS)], ...] = ()
    """Directories that could not be read for the last pass. Targets that they listed before still count."""
    listed: Count
    """Number of targets."""
    groups: GroupCounts
    """Targets by group."""
    alive_ratio: Ratio | None
    """Share of the measured targets that are alive, 0 to 1; null without a measured target."""
    results: tuple[ResultCount, ...]
    """Last measured result of each target, the most frequent first, as shares of `listed`."""
    layers: tuple[LayerShares, ...]
    """Results of each layer."""
    platforms: tuple[NamedGroups, ...]
    """Targets by registrable domain, the domain with the most targets first."""
    other_platforms: OtherPlatforms | None
    """null: all are named."""
    generations: tuple[NamedCount, ...]
    """Living A2A agents by the protocol version of their card."""
    health: tuple[NamedCount, ...]
    """Health that living targets report; `unknown` includes agents without a valid and fresh document."""
    kinds: tuple[NamedGroups, ...] = ()
    """Targets by kind: `a2a` (agents) and `mcp` (servers)."""
    directories: tuple[NamedGroups, ...]
    """Targets by directory; a target that two directories list counts in both."""
    shown: tuple[NamedCount, ...]
    """Living targets by evidence: `a card only` does not prove that an agent works behind it."""
    gone: tuple[NamedCount, ...]
    """Former targets by the reason why they left; `listed` does not count them."""
    runs: tuple[CensusPass, ...]
    """The oldest first."""


def ratio(part: int, whole: int) -> float | None:
    """Return the share of a part in the whole, 0 to 1; None if the whole is 0."""
    return part / whole if whole else None
