import re
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifesign.dashboard.plots.charts import NUMBERS, WIDTH, PlotSpan, spans
from lifesign.dashboard.plots.scales import HEIGHT
from lifesign.domain.lifecycle.agent_history import DAY_SECONDS, HALF_HOUR_SECONDS
from lifesign.domain.models.base import moment
from lifesign.domain.models.history import AgentHistory, SlotShown, SpreadShown

NOW_S = 1_782_900_900.0
"""In the middle of the half hour that began at 10:00 UTC."""


def spread(lowest: float, mean: float, highest: float) -> SpreadShown:
    return SpreadShown(lowest=lowest, mean=mean, highest=highest)


def flat(value: float) -> SpreadShown:
    return spread(value, value, value)


def slot(ago: int, alive: int = 6, failed: int = 0, unknown: int = 0, **measures: SpreadShown) -> SlotShown:
    """The half hour that began so many before the running one."""
    begin_s = (NOW_S // HALF_HOUR_SECONDS - ago) * HALF_HOUR_SECONDS
    return SlotShown(begins_at=moment(begin_s), alive=alive, failed=failed, inconclusive=unknown, **measures)


def day(ago: int, **measures: SpreadShown) -> SlotShown:
    begin_s = (NOW_S // DAY_SECONDS - ago) * DAY_SECONDS
    return SlotShown(begins_at=moment(begin_s), alive=9, failed=1, inconclusive=0, **measures)


def drawn(*half_hours: SlotShown, days: Sequence[SlotShown] = ()) -> list[PlotSpan]:
    return spans(AgentHistory(agent_id="a", half_hours=list(half_hours), days=list(days), notes=[]), NOW_S)


def starts(path: str) -> list[float]:
    """Return the start of each segment of a path."""
    return [float(x) for x in re.findall(r"M([0-9.]+) ", path)]


def test_empty_history_draws_nothing() -> None:
    assert drawn() == []
    assert [span.key for span in drawn(slot(1))] == ["day"]
    assert [span.key for span in drawn(days=[day(3)])] == ["month"]


def test_line_of_a_chart_is_interrupted_at_a_visible_gap() -> None:
    (span,) = drawn(*(slot(ago, answer_ms=flat(100)) for ago in (9, 8, 4, 3)))
    (latencies,) = [plot for plot in span.plots if plot.title == "Latency"]
    (line,) = latencies.lines
    assert starts(line.path) == [span.columns[0].left, span.columns[2].left]
    gaps = [(gap.left, gap.left + gap.width) for gap in span.gaps]
    assert {gap.word for gap in span.gaps} == {"never-probed"}
    assert len(gaps) == 3
    assert gaps[0][0] == 0
    assert gaps[1] == pytest.approx(
        (span.columns[1].left + span.columns[1].width, span.columns[2].left), abs=0.02
    )
    assert gaps[2][1] == WIDTH


def test_down_slot_has_no_latency_and_differs_from_a_gap() -> None:
    (span,) = drawn(slot(2, answer_ms=flat(50)), slot(1, alive=0, failed=6), slot(0, alive=0, unknown=2))
    assert [gap.word for gap in span.gaps] == ["never-probed", "down"]
    down, unknown = span.columns[1:]
    assert (down.alive, down.failed) == (0, 100)
    assert (unknown.alive, unknown.failed) == (0, 0)
    (line,) = span.plots[-1].lines
    assert len(starts(line.path)) == 1
    assert line.path.endswith(f"H{down.left:g}")
    assert span.alt_text == "Probes: 6 answered, 6 failed, 2 unknown"


def test_probe_results_are_one_area_per_class() -> None:
    (span,) = drawn(slot(4), slot(3), slot(2, 3, 3), slot(0, 0, 0, 1))
    begin, _, half, last = (f"{column.left:g}" for column in span.columns)
    end = f"{span.columns[2].left + span.columns[2].width:g}"
    assert {area.word: area.path for area in span.areas} == {
        "unknown": f"M{begin} 100V0H{end}V100ZM{last} 100V0H1000V100Z",
        "answers": f"M{begin} 100V0H{half}V50H{end}V100ZM{last} 100V100H1000V100Z",
        "down": f"M{begin} 0V0H{half}V50H{end}V0ZM{last} 0V0H1000V0Z",
    }
    (well,) = drawn(slot(1))
    assert [area.word for area in well.areas] == ["unknown", "answers"]


def test_observed_and_reported_ratio_are_drawn_together() -> None:
    (span,) = drawn(slot(1, 3, 3, response_ratio=flat(0.99)))
    (plot,) = span.plots
    assert [line.name for line in plot.lines] == ["probes answered", "requests answered (reported)"]
    assert [line.style for line in plot.lines] == ["observed", "reported"]
    assert "probes answered 50.0 % to 50.0 %, last 50.0 %" in plot.alt_text
    assert [mark.text for mark in plot.scale] == ["50 %", "75 %", "100 %"]


@pytest.mark.parametrize(("lowest", "bottom"), [(1.0, "99 %"), (0.97, "95 %"), (0.94, "90 %"), (0.2, "0 %")])
def test_ratio_axis_begins_near_the_lowest_value(lowest: float, bottom: str) -> None:
    (span,) = drawn(slot(1, response_ratio=flat(lowest)))
    assert span.plots[0].scale[0].text == bottom


def test_range_band_spans_minimum_to_maximum_and_is_absent_for_one_value() -> None:
    (span,) = drawn(
        slot(1, error_ratio=spread(0.0, 0.02, 0.1), answer_ms=flat(7)), slot(0, error_ratio=flat(0.05))
    )
    _, errors, latencies = span.plots
    assert errors.title == "Share of errors"
    (line,) = errors.lines
    assert line.band.endswith("Z")
    assert [mark.text for mark in errors.scale] == ["0 %", "5 %", "10 %"]
    assert latencies.lines[0].band == ""


def test_latency_axis_has_whole_decades() -> None:
    (span,) = drawn(slot(1, answer_ms=flat(30), latency_p99_ms=spread(900, 1_000, 40_000)))
    assert [mark.text for mark in span.plots[-1].scale] == ["10 ms", "100 ms", "1 s", "10 s", "100 s"]
    (wide,) = drawn(slot(1, answer_ms=flat(0), latency_p99_ms=flat(1e9)))
    assert len(wide.plots[-1].scale) <= 6


def test_chart_values_are_in_a_table_newest_first() -> None:
    (span,) = drawn(slot(1, answer_ms=spread(90, 100, 2_000)), slot(0, 0, 0, 1), days=[])
    last, first = span.rows
    assert first.numbers == ["100 ms (90 ms to 2,000 ms)", *["\N{EN DASH}"] * (len(NUMBERS) - 1)]
    assert (first.probes, last.probes) == ("6 answered", "1 unknown")
    assert last.when == moment(NOW_S // 1800 * 1800).strftime("%Y-%m-%d %H:%M")
    assert span.columns[0].alt_text == f"{first.when}: 6 answered"
    assert [tip.partition(": ")[2] for tip in span.plots[-1].tips] == [
        "probe latency 100 ms (90 ms to 2,000 ms)",
        "no such number",
    ]


def test_time_axis_labels_round_hours_and_each_seventh_day() -> None:
    day_span, month = drawn(slot(0), days=[day(0)])
    assert [tick.text for tick in day_span.ticks] == ["12:00", "18:00", "00:00", "06:00"]
    assert len(month.ticks) == 5
    today = moment(NOW_S)
    assert month.ticks[-1].text == f"{today:%b} {today.day}"


PLACES = st.integers(0, 48)
VALUES = st.tuples(*[st.floats(0, 1)] * 3).map(lambda values: spread(*sorted(values)))
LATENCIES = st.tuples(*[st.floats(0, 1e9)] * 3).map(lambda values: spread(*sorted(values)))


@given(
    slots=st.dictionaries(
        PLACES,
        st.fixed_dictionaries(
            {"alive": st.integers(0, 3), "failed": st.integers(0, 3), "unknown": st.integers(0, 3)},
            optional={
                "answer_ms": LATENCIES,
                "response_ratio": VALUES,
                "error_ratio": VALUES,
                "latency_p50_ms": LATENCIES,
                "latency_p99_ms": LATENCIES,
            },
        ),
        min_size=1,
    )
)
def test_any_measurement_is_drawn_within_the_plot(slots: dict[int, dict[str, object]]) -> None:
    (span,) = drawn(*(slot(ago, **slots[ago]) for ago in sorted(slots, reverse=True)))  # type: ignore[arg-type]
    assert len(span.rows) == len(slots)
    for column in span.columns:
        assert 0 <= column.left < column.left + column.width <= WIDTH
        assert 0 <= column.alive + column.failed <= 100.01
    for plot in span.plots:
        for line in plot.lines:
            for path in (line.path, line.band):
                heights = [float(y) for y in re.findall(r"(?:V|M[0-9.]+ )([0-9.-]+)", path)]
                assert all(0 <= y <= HEIGHT for y in heights)
                assert all(0 <= float(x) <= WIDTH for x in re.findall(r"[MH]([0-9.-]+)", path))
