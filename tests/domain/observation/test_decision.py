import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifesign.domain.health.document import HealthDocument, HealthStatus, Trend
from lifesign.domain.health.inspection import INSPECTION_KEY, StatusRule
from lifesign.domain.observation.decision import (
    ACTIONS,
    FAILURE_LIFETIME_SECONDS,
    MAX_RETRY_AFTER_SECONDS,
    RETRY_AFTER_SECONDS,
    Action,
    Decision,
    age_seconds,
    age_text,
    decide,
    decision_lifetime_seconds,
    is_stale,
    shown_ratio,
    stale_after_seconds,
)
from lifesign.domain.observation.results import ResultClass

NOW = datetime(2026, 7, 1, 12, 0, tzinfo=UTC)
WAS_READ = {ResultClass.OK, ResultClass.STALE_DOCUMENT}


def document_of(
    status: str,
    *,
    computed_at: datetime = NOW,
    ratio: float | None = None,
    samples: int = 1000,
    trend: str | None = None,
    last_healthy_at: datetime | None = None,
) -> HealthDocument:
    members: dict[str, Any] = {
        "schema_version": "0.1.0",
        "agent_id": "urn:agent",
        "timestamp": computed_at,
        "health": {"status": status},
    }
    if last_healthy_at is not None:
        members["health"]["last_healthy_at"] = last_healthy_at
    if ratio is not None:
        members["calibration"] = {
            "response_ratio": ratio,
            "measurement_window_seconds": 86400.0,
            "sample_count": samples,
        }
    if trend is not None:
        members["decay"] = {"calibration_trend": trend}
    return HealthDocument.model_validate(members)


def decide_on(status: str, **facts: Any) -> Decision:
    return decide(ResultClass.OK, document_of(status, **facts), now=NOW)


@pytest.mark.parametrize(
    ("status", "action"),
    [
        ("healthy", Action.PROCEED),
        ("degraded", Action.PROCEED_WITH_CAUTION),
        ("unhealthy", Action.AVOID),
        ("unknown", Action.PROCEED_AND_MONITOR),
    ],
)
def test_each_reported_status_has_the_action_of_the_draft(status: str, action: Action) -> None:
    decision = decide_on(status)
    assert (decision.action, decision.status) == (action, status)


def test_healthy_agent_is_described_with_its_response_ratio() -> None:
    decision = decide_on("healthy", ratio=0.99)
    assert "response ratio 0.99 over 1,000 requests within 1 d" in decision.reasons
    assert decision.retry_after_seconds is None


def test_degraded_agent_with_declining_trend_is_described_as_worsening() -> None:
    assert any("worsening" in reason for reason in decide_on("degraded", trend="declining").reasons)
    assert not any("worsening" in reason for reason in decide_on("degraded", trend="stable").reasons)


def test_improving_agent_is_described_as_recovering() -> None:
    assert any("recovering" in reason for reason in decide_on("degraded", trend="improving").reasons)


def test_unhealthy_agent_gets_a_retry_after_of_five_minutes() -> None:
    assert decide_on("unhealthy").retry_after_seconds == 300


def test_an_outage_is_measured_from_the_last_healthy_state() -> None:
    decision = decide_on("unhealthy", last_healthy_at=NOW - timedelta(hours=2, minutes=5))
    assert "last healthy 2 h 5 min ago" in decision.reasons


def test_an_unhealthy_agent_that_never_was_healthy_has_no_outage_to_measure() -> None:
    assert "the document does not say when the agent was last healthy" in decide_on("unhealthy").reasons


def test_few_samples_are_stated() -> None:
    assert "3 samples are too few for a verdict" in decide_on("unknown", ratio=1.0, samples=3).reasons


def with_inspection(value: Any) -> HealthDocument:
    members = document_of("unknown").model_dump(exclude_unset=True)
    return HealthDocument.model_validate(members | {"extensions": {INSPECTION_KEY: value}})


@pytest.mark.parametrize("rule", StatusRule)
def test_uninspected_answers_that_decide_are_reported(rule: StatusRule) -> None:
    value = {"rule": rule, "inspected": 3, "not_inspected": {"compressed": 20, "no_room": 1}}
    reasons = decide(ResultClass.OK, with_inspection(value), now=NOW).reasons
    is_named = "21 of 24 answers could not be inspected: 20 compressed, 1 no room" in reasons
    assert is_named == (rule in {StatusRule.FAILURES_SEEN, StatusRule.MOSTLY_NOT_INSPECTED})


@pytest.mark.parametrize(("tool_results", "shown"), [(12, 12), (0, 13)])
def test_tool_errors_that_decide_are_reported(tool_results: int, shown: int) -> None:
    value = {"rule": "mostly_tool_errors", "inspected": 13, "tool_results": tool_results}
    reasons = decide(ResultClass.OK, with_inspection(value), now=NOW).reasons
    assert f"most of {shown} tool results are errors" in reasons


@pytest.mark.parametrize("value", [None, 7, {}, {"rule": "evil"}, {"rule": ["ratio"]}, {"inspected": "x"}])
def test_malformed_inspection_extension_does_not_change_the_decision(value: Any) -> None:
    reasons = decide(ResultClass.OK, with_inspection(value), now=NOW).reasons
    (reason,) = reasons
    assert reason.split()[-1] == "unknown"


@pytest.mark.parametrize("result", sorted(set(ResultClass) - WAS_READ))
def test_a_failed_request_is_unknown_and_never_unhealthy(result: ResultClass) -> None:
    decision = decide(result, now=NOW, failure="shut")
    assert (decision.action, decision.status) == (Action.PROCEED_AND_MONITOR, HealthStatus.UNKNOWN)
    assert decision.reasons == ("shut",)


def test_failure_without_a_text_is_described_by_its_result_class() -> None:
    (reason,) = decide(ResultClass.TIMEOUT, now=NOW).reasons
    assert reason.endswith(": timeout")


@pytest.mark.parametrize(
    ("asked", "waited"), [(None, 300), (7, 7), (-5, 0), (10**9, MAX_RETRY_AFTER_SECONDS)]
)
def test_a_rate_limit_is_respected_within_a_day(asked: int | None, waited: int) -> None:
    decision = decide(ResultClass.RATE_LIMITED, now=NOW, retry_after_seconds=asked)
    assert decision.retry_after_seconds == waited


@pytest.mark.parametrize(
    ("age", "max_age", "stale"),
    [
        (900, None, False),
        (900.001, None, True),
        (900.001, 450, True),
        (1000, 500, False),
        (1000.5, 500, True),
        (7200, 86_400, False),  # a max-age counts up to one hour
        (7200.5, 86_400, True),
        (-300, None, False),
        (-300.001, None, True),
        (-300.001, 86_400, True),
    ],
)
def test_a_document_is_stale_beyond_fifteen_minutes_or_twice_its_max_age(
    age: float, max_age: float | None, *, stale: bool
) -> None:
    assert is_stale(age, max_age) is stale


def test_stale_document_gives_status_unknown() -> None:
    decision = decide_on("unhealthy", computed_at=NOW - timedelta(hours=3))
    assert decision.status is HealthStatus.UNKNOWN
    (reason,) = decision.reasons
    assert re.findall(r"\d+ \w+", reason) == ["3 h", "15 min"]


def test_document_from_the_future_gives_status_unknown() -> None:
    decision = decide_on("healthy", computed_at=NOW + timedelta(minutes=10))
    (reason,) = decision.reasons
    assert reason.endswith(" 10 min in the future")


def test_age_is_measured_across_time_zones() -> None:
    computed_at = datetime.fromisoformat("2026-07-01T13:59:30+02:00")
    assert age_seconds(document_of("healthy", computed_at=computed_at), NOW) == 30


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s old"),
        (300, "5 min old"),
        (-1.9, "0 s old"),
        (-2, "2 s in the future"),
        (-864_000, "10 d in the future"),
    ],
)
def test_document_from_the_future_has_no_age(seconds: float, text: str) -> None:
    assert age_text(seconds) == text


@pytest.mark.parametrize(
    ("ratio", "text"),
    [(1, "1"), (0, "0"), (0.95, "0.95"), (0.949999, "0.9499"), (0.57, "0.57"), (1 / 3, "0.3333")],
)
def test_a_ratio_is_never_rounded_over_a_threshold(ratio: float, text: str) -> None:
    assert shown_ratio(ratio) == text


moments = st.datetimes(timezones=st.just(UTC))
documents = st.builds(
    document_of,
    st.sampled_from(list(HealthStatus)),
    computed_at=moments,
    ratio=st.none() | st.floats(0, 1),
    samples=st.integers(0, 2**53 - 1),
    trend=st.none() | st.sampled_from(list(Trend)),
    last_healthy_at=st.none() | moments,
)


@given(
    result=st.sampled_from(list(ResultClass)),
    document=st.none() | documents,
    now=moments,
    max_age=st.none() | st.floats(0, allow_nan=False),
    failure=st.text(),
    retry_after=st.none() | st.integers(),
)
def test_decision_on_any_document_and_result_is_consistent(
    *,
    result: ResultClass,
    document: HealthDocument | None,
    now: datetime,
    max_age: float | None,
    failure: str,
    retry_after: int | None,
) -> None:
    decision = decide(
        result,
        document,
        now=now,
        max_age_seconds=max_age,
        failure=failure,
        retry_after_seconds=retry_after,
    )
    assert decision.action is ACTIONS[decision.status]
    assert decision.reasons
    assert all(decision.reasons)
    assert decision.retry_after_seconds is None or 0 <= decision.retry_after_seconds <= 86_400
    if decision.status is not HealthStatus.UNKNOWN:
        assert result is ResultClass.OK
        assert document is not None
        assert document.health.status is decision.status
        assert not is_stale(age_seconds(document, now), max_age)


# ── lifetime of a decision ──


@pytest.mark.parametrize(
    ("status", "age", "max_age", "lifetime"),
    [
        ("healthy", 0.0, None, 300),
        ("degraded", 0.0, 30.0, 300),
        ("unhealthy", 0.0, None, 300),
        ("healthy", -5.0, None, 300),
        ("healthy", 890.0, None, 10),
        ("healthy", 890.0, 1800.0, 300),
        ("healthy", 900.0, None, 0),
    ],
)
def test_decision_from_a_document_lasts_one_interval_but_not_longer_than_the_document_is_fresh(
    status: str, age: float, max_age: float | None, lifetime: float
) -> None:
    now = NOW + timedelta(seconds=age)
    decision = decide(ResultClass.OK, document_of(status), now=now, max_age_seconds=max_age)
    found = decision_lifetime_seconds(decision, ResultClass.OK, age_seconds=age, max_age_seconds=max_age)
    assert found == lifetime


@pytest.mark.parametrize(
    ("result", "retry_after", "lifetime"),
    [
        (ResultClass.TIMEOUT, None, 30),
        (ResultClass.REFUSED, None, 30),
        (ResultClass.HTTP_ERROR, 5, 30),
        (ResultClass.HTTP_ERROR, 120, 120),
        (ResultClass.NOT_AN_AGENT, None, 300),
        (ResultClass.INVALID_DOCUMENT, None, 300),
        (ResultClass.RATE_LIMITED, None, 300),
        (ResultClass.RATE_LIMITED, 10**9, 86_400),
    ],
)
def test_decision_without_a_document_lasts_as_long_as_its_cause(
    result: ResultClass, retry_after: int | None, lifetime: float
) -> None:
    decision = decide(result, now=NOW, retry_after_seconds=retry_after)
    assert decision_lifetime_seconds(decision, result) == lifetime


@given(
    result=st.sampled_from(list(ResultClass)),
    document=st.none() | documents,
    now=moments,
    max_age=st.none() | st.floats(0, allow_nan=False),
    retry_after=st.none() | st.integers(),
)
def test_lifetime_has_bounds_and_ends_before_the_document_is_stale(
    *,
    result: ResultClass,
    document: HealthDocument | None,
    now: datetime,
    max_age: float | None,
    retry_after: int | None,
) -> None:
    decision = decide(result, document, now=now, max_age_seconds=max_age, retry_after_seconds=retry_after)
    age = None if document is None else age_seconds(document, now)
    lifetime = decision_lifetime_seconds(decision, result, age_seconds=age, max_age_seconds=max_age)
    assert 0 <= lifetime <= MAX_RETRY_AFTER_SECONDS
    if decision.status is HealthStatus.UNKNOWN:
        assert lifetime >= max(FAILURE_LIFETIME_SECONDS, decision.retry_after_seconds or 0)
    else:
        assert lifetime <= RETRY_AFTER_SECONDS
        assert age is not None
        assert age + lifetime <= stale_after_seconds(max_age) + 1e-6
