"""Scales of plots, and the labelled values."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

HEIGHT: Final = 100
_EDGE: Final = 4.0
"""Margin above and below, so that a line at the end of the scale is visible."""
_SHORTEST_MS: Final = 0.1
"""Shorter times are drawn at this value."""
_MAX_DECADE_MARKS: Final = 5


@dataclass(frozen=True, slots=True)
class Mark:
    """A place on a scale, in percent."""

    text: str
    place: float


@dataclass(frozen=True, slots=True)
class Scale:
    """Vertical scale of a plot: how far from the top a value is drawn, and which values have labels."""

    y: Callable[[float], float]
    marks: Sequence[Mark]


def linear(low: float, high: float, named: Iterable[float]) -> Scale:
    """Return a linear scale of shares from `low` to `high`, with labels at the values `named`."""

    def y(value: float) -> float:
        return _EDGE + (HEIGHT - 2 * _EDGE) * (high - value) / (high - low)

    return Scale(y, [Mark(f"{value * 100:.3g} %", y(value)) for value in named])


def logarithmic(low_ms: float, high_ms: float) -> Scale:
    """Return a logarithmic scale of latencies by whole decades, with labels at some of them."""
    first = math.floor(math.log10(max(low_ms, _SHORTEST_MS)))
    last = max(math.ceil(math.log10(max(high_ms, _SHORTEST_MS))), first + 1)

    def y(value_ms: float) -> float:
        part = (math.log10(max(value_ms, _SHORTEST_MS)) - first) / (last - first)
        return _EDGE + (HEIGHT - 2 * _EDGE) * (1 - part)

    every = math.ceil((last - first) / _MAX_DECADE_MARKS)
    decades = range(first, last + 1, every)
    return Scale(y, [Mark(_round_ms(10.0**decade), y(10.0**decade)) for decade in decades])


def _round_ms(milliseconds: float) -> str:
    """Return a power of ten in its shortest form."""
    if milliseconds < 1_000:
        return f"{milliseconds:g} ms"
    return f"{milliseconds / 1_000:,.0f} s"
