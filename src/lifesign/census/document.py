"""Which form has a census, as JSON? (`schemas/census.schema.json`)"""

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
    """They answer, be it to ask for credentials or money."""
    not_alive: Count = 0
    """They were asked, and nobody was there who answers as an agent does."""
    unknown: Count = 0
    """They were looked at, and nothing is known."""
    never_measured: Count = 0
    """Nobody has looked yet."""

    @property
    def listed(self) -> int:
        """All of them."""
        return self.alive + self.not_alive + self.unknown + self.never_measured

    @property
    def measured(self) -> int:
        """Those of whom something is known."""
        return self.alive + self.not_alive

    @property
    def alive_ratio(self) -> float | None:
        """The share of the measured that is alive, 0 to 1; None if none was: no evidence is not zero."""
        return ratio(self.alive, self.measured)


class ResultCount(_Shown):
    """How many ended with one result class."""

    result: Annotated[ResultClass, Field(strict=False)]
    """Which."""
    group: Annotated[Group, Field(strict=False)]
    """What that says."""
    count: Count
    """How many."""
    share: Ratio | None
    """Of all that are counted beside it, 0 to 1."""


class LatencySummary(_Shown):
    """How long answers took."""

    count: Count
    """Of the answers that it is taken from."""
    p50_ms: Quantity
    """Half of them took no longer."""
    p90_ms: Quantity
    """Nine of ten took no longer."""
    p99_ms: Quantity
    """99 of 100 took no longer."""


class LayerShares(_Shown):
    """How one layer was answered, over all probes of the period."""

    layer: Annotated[str, Field(max_length=MAX_NAME_CHARS)]
    """`discovery`: the card; `transport`: the interface; `readiness`: the health document; `message`."""
    count: Count
    """Of probes that turned to it: where nothing was asked (`not_measured`), it does not count."""
    results: tuple[ResultCount, ...]
    """The most frequent first; shares of `count`."""
    not_asked: Count = 0
    """Of probes that did not turn to it, as it is known: a card is read once a day."""
    latency: LatencySummary | None = None
    """Of what was asked in the period; null: nothing was answered."""


class NamedGroups(_Shown):
    """The groups of a part: a platform or a directory."""

    name: Annotated[str, Field(max_length=MAX_NAME_CHARS)]
    """Of the part."""
    groups: GroupCounts
    """How its targets divide."""
    alive_ratio: Ratio | None
    """Of the measured, 0 to 1; null if none was."""


class OtherPlatforms(_Shown):
    """Those that are not named one by one."""

    platforms: Count
    """How many."""
    groups: GroupCounts
    """Of all of them together."""
    alive_ratio: Ratio | None
    """Of the measured, 0 to 1; null if none was."""
    lowest_alive_ratio: Ratio | None
    """Of the platforms among them of which anything is known."""
    highest_alive_ratio: Ratio | None
    """Likewise."""


class NamedCount(_Shown):
    """How many there are of one kind."""

    name: Annotated[str, Field(max_length=MAX_NAME_CHARS)]
    """Of the kind."""
    count: Count
    """How many."""
    share: Ratio | None
    """Of all kinds, 0 to 1."""


class CensusPass(_Shown):
    """One pass over all targets, and how it differs from the pass before."""

    began_at: Time
    """When the first probe began."""
    ended_at: Time | None
    """When all were probed; null: it goes on, or was broken off."""
    groups: GroupCounts
    """How the targets divide by what it saw of them; of whom it learned nothing, that is unknown here."""
    alive_ratio: Ratio | None
    """Of the measured, 0 to 1; null if none was."""
    change: Annotated[float, Field(ge=-1, le=1, allow_inf_nan=False)] | None
    """Of `alive_ratio` against the pass before; null if one of them is unknown, or there was none."""
    other_list_of: Count | None
    """How many targets the pass before had, if over a tenth more or fewer: not the same list; else null."""


class Census(_Shown):
    """What is known of all targets at one moment."""

    census_version: Literal["1.0"] = CENSUS_VERSION
    """Of this form."""
    name: Annotated[str, Field(max_length=MAX_NAME_CHARS)]
    """Whose census it is: the probe definition's name, or that of a list."""
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
    """Of the requests of the last pass; null: there was none, nobody said, or they were different ones."""
    not_read: tuple[Annotated[str, Field(max_length=MAX_NAME_CHARS)], ...] = ()
    """Directories that could not be read for the last pass: who they listed before counts."""
    listed: Count
    """How many targets there are."""
    groups: GroupCounts
    """How they divide."""
    alive_ratio: Ratio | None
    """Of the measured, 0 to 1; null if none was."""
    results: tuple[ResultCount, ...]
    """How the last probe of each ended that told anything, the most frequent first; shares of `listed`."""
    layers: tuple[LayerShares, ...]
    """How each layer was answered."""
    platforms: tuple[NamedGroups, ...]
    """By registrable domain, the one with the most targets first."""
    other_platforms: OtherPlatforms | None
    """null: all are named."""
    generations: tuple[NamedCount, ...]
    """Of living targets, by their card's protocol version."""
    health: tuple[NamedCount, ...]
    """What the living say of themselves; `unknown`: that, or no document that is valid and fresh."""
    directories: tuple[NamedGroups, ...]
    """By name; a target that two directories list counts in both."""
    shown: tuple[NamedCount, ...]
    """By what the living live: `a card only` is no proof that anybody works behind it."""
    gone: tuple[NamedCount, ...]
    """Those that are targets no more, by reason; they are not among the listed."""
    runs: tuple[CensusPass, ...]
    """The oldest first."""


def ratio(part: int, whole: int) -> float | None:
    """Return which share a part is of the whole, 0 to 1; None of nothing."""
    return part / whole if whole else None
