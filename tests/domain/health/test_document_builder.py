import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from lifesign.domain.health.document import EXTENSION_PREFIX, HealthDocument
from lifesign.domain.health.document_builder import OperatorFacts, no_report, self_report
from lifesign.domain.health.document_reader import read_document
from lifesign.domain.health.inspection import Inspection
from lifesign.domain.health.latency_histogram import BIN_COUNT, bin_of
from lifesign.domain.health.outcome import SIDES, CountingProfile, Outcome
from lifesign.domain.health.rolling_window import WindowTotals

SCHEMA = json.loads((Path(__file__).parents[3] / "schemas" / "agent-health-0.1.0.schema.json").read_text())
VALIDATOR = Draft202012Validator(SCHEMA, format_checker=Draft202012Validator.FORMAT_CHECKER)
NOW = datetime(2026, 11, 20, 12, 0, 0, 123456, UTC)
DECLARED = OperatorFacts("urn:agent", 86_400, CountingProfile.INTERACTIONS, None, None, None)
A_MILLISECOND_NS = 1_000_000


def bins(counts: dict[int, int]) -> memoryview:
    """A bin array of so many latencies of so many nanoseconds."""
    lanes = memoryview(bytearray(8 * BIN_COUNT)).cast("Q")
    for latency_ns, count in counts.items():
        lanes[bin_of(latency_ns)] += count
    return lanes.cast("B")


def window(
    current: dict[Outcome, int] | None = None,
    previous: dict[Outcome, int] | None = None,
    latency_ns: int = A_MILLISECOND_NS,
    counting: CountingProfile = CountingProfile.INTERACTIONS,
    streams: int = 0,
) -> WindowTotals:
    """Totals as a recorder leaves them: a latency for each sample, a first byte for each stream."""
    totals = WindowTotals()
    for outcomes, counts in ((totals.current, current), (totals.previous, previous)):
        for outcome, count in (counts or {}).items():
            outcomes[outcome] = count
    sampled = sum(totals.current[outcome] for outcome, side in SIDES[counting].items() if side is not None)
    if sampled:
        totals.latencies.add(bins({latency_ns: sampled}))
    if streams:
        totals.first_bytes.add(bins({latency_ns: streams}))
    return totals


def inspect(totals: WindowTotals, *, previous: bool = False, **counts: int) -> WindowTotals:
    """Note how many answers were inspected, and why others were not."""
    for name, count in counts.items():
        (totals.previous_inspections if previous else totals.inspections)[Inspection[name]] = count
    return totals


def report(
    totals: WindowTotals,
    declared: OperatorFacts = DECLARED,
    last_healthy_at: datetime | None = None,
    uptime_seconds: float = 60,
) -> HealthDocument:
    return self_report(
        declared, totals, now=NOW, uptime_seconds=uptime_seconds, last_healthy_at=last_healthy_at
    )


def published(document: HealthDocument) -> dict[str, Any]:
    """Return the published document: validated against the schema, and read back without a finding."""
    raw = document.to_json()
    members: dict[str, Any] = json.loads(raw)
    VALIDATOR.validate(members)
    read, findings = read_document(raw)
    assert findings == ()
    assert read == document
    return members


# --- omitted members --------------------------------------------------------------------------------------


def test_agent_without_interactions_is_unknown() -> None:
    assert published(report(window())) == {
        "schema_version": "0.1.0",
        "agent_id": "urn:agent",
        "timestamp": "2026-11-20T12:00:00.123Z",
        "health": {"status": "unknown", "uptime_seconds": 60},
        "calibration": {"measurement_window_seconds": 86400, "sample_count": 0},
        "decay": {"calibration_trend": "stable", "days_since_model_change": None},
        "extensions": {
            EXTENSION_PREFIX + "counting": "interactions",
            EXTENSION_PREFIX + "outcomes": {},
            EXTENSION_PREFIX + "inspection": {"rule": "ratio", "inspected": 0},
        },
    }


def test_agent_with_all_facts_reports_all_of_them() -> None:
    changed_at, updated_at = NOW - timedelta(days=3, hours=23), NOW - timedelta(hours=1)
    declared = OperatorFacts("urn:agent", 300, CountingProfile.INTERACTIONS, 50, changed_at, updated_at)
    current = {Outcome.ANSWERED: 99, Outcome.RAISED: 1, Outcome.NOT_INSPECTED: 5}
    totals = window(current, {Outcome.RAISED: 10}, streams=7)
    inspect(totals, INSPECTED=90, COMPRESSED=3, OVERSIZED=2)
    document = published(report(totals, declared, NOW - timedelta(hours=1)))
    latency_ms = pytest.approx(1, rel=0.01)
    assert document["health"] == {
        "status": "healthy",
        "last_healthy_at": "2026-11-20T12:00:00.123Z",
        "uptime_seconds": 60,
    }
    assert document["calibration"] == {
        "response_ratio": 0.99,
        "error_ratio": 0.01,
        "latency_p50_ms": latency_ms,
        "latency_p99_ms": latency_ms,
        "measurement_window_seconds": 300,
        "sample_count": 100,
    }
    assert document["decay"] == {
        "calibration_trend": "improving",
        "days_since_model_change": 3,
        "last_capability_update": "2026-11-20T11:00:00.123Z",
    }
    assert document["extensions"] == {
        EXTENSION_PREFIX + "counting": "interactions",
        EXTENSION_PREFIX + "outcomes": {"answered": 99, "not_inspected": 5, "raised": 1},
        EXTENSION_PREFIX + "inspection": {
            "rule": "ratio",
            "inspected": 90,
            "not_inspected": {"compressed": 3, "oversized": 2},
        },
        EXTENSION_PREFIX + "first-byte": {"latency_p50_ms": latency_ms, "latency_p99_ms": latency_ms},
        EXTENSION_PREFIX + "baseline": {"latency_p99_ms": 50},
    }


def test_interactions_that_are_not_sampled_give_no_ratio_but_are_counted_apart() -> None:
    document = published(report(window({Outcome.ABANDONED: 20, Outcome.NOT_ADMITTED: 5})))
    assert document["calibration"] == {"measurement_window_seconds": 86400, "sample_count": 0}
    assert document["extensions"][EXTENSION_PREFIX + "outcomes"] == {"not_admitted": 5, "abandoned": 20}


def test_single_sample_gives_ratio_and_percentiles_with_status_unknown() -> None:
    document = published(report(window({Outcome.ANSWERED: 1})))
    assert document["health"]["status"] == "unknown"
    assert document["calibration"]["response_ratio"] == 1
    assert document["calibration"]["error_ratio"] == 0
    assert {"latency_p50_ms", "latency_p99_ms"} < document["calibration"].keys()


def test_latency_of_a_lost_sample_is_not_published() -> None:
    totals = window({Outcome.ABANDONED: 1})
    totals.latencies.add(bins({A_MILLISECOND_NS: 1}))
    assert published(report(totals))["calibration"] == {
        "measurement_window_seconds": 86400,
        "sample_count": 0,
    }


def test_document_of_a_failed_measurement_has_only_status_unknown() -> None:
    assert published(no_report("urn:agent", NOW)) == {
        "schema_version": "0.1.0",
        "agent_id": "urn:agent",
        "timestamp": "2026-11-20T12:00:00.123Z",
        "health": {"status": "unknown"},
    }


# --- status, ratios, latencies ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counting", "samples", "ratio"),
    [
        (CountingProfile.LITERAL, 40, 0.25),
        (CountingProfile.INTERACTIONS, 30, 1 / 3),
        (CountingProfile.SERVER_FAULTS, 20, 0.5),
    ],
)
def test_the_counting_profile_decides_what_is_sampled(
    counting: CountingProfile, samples: int, ratio: float
) -> None:
    counts = dict.fromkeys([Outcome.ANSWERED, Outcome.CALLER_FAULT, Outcome.NO_OPERATION, Outcome.RAISED], 10)
    document = published(report(window(counts, counting=counting), replace(DECLARED, counting=counting)))
    assert document["calibration"]["sample_count"] == samples
    assert document["calibration"]["response_ratio"] == pytest.approx(ratio, abs=1e-6)
    assert document["extensions"][EXTENSION_PREFIX + "counting"] == counting.value


@pytest.mark.parametrize(("latency_ms", "status"), [(290, "healthy"), (310, "degraded")])
def test_an_agent_that_is_slow_for_its_declared_baseline_is_degraded(latency_ms: int, status: str) -> None:
    totals = window({Outcome.ANSWERED: 100}, latency_ns=latency_ms * A_MILLISECOND_NS)
    assert published(report(totals))["health"]["status"] == "healthy"
    declared = replace(DECLARED, baseline_p99_ms=100)
    assert published(report(totals, declared))["health"]["status"] == status


@given(st.integers(0, 10**9), st.integers(0, 10**9))
@example(1, 2)
@example(999_999, 1)
@example(10**9, 1)
def test_the_two_ratios_add_up_to_exactly_one_as_they_are_published(responses: int, errors: int) -> None:
    raw = report(window({Outcome.ANSWERED: responses, Outcome.RAISED: errors})).to_json()
    calibration = json.loads(raw, parse_float=Decimal)["calibration"]
    if responses + errors:
        assert calibration["response_ratio"] + calibration["error_ratio"] == 1
        assert abs(calibration["response_ratio"] - Decimal(responses) / (responses + errors)) < Decimal(
            "1e-6"
        )
    else:
        assert not {"response_ratio", "error_ratio"} & calibration.keys()


@pytest.mark.parametrize(
    ("edge", "status"), [(500_000, "unhealthy"), (950_000, "degraded"), (1_000_000, "healthy")]
)
def test_published_ratio_just_below_a_threshold_agrees_with_the_status(edge: int, status: str) -> None:
    responses = 10 * edge - 1
    document = published(report(window({Outcome.ANSWERED: responses, Outcome.RAISED: 10**7 - responses})))
    assert document["health"]["status"] == status


# --- uninspected answers ----------------------------------------------------------------------------------


def calibrated(
    answered: int, failed: int, missing: int, inspected: int | None = None, **declared: Any
) -> tuple[str, float | None, str]:
    """The status, the ratio and the rule of a document, of which `missing` answers were not inspected."""
    counts = {Outcome.ANSWERED: answered, Outcome.SERVER_FAULT: failed, Outcome.NOT_INSPECTED: missing}
    totals = window(counts)
    inspect(totals, INSPECTED=answered + failed if inspected is None else inspected, OVERSIZED=missing)
    document = published(report(totals, replace(DECLARED, **declared)))
    calibration = document["calibration"]
    assert calibration["sample_count"] == answered + failed
    assert ("response_ratio" in calibration) == ("error_ratio" in calibration)
    rule = document["extensions"][EXTENSION_PREFIX + "inspection"]["rule"]
    return document["health"]["status"], calibration.get("response_ratio"), rule


@pytest.mark.parametrize(
    ("answered", "failed", "missing", "expected"),
    [
        # Exactly half is not more than half.
        (20, 0, 20, ("healthy", 1, "ratio")),
        (20, 0, 21, ("unknown", None, "mostly_not_inspected")),
        (19, 1, 20, ("healthy", 0.95, "ratio")),
        (18, 2, 20, ("degraded", 0.9, "ratio")),
        (5, 15, 20, ("unhealthy", 0.25, "ratio")),
        (0, 0, 100, ("unknown", None, "mostly_not_inspected")),
        # Too few samples say nothing, whatever was not inspected (draft 4.3).
        (0, 9, 100, ("unknown", None, "mostly_not_inspected")),
        (0, 9, 9, ("unknown", 0, "ratio")),
        # With all of them taken as good: (0 + 100) / 105 is good enough, (0 + 100) / 106 is not.
        (0, 10, 190, ("unknown", None, "mostly_not_inspected")),
        (0, 10, 189, ("degraded", None, "failures_seen")),
        (80, 20, 110, ("degraded", 0.8, "failures_seen")),
        (80, 20, 300, ("unknown", None, "mostly_not_inspected")),
    ],
)
def test_uninspected_answers_count_in_no_ratio(
    answered: int, failed: int, missing: int, expected: tuple[str, float | None, str]
) -> None:
    assert calibrated(answered, failed, missing) == expected


@pytest.mark.parametrize(
    ("failed", "missing", "expected"),
    [
        (100, 99, ("unhealthy", 0, "failures_seen")),
        (100, 100, ("degraded", None, "failures_seen")),
        (100, 1899, ("degraded", None, "failures_seen")),
        (100, 1900, ("unknown", None, "mostly_not_inspected")),
    ],
)
def test_failures_of_other_answers_decide_though_most_were_not_inspected(
    failed: int, missing: int, expected: tuple[str, float | None, str]
) -> None:
    """Such as 500s, which need no inspection."""
    assert calibrated(0, failed, missing, inspected=0) == expected


def test_slow_agent_with_mostly_uninspected_answers_is_unknown() -> None:
    assert calibrated(20, 0, 20, baseline_p99_ms=0.1)[0] == "degraded"
    assert calibrated(20, 0, 21, baseline_p99_ms=0.1)[0] == "unknown"


def test_document_states_that_inspection_is_off() -> None:
    counts = {Outcome.ANSWERED: 20}
    declared = replace(DECLARED, is_inspecting=False)
    extensions = published(report(window(counts), declared))["extensions"]
    assert extensions[EXTENSION_PREFIX + "inspection"] == {"rule": "http_status", "inspected": 0}
    # Inspections of another worker, or of an earlier run, still count.
    totals = inspect(window(counts | {Outcome.NOT_INSPECTED: 9}), INSPECTED=3, COMPLEX=9)
    extensions = published(report(totals, declared))["extensions"]
    assert extensions[EXTENSION_PREFIX + "inspection"]["rule"] == "mostly_not_inspected"


@pytest.mark.parametrize("when", ["current", "previous"])
def test_there_is_no_trend_where_ratios_are_left_out(when: str) -> None:
    good, bad = {Outcome.ANSWERED: 20}, {Outcome.ANSWERED: 20, Outcome.RAISED: 10}
    totals = window(bad, good)
    assert published(report(totals))["decay"]["calibration_trend"] == "declining"
    inspect(totals, previous=when == "previous", INSPECTED=20, OVERSIZED=500)
    assert published(report(totals))["decay"]["calibration_trend"] == "stable"


def test_trend_follows_the_ratio_of_failures_that_were_seen_before() -> None:
    totals = window({Outcome.ANSWERED: 20}, {Outcome.RAISED: 100})
    inspect(totals, previous=True, OVERSIZED=99)
    assert published(report(totals))["decay"]["calibration_trend"] == "improving"


def test_there_is_no_trend_after_a_window_of_mostly_tool_errors() -> None:
    declared = replace(DECLARED, counting=CountingProfile.SERVER_FAULTS)
    before = {Outcome.ANSWERED: 20, Outcome.TOOL_ERROR: 12}
    totals = window({Outcome.ANSWERED: 20, Outcome.RAISED: 10}, before, counting=declared.counting)
    for tool_results, trend in ((24, "declining"), (23, "stable")):
        inspect(totals, previous=True, INSPECTED=8, TOOL_RESULT=tool_results)
        assert published(report(totals, declared))["decay"]["calibration_trend"] == trend


# --- times ------------------------------------------------------------------------------------------------

HEALTHY = {Outcome.ANSWERED: 10}
FAILING = {Outcome.RAISED: 10}
EARLIER = NOW - timedelta(hours=2)


def test_healthy_agent_was_last_healthy_now() -> None:
    for before in (None, EARLIER, NOW + timedelta(days=1)):
        document = published(report(window(HEALTHY), last_healthy_at=before))
        assert document["health"]["last_healthy_at"] == document["timestamp"]


def test_unhealthy_agent_keeps_last_healthy_at() -> None:
    assert published(report(window(FAILING), last_healthy_at=EARLIER))["health"]["last_healthy_at"] == (
        "2026-11-20T10:00:00.123Z"
    )


def test_never_healthy_agent_has_no_last_healthy_at() -> None:
    assert "last_healthy_at" not in published(report(window(FAILING)))["health"]


def test_last_healthy_is_never_in_the_future_after_a_clock_setback() -> None:
    document = published(report(window(FAILING), last_healthy_at=NOW + timedelta(hours=1)))
    assert document["health"]["last_healthy_at"] == document["timestamp"]


@pytest.mark.parametrize(
    ("age", "days"),
    [
        (timedelta(0), 0),
        (timedelta(hours=23, minutes=59, seconds=59), 0),
        (timedelta(days=1), 1),
        (timedelta(days=2, microseconds=-1), 1),
        (timedelta(days=365), 365),
        (timedelta(hours=-30), 0),
    ],
)
def test_days_since_the_model_changed_are_whole_and_rounded_down(age: timedelta, days: int) -> None:
    declared = replace(DECLARED, model_changed_at=NOW - age)
    written = published(report(window(), declared))["decay"]["days_since_model_change"]
    assert (written, type(written)) == (days, int)


def test_times_of_any_zone_are_published_in_utc() -> None:
    tokyo = timezone(timedelta(hours=9))
    declared = replace(DECLARED, capabilities_updated_at=EARLIER.astimezone(tokyo), model_changed_at=EARLIER)
    document = published(report(window(), declared))
    assert document["decay"]["last_capability_update"] == "2026-11-20T10:00:00.123Z"


# --- every document ---------------------------------------------------------------------------------------

COUNTS = st.dictionaries(st.sampled_from(Outcome), st.integers(0, 10**9))
PAST = st.datetimes(datetime(2000, 1, 1), NOW.replace(tzinfo=None), timezones=st.just(UTC))  # noqa: DTZ001
DECLARATIONS = st.builds(
    OperatorFacts,
    agent_id=st.text(st.characters(categories=["L", "N", "P"]), min_size=1, max_size=30),
    window_seconds=st.floats(300, 604_800),
    counting=st.sampled_from(CountingProfile),
    baseline_p99_ms=st.none() | st.floats(0.001, 3_600_000),
    model_changed_at=st.none() | PAST,
    capabilities_updated_at=st.none() | PAST,
)


@given(
    declared=DECLARATIONS,
    current=COUNTS,
    previous=COUNTS,
    inspections=st.lists(st.integers(0, 10**9), min_size=len(Inspection), max_size=len(Inspection)),
    latency_ns=st.integers(0, 3_600_000 * A_MILLISECOND_NS),
    streams=st.integers(0, 10),
    last_healthy_at=st.none() | PAST,
    uptime_seconds=st.floats(0, 10**9),
)
def test_each_built_document_is_valid_and_has_no_findings(
    *,
    declared: OperatorFacts,
    current: dict[Outcome, int],
    previous: dict[Outcome, int],
    inspections: list[int],
    latency_ns: int,
    streams: int,
    last_healthy_at: datetime | None,
    uptime_seconds: float,
) -> None:
    totals = window(current, previous, latency_ns, declared.counting, streams)
    totals.inspections[:] = inspections
    document = published(report(totals, declared, last_healthy_at, uptime_seconds=uptime_seconds))
    assert document["health"].get("last_healthy_at", "") <= document["timestamp"]
    assert document["extensions"].keys() <= {
        EXTENSION_PREFIX + name for name in ("counting", "outcomes", "inspection", "first-byte", "baseline")
    }
    assert document["extensions"][EXTENSION_PREFIX + "outcomes"] == {
        outcome.name.lower(): count for outcome, count in current.items() if count
    }
