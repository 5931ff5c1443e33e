"""The tables of a census, and their texts.

The Markdown report and the page show the same tables; JSON and CSV have the bare numbers.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from lifesign.census.document import (
    Census,
    CensusPass,
    GroupCounts,
    LayerShares,
    NamedCount,
    NamedGroups,
    ratio,
)
from lifesign.census.result_groups import Group
from lifesign.domain.common.clock_skew import is_in_future
from lifesign.domain.observation.evidence_age import REASON_WORDS, UnknownReason
from lifesign.domain.observation.results import ResultClass
from lifesign.domain.observation.summary_line import layer_words
from lifesign.domain.targets.target import TargetKind
from lifesign.domain.text.counts import UNKNOWN, count_text, percent_text, plural, pluralize
from lifesign.domain.text.durations import latency_text

MAX_SHOWN: Final = 50
"""Maximum of shown platforms, runs and directories; JSON and CSV have all of the census."""
PROBER_NETWORK_WARNING: Final = "No target answered: the prober's own network may be the cause."
_UNREACHED: Final = frozenset({
    ResultClass.REFUSED,
    ResultClass.TIMEOUT,
    ResultClass.DNS_FAILURE,
    ResultClass.TLS_FAILURE,
    ResultClass.INTERNAL,
})  # fmt: skip
"""Results without an answer; a cut of the prober's own network looks the same."""
_NOT_MEASURED: Final = frozenset({ResultClass.BLOCKED_ADDRESS, ResultClass.NOT_MEASURED})
NOT_READ_AGAIN: Final = "known, not read again"
AHEAD: Final = "The last run is in the future: the clock has been set back since."

GROUP_WORDS: Final = {
    Group.ALIVE: "alive",
    Group.NOT_ALIVE: "not alive",
    Group.UNKNOWN: "unknown",
    Group.NEVER_PROBED: "never probed",
}
_KIND_NOTE: Final = "As the directories or the definition state it, else as the prober found out."
KIND_WORDS: Final = {TargetKind.A2A.value: "A2A agents", TargetKind.MCP.value: "MCP servers"}
RESULT_WORDS: Final = {
    ResultClass.OK: "a card, an MCP server, an interface or a health document as expected",
    ResultClass.GATED: "the server answers, and requires credentials or payment first",
    ResultClass.CREDENTIALS_REJECTED: "the server answers, and rejects the prober's credential",
    ResultClass.TOKEN_ERROR: "the server asks for a credential, and the prober got no token for it",
    ResultClass.NOT_AN_AGENT: "a web page, nothing, or JSON of another kind",
    ResultClass.INVALID_DOCUMENT: "a card, document or answer of an MCP server that breaks its rules",
    ResultClass.STALE_DOCUMENT: "only a health document that is too old",
    ResultClass.REFUSED: "no connection: the port is closed, or there is no route",
    ResultClass.TIMEOUT: "not finished before the deadline",
    ResultClass.DNS_FAILURE: "the host name has no address",
    ResultClass.TLS_FAILURE: "no trustworthy connection",
    ResultClass.HTTP_ERROR: "a server error, or not HTTP",
    ResultClass.TOO_LARGE: "more bytes than the prober reads",
    ResultClass.REDIRECT_REFUSED: "redirected to a place that the prober does not follow",
    ResultClass.RATE_LIMITED: "asked too often",
    ResultClass.BLOCKED_ADDRESS: "an address that must not be contacted",
    ResultClass.INTERNAL: "a fault of the prober",
    ResultClass.NOT_MEASURED: "not probed, without proof that the prober could reach it, or too long ago",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table of texts; all columns but the first `words` ones are numbers."""

    key: str
    """Names it in links."""
    title: str
    note: str = ""
    """Explanation."""
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: int = 1


def headline(census: Census) -> str:
    """Return the most important fact in one sentence, and then the reasons to doubt it."""
    text = _share(census)
    if census.old:
        text = f"{text} {_old_text(census)}"
    if _has_no_answer(census):
        text = f"{text} {PROBER_NETWORK_WARNING}"
    if not census.not_read:
        return text
    could = (
        "could not be read: the agents that it"
        if len(census.not_read) == 1
        else "could not be read: the agents that they"
    )
    return f"{text} {', '.join(census.not_read)} {could} listed before still count."


def _old_text(census: Census) -> str:
    """Say how many results are too old to count, and why."""
    old = sum(row.count for row in census.old)
    reasons = "; ".join(
        f"{REASON_WORDS[UnknownReason(row.name)]} ({count_text(row.count)})" for row in census.old
    )
    verb = plural(old, "is", "are")
    return (
        f"{pluralize(old, 'target')} {verb} unknown, because the last measured result is too old: {reasons}."
    )


def _has_no_answer(census: Census) -> bool:
    """Return whether targets were requested and none gave any answer, in all or in the last run."""
    requested = [row.result for row in census.results if row.count and row.result not in _NOT_MEASURED]
    if requested:
        last = _last_run(census)
        was_vain = last is not None and last.groups.unknown > 0 and not last.groups.measured
        return was_vain or all(result in _UNREACHED for result in requested)
    return False


def _share(census: Census) -> str:
    groups = census.groups
    if not census.listed:
        return "There are no targets."
    if census.alive_ratio is None:
        return _unmeasured_text(census)
    verb = plural(1 if 1 in {groups.alive, groups.measured} else 2, "is", "are")
    text = f"{count_text(groups.alive)} of {pluralize(groups.measured, 'measured target')} {verb} alive"
    text = f"{text} ({percent_text(census.alive_ratio)})"
    gated = next((row.count for row in census.results if row.result is ResultClass.GATED), 0)
    # An agent, or a gate before it: nothing else is visible.
    text = f"{text}, {count_text(gated)} of them behind a gate." if gated else f"{text}."
    if not (carried := _measured_before(census)):
        return text
    were, count = ("was", "counts") if carried == 1 else ("were", "count")
    return (
        f"{text} In the last run {count_text(carried)} {were} not measured, and {count} with their earlier "
        "result."
    )


def share_heading(census: Census) -> str:
    """Return the heading of a census without a share of living targets, since none was measured."""
    return "Nothing was measured" if census.groups.unknown else "No target has been probed yet"


def _unmeasured_text(census: Census) -> str:
    """Return separate texts for targets that were never probed and those without a measured result."""
    probed, never = census.groups.unknown, census.groups.never_probed
    if not probed:
        return f"None of {pluralize(census.listed, 'target')} has been probed yet."
    verb = plural(probed, "was", "were")
    text = f"{pluralize(probed, 'target')} {verb} probed, without a current measured result."
    return (
        f"{text} {pluralize(never, 'target')} {plural(never, 'was', 'were')} never probed." if never else text
    )


def _measured_before(census: Census) -> int:
    """Return how many of the measured targets the last run did not measure itself."""
    last = _last_run(census)
    return 0 if last is None else max(0, census.groups.measured - last.groups.measured)


def _last_run(census: Census) -> CensusPass | None:
    """Return the last run, if it has ended and was over the same list; None if there is none."""
    last = next((run for run in reversed(census.runs) if not _is_ahead(run, census)), None)
    is_complete = last is not None and last.ended_at is not None and last.groups.listed == census.listed
    return last if is_complete else None


def tables(census: Census) -> Iterator[Table]:
    """Return the tables that have anything to show, the most important first."""
    yield _groups(census)
    for table in (
        _results(census),
        _layers(census),
        _latencies(census),
        _kinds(census),
        _parts("platforms", "By platform", "platform", census.platforms, _platform_note(census)),
        _parts(
            "directories", "By directory", "directory", census.directories,
            "A target that two directories list counts in both.",
        ),
        _named(
            "generations", "Protocol generations", "A2A", census.generations,
            "Living A2A agents, by their card. Not known: without a card, or without a version in it.",
        ),
        _named(
            "health", "Reported health of living targets", "status", census.health,
            (
                "From health documents, if they are valid and fresh. They do not prove that the agents can "
                "be trusted."
            ),
        ),
        _named(
            "shown", "Evidence of living targets", "by", census.shown,
            (
                "Evidence by the last result of each layer. A card alone does not prove that an agent "
                "works behind it."
            ),
        ),
        _named(
            "gone", "Targets no more", "reason", census.gone, "The listed targets do not include them.",
            whole="of the gone",
        ),
        _runs(census),
    ):  # fmt: skip
        if table.rows:
            yield table


def _groups(census: Census) -> Table:
    counts = of_groups(census.groups)
    return Table(
        key="targets",
        title="All targets",
        note="Measured targets are those that are alive or not alive. Nothing is known about the others.",
        heads=("group", "targets", "of all"),
        rows=tuple(
            (GROUP_WORDS[group], count_text(count), percent_text(ratio(count, census.listed)))
            for group, count in counts
        ),
    )


def _results(census: Census) -> Table:
    return Table(
        key="results",
        title="How they ended",
        note="Each target by its last measured probe. Targets that were never probed are not included.",
        heads=("result", "which is", "that is", "targets", "of all"),
        rows=tuple(
            (
                row.result.value,
                RESULT_WORDS[row.result],
                GROUP_WORDS[row.group],
                count_text(row.count),
                percent_text(row.share),
            )
            for row in census.results
        ),
        words=3,
    )


def _layers(census: Census) -> Table:
    return Table(
        key="layers",
        title="Layer by layer",
        note="All probes of the period that measured a layer. A known card is read again once a day.",
        heads=("layer", "result", "probes", "of the layer's"),
        rows=tuple(row for layer in census.layers for row in _layer(layer, _word(layer.layer, census))),
        words=2,
    )


def _has_servers(census: Census) -> bool:
    return any(part.name == TargetKind.MCP for part in census.kinds)


def _word(layer: str, census: Census) -> str:
    """Return the name of a layer, for the kinds of targets that there are."""
    kinds = [TargetKind(part.name) for part in census.kinds] or [TargetKind.A2A]
    return " or ".join(dict.fromkeys(layer_words(kind).get(layer, layer) for kind in kinds))


def _kinds(census: Census) -> Table:
    """Return the targets by kind; without rows if all are A2A agents."""
    table = _parts("kinds", "By kind", "kind", census.kinds, _KIND_NOTE)
    if not _has_servers(census):
        return replace(table, rows=())
    return replace(table, rows=tuple((KIND_WORDS[row[0]], *row[1:]) for row in table.rows))


def _layer(layer: LayerShares, word: str) -> Iterator[tuple[str, ...]]:
    for row in layer.results:
        yield word, row.result.value, count_text(row.count), percent_text(row.share)
    if layer.not_asked:
        yield word, NOT_READ_AGAIN, count_text(layer.not_asked), UNKNOWN


def _latencies(census: Census) -> Table:
    return Table(
        key="latencies",
        title="How long answers took",
        note="Answers to requests in the period.",
        heads=("layer", "answers", "p50", "p90", "p99"),
        rows=tuple(
            (
                _word(layer.layer, census),
                count_text(took.count),
                *map(latency_text, (took.p50_ms, took.p90_ms, took.p99_ms)),
            )
            for layer in census.layers
            if (took := layer.latency) is not None
        ),
    )


def _parts(key: str, title: str, head: str, parts: Sequence[NamedGroups], note: str) -> Table:
    return Table(
        key=key,
        title=title,
        note=note,
        heads=(head, "targets", *GROUP_WORDS.values(), "alive of measured"),
        rows=tuple(
            (
                part.name,
                count_text(part.groups.listed),
                *(count_text(count) for _, count in of_groups(part.groups)),
                percent_text(part.alive_ratio),
            )
            for part in parts[:MAX_SHOWN]
        ),
    )


def _platform_note(census: Census) -> str:
    """Return the note about the domains that count as a platform, and about omitted ones."""
    note = "By registrable domain."
    more = max(0, len(census.platforms) - MAX_SHOWN)
    groups = [part.groups for part in census.platforms[MAX_SHOWN:]]
    ratios = [part.alive_ratio for part in census.platforms[MAX_SHOWN:] if part.alive_ratio is not None]
    others = census.other_platforms
    if others is not None:
        more += others.platforms
        groups.append(others.groups)
        ratios += [
            known for known in (others.lowest_alive_ratio, others.highest_alive_ratio) if known is not None
        ]
    if not more:
        return note
    targets = sum(group.listed for group in groups)
    note += f" {pluralize(more, 'more platform')} with {pluralize(targets, 'target')}"
    return (
        f"{note}: {percent_text(min(ratios))} to {percent_text(max(ratios))} alive." if ratios else f"{note}."
    )


def _named(
    key: str, title: str, head: str, named: Sequence[NamedCount], note: str, *, whole: str = "of the living"
) -> Table:
    return Table(
        key=key,
        title=title,
        note=note,
        heads=(head, "targets", whole),
        rows=tuple((row.name, count_text(row.count), percent_text(row.share)) for row in named[:MAX_SHOWN]),
    )


def _runs(census: Census) -> Table:
    return Table(
        key="runs",
        title="From run to run",
        note=AHEAD if any(_is_ahead(run, census) for run in census.runs) else "",
        heads=("began", "targets", *GROUP_WORDS.values(), "alive of measured", "change"),
        rows=tuple(
            (
                f"{run.began_at:%Y-%m-%d %H:%M}" + ("" if run.ended_at is not None else " (not finished)"),
                count_text(run.groups.listed),
                *(count_text(count) for _, count in of_groups(run.groups)),
                percent_text(run.alive_ratio),
                _change(run),
            )
            for run in census.runs[-MAX_SHOWN:]
        ),
    )


def _is_ahead(run: CensusPass, census: Census) -> bool:
    return is_in_future(run.began_at.timestamp(), census.made_at.timestamp())


def _change(run: CensusPass) -> str:
    text = UNKNOWN if run.change is None else f"{run.change * 100:+.1f} points"
    if run.other_list_of is None:
        return text
    now = pluralize(run.groups.listed, "target")
    return f"{text} ({count_text(run.other_list_of)} → {now}: not the same list)"


def of_groups(groups: GroupCounts) -> tuple[tuple[Group, int], ...]:
    """Return each group with its number of targets, the living targets first."""
    return (
        (Group.ALIVE, groups.alive),
        (Group.NOT_ALIVE, groups.not_alive),
        (Group.UNKNOWN, groups.unknown),
        (Group.NEVER_PROBED, groups.never_probed),
    )
