"""Shares, latencies and trends as SVG within a page.

Widths are in percent, so that a drawing fits any screen without shrinking its text. Every drawing has its
numbers next to it, so that screen readers can skip the bars.
"""

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, Final

from markupsafe import Markup

from lifesign.census.document import CensusPass, GroupCounts, LatencySummary
from lifesign.census.report_tables import GROUP_WORDS, of_groups
from lifesign.census.result_groups import Group
from lifesign.domain.text.counts import percent_text
from lifesign.domain.text.durations import latency_text
from lifesign.serving.templates import template_environment

BAR_HEIGHT: Final = 14
TREND_HEIGHT: Final = 180
MARGIN: Final = 8
"""Margin above and below the lines of a trend, in pixels."""
LEFT_PERCENT: Final = 7.0
"""Start of a trend; its scale is on the left of it."""
LATENCY_SCALE_MS: Final = (1.0, 60_000.0)
"""Ends of the logarithmic scale; values beyond it are drawn at its ends."""
TOPS: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Possible ends of a trend's scale: in most directories few targets are alive."""
_MARKS: Final = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Marks of a trend's scale."""
TEMPLATES: Final = template_environment("lifesign.census")
TEMPLATES.globals["height"] = BAR_HEIGHT


def bar(parts: Iterable[tuple[Group, float]]) -> Markup:
    """Draw one bar of parts, each a share of the full width, 0 to 1."""
    drawn, at = [], 0.0
    for group, width in parts:
        if width > 0:
            title = f"{GROUP_WORDS[group]}: {percent_text(width)}"
            drawn.append(
                {"group": group, "x": _percent(at * 100), "width": _percent(width * 100), "title": title}
            )
        at += width
    return _draw("bar", parts=drawn)


def groups_bar(groups: GroupCounts) -> Markup:
    """Draw a bar with the share of each group of targets."""
    whole = groups.listed or 1
    return bar((group, count / whole) for group, count in of_groups(groups))


def latency_bar(took: LatencySummary) -> Markup:
    """Draw the p50, p90 and p99 latency on a logarithmic scale."""
    named = (("p50", took.p50_ms), ("p90", took.p90_ms), ("p99", took.p99_ms))
    marks = [
        {"x": _percent(_latency_position(ms)), "title": f"{name}: {latency_text(ms)}"} for name, ms in named
    ]
    return _draw("latency_bar", marks=marks)


def trend(runs: Sequence[CensusPass]) -> Markup:
    """Draw the share of living targets from run to run.

    A run without a share, or with another list than the run before, leaves a gap. Empty below two runs.
    """
    known = [(at, run) for at, run in enumerate(runs) if run.alive_ratio is not None]
    if len(known) < 2:
        return Markup()
    highest = max(run.alive_ratio or 0.0 for _, run in known)
    top = next(top for top in TOPS if highest <= top)
    dots = [
        {
            "x": _percent(_x(at, len(runs))),
            "y": f"{_y((run.alive_ratio or 0.0) / top):.1f}",
            "title": f"{run.began_at:%Y-%m-%d %H:%M}: {percent_text(run.alive_ratio)}",
        }
        for at, run in known
    ]
    lines = [
        {"x1": one["x"], "y1": one["y"], "x2": other["x"], "y2": other["y"]}
        for ((at1, _), one), ((at2, run), other) in pairwise(zip(known, dots, strict=True))
        if at2 == at1 + 1 and run.other_list_of is None
    ]
    first, last = known[0][1], known[-1][1]
    text = (
        f"From {percent_text(first.alive_ratio)} alive on {first.began_at:%Y-%m-%d} "
        f"to {percent_text(last.alive_ratio)} on {last.began_at:%Y-%m-%d}, in {len(known)} runs."
    )
    if any(run.other_list_of is not None for run in runs[1:]):
        text += " Not all runs had the same list."
    scale = [
        {"y": f"{_y(mark):.1f}", "text_y": f"{_y(mark) + 4:.1f}", "text": f"{mark * top * 100:.3g} %"}
        for mark in _MARKS
    ]
    return _draw(
        "trend", text=text, height=TREND_HEIGHT, left=LEFT_PERCENT, scale=scale, lines=lines, dots=dots
    )


def legend() -> Markup:
    """Show the meaning of each colour."""
    return _draw("legend", groups=[(group, GROUP_WORDS[group]) for group in Group])


def _draw(macro: str, **values: Any) -> Markup:
    drawn: Markup = getattr(TEMPLATES.get_template("plots.html").module, macro)(**values)
    return drawn


def _percent(share: float) -> str:
    return f"{share:.3f}%"


def _x(at: int, count: int) -> float:
    """Return the position of a run, in percent of the width."""
    return LEFT_PERCENT + 1 + (98 - LEFT_PERCENT) * at / max(1, count - 1)


def _y(part: float) -> float:
    """Return the position of a part of the scale, 0 to 1, in pixels from the top."""
    return MARGIN + (1 - part) * (TREND_HEIGHT - 2 * MARGIN)


def _latency_position(ms: float) -> float:
    """Return the position of a latency, in percent of the width."""
    low, high = LATENCY_SCALE_MS
    within = min(max(ms, low), high)
    return 2 + 96 * math.log(within / low) / math.log(high / low)
