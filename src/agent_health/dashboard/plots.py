"""How is what an agent said, and how it answered, drawn over time?

As steps, one for each half hour or day: a line at the mean, a band from the lowest to the highest. Where
there is no number there is no line, and none leads across: a place where nobody looked and one where
nobody answered look different, and neither looks like a zero. Everything stands in a table besides.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from agent_health.agent_history import DAY_SECONDS, DAYS_KEPT, HALF_HOUR_SECONDS, Measure
from agent_health.dashboard.words import duration_ms, percent
from agent_health.history_record import AgentHistory, SlotShown, SpreadShown

WIDTH: Final = 1_000
"""Of the plane that a plot is drawn on, which is stretched to the width of the page."""
HEIGHT: Final = 100
_EDGE: Final = 4.0
"""Above and below what is drawn, so that a line at the end of the scale is seen whole."""
_BOTTOMS: Final = (0.99, 0.95, 0.9, 0.8, 0.5, 0.0)
"""Shares at which a scale of the answered may begin; 95 % and 50 % are where health changes (draft 4.3)."""
_TOPS: Final = (0.01, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Shares at which a scale of errors may end."""
_SHORTEST_MS: Final = 0.1
"""What took less is drawn here."""
_MAX_DECADE_MARKS: Final = 5
_HOURS_PER_TICK: Final = 6
_DAYS_PER_TICK: Final = 7
_TICK_MARGIN_PERCENT: Final = 4.0


@dataclass(frozen=True, slots=True)
class Mark:
    """A place on a scale, in percent."""

    text: str
    place: float


@dataclass(frozen=True, slots=True)
class Line:
    """One measure, as paths on the plane."""

    name: str
    style: str
    """`seen` or `said`; with `second` the lesser one of two that somebody said."""
    path: str
    band: str
    told: str
    """The same in words."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of the time, on the plane; its word is a mark of the dashboard's."""

    word: str
    left: float
    width: float


@dataclass(frozen=True, slots=True)
class Plot:
    """Some measures on one scale."""

    title: str
    lines: Sequence[Line]
    scale: Sequence[Mark]
    tips: Sequence[str]
    """Its numbers in words, of each column."""

    @property
    def told(self) -> str:
        """The same for who does not see it."""
        return f"{self.title}: " + "; ".join(line.told for line in self.lines)


@dataclass(frozen=True, slots=True)
class Column:
    """One slot, on the plane: how its probes ended."""

    left: float
    width: float
    alive: float
    """Shares of its probes in percent; what is left told neither."""
    failed: float
    told: str


@dataclass(frozen=True, slots=True)
class Row:
    """One slot in numbers."""

    begins_at: datetime
    when: str
    probes: str
    numbers: Sequence[str]


@dataclass(frozen=True, slots=True)
class Span:
    """A day by half hours, or a month by days."""

    title: str
    key: str
    columns: Sequence[Column]
    silences: Sequence[Stretch]
    """Where nobody looked, and where nobody answered."""
    plots: Sequence[Plot]
    ticks: Sequence[Mark]
    rows: Sequence[Row]
    """The latest first."""
    told: str
    """How its probes ended, in words."""


NUMBERS: Final = ("Answer", "Answered, it says", "Errors, it says", "p50, it says", "p99, it says")
"""What stands in the columns of `Row.numbers`."""


@dataclass(frozen=True, slots=True)
class _Place:
    """One slot and where it is drawn."""

    slot: SlotShown
    when: str
    left: float
    right: float


@dataclass(frozen=True, slots=True)
class _Scale:
    """Where a value is drawn, from the top, and which values are named."""

    y: Callable[[float], float]
    marks: Sequence[Mark]


_Values = Sequence[tuple[_Place, SpreadShown | None]]
"""One measure of each place."""
_Series = tuple[str, str, _Values]
"""Its name, its style, and itself."""
_Words = Callable[[float], str]
"""How a value is said."""


def spans(history: AgentHistory, now_s: float) -> list[Span]:
    """Return what is drawn of an agent; nothing where there is nothing."""
    today_s = now_s // DAY_SECONDS * DAY_SECONDS
    month_s = today_s - (DAYS_KEPT - 1) * DAY_SECONDS
    found = (
        ("Last 24 hours, by half hours", "day", history.half_hours, now_s - DAY_SECONDS, now_s),
        ("Last 30 days", "month", history.days, month_s, today_s + DAY_SECONDS),
    )
    return [_span(title, key, slots, begin_s, end_s) for title, key, slots, begin_s, end_s in found if slots]


def _span(title: str, key: str, slots: Sequence[SlotShown], begin_s: float, end_s: float) -> Span:
    is_day = key == "day"
    places = list(_places(slots, begin_s, end_s, is_day=is_day))
    alive, failed = sum(slot.alive for slot in slots), sum(slot.failed for slot in slots)
    others = sum(slot.inconclusive for slot in slots)
    plots = (_answered(places), _errors(places), _latencies(places))
    return Span(
        title=title,
        key=key,
        columns=[_column(place) for place in places],
        silences=list(_silences(places)),
        plots=[plot for plot in plots if plot is not None],
        ticks=list(_ticks(begin_s, end_s, is_day=is_day)),
        rows=[_row(slot, is_day=is_day) for slot in reversed(slots)],
        told=f"Probes: {_ended(alive, failed, others)}",
    )


def _places(slots: Iterable[SlotShown], begin_s: float, end_s: float, *, is_day: bool) -> Iterator[_Place]:
    slot_s = HALF_HOUR_SECONDS if is_day else DAY_SECONDS
    for slot in slots:
        left_s = slot.begins_at.timestamp()
        left, right = (
            min(max((at_s - begin_s) / (end_s - begin_s), 0.0), 1.0) * WIDTH
            for at_s in (left_s, left_s + slot_s)
        )
        if right > left:
            yield _Place(slot, _when(slot, is_day=is_day), round(left, 2), round(right, 2))


def _silences(places: Sequence[_Place]) -> Iterator[Stretch]:
    at = 0.0
    for place in places:
        if place.left > at:
            yield Stretch("never-measured", at, round(place.left - at, 2))
        if place.slot.failed and not place.slot.alive:
            yield Stretch("down", place.left, round(place.right - place.left, 2))
        at = place.right
    if at < WIDTH:
        yield Stretch("never-measured", at, round(WIDTH - at, 2))


def _answered(places: Sequence[_Place]) -> Plot | None:
    """Draw what an agent says beside what was seen of it."""
    seen = [(place, _share_alive(place.slot)) for place in places]
    said = _of(places, Measure.RESPONSE_RATIO)
    values = [spread.lowest for _, spread in (*seen, *said) if spread is not None]
    if not values:
        return None
    bottom = next(bottom for bottom in _BOTTOMS if min(values) >= bottom)
    scale = _linear(bottom, 1.0, (bottom, (bottom + 1) / 2, 1.0))
    series = [("probes answered", "seen", seen), ("requests answered, it says", "said", said)]
    return _plot("Share of what was answered", series, scale, percent)


def _errors(places: Sequence[_Place]) -> Plot | None:
    said = _of(places, Measure.ERROR_RATIO)
    values = [spread.highest for _, spread in said if spread is not None]
    if not values:
        return None
    top = next(top for top in _TOPS if max(values) <= top)
    scale = _linear(0.0, top, (0.0, top / 2, top))
    return _plot("Share of errors", [("errors, it says", "said", said)], scale, percent)


def _latencies(places: Sequence[_Place]) -> Plot | None:
    """Draw how long answers took, on a logarithmic scale of whole decades."""
    named = (
        ("a probe's answer", "seen", Measure.ANSWER_MS),
        ("its p99", "said", Measure.LATENCY_P99_MS),
        ("its p50", "said second", Measure.LATENCY_P50_MS),
    )
    series = [(name, style, _of(places, measure)) for name, style, measure in named]
    spreads = [spread for _, _, values in series for _, spread in values if spread is not None]
    if not spreads:
        return None
    low, high = min(spread.lowest for spread in spreads), max(spread.highest for spread in spreads)
    scale = _logarithmic(low, high)
    return _plot("How long answers took", series, scale, duration_ms)


def _plot(title: str, series: Sequence[_Series], scale: _Scale, words: _Words) -> Plot:
    lines = [_line(name, style, values, scale, words) for name, style, values in series]
    tips = []
    for together in zip(*(values for _, _, values in series), strict=True):
        said = [
            f"{name} {_spread(spread, words)}"
            for (name, _, _), (_, spread) in zip(series, together, strict=True)
            if spread is not None
        ]
        tips.append(f"{together[0][0].when}: {'; '.join(said) or 'no such number'}")
    return Plot(title, [line for line in lines if line is not None], scale.marks, tips)


def _of(places: Iterable[_Place], measure: Measure) -> _Values:
    return [(place, dict(place.slot.measures()).get(measure)) for place in places]


def _share_alive(slot: SlotShown) -> SpreadShown | None:
    measured = slot.alive + slot.failed
    if not measured:
        return None
    share = slot.alive / measured
    return SpreadShown(lowest=share, mean=share, highest=share)


def _line(name: str, style: str, values: _Values, scale: _Scale, words: _Words) -> Line | None:
    """Return one measure as steps; slots that do not touch are not joined. None if nothing is known of it."""
    runs: list[list[tuple[_Place, SpreadShown]]] = []
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
    return Line(
        name=name,
        style=style,
        path="".join(_steps(run, lambda spread: scale.y(spread.mean)) for run in runs),
        band="".join(
            _steps(run, lambda spread: scale.y(spread.highest))
            + _back(run, lambda spread: scale.y(spread.lowest))
            for run in runs
            if any(spread.lowest < spread.highest for _, spread in run)
        ),
        told=f"{name} {words(lowest)} to {words(highest)}, last {words(spreads[-1].mean)}",
    )


def _steps(run: Sequence[tuple[_Place, SpreadShown]], y: Callable[[SpreadShown], float]) -> str:
    """Return a path from left to right."""
    parts = [f"M{run[0][0].left:g} {y(run[0][1]):.2f}"]
    parts += [f"V{y(spread):.2f}H{place.right:g}" for place, spread in run]
    return "".join(parts)


def _back(run: Sequence[tuple[_Place, SpreadShown]], y: Callable[[SpreadShown], float]) -> str:
    """Return how a path goes on from its right end back to where it began."""
    return "".join(f"V{y(spread):.2f}H{place.left:g}" for place, spread in reversed(run)) + "Z"


def _linear(low: float, high: float, named: Iterable[float]) -> _Scale:
    def y(value: float) -> float:
        return _EDGE + (HEIGHT - 2 * _EDGE) * (high - value) / (high - low)

    return _Scale(y, [Mark(f"{value * 100:.3g} %", y(value)) for value in named])


def _logarithmic(low_ms: float, high_ms: float) -> _Scale:
    first = math.floor(math.log10(max(low_ms, _SHORTEST_MS)))
    last = max(math.ceil(math.log10(max(high_ms, _SHORTEST_MS))), first + 1)

    def y(value_ms: float) -> float:
        part = (math.log10(max(value_ms, _SHORTEST_MS)) - first) / (last - first)
        return _EDGE + (HEIGHT - 2 * _EDGE) * (1 - part)

    every = math.ceil((last - first) / _MAX_DECADE_MARKS)
    decades = range(first, last + 1, every)
    return _Scale(y, [Mark(_round_ms(10.0**decade), y(10.0**decade)) for decade in decades])


def _round_ms(milliseconds: float) -> str:
    """Return a power of ten as short as it can be said."""
    if milliseconds < 1_000:
        return f"{milliseconds:g} ms"
    return f"{milliseconds / 1_000:,.0f} s"


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


def _column(place: _Place) -> Column:
    slot = place.slot
    whole = max(slot.alive + slot.failed + slot.inconclusive, 1)
    return Column(
        left=place.left,
        width=round(place.right - place.left, 2),
        alive=round(slot.alive * 100 / whole, 2),
        failed=round(slot.failed * 100 / whole, 2),
        told=f"{place.when}: {_ended(slot.alive, slot.failed, slot.inconclusive)}",
    )


def _row(slot: SlotShown, *, is_day: bool) -> Row:
    return Row(
        begins_at=slot.begins_at,
        when=_when(slot, is_day=is_day),
        probes=_ended(slot.alive, slot.failed, slot.inconclusive),
        numbers=[
            _spread(slot.answer_ms, duration_ms),
            _spread(slot.response_ratio, percent),
            _spread(slot.error_ratio, percent),
            _spread(slot.latency_p50_ms, duration_ms),
            _spread(slot.latency_p99_ms, duration_ms),
        ],
    )


def _when(slot: SlotShown, *, is_day: bool) -> str:
    return f"{slot.begins_at:%Y-%m-%d %H:%M}" if is_day else f"{slot.begins_at:%Y-%m-%d}"


def _spread(spread: SpreadShown | None, words: _Words) -> str:
    """Return a spread in words: the mean, and from where to where if that is another thing."""
    if spread is None:
        return "\N{EN DASH}"
    mean, low, high = words(spread.mean), words(spread.lowest), words(spread.highest)
    return mean if low == high else f"{mean} ({low} to {high})"


def _ended(alive: int, failed: int, inconclusive: int) -> str:
    """Return how probes ended, in words."""
    parts = ((alive, "answered"), (failed, "failed"), (inconclusive, "unknown"))
    return ", ".join(f"{count:,} {word}" for count, word in parts if count)
