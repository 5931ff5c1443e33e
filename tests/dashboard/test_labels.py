from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifesign.dashboard import labels
from lifesign.dashboard.labels import ProbeLabel, label_of_observed
from lifesign.dashboard.pages.history import _segments
from lifesign.domain.health.document import HealthStatus
from lifesign.domain.lifecycle.status_table import Status
from lifesign.domain.lifecycle.verdict import DecidingEvidence
from lifesign.domain.models.agents import AgentRecord, ObservedLayer, ObservedState
from lifesign.domain.models.targets import TargetSummary
from lifesign.domain.observation.assertion import AssertionOutcome, AssertionResult, Check
from lifesign.domain.observation.evidence_age import UnknownReason
from lifesign.domain.observation.results import ResultClass
from lifesign.domain.targets.target import TargetKind


def test_names_of_the_protocol_are_readable() -> None:
    assert labels.as_words("re_registered") == "re-registered"
    assert labels.as_words("drain_timeout") == "drain timeout"


SEEN = {
    ResultClass.OK: "answers",
    ResultClass.GATED: "gated",
    ResultClass.CREDENTIALS_REJECTED: "gated",
    ResultClass.TOKEN_ERROR: "gated",
    ResultClass.TIMEOUT: "down",
    ResultClass.REFUSED: "down",
    ResultClass.NOT_AN_AGENT: "down",
    ResultClass.STALE_DOCUMENT: "unknown",
    ResultClass.BLOCKED_ADDRESS: "unknown",
    ResultClass.RATE_LIMITED: "unknown",
    ResultClass.NOT_MEASURED: "unknown",
    None: "never probed",
}


@pytest.mark.parametrize(("result", "word"), SEEN.items())
def test_each_result_has_one_label(result: ResultClass | None, word: str) -> None:
    assert labels.label_of_result(result).word == word


def test_known_card_counts_although_it_was_not_read_again() -> None:
    def layer(result: ResultClass, hour: int) -> ObservedLayer:
        return ObservedLayer(result=result, reason="", observed_at=datetime(2026, 11, 22, hour, tzinfo=UTC))

    card, gate = layer(ResultClass.OK, 9), layer(ResultClass.GATED, 10)
    seen = ObservedState(failures_in_row=0, recent_interactions="", discovery=card, transport=gate)
    assert label_of_observed(seen) == ProbeLabel(
        "answers", "a card, an interface that requires credentials or payment"
    )
    lost = seen.model_copy(update={"discovery": layer(ResultClass.HTTP_ERROR, 9)})
    assert label_of_observed(lost).word == "gated"
    gone = seen.model_copy(update={"transport": layer(ResultClass.REFUSED, 10), "failures_in_row": 1})
    assert label_of_observed(gone).word == "down"


@pytest.mark.parametrize(
    ("outcome", "health", "is_by_assertions"),
    [
        (AssertionOutcome.ASSERTION_FAILED, HealthStatus.UNHEALTHY, True),
        (AssertionOutcome.ASSERTION_FAILED, HealthStatus.HEALTHY, False),
        (AssertionOutcome.OK, HealthStatus.UNHEALTHY, False),
    ],
)
def test_health_from_assertions_has_its_own_label(
    outcome: AssertionOutcome, health: HealthStatus, *, is_by_assertions: bool
) -> None:
    assertion = AssertionResult(of="message", check=Check.TEXT_CONTAINS, result=outcome, expected="OK")
    seen = ObservedState(failures_in_row=0, recent_interactions="", assertions=[assertion])
    assert labels.is_health_by_assertions(health, seen) is is_by_assertions
    assert not labels.is_health_by_assertions(health, None)


def test_labels_of_an_mcp_server_mention_no_card() -> None:
    layer = ObservedLayer(
        result=ResultClass.OK, reason="", observed_at=datetime(2026, 11, 22, 10, tzinfo=UTC)
    )
    seen = ObservedState(
        kind=TargetKind.MCP,
        failures_in_row=0,
        recent_interactions="",
        discovery=layer,
        transport=layer,
        paths={"/status": layer},
    )
    assert [name for name, _ in labels.observed_layers(seen)] == ["server", "endpoint", "/status"]
    assert "card" not in label_of_observed(seen).why.split()


def test_discounted_failure_is_shown_as_unknown() -> None:
    requested_at = datetime(2026, 11, 22, 10, tzinfo=UTC)
    absent = ObservedLayer(result=ResultClass.NOT_AN_AGENT, reason="HTTP 404", observed_at=requested_at)
    seen = ObservedState(failures_in_row=0, recent_interactions="", readiness=absent)
    label = label_of_observed(seen)
    assert (label.word, label.why.split("; ")[0]) == ("unknown", "HTTP 404")


def test_stale_document_is_the_reason_while_nothing_failed() -> None:
    requested_at = datetime(2026, 11, 22, 10, tzinfo=UTC)
    absent = ObservedLayer(result=ResultClass.NOT_AN_AGENT, reason="HTTP 404", observed_at=requested_at)
    stale = ObservedLayer(result=ResultClass.STALE_DOCUMENT, reason="too old", observed_at=requested_at)
    seen = ObservedState(failures_in_row=0, recent_interactions="", discovery=absent, readiness=stale)
    assert label_of_observed(seen) == labels.label_of_result(stale.result, stale.reason)
    failed = seen.model_copy(update={"failures_in_row": 1})
    assert label_of_observed(failed) == labels.label_of_result(absent.result, absent.reason)


def test_each_label_has_an_explanation() -> None:
    seen = {labels.label_of_result(result).word for result in [*ResultClass, None]}
    assert seen == {"answers", "gated", "down", "unknown", "never probed"}
    assert all(labels.meaning(word) for word in seen)


@given(st.text(), st.integers(min_value=1, max_value=50))
def test_foreign_text_stays_on_one_line(text: str, most: int) -> None:
    shown = labels.brief(text, most)
    assert len(shown) <= most
    assert shown.isprintable()


@given(st.text(), st.integers(min_value=1, max_value=50))
def test_foreign_multi_line_text_keeps_only_its_line_breaks(text: str, most: int) -> None:
    shown = labels.block(text, most)
    assert len(shown) <= most
    assert shown.replace("\n", "").isprintable()


def test_line_breaks_are_kept_in_a_block_and_joined_in_a_summary() -> None:
    assert labels.block("one\r\ntwo\n\nthree\x1b[2J") == "one\ntwo\n\nthree\ufffd[2J"
    assert labels.brief("one\r\ntwo\nthree") == "one two three"


@pytest.mark.parametrize(
    ("seconds", "message"),
    [
        (None, "\N{EN DASH}"),
        (0.2, "0 s"),
        (59, "59 s"),
        (61, "1 min 1 s"),
        (3_600, "1 h"),
        (90_061, "1 d 1 h"),
    ],
)
def test_time_spans_have_at_most_two_units(seconds: float | None, message: str) -> None:
    assert labels.duration_s(seconds) == message


@given(
    st.lists(st.tuples(st.floats(0, 200_000), st.sampled_from(["active", "unhealthy", "dead"])), max_size=30),
    st.floats(0, 200_000),
)
def test_status_strip_segments_are_adjacent_and_cover_its_width(
    changes: list[tuple[float, str]], began_s: float
) -> None:
    now_s = 200_000.0
    latest_first = sorted(changes, key=lambda change: -change[0])
    segments = _segments("active", latest_first, began_s, now_s)
    at = 0.0
    for segment in segments:
        assert segment.left == pytest.approx(at, abs=1e-6)
        assert segment.width >= 0
        at = segment.left + segment.width
    assert at == pytest.approx(100, abs=1e-6) or now_s - began_s < 1


def test_status_strip_shows_periods() -> None:
    strip = _segments("dead", [(75.0, "unhealthy"), (50.0, "active"), (0.0, "registering")], 0.0, 100.0)
    assert [(one.word, round(one.left), round(one.width)) for one in strip] == [
        ("active", 0, 50),
        ("unhealthy", 50, 25),
        ("dead", 75, 25),
    ]


MEASURED_AT = datetime(2026, 11, 22, 10, tzinfo=UTC)
NOW_S = MEASURED_AT.timestamp() + 3_600
ANSWERED = ObservedLayer(result=ResultClass.OK, reason="", observed_at=MEASURED_AT)
SEEN_ALIVE = ObservedState(failures_in_row=0, recent_interactions="", readiness=ANSWERED)


def agent(**members: Any) -> AgentRecord:
    """Return a record with the members that a label is made of."""
    return AgentRecord.model_construct(**members)


@pytest.mark.parametrize(
    ("observed", "unknown_reason", "word"),
    [
        (None, None, "never probed"),
        (None, UnknownReason.NO_PROBER, "never probed"),
        (SEEN_ALIVE, None, "answers"),
        (SEEN_ALIVE, UnknownReason.DOCUMENT_ENDED, "answers"),
        (SEEN_ALIVE, UnknownReason.NO_PROBER, "unknown"),
        (ObservedState(failures_in_row=0, recent_interactions=""), None, "never probed"),
    ],
)
def test_old_evidence_of_an_agent_is_unknown(
    observed: ObservedState | None, unknown_reason: UnknownReason | None, word: str
) -> None:
    shown = agent(observed=observed, unknown_reason=unknown_reason, evidence_at=MEASURED_AT)
    assert labels.agent_probe_label(shown, NOW_S).word == word


@pytest.mark.parametrize(
    ("result", "unknown_reason", "word"),
    [
        (None, UnknownReason.NOT_YET_PROBED, "never probed"),
        (ResultClass.REFUSED, None, "down"),
        (ResultClass.REFUSED, UnknownReason.NO_PROBER, "unknown"),
    ],
)
def test_old_evidence_of_a_target_is_unknown(
    result: ResultClass | None, unknown_reason: UnknownReason | None, word: str
) -> None:
    target = TargetSummary(
        target_id="tgt_1",
        url="https://a.example/",
        result=result,
        unknown_reason=unknown_reason,
        evidence_at=MEASURED_AT,
    )
    assert labels.target_probe_label(target, NOW_S).word == word


@pytest.mark.parametrize(
    ("members", "text"),
    [
        ({"current_explanation": "silent for 5 min", "explanation": "it registered"}, "silent for 5 min"),
        ({"explanation": "drained by ops", "reason": "drain_timeout"}, "drained by ops"),
        ({"explanation": "", "reason": "drain_timeout"}, "drain timeout"),
        ({"explanation": "re_registered", "reason": "re_registered"}, "re-registered"),
    ],
)
def test_present_state_of_an_agent_is_explained_before_its_last_change(
    members: dict[str, Any], text: str
) -> None:
    assert labels.agent_status_text(agent(**members)) == text


@pytest.mark.parametrize(
    ("members", "text"),
    [
        ({"failing_probes": 3}, "last 3 probes failed"),
        ({"is_unreachable": True, "status": Status.ACTIVE}, "interface fails"),
        ({"is_unreachable": True, "status": Status.DEAD}, ""),
        ({"is_unreachable": False, "status": Status.ACTIVE}, ""),
    ],
)
def test_active_agent_shows_what_fails(members: dict[str, Any], text: str) -> None:
    assert labels.failing_text(agent(**members)) == text


@pytest.mark.parametrize(
    ("monitoring", "observed", "remedy"),
    [
        (DecidingEvidence.HEARTBEAT, None, "monitoring both"),
        (DecidingEvidence.PROBE, None, "lifesign crawl --registry"),
        (DecidingEvidence.PROBE, SEEN_ALIVE, ""),
    ],
)
def test_unknown_health_document_has_a_remedy(
    monitoring: DecidingEvidence, observed: ObservedState | None, remedy: str
) -> None:
    text = labels.unread_reason(agent(monitoring=monitoring, observed=observed))
    assert remedy in text
    assert bool(text) is bool(remedy)


@pytest.mark.parametrize("at", [MEASURED_AT, MEASURED_AT.timestamp()])
def test_time_is_shown_in_utc_to_the_second(at: datetime | float) -> None:
    assert labels.moment_text(at) == "2026-11-22 10:00:00 UTC"


def test_missing_time_is_a_dash() -> None:
    assert labels.moment_text(None) == "\N{EN DASH}"
