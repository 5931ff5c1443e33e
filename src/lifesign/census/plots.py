"""How are shares, latencies and trends drawn?

As SVG that stands within a page: widths in percent, so that it fits any screen without its text shrinking;
colours by class, so that the page's style decides; and no script. Whatever is drawn stands beside it in
numbers, so that bars are hidden from readers of text.
"""

import math
from collections.abc import Iterable, Sequence
from html import escape
from itertools import pairwise
from typing import Final

from lifesign.census.document import CensusPass, GroupCounts, LatencySummary
from lifesign.census.result_groups import Group
from lifesign.census.tables import GROUP_WORDS, of_groups
from lifesign.domain.text.counts import percent_text
from lifesign.domain.text.durations import latency_text

BAR_HEIGHT: Final = 14
TREND_HEIGHT: Final = 180
MARGIN: Final = 8
"""Above and below the lines of a trend, in pixels."""
LEFT_PERCENT: Final = 7.0
"""Where a trend begins; before it stands its scale."""
LATENCY_SCALE_MS: Final = (1.0, 60_000.0)
"""From end to end, logarithmic; what is beyond is drawn at the end."""
TOPS: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Shares at which the scale of a trend may end: of most directories hardly anybody is alive."""
_MARKS: Final = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Of the scale of a trend."""


def bar(parts: Iterable[tuple[Group, float]]) -> str:
    """Draw one bar of parts, each a share of the full width, 0 to 1."""
    drawn, at = [], 0.0
    for group, width in parts:
        if width > 0:
            drawn.append(
                f'<rect class="{group}" x="{at * 100:.3f}%" width="{width * 100:.3f}%" height="{BAR_HEIGHT}">'
                f"<title>{GROUP_WORDS[group]}: {percent_text(width)}</title></rect>"
            )
        at += width
    return _bar("".join(drawn))


def groups_bar(groups: GroupCounts) -> str:
    """Draw how a part's targets divide into the groups."""
    whole = groups.listed or 1
    return bar((group, count / whole) for group, count in of_groups(groups))


def latency_bar(took: LatencySummary) -> str:
    """Draw from p50 to p99 on a logarithmic scale, with a stroke at p90."""
    low, middle, high = (_latency_position(ms) for ms in (took.p50_ms, took.p90_ms, took.p99_ms))
    half = BAR_HEIGHT / 2
    return _bar(
        f'<line class="axis" x1="0" x2="100%" y1="{half}" y2="{half}"/>'
        f'<line class="span" x1="{low:.3f}%" x2="{high:.3f}%" y1="{half}" y2="{half}"/>'
        + "".join(
            f'<circle class="dot" cx="{place:.3f}%" cy="{half}" r="4">'
            f"<title>{name}: {latency_text(ms)}</title></circle>"
            for name, place, ms in (
                ("p50", low, took.p50_ms),
                ("p90", middle, took.p90_ms),
                ("p99", high, took.p99_ms),
            )
        )
    )


def trend(runs: Sequence[CensusPass]) -> str:
    """Draw the share of the living from run to run; a run of which nothing is known leaves a gap.

    So does one that had another list: between two lists there is no way to go.

    Empty with fewer than two runs: there is no trend.
    """
    known = [(at, run) for at, run in enumerate(runs) if run.alive_ratio is not None]
    if len(known) < 2:
        return ""
    highest = max(run.alive_ratio or 0.0 for _, run in known)
    top = next(top for top in TOPS if highest <= top)
    places = [(at, _x(at, len(runs)), _y((run.alive_ratio or 0.0) / top), run) for at, run in known]
    lines = "".join(
        f'<line class="trend" x1="{x1:.3f}%" y1="{y1:.1f}" x2="{x2:.3f}%" y2="{y2:.1f}"/>'
        for (at1, x1, y1, _), (at2, x2, y2, run) in pairwise(places)
        if at2 == at1 + 1 and run.other_list_of is None
    )
    dots = "".join(
        f'<circle class="dot" cx="{x:.3f}%" cy="{y:.1f}" r="4">'
        f"<title>{run.began_at:%Y-%m-%d %H:%M}: {percent_text(run.alive_ratio)}</title></circle>"
        for _, x, y, run in places
    )
    first, last = known[0][1], known[-1][1]
    text = (
        f"From {percent_text(first.alive_ratio)} alive on {first.began_at:%Y-%m-%d} "
        f"to {percent_text(last.alive_ratio)} on {last.began_at:%Y-%m-%d}, in {len(known)} runs."
    )
    if any(run.other_list_of is not None for run in runs[1:]):
        text += " Not all were of the same list."
    return (
        f'<svg class="trend" role="img" width="100%" height="{TREND_HEIGHT}" aria-label="{escape(text)}">'
        f"{_scale(top)}{lines}{dots}</svg>"
    )


def _scale(top: float) -> str:
    return "".join(
        f'<line class="axis" x1="{LEFT_PERCENT}%" x2="100%" y1="{_y(mark):.1f}" y2="{_y(mark):.1f}"/>'
        f'<text x="{LEFT_PERCENT - 1}%" y="{_y(mark) + 4:.1f}" text-anchor="end">'
        f"{mark * top * 100:.3g} %</text>"
        for mark in _MARKS
    )


def _x(at: int, count: int) -> float:
    """Return where a run is drawn, in percent of the width."""
    return LEFT_PERCENT + 1 + (98 - LEFT_PERCENT) * at / max(1, count - 1)


def _y(part: float) -> float:
    """Return where a part of the scale, 0 to 1, is drawn, in pixels from the top."""
    return MARGIN + (1 - part) * (TREND_HEIGHT - 2 * MARGIN)


def _latency_position(ms: float) -> float:
    """Return where a latency is drawn, in percent of the width."""
    low, high = LATENCY_SCALE_MS
    within = min(max(ms, low), high)
    return 2 + 96 * math.log(within / low) / math.log(high / low)


def _bar(drawn: str) -> str:
    return f'<svg class="bar" width="100%" height="{BAR_HEIGHT}" aria-hidden="true">{drawn}</svg>'
