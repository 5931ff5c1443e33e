"""Plots of an agent's reports and answers over time.

Values are steps, one for each half hour or day: a line at the mean, a band from the minimum to the maximum.
Without a value there is no line, and none leads across: periods without probes and periods without answers
look different, and neither looks like a zero. A table contains all values, too.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from typing import Final

from lifesign.dashboard.plots.scales import HEIGHT, Mark, Scale, linear, logarithmic
from lifesign.domain.lifecycle.agent_history import DAY_SECONDS, DAYS_KEPT, HALF_HOUR_SECONDS, Measure
from lifesign.domain.models.history import AgentHistory, SlotShown, SpreadShown
from lifesign.domain.text.counts import percent_text
from lifesign.domain.text.durations import latency_text

WIDTH: Final = 1_000
"""Width of a plot's coordinate system, which is stretched to the width of the page."""
_DECIMALS: Final = 1
"""Decimals of coordinates, whose unit is about one pixel: a page has thousands of them."""
_BOTTOMS: Final = (0.99, 0.95, 0.9, 0.8, 0.5, 0.0)
"""Shares at which a scale of answered requests may start; health changes at 95 % and 50 % (draft 4.3)."""
_TOPS: Final = (0.01, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Highest shares at which a scale of errors may end."""
_HOURS_PER_TICK: Final = 6
_DAYS_PER_TICK: Final = 7
_TICK_MARGIN_PERCENT: Final = 4.0


@dataclass(frozen=True, slots=True)
class MeasurePath:
    """One measure, as paths on the drawing area."""

    name: str
    style: str
    """CSS classes of the line; `dashed` marks the lower of two reported percentiles."""
    path: str
    band: str
    alt_text: str
    """The same content as text."""


@dataclass(frozen=True, slots=True)
class Gap:
    """A period without answers, on the drawing area: never probed, or down."""

    word: str
    left: float
    width: float


@dataclass(frozen=True, slots=True)
class Plot:
    """Some measures on one scale."""

    title: str
    lines: Sequence[MeasurePath]
    scale: Sequence[Mark]
    tips: Sequence[str]
    """Numbers of each column as text."""

    @property
    def alt_text(self) -> str:
        """The plot as text, for screen readers."""
        return f"{self.title}: " + "; ".join(line.alt_text for line in self.lines)


@dataclass(frozen=True, slots=True)
class Column:
    """Results of the probes of one half hour or day, on the drawing area."""

    left: float
    width: float
    alive: float
    """Shares of the probes in percent; the rest were inconclusive."""
    failed: float
    alt_text: str


@dataclass(frozen=True, slots=True)
class Area:
    """Share of the probes with one result over time, as a path on the drawing area."""

    word: str
    path: str


@dataclass(frozen=True, slots=True)
class Row:
    """Numbers of one half hour or day, as text."""

    begins_at: datetime
    when: str
    probes: str
    numbers: Sequence[str]


@dataclass(frozen=True, slots=True)
class PlotSpan:
    """Drawings and numbers of one period: a day by half hours, or a month by days."""

    title: str
    key: str
    columns: Sequence[Column]
    areas: Sequence[Area]
    """Results of probes, later ones above earlier ones."""
    gaps: Sequence[Gap]
    """Periods without probes, and periods without answers."""
    plots: Sequence[Plot]
    ticks: Sequence[Mark]
    rows: Sequence[Row]
    """The latest first."""
    alt_text: str
    """Results of the probes as text."""


NUMBERS: Final = (
    "Probe latency", "Answered (reported)", "Errors (reported)", "p50 (reported)", "p99 (reported)",
)  # fmt: skip
"""Headings of the columns of `Row.numbers`."""


@dataclass(frozen=True, slots=True)
class _SlotPosition:
    """One slot and its position."""

    slot: SlotShown
    when: str
    left: float
    right: float


_Values = Sequence[tuple[_SlotPosition, SpreadShown | None]]
"""One measure of each period."""
_Series = tuple[str, str, _Values]
"""Name, style and values."""
_Words = Callable[[float], str]
"""Formats a value."""


def spans(history: AgentHistory, now_s: float) -> list[PlotSpan]:
    """Return the drawings for an agent; empty without data."""
    today_s = now_s // DAY_SECONDS * DAY_SECONDS
    month_s = today_s - (DAYS_KEPT - 1) * DAY_SECONDS
    found = (
        ("Last 24 hours, by half hours", "day", history.half_hours, now_s - DAY_SECONDS, now_s),
        ("Last 30 days", "month", history.days, month_s, today_s + DAY_SECONDS),
    )
    return [_span(title, key, slots, begin_s, end_s) for title, key, slots, begin_s, end_s in found if slots]


def _span(title: str, key: str, slots: Sequence[SlotShown], begin_s: float, end_s: float) -> PlotSpan:
    is_day = key == "day"
    places = list(_places(slots, begin_s, end_s, is_day=is_day))
    columns = [_column(place) for place in places]
    alive, failed = sum(slot.alive for slot in slots), sum(slot.failed for slot in slots)
    others = sum(slot.inconclusive for slot in slots)
    plots = (_answered_plot(places), _errors(places), _latencies(places))
    return PlotSpan(
        title=title,
        key=key,
        columns=columns,
        areas=list(_areas(columns)),
        gaps=list(_gaps(places)),
        plots=[plot for plot in plots if plot is not None],
        ticks=list(_ticks(begin_s, end_s, is_day=is_day)),
        rows=[_row(slot, is_day=is_day) for slot in reversed(slots)],
        alt_text=f"Probes: {_ended(alive, failed, others)}",
    )


def _places(
    slots: Iterable[SlotShown], begin_s: float, end_s: float, *, is_day: bool
) -> Iterator[_SlotPosition]:
    slot_s = HALF_HOUR_SECONDS if is_day else DAY_SECONDS
    for slot in slots:
        left_s = slot.begins_at.timestamp()
        left, right = (
            min(max((at_s - begin_s) / (end_s - begin_s), 0.0), 1.0) * WIDTH
            for at_s in (left_s, left_s + slot_s)
        )
        if right > left:
            when = _when(slot, is_day=is_day)
            yield _SlotPosition(slot, when, round(left, _DECIMALS), round(right, _DECIMALS))


def _gaps(places: Sequence[_SlotPosition]) -> Iterator[Gap]:
    at = 0.0
    for place in places:
        if place.left > at:
            yield Gap("never-probed", at, round(place.left - at, _DECIMALS))
        if place.slot.failed and not place.slot.alive:
            yield Gap("down", place.left, round(place.right - place.left, _DECIMALS))
        at = place.right
    if at < WIDTH:
        yield Gap("never-probed", at, round(WIDTH - at, _DECIMALS))


def _answered_plot(places: Sequence[_SlotPosition]) -> Plot | None:
    """Draw the reported values and the observed ones."""
    seen = [(place, _share_alive(place.slot)) for place in places]
    reported = _values_of(places, Measure.RESPONSE_RATIO)
    values = [spread.lowest for _, spread in (*seen, *reported) if spread is not None]
    if not values:
        return None
    bottom = next(bottom for bottom in _BOTTOMS if min(values) >= bottom)
    scale = linear(bottom, 1.0, (bottom, (bottom + 1) / 2, 1.0))
    series = [("probes answered", "observed", seen), ("requests answered (reported)", "reported", reported)]
    return _plot("Share of answered requests", series, scale, percent_text)


def _errors(places: Sequence[_SlotPosition]) -> Plot | None:
    reported = _values_of(places, Measure.ERROR_RATIO)
    values = [spread.highest for _, spread in reported if spread is not None]
    if not values:
        return None
    top = next(top for top in _TOPS if max(values) <= top)
    scale = linear(0.0, top, (0.0, top / 2, top))
    return _plot("Share of errors", [("errors (reported)", "reported", reported)], scale, percent_text)


def _latencies(places: Sequence[_SlotPosition]) -> Plot | None:
    """Draw latencies on a logarithmic scale of whole decades."""
    named = (
        ("probe latency", "observed", Measure.ANSWER_MS),
        ("p99 (reported)", "reported", Measure.LATENCY_P99_MS),
        ("p50 (reported)", "reported dashed", Measure.LATENCY_P50_MS),
    )
    series = [(name, style, _values_of(places, measure)) for name, style, measure in named]
    spreads = [spread for _, _, values in series for _, spread in values if spread is not None]
    if not spreads:
        return None
    low, high = min(spread.lowest for spread in spreads), max(spread.highest for spread in spreads)
    scale = logarithmic(low, high)
    return _plot("Latency", series, scale, latency_text)


def _plot(title: str, series: Sequence[_Series], scale: Scale, words: _Words) -> Plot:
    lines = [_line(name, style, values, scale, words) for name, style, values in series]
    tips = []
    for together in zip(*(values for _, _, values in series), strict=True):
        reported = [
            f"{name} {_spread(spread, words)}"
            for (name, _, _), (_, spread) in zip(series, together, strict=True)
            if spread is not None
        ]
        tips.append(f"{together[0][0].when}: {'; '.join(reported) or 'no such number'}")
    return Plot(title, [line for line in lines if line is not None], scale.marks, tips)


def _values_of(places: Iterable[_SlotPosition], measure: Measure) -> _Values:
    return [(place, dict(place.slot.measures()).get(measure)) for place in places]


def _share_alive(slot: SlotShown) -> SpreadShown | None:
    measured = slot.alive + slot.failed
    if not measured:
        return None
    share = slot.alive / measured
    return SpreadShown(lowest=share, mean=share, highest=share)


def _line(name: str, style: str, values: _Values, scale: Scale, words: _Words) -> MeasurePath | None:
    """Return one measure as steps; slots that do not touch are not joined. None without values."""
    runs: list[list[tuple[_SlotPosition, SpreadShown]]] = []
    for place, spread in values:
        if spread is None:
            continue
        if runs and runs[-1][-1][0].right == place.left:
            runs[-1].append((place, spread))
        else:
            runs.append([(place, spread)])
    if not runs:
        return None
    spreads = [spread for run in runs for _, spread in run]
    lowest, highest = min(one.lowest for one in spreads), max(one.highest for one in spreads)
    return MeasurePath(
        name=name,
        style=style,
        path="".join(_steps(run, lambda spread: scale.y(spread.mean)) for run in runs),
        band="".join(
            _steps(run, lambda spread: scale.y(spread.highest))
            + _back(run, lambda spread: scale.y(spread.lowest))
            for run in runs
            if any(spread.lowest < spread.highest for _, spread in run)
        ),
        alt_text=f"{name} {words(lowest)} to {words(highest)}, last {words(spreads[-1].mean)}",
    )


def _steps(run: Sequence[tuple[_SlotPosition, SpreadShown]], y: Callable[[SpreadShown], float]) -> str:
    """Return a path from left to right."""
    heights = [(y(spread), place.right) for place, spread in run]
    return f"M{run[0][0].left:g} {round(heights[0][0], _DECIMALS):g}{_stairs(heights)}"


def _back(run: Sequence[tuple[_SlotPosition, SpreadShown]], y: Callable[[SpreadShown], float]) -> str:
    """Return the rest of a path, from its right end back to its start."""
    return _stairs([(y(spread), place.left) for place, spread in reversed(run)]) + "Z"


def _stairs(heights: Iterable[tuple[float, float]]) -> str:
    """Return the commands of a path to each height up to its end; equal heights become one step."""
    rounded = ((round(height, _DECIMALS), end) for height, end in heights)
    levels = ((height, [*steps][-1][1]) for height, steps in groupby(rounded, key=lambda step: step[0]))
    return "".join(f"V{height:g}H{end:g}" for height, end in levels)


def _ticks(begin_s: float, end_s: float, *, is_day: bool) -> Iterator[Mark]:
    """Return the times that are named below a plot: round hours, or every seventh day up to today."""
    if is_day:
        step_s = _HOURS_PER_TICK * HALF_HOUR_SECONDS * 2
        first_s: float = math.ceil(begin_s / step_s) * step_s
    else:
        step_s = _DAYS_PER_TICK * DAY_SECONDS
        first_s = begin_s + (DAYS_KEPT - 1) % _DAYS_PER_TICK * DAY_SECONDS
    at_s = first_s
    while at_s < end_s:
        moment = datetime.fromtimestamp(at_s, UTC)
        middle_s = at_s if is_day else at_s + DAY_SECONDS / 2
        place = (middle_s - begin_s) * 100 / (end_s - begin_s)
        if _TICK_MARGIN_PERCENT <= place <= 100 - _TICK_MARGIN_PERCENT or not is_day:
            yield Mark(f"{moment:%H:%M}" if is_day else f"{moment:%b} {moment.day}", place)
        at_s += step_s


def _column(place: _SlotPosition) -> Column:
    slot = place.slot
    whole = max(slot.alive + slot.failed + slot.inconclusive, 1)
    return Column(
        left=place.left,
        width=round(place.right - place.left, _DECIMALS),
        alive=round(slot.alive * 100 / whole, 2),
        failed=round(slot.failed * 100 / whole, 2),
        alt_text=f"{place.when}: {_ended(slot.alive, slot.failed, slot.inconclusive)}",
    )


def _areas(columns: Sequence[Column]) -> Iterator[Area]:
    """Draw the results of probes: answered ones from below, failed ones from above."""
    runs: list[list[Column]] = []
    for column in columns:
        if runs and round(runs[-1][-1].left + runs[-1][-1].width, _DECIMALS) == column.left:
            runs[-1].append(column)
        else:
            runs.append([column])
    parts: Sequence[tuple[str, int, Callable[[Column], float]]] = (
        ("unknown", HEIGHT, lambda _: 0.0),
        ("answers", HEIGHT, lambda column: HEIGHT - column.alive),
        ("down", 0, lambda column: column.failed),
    )
    for word, base, y in parts:
        if any(y(column) != base for column in columns):
            stairs = (_stairs((y(column), column.left + column.width) for column in run) for run in runs)
            paths = (f"M{run[0].left:g} {base}{up}V{base}Z" for run, up in zip(runs, stairs, strict=True))
            yield Area(word, "".join(paths))


def _row(slot: SlotShown, *, is_day: bool) -> Row:
    return Row(
        begins_at=slot.begins_at,
        when=_when(slot, is_day=is_day),
        probes=_ended(slot.alive, slot.failed, slot.inconclusive),
        numbers=[
            _spread(slot.answer_ms, latency_text),
            _spread(slot.response_ratio, percent_text),
            _spread(slot.error_ratio, percent_text),
            _spread(slot.latency_p50_ms, latency_text),
            _spread(slot.latency_p99_ms, latency_text),
        ],
    )


def _when(slot: SlotShown, *, is_day: bool) -> str:
    return f"{slot.begins_at:%Y-%m-%d %H:%M}" if is_day else f"{slot.begins_at:%Y-%m-%d}"


def _spread(spread: SpreadShown | None, words: _Words) -> str:
    """Return a spread as text: the mean, and the range if it differs."""
    if spread is None:
        return "\N{EN DASH}"
    mean, low, high = words(spread.mean), words(spread.lowest), words(spread.highest)
    return mean if low == high else f"{mean} ({low} to {high})"


def _ended(alive: int, failed: int, inconclusive: int) -> str:
    """Return the results of probes as text."""
    parts = ((alive, "answered"), (failed, "failed"), (inconclusive, "unknown"))
    return ", ".join(f"{count:,} {word}" for count, word in parts if count)
