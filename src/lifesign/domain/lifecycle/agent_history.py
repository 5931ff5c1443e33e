"""History of an agent: the stored slots, and their expiry.

There are slots of half hours and, after the end of a day, of days. A slot contains how often the agent
answered, its latency, and the values of its health document. A slot without a probe does not exist, and a
value that was never read is absent from its slot: neither is a zero.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated, Final, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from lifesign.domain.observation.results import LayerResult, Observation

HALF_HOUR_SECONDS: Final = 1_800
HALF_HOURS_PER_DAY: Final = 48
DAY_SECONDS: Final = HALF_HOUR_SECONDS * HALF_HOURS_PER_DAY
HALF_HOURS_KEPT: Final = HALF_HOURS_PER_DAY + 1
"""The running one, and as many as touch the 24 hours before now."""
DAYS_KEPT: Final = 30
"""The running one included."""

# Text of which no database, JSON or backup changes a character.
_DIGITS: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-_"
_VALUES: Final = MappingProxyType({digit: value for value, digit in enumerate(_DIGITS)})
_NUMBER_DIGITS: Final = 4
_HEAD: Final = _NUMBER_DIGITS + 3 * 2 + 1
"""Characters of a slot's number, of its three counts, and of which measures it has."""
_SPREAD: Final = 3 * 2
"""Characters of one measure."""
_MAX_NUMBER: Final = 64**_NUMBER_DIGITS - 1
"""A half hour in the year 2926."""
_MAX_CODE: Final = 64**2 - 1
_RATIO_STEPS: Final = 4_000
"""Number of steps; thousandths are restored exactly."""
_SHORTEST_MS: Final = 0.01
_DECADES: Final = 11
"""Range of the scale: 0.01 ms to eleven days. Values outside are stored as its ends."""


class Measure(StrEnum):
    """A quantity in an agent's history, such as a latency. The order is that of the packed form."""

    ANSWER_MS = "answer_ms"
    """Latency of the agent's answer to a probe."""
    RESPONSE_RATIO = "response_ratio"
    """This measure and the next ones: values of the agent's health document."""
    ERROR_RATIO = "error_ratio"
    LATENCY_P50_MS = "latency_p50_ms"
    LATENCY_P99_MS = "latency_p99_ms"


RATIOS: Final = frozenset({Measure.RESPONSE_RATIO, Measure.ERROR_RATIO})
_MEASURES: Final = tuple(Measure)


class OpenMeasure(NamedTuple):
    """Values so far of one measure in the current half hour.

    A tuple, since every probe makes five of them; read from a list or, as it was stored once, from an object.
    """

    low: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    high: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    total: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    values: Annotated[int, Field(ge=1, alias="count")]
    """Number of values."""


class OpenSlot(BaseModel):
    """Results so far of the half hour of the last observation."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    number: Annotated[int, Field(ge=0, le=_MAX_NUMBER)]
    """Half hours since the epoch."""
    alive: Annotated[int, Field(ge=0)] = 0
    """Number of probes with a liveness signal."""
    failed: Annotated[int, Field(ge=0)] = 0
    """Number of measured failures."""
    inconclusive: Annotated[int, Field(ge=0)] = 0
    """Number of probes without a measurement."""
    gathered: dict[Measure, OpenMeasure] = {}


@dataclass(frozen=True, slots=True)
class Spread:
    """Lowest, mean and highest value of a measure within a slot."""

    low: float
    mean: float
    high: float


@dataclass(frozen=True, slots=True)
class HistorySlot:
    """Results of one half hour or day in which a probe took place or was due."""

    number: int
    """Half hours, or days, since the epoch."""
    alive: int = 0
    failed: int = 0
    inconclusive: int = 0
    spreads: Mapping[Measure, Spread] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class History:
    """Probe results and reports of one agent over time; each list is sorted, the oldest first."""

    half_hours: Sequence[HistorySlot] = ()
    days: Sequence[HistorySlot] = ()


@dataclass(frozen=True, slots=True)
class KeptHistory:
    """History of one agent as packed texts for the database: closed half hours, and finished days.

    Each text has its slots in the order in which they were added.
    """

    half_hours: str = ""
    days: str = ""


def half_hour_of(at_s: float) -> int:
    """Return the number of the half hour in which a time lies, counted from the epoch."""
    return min(max(int(at_s // HALF_HOUR_SECONDS), 0), _MAX_NUMBER)


def add_observation(slot: OpenSlot | None, observation: Observation, at_s: float) -> OpenSlot:
    """Return the slot with one more observation: the open slot, or a new one in another half hour."""
    number = half_hour_of(at_s)
    if slot is None or number != slot.number:
        slot = OpenSlot(number=number)
    counted = _verdict(observation)
    measures = dict(slot.gathered)
    for measure, value in _values(observation):
        measures[measure] = _with(measures.get(measure), value)
    return slot.model_copy(update={counted: getattr(slot, counted) + 1, "gathered": measures})


def ended_slot(before: OpenSlot | None, after: OpenSlot | None) -> OpenSlot | None:
    """Return the slot that was open before and is no longer; None if it still is."""
    if before is None or (after is not None and after.number == before.number):
        return None
    return before


def closed(slot: OpenSlot) -> HistorySlot:
    """Return the final form of a slot that was open."""
    spreads = {
        measure: Spread(one.low, min(max(one.total / one.values, one.low), one.high), one.high)
        for measure, one in slot.gathered.items()
    }
    return HistorySlot(slot.number, slot.alive, slot.failed, slot.inconclusive, spreads)


def added(history: KeptHistory, slot: HistorySlot) -> KeptHistory:
    """Return the history with a closed half hour added, and without the half hours and days added first.

    The bounds are counts, and no slot expires by its time: a wrong clock then removes only as many slots as
    it adds. Half hours of finished days are summed before they are removed. A repeated half hour counts once.
    """
    # Unchanged slots stay packed: reading all of them would take fifty times as long.
    half_hours, days = _split(history.half_hours), _split(history.days)
    today = slot.number // HALF_HOURS_PER_DAY
    sums = [slot]
    if summed_before := days.get(today):
        sums = [*unpacked(summed_before), slot]
    if same := half_hours.pop(slot.number, None):
        slot = summed(slot.number, [*unpacked(same), slot])
    over = {number // HALF_HOURS_PER_DAY for number in half_hours} - days.keys() - {today}
    if over:
        all_earlier = unpacked("".join(half_hours.values()))
        days |= {number: packed([day_of(number, all_earlier)]) for number in sorted(over)}
    half_hours[slot.number] = packed([slot])
    if today in days:
        # The clock was set. Some half hours of this day may have been removed already.
        again = day_of(today, unpacked("".join(half_hours.values())))
        days[today] = packed([max(again, summed(today, sums), key=_probes)])
    return KeptHistory(
        "".join([*half_hours.values()][-HALF_HOURS_KEPT:]), "".join([*days.values()][-DAYS_KEPT:])
    )


def shown(history: KeptHistory, slot: OpenSlot | None, now_s: float) -> History:
    """Return the half hours of the last day and the days of the last month, with the current ones."""
    if slot is not None:
        history = added(history, closed(slot))
    half_hours, days = unpacked(history.half_hours), list(unpacked(history.days))
    if half_hours:
        running = half_hours[-1].number // HALF_HOURS_PER_DAY
        if running not in {day.number for day in days}:
            days.append(day_of(running, half_hours))
    now = half_hour_of(now_s)
    today = now // HALF_HOURS_PER_DAY
    return History(
        sorted((kept for kept in half_hours if now - HALF_HOURS_KEPT < kept.number <= now), key=_slot_number),
        sorted((day for day in days if today - DAYS_KEPT < day.number <= today), key=_slot_number),
    )


def day_of(number: int, half_hours: Iterable[HistorySlot]) -> HistorySlot:
    """Return a day's slot, added up from its half hours."""
    return summed(number, [slot for slot in half_hours if slot.number // HALF_HOURS_PER_DAY == number])


def summed(number: int, slots: Sequence[HistorySlot]) -> HistorySlot:
    """Add up several slots into one with this number.

    Its means are means of their means, so that each period has the same weight.
    """
    spreads = {}
    for measure in _MEASURES:
        if found := [slot.spreads[measure] for slot in slots if measure in slot.spreads]:
            low, high = min(spread.low for spread in found), max(spread.high for spread in found)
            mean = math.fsum(spread.mean for spread in found) / len(found)
            spreads[measure] = Spread(low, min(max(mean, low), high), high)
    return HistorySlot(
        number,
        sum(slot.alive for slot in slots),
        sum(slot.failed for slot in slots),
        sum(slot.inconclusive for slot in slots),
        spreads,
    )


def packed(slots: Iterable[HistorySlot]) -> str:
    """Return slots as one text, 11 to 41 characters for each.

    Counts end at 4095. A ratio is stored to 1/4000; exactly 0 and exactly 1 stay distinct from all other
    values. A latency is stored to 0.4 %.
    """
    parts: list[str] = []
    for slot in slots:
        parts.append(_digits(slot.number, _NUMBER_DIGITS))
        parts += [_digits(min(count, _MAX_CODE), 2) for count in (slot.alive, slot.failed, slot.inconclusive)]
        parts.append(_digits(sum(1 << _MEASURES.index(measure) for measure in slot.spreads), 1))
        for measure in _MEASURES:
            if (spread := slot.spreads.get(measure)) is not None:
                encode = _ratio_code if measure in RATIOS else _latency_code
                parts += [_digits(encode(value), 2) for value in (spread.low, spread.mean, spread.high)]
    return "".join(parts)


def unpacked(text: str) -> tuple[HistorySlot, ...]:
    """Return the slots in a text that `packed` wrote; ValueError for another text."""
    return tuple(_unpacked(one) for one in _split(text).values())


def answer_layer(observation: Observation) -> LayerResult | None:
    """Return the layer whose latency is recorded: the message if one was sent, else the interface.

    For an agent without an interface that can be requested, it is the health document, else the card; None if
    nothing was requested. Another layer never replaces one that did not answer: a fast card does not hide a
    slow agent.
    """
    layers = (observation.message, observation.transport, observation.readiness, observation.discovery)
    return next((layer for layer in layers if layer is not None), None)


def _probes(slot: HistorySlot) -> int:
    return slot.alive + slot.failed + slot.inconclusive


def _slot_number(slot: HistorySlot) -> int:
    return slot.number


def _verdict(observation: Observation) -> str:
    if observation.is_liveness_signal:
        return "alive"
    return "failed" if observation.is_measured_failure else "inconclusive"


def _values(observation: Observation) -> Iterable[tuple[Measure, float]]:
    """Return the values of one observation: no latency of a failure, and nothing from a stale document."""
    layer = answer_layer(observation)
    if layer is not None and layer.has_answered and layer.latency_ms is not None:
        yield Measure.ANSWER_MS, layer.latency_ms
    document = observation.document
    if document is None or document.is_stale:
        return
    reported = (
        (Measure.RESPONSE_RATIO, document.response_ratio),
        (Measure.ERROR_RATIO, document.error_ratio),
        (Measure.LATENCY_P50_MS, document.latency_p50_ms),
        (Measure.LATENCY_P99_MS, document.latency_p99_ms),
    )
    for measure, value in reported:
        if value is not None:
            yield measure, value


def _with(known: OpenMeasure | None, value: float) -> OpenMeasure:
    if known is None:
        return OpenMeasure(value, value, value, 1)
    low, high, total, values = known
    return OpenMeasure(min(low, value), max(high, value), total + value, values + 1)


def _split(text: str) -> dict[int, str]:
    """Return packed slots by their numbers; ValueError if the text has another form."""
    slots: dict[int, str] = {}
    at = 0
    while at < len(text):
        number, there = _number(text[at : at + _NUMBER_DIGITS]), _number(text[at + _HEAD - 1 : at + _HEAD])
        if there >= 1 << len(_MEASURES):
            raise ValueError("a slot has an unknown measure")
        end = at + _HEAD + there.bit_count() * _SPREAD
        if end > len(text):
            raise ValueError("the last slot is cut off")
        if number in slots:
            raise ValueError(f"slot {number} occurs twice")
        slots[number] = text[at:end]
        at = end
    return slots


def _unpacked(text: str) -> HistorySlot:
    number, there = _number(text[:_NUMBER_DIGITS]), _number(text[_HEAD - 1 : _HEAD])
    alive, failed, inconclusive = (_number(text[at : at + 2]) for at in range(_NUMBER_DIGITS, _HEAD - 1, 2))
    spreads, at = {}, _HEAD
    for place, measure in enumerate(_MEASURES):
        if there & 1 << place:
            decode = _ratio if measure in RATIOS else _latency_ms
            low, mean, high = (decode(_number(text[at + part : at + part + 2])) for part in (0, 2, 4))
            spreads[measure] = Spread(low, mean, high)
            at += _SPREAD
    return HistorySlot(number, alive, failed, inconclusive, spreads)


def _number(digits: str) -> int:
    if not digits:
        raise ValueError("the last slot is cut off")
    number = 0
    for digit in digits:
        value = _VALUES.get(digit)
        if value is None:
            raise ValueError(f"{digit!r} is no digit")
        number = number * 64 + value
    return number


def _digits(number: int, count: int) -> str:
    return "".join(_DIGITS[number >> 6 * place & 63] for place in reversed(range(count)))


def _ratio_code(ratio: float) -> int:
    if ratio <= 0:
        return 0
    return _RATIO_STEPS if ratio >= 1 else min(max(round(ratio * _RATIO_STEPS), 1), _RATIO_STEPS - 1)


def _ratio(code: int) -> float:
    if code > _RATIO_STEPS:
        raise ValueError(f"the code of a ratio is at most {_RATIO_STEPS}; got {code}")
    return code / _RATIO_STEPS


def _latency_code(milliseconds: float) -> int:
    if milliseconds <= 0:
        return 0
    decades = math.log10(max(milliseconds, _SHORTEST_MS) / _SHORTEST_MS)
    return min(1 + round(decades / _DECADES * (_MAX_CODE - 1)), _MAX_CODE)


def _latency_ms(code: int) -> float:
    if code == 0:
        return 0.0
    return float(_SHORTEST_MS * 10 ** ((code - 1) / (_MAX_CODE - 1) * _DECADES))
