import json
import re
from datetime import UTC, datetime
from functools import reduce
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from lifesign.domain.health.document import HealthStatus
from lifesign.domain.lifecycle.agent_history import (
    DAYS_KEPT,
    HALF_HOUR_SECONDS,
    HALF_HOURS_KEPT,
    HALF_HOURS_PER_DAY,
    RATIOS,
    History,
    HistorySlot,
    KeptHistory,
    Measure,
    OpenMeasure,
    OpenSlot,
    Spread,
    add_observation,
    added,
    closed,
    day_of,
    ended_slot,
    half_hour_of,
    packed,
    shown,
    summed,
    unpacked,
)
from lifesign.domain.observation.results import LayerResult, Observation, ProbedDocument, ResultClass

NOW_S = 1_782_900_000.0
NOW = half_hour_of(NOW_S)
TODAY = NOW // HALF_HOURS_PER_DAY
ANSWER = Measure.ANSWER_MS
SLOT_CHARACTERS = 41
"""At most."""


def observed(at_s: float = NOW_S, document: dict[str, Any] | None = None, **layers: Any) -> Observation:
    """Return an observation; a layer is given by its class, or by class and latency."""
    members: dict[str, Any] = {}
    for name, given_layer in layers.items():
        result, latency_ms = given_layer if isinstance(given_layer, tuple) else (given_layer, None)
        members[name] = LayerResult(result=ResultClass(result), latency_ms=latency_ms)
    moment = datetime.fromtimestamp(at_s, UTC)
    if document is not None:
        members["readiness"] = LayerResult(
            result=ResultClass("stale_document" if "is_stale" in document else "ok")
        )
        members["document"] = ProbedDocument(status=HealthStatus.HEALTHY, timestamp=moment, **document)
    return Observation(agent_id="a", observed_at=moment, **members)


def slot(number: int, answer_ms: float | None = None, **counts: int) -> HistorySlot:
    spreads = {} if answer_ms is None else {ANSWER: Spread(answer_ms, answer_ms, answer_ms)}
    return HistorySlot(number, spreads=spreads, **counts)


def kept(*numbers: int) -> KeptHistory:
    """A history to which these half hours were added, each with one sign of life."""
    return reduce(added, (slot(number, alive=1) for number in numbers), KeptHistory())


def read(history: KeptHistory) -> History:
    return History(unpacked(history.half_hours), unpacked(history.days))


def about(value: float) -> Spread:
    """One value, as exactly as it is kept."""
    (back,) = unpacked(packed([slot(1, value)]))
    return back.spreads[ANSWER]


def numbers(slots: Any) -> list[int]:
    return [one.number for one in slots]


@st.composite
def spreads(draw: st.DrawFn) -> dict[Measure, Spread]:
    found = {}
    for measure in draw(st.lists(st.sampled_from(Measure), unique=True)):
        most = 1.0 if measure in RATIOS else 1e7
        low, mean, high = sorted(draw(st.tuples(*[st.floats(0, most)] * 3)))
        found[measure] = Spread(low, mean, high)
    return found


COUNTS = st.integers(0, 4095)
SLOTS = st.lists(
    st.builds(
        HistorySlot,
        st.integers(0, 64**4 - 1),
        alive=COUNTS,
        failed=COUNTS,
        inconclusive=COUNTS,
        spreads=spreads(),
    ),
    max_size=60,
    unique_by=lambda one: one.number,
).map(lambda slots: sorted(slots, key=lambda one: one.number))
# Forth by any steps, now and then back.
WAYS = st.lists(st.integers(-60, 400), min_size=1, max_size=80).map(
    lambda steps: reduce(lambda way, step: [*way, max(0, way[-1] + step)], steps, [NOW])
)


def test_half_hour_stores_minimum_mean_and_maximum() -> None:
    open_slot: OpenSlot | None = None
    for at, (ms, ratio) in enumerate([(100.0, 0.9), (400.0, 1.0), (130.0, 0.8)]):
        probe = observed(NOW_S + at, {"response_ratio": ratio, "latency_p99_ms": 900.0}, transport=("ok", ms))
        open_slot = add_observation(open_slot, probe, NOW_S + at)
    assert open_slot is not None
    held = closed(open_slot)
    assert (held.number, held.alive, held.failed, held.inconclusive) == (NOW, 3, 0, 0)
    assert held.spreads[ANSWER] == Spread(100.0, 210.0, 400.0)
    ratio_held = held.spreads[Measure.RESPONSE_RATIO]
    assert (ratio_held.low, ratio_held.high) == (0.8, 1.0)
    assert ratio_held.mean == pytest.approx(0.9)
    assert held.spreads[Measure.LATENCY_P99_MS] == Spread(900.0, 900.0, 900.0)
    assert held.spreads.keys() == {ANSWER, Measure.RESPONSE_RATIO, Measure.LATENCY_P99_MS}
    assert OpenSlot.model_validate_json(open_slot.model_dump_json(exclude_defaults=True)) == open_slot


@pytest.mark.parametrize(
    ("layers", "counted", "answer_ms"),
    [
        ({"discovery": ("ok", 9.0), "transport": ("ok", 20.0)}, "alive", 20.0),
        ({"transport": ("ok", 20.0), "message": ("ok", 3000.0)}, "alive", 3000.0),
        ({"transport": ("gated", 20.0)}, "alive", 20.0),
        ({"discovery": ("ok", 9.0)}, "alive", 9.0),
        # The card's answer is not the agent's, and an error is none.
        ({"discovery": ("ok", 9.0), "transport": ("timeout", None)}, "alive", None),
        ({"transport": ("http_error", 3.0)}, "failed", None),
        ({"transport": ("rate_limited", 3.0)}, "inconclusive", None),
        ({"discovery": ("not_measured", None)}, "inconclusive", None),
    ],
)
def test_each_probe_counts_once_and_only_answers_have_a_latency(
    layers: dict[str, Any], counted: str, answer_ms: float | None
) -> None:
    held = closed(add_observation(None, observed(**layers), NOW_S))
    counts = {name: getattr(held, name) for name in ("alive", "failed", "inconclusive")}
    assert counts == {"alive": 0, "failed": 0, "inconclusive": 0, counted: 1}
    assert held.spreads == ({} if answer_ms is None else {ANSWER: Spread(answer_ms, answer_ms, answer_ms)})


def test_stale_document_adds_nothing_to_the_history() -> None:
    stale = observed(document={"is_stale": True, "response_ratio": 1.0}, transport=("ok", 5.0))
    assert add_observation(None, stale, NOW_S).gathered.keys() == {ANSWER}


def test_history_contains_each_measure_of_a_document() -> None:
    members = {"response_ratio": 0.9, "error_ratio": 0.1, "latency_p50_ms": 10.0, "latency_p99_ms": 90.0}
    held = closed(add_observation(None, observed(document=members), NOW_S))
    assert {measure.value: one.mean for measure, one in held.spreads.items()} == members


def stored_slot(answer_ms: str) -> OpenSlot:
    return OpenSlot.model_validate_json(f'{{"number":1,"alive":2,"gathered":{{"answer_ms":{answer_ms}}}}}')


@pytest.mark.parametrize(
    "stored", ["[12.5,30.0,42.5,2]", '{"low":12.5,"high":30.0,"total":42.5,"count":2}'], ids=["now", "once"]
)
def test_former_format_of_a_half_hour_is_read(stored: str) -> None:
    slot = stored_slot(stored)
    assert slot.gathered[Measure.ANSWER_MS] == OpenMeasure(low=12.5, high=30.0, total=42.5, values=2)
    assert OpenSlot.model_validate_json(slot.model_dump_json()) == slot


@pytest.mark.parametrize(
    "stored", ["[1.0,2.0,3.0]", "[1.0,2.0,3.0,0]", "[-1.0,2.0,3.0,1]", "[1.0,2.0,3.0,1,4]", '{"low":1.0}']
)
def test_malformed_history_is_refused(stored: str) -> None:
    with pytest.raises(ValidationError):
        stored_slot(stored)


def test_the_next_half_hour_begins_with_the_first_probe_in_it() -> None:
    first = add_observation(None, observed(transport="ok"), NOW_S)
    same = add_observation(first, observed(transport="timeout"), NOW_S + 60)
    following = add_observation(same, observed(transport="ok"), NOW_S + HALF_HOUR_SECONDS)
    assert ended_slot(None, first) is None
    assert ended_slot(first, same) is None
    assert ended_slot(same, following) == same
    assert (following.number, following.alive, following.failed) == (NOW + 1, 1, 0)


def test_a_clock_that_was_set_back_ends_the_current_half_hour() -> None:
    first = add_observation(None, observed(transport="ok"), NOW_S)
    back = add_observation(first, observed(transport="ok"), NOW_S - 5 * HALF_HOUR_SECONDS)
    assert ended_slot(first, back) == first
    assert (back.number, back.alive) == (NOW - 5, 1)


@pytest.mark.parametrize("at_s", [-6e10, -1.0, 0.0, 1e12])
def test_any_time_has_a_storable_half_hour_number(at_s: float) -> None:
    held = closed(add_observation(None, observed(transport="ok"), at_s))
    assert unpacked(packed([held])) == (held,)


def test_period_without_probes_is_a_gap_instead_of_zero() -> None:
    history = read(kept(NOW - 9, NOW - 2, NOW))
    assert numbers(history.half_hours) == [NOW - 9, NOW - 2, NOW]


def test_half_hours_of_the_last_day_are_kept_and_days_of_the_last_month() -> None:
    history = read(kept(*range(NOW - 40 * HALF_HOURS_PER_DAY, NOW + 1)))
    assert numbers(history.half_hours) == list(range(NOW - HALF_HOURS_KEPT + 1, NOW + 1))
    assert numbers(history.days) == list(range(TODAY - DAYS_KEPT, TODAY))
    assert {day.alive for day in history.days} == {HALF_HOURS_PER_DAY}


def test_finished_day_is_summed_also_after_a_gap() -> None:
    history = kept(NOW, NOW + 3)
    assert history.days == ""
    later = read(added(history, slot(NOW + 20 * HALF_HOURS_PER_DAY, alive=1)))
    assert later.days == (HistorySlot(TODAY, alive=2),)


def test_a_day_weighs_each_half_hour_the_same() -> None:
    one, other = slot(NOW, 100.0, alive=60), slot(NOW + 1, 300.0, alive=1)
    assert summed(TODAY, [one, other]) == HistorySlot(
        TODAY, alive=61, spreads={ANSWER: Spread(100, 200, 300)}
    )


def test_records_of_the_same_half_hour_are_merged() -> None:
    history = added(added(KeptHistory(), slot(NOW, 100.0, alive=1)), slot(NOW, 300.0, failed=1))
    (both,) = read(history).half_hours
    assert (both.number, both.alive, both.failed) == (NOW, 1, 1)
    assert (both.spreads[ANSWER].low, both.spreads[ANSWER].high) == (about(100).low, about(300).low)
    assert both.spreads[ANSWER].mean == pytest.approx(200, rel=0.004)


MONTH = [*range(NOW - 31 * HALF_HOURS_PER_DAY, NOW + 1)]


@pytest.mark.parametrize("days_off", [-1_825, -40, -2, -1, 1, 2, 40, 1_825])
@pytest.mark.parametrize("wrong_half_hours", [1, 2])
def test_a_clock_that_is_wrong_for_an_hour_removes_no_history(days_off: int, wrong_half_hours: int) -> None:
    wrong = [NOW + days_off * HALF_HOURS_PER_DAY + at for at in range(wrong_half_hours)]
    before = shown(kept(*MONTH), None, NOW_S)
    history = kept(*MONTH, *wrong)
    after = shown(history, None, NOW_S)
    lost = before.half_hours[:wrong_half_hours]
    assert [slot for slot in before.half_hours if slot not in after.half_hours] in ([], lost)
    assert numbers(after.days) == numbers(before.days)
    assert after.days[-1].alive == before.days[-1].alive
    later = shown(added(history, slot(NOW + 1, alive=1)), None, NOW_S + HALF_HOUR_SECONDS)
    assert later.half_hours[-1].number == NOW + 1
    assert later.days[-1].alive == before.days[-1].alive + 1


def test_a_day_is_summed_again_if_its_probes_continue() -> None:
    history = kept(NOW, NOW + 500 * HALF_HOURS_PER_DAY, NOW, NOW + 1)
    (day,) = shown(history, None, NOW_S + HALF_HOUR_SECONDS).days
    assert (day.number, day.alive) == (TODAY, 3)


def test_a_day_without_its_first_half_hours_keeps_their_sum() -> None:
    yesterday = range((TODAY - 1) * HALF_HOURS_PER_DAY, TODAY * HALF_HOURS_PER_DAY)
    today = range(TODAY * HALF_HOURS_PER_DAY, (TODAY + 1) * HALF_HOURS_PER_DAY)
    history = read(kept(*yesterday, *today, yesterday[-1]))
    assert history.days == (HistorySlot(TODAY - 1, alive=HALF_HOURS_PER_DAY + 1), *history.days[1:])


def test_records_from_a_clock_that_was_ahead_are_replaced() -> None:
    ahead = kept(*(NOW + 500 * HALF_HOURS_PER_DAY + at for at in range(60)))
    assert shown(ahead, None, NOW_S) == History([], [])
    back = reduce(added, (slot(number, alive=1) for number in range(NOW, NOW + HALF_HOURS_KEPT)), ahead)
    assert numbers(read(back).half_hours) == list(range(NOW, NOW + HALF_HOURS_KEPT))


def test_current_slot_is_shown_and_old_slots_are_not() -> None:
    history = kept(*range(NOW - 3 * HALF_HOURS_PER_DAY, NOW))
    running = OpenSlot(number=NOW, alive=2, failed=1)
    view = shown(history, running, NOW_S)
    assert numbers(view.half_hours) == list(range(NOW - HALF_HOURS_KEPT + 1, NOW + 1))
    assert view.half_hours[-1] == closed(running)
    assert numbers(view.days) == [TODAY - 3, TODAY - 2, TODAY - 1, TODAY]
    assert view.days[-1] == day_of(TODAY, [*read(history).half_hours, closed(running)])
    later = shown(history, running, NOW_S + 2 * HALF_HOURS_PER_DAY * HALF_HOUR_SECONDS)
    assert later.half_hours == []
    assert numbers(later.days) == [TODAY - 3, TODAY - 2, TODAY - 1, TODAY]
    assert shown(history, running, NOW_S + 99 * 86_400) == History([], [])
    assert shown(KeptHistory(), None, NOW_S) == History([], [])


@given(way=WAYS)
def test_slots_are_limited_and_unique_for_any_clock(way: list[int]) -> None:
    stored = KeptHistory()
    for number in way:
        stored = added(stored, slot(number, alive=1))
        history = read(stored)
        assert (packed(history.half_hours), packed(history.days)) == (stored.half_hours, stored.days)
        assert history.half_hours[-1].number == number
        assert len(history.half_hours) <= HALF_HOURS_KEPT
        assert len(history.days) <= DAYS_KEPT
        view = shown(stored, OpenSlot(number=number), number * HALF_HOUR_SECONDS)
        assert len(view.half_hours) <= HALF_HOURS_KEPT
        assert len(view.days) <= DAYS_KEPT
        for slots in (view.half_hours, view.days):
            assert all(before.number < after.number for before, after in pairwise(slots))


@given(way=st.lists(st.integers(NOW - 100, NOW + 100), min_size=1, max_size=HALF_HOURS_KEPT))
def test_no_probe_of_the_last_half_hours_is_lost_for_any_clock(way: list[int]) -> None:
    view = shown(kept(*way), None, (NOW + 148) * HALF_HOUR_SECONDS)
    assert sum(day.alive for day in view.days) == len(way)


@given(steps=st.lists(st.integers(1, 40), min_size=1, max_size=60))
def test_going_forward_no_probe_is_lost_or_counted_twice(steps: list[int]) -> None:
    way = reduce(lambda way, step: [*way, way[-1] + step], steps, [NOW])
    history = read(kept(*way))
    today = way[-1] // HALF_HOURS_PER_DAY
    running = day_of(today, history.half_hours)
    days = [day for day in [*history.days, running] if day.number > today - DAYS_KEPT]
    for day in days:
        assert day.alive == sum(number // HALF_HOURS_PER_DAY == day.number for number in way)
    result = {day.number for day in days}
    assert result == {number // HALF_HOURS_PER_DAY for number in way} & set(
        range(today - DAYS_KEPT + 1, today + 1)
    )


@given(slots=SLOTS)
def test_packed_numbers_return_within_their_precision(slots: list[HistorySlot]) -> None:
    text = packed(slots)
    assert re.fullmatch("[0-9A-Za-z_-]*", text)
    assert json.loads(json.dumps(text)) == text
    assert len(text) <= SLOT_CHARACTERS * len(slots)
    back = unpacked(text)
    assert packed(back) == text
    for before, after in zip(slots, back, strict=True):
        assert (before.number, before.alive, before.failed, before.inconclusive) == (
            after.number, after.alive, after.failed, after.inconclusive,
        )  # fmt: skip
        assert before.spreads.keys() == after.spreads.keys()
        for measure, spread in after.spreads.items():
            assert spread.low <= spread.mean <= spread.high
            for name in ("low", "mean", "high"):
                was, now = getattr(before.spreads[measure], name), getattr(spread, name)
                if measure in RATIOS:
                    assert now == pytest.approx(was, abs=1 / 4000)
                    assert (now == 0) == (was == 0)
                    assert (now == 1) == (was == 1)
                elif was >= 0.01:
                    assert now == pytest.approx(was, rel=0.004)


def test_values_beyond_the_range_are_stored_as_its_end() -> None:
    far = HistorySlot(NOW, 5_000, 0, 0, {ANSWER: Spread(0.0, 1e-9, 9e15)})
    (back,) = unpacked(packed([far]))
    assert back.alive == 4_095
    kept_spread = back.spreads[ANSWER]
    assert (kept_spread.low, kept_spread.mean) == (0.0, 0.01)
    assert kept_spread.high == pytest.approx(1e9)


def test_a_slot_without_numbers_is_eleven_characters() -> None:
    assert packed([HistorySlot(1, 2, 3, 64)]) == "00010203100"
    assert unpacked("00010203100") == (HistorySlot(1, 2, 3, 64),)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("0000", "cut off"),
        ("0001010000000010100000", "occurs twice"),
        ("0001010000!", "no digit"),
        ("0001010000_", "an unknown measure"),
        ("00010100001", "cut off"),
        ("0001010000100000", "cut off"),
    ],
)
def test_malformed_packed_history_is_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        unpacked(text)


@given(text=st.text(alphabet="0123AZaz_-", max_size=120))
@example(text="0000000000200_000")
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        slots = unpacked(text)
    except ValueError:
        return
    assert packed(slots) == text
