"""Sums over many probes of one agent."""

from datetime import UTC, datetime
from functools import reduce
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.support.assertions import asserted

from lifesign.domain.common.clock_skew import is_in_future
from lifesign.domain.health.document import HealthStatus
from lifesign.domain.lifecycle.observed_facts import (
    MAX_IN_ROW,
    MAX_INTERACTIONS,
    Observed,
    current_health,
    evidence_of,
    excused,
    expected,
    fold,
    is_document_current,
    moved_back,
    observed_health,
    reported_health,
    with_document_age,
)
from lifesign.domain.observation.assertion import KeptFailure
from lifesign.domain.observation.evidence_age import Evidence, UnknownReason, shown_health, unknown_reason
from lifesign.domain.observation.login import Login, login_of
from lifesign.domain.observation.results import LayerResult, Observation, ProbedDocument, ResultClass
from lifesign.domain.probing.result_receipt import receipt_of
from lifesign.domain.targets.target import TargetKind

INTERVAL_S = 300.0
NOW_S = 1_782_900_000.0
LIFE: dict[str, Any] = {"transport": "ok"}
FAILURE: dict[str, Any] = {"discovery": "timeout", "transport": "refused"}
NOTHING: dict[str, Any] = {"discovery": "not_measured", "transport": "rate_limited"}


def moment(at_s: float) -> datetime:
    return datetime.fromtimestamp(at_s, UTC)


def document(status: str, computed_at_s: float, **members: Any) -> ProbedDocument:
    return ProbedDocument(status=HealthStatus(status), timestamp=moment(computed_at_s), **members)


def observed(at_s: float, **members: Any) -> Observation:
    """An observation, `at_s` seconds after NOW_S; a layer is given by its class."""
    for layer in ("discovery", "transport", "readiness", "message"):
        if layer in members:
            members[layer] = LayerResult(result=ResultClass(members[layer]))
    return Observation(agent_id="a", observed_at=moment(NOW_S + at_s), **members)


def read(at_s: float, status: str, computed_at_s: float | None = None, **members: Any) -> Observation:
    """Return an observation with this document; by default it was computed when it was read."""
    computed_at_s = at_s if computed_at_s is None else computed_at_s
    held = document(status, NOW_S + computed_at_s, **members)
    return observed(at_s, readiness="stale_document" if held.is_stale else "ok", document=held)


def taken(
    known: Observed | None, observation: Observation, at_s: float, since_s: float = NOW_S - 10**6
) -> Observed:
    """Fold an observation with this time, by the registry's clock, into the facts."""
    return fold(known, observation, receipt_of(at_s, INTERVAL_S, None), since_s)


def add_up(*observations: Observation) -> Observed:
    """Each one is received when it was made."""
    return reduce(lambda known, new: taken(known, new, new.observed_at.timestamp()), observations, Observed())


def test_observed_facts_are_empty_before_the_first_observation() -> None:
    for nothing in (None, Observed()):
        assert reported_health(nothing) is current_health(nothing, NOW_S) is HealthStatus.UNKNOWN
        assert evidence_of(nothing) == Evidence()


def test_observed_silence_is_the_sum_of_the_gaps_between_measured_results() -> None:
    alive = observed(0, **LIFE)
    failing = [observed(at, **FAILURE) for at in (300, 600, 900)]
    assert add_up(alive, *failing).silence_s == 900
    assert add_up(alive, *failing, observed(1200, **LIFE)).silence_s == 0
    # Unmeasured results end no gap; a gap counts for two intervals at most.
    gapped = [
        observed(300, **FAILURE),
        observed(600, **NOTHING),
        observed(10_800, **FAILURE),
        observed(11_100, **FAILURE),
    ]
    assert add_up(alive, *gapped).silence_s == 300 + 600 + 300


def test_a_document_that_is_stale_ends_no_silence() -> None:
    stale = read(300, "healthy", -5000, is_stale=True)
    assert (add_up(observed(0, **LIFE), stale).silence_s, add_up(stale).failures_in_row) == (300, 0)


@pytest.mark.parametrize(("registered_s", "silence_s"), [(0, 0), (100, 100), (600, 600), (10**6, 600)])
def test_an_agent_that_never_answered_is_silent_since_its_registration(
    registered_s: float, silence_s: float
) -> None:
    first = taken(None, observed(0, **FAILURE), NOW_S, NOW_S - registered_s)
    assert first.silence_s == silence_s
    second = taken(first, observed(300, **FAILURE), NOW_S + 300, NOW_S - registered_s)
    assert second.silence_s == silence_s + 300


def test_evidence_counts_for_three_intervals_after_the_last_measured_result() -> None:
    known = add_up(observed(0, **LIFE), observed(300, **NOTHING))
    assert known.measured_at_s == NOW_S
    evidence = evidence_of(known)
    assert (evidence.at_s, evidence.until_s, evidence.results_until_s) == (NOW_S, NOW_S + 900, NOW_S + 1200)
    reasons = [unknown_reason(evidence, NOW_S + later_s) for later_s in (900, 900.1, 1200, 1200.1)]
    assert reasons == [None, UnknownReason.NOT_PROBED, UnknownReason.NOT_PROBED, UnknownReason.NO_PROBER]


def test_unknown_health_has_the_reason_of_the_last_result() -> None:
    failed = observed(600, **NOTHING).model_copy(update={"inconclusive_reason": "no_witness"})
    known = add_up(observed(0, **LIFE), failed)
    assert unknown_reason(evidence_of(known), NOW_S + 1000) is UnknownReason.NO_WITNESS
    # For an agent without any measurement there is no evidence.
    never = evidence_of(add_up(failed))
    assert never.at_s is None
    assert unknown_reason(never, NOW_S + 600.1) is UnknownReason.NO_WITNESS


def test_an_agent_that_waits_for_its_first_probe_is_unknown_until_a_prober_is_missed() -> None:
    waiting = evidence_of(expected(NOW_S, 900))
    assert unknown_reason(waiting, NOW_S + 900) is UnknownReason.NOT_YET_PROBED
    assert unknown_reason(waiting, NOW_S + 900.1) is UnknownReason.NO_PROBER


def test_failures_in_a_row_are_counted_until_the_next_liveness_signal() -> None:
    failing = [observed(at, **FAILURE) for at in (0, 300, 600)]
    assert add_up(*failing).failures_in_row == 3
    assert add_up(*failing).last_liveness_signal_at_s is None
    revived = add_up(*failing, observed(900, **LIFE))
    assert (revived.failures_in_row, revived.last_liveness_signal_at_s) == (0, NOW_S + 900)


@pytest.mark.parametrize(
    "card", ["redirect_refused", "blocked_address", "rate_limited", "not_measured", "gated"]
)
def test_missing_document_is_no_failure_while_the_card_is_unmeasured(card: str) -> None:
    held_back = [observed(at, discovery=card, readiness="not_an_agent") for at in (0, 300, 600, 900)]
    assert add_up(*held_back).failures_in_row == 0
    assert add_up(observed(-300, **FAILURE), *held_back).failures_in_row == 1


def test_period_alive_begins_with_a_signal_and_ends_with_a_failure() -> None:
    alive = [observed(0, **LIFE), observed(30, **LIFE), observed(60, **LIFE)]
    assert add_up(*alive).alive_since_s == NOW_S
    broken = [*alive, observed(90, **FAILURE)]
    assert add_up(*broken).alive_since_s is None
    assert add_up(*broken).last_liveness_signal_at_s == NOW_S + 60
    assert add_up(*broken, observed(120, **LIFE)).alive_since_s == NOW_S + 120


def test_unmeasured_probe_changes_only_times_and_counts() -> None:
    known = add_up(observed(0, **LIFE), observed(300, **FAILURE))
    after = taken(known, observed(600, **NOTHING), NOW_S + 600)
    assert after.slot is not None
    assert (after.slot.alive, after.slot.failed, after.slot.inconclusive) == (1, 1, 1)
    changed = {
        "last_observed_at_s": NOW_S + 600,
        "results_until_s": NOW_S + 1500,
        "inconclusive_reason": "not_probed",
        "slot": after.slot,
    }
    assert after == known.model_copy(update=changed)


def test_each_layer_keeps_its_last_result_with_its_evidence() -> None:
    known = add_up(observed(0, discovery="ok", transport="refused"), observed(300, transport="gated"))
    assert known.discovery is not None
    assert known.transport is not None
    assert (known.discovery.layer.result, known.discovery.observed_at_s) == (ResultClass.OK, NOW_S)
    assert (known.transport.layer.result, known.transport.observed_at_s) == (ResultClass.GATED, NOW_S + 300)
    assert known.readiness is None


def test_time_never_runs_backwards_from_one_result_to_the_next() -> None:
    """A batch may have been on its way for longer than the one after it."""
    known = add_up(observed(0, **LIFE), observed(300, **FAILURE))
    after = taken(known, observed(600, **LIFE), NOW_S + 200)
    assert after.last_observed_at_s == after.measured_at_s == after.last_liveness_signal_at_s == NOW_S + 300


@pytest.mark.parametrize(
    ("layers", "remembered"),
    [
        ({"transport": "ok"}, "1"),
        ({"transport": "gated"}, "1"),
        ({"transport": "token_error", "message": "token_error"}, "1"),
        ({"transport": "timeout"}, "0"),
        ({"transport": "rate_limited"}, ""),
        ({"transport": "ok", "message": "http_error"}, "0"),
        ({"transport": "timeout", "message": "ok"}, "1"),
        ({"transport": "ok", "message": "rate_limited"}, ""),
        ({"discovery": "timeout"}, ""),
        ({}, ""),
    ],
)
def test_observation_counts_as_at_most_one_interaction(layers: dict[str, Any], remembered: str) -> None:
    assert add_up(observed(0, **layers)).recent_interactions == remembered


@pytest.mark.parametrize(
    ("result", "status_code", "others", "remembered"),
    [
        # Many routers answer so to a GET at a path that accepts only POST.
        ("not_an_agent", 404, {}, ""),
        ("not_an_agent", 410, {}, ""),
        ("ok", 404, {}, "1"),
        ("not_an_agent", 404, {"kind": TargetKind.MCP}, "0"),
        ("not_an_agent", 404, {"message": "http_error"}, "0"),
        ("not_an_agent", 200, {}, "0"),
    ],
)
def test_absent_interface_is_no_interaction_because_it_may_accept_only_post(
    result: str, status_code: int, others: dict[str, Any], remembered: str
) -> None:
    seen = observed(0, transport=result, **others)
    transport = LayerResult(result=ResultClass(result), status_code=status_code)
    seen = seen.model_copy(update={"transport": transport})
    assert add_up(seen).recent_interactions == remembered


def test_the_last_twenty_interactions_are_remembered() -> None:
    served = [observed(at, discovery="ok", transport="refused" if at < 5 else "ok") for at in range(23)]
    assert add_up(*served).recent_interactions == "00" + 18 * "1"


def test_long_silence_does_not_add_failed_interactions() -> None:
    away = [observed(at, **FAILURE) for at in range(9)]
    assert add_up(*away, observed(10, **LIFE)).recent_interactions == "001"
    flapping = [observed(at, **(LIFE if at % 3 == 2 else FAILURE)) for at in range(9)]
    assert add_up(*flapping).recent_interactions == "001001001"


def test_two_unhealthy_documents_are_two_only_if_computed_at_different_times() -> None:
    same = [read(0, "unhealthy", 0), read(300, "unhealthy", 0)]
    assert add_up(*same).unhealthy_documents_in_row == 1
    assert add_up(*same, read(360, "unhealthy", 360)).unhealthy_documents_in_row == 2


@pytest.mark.parametrize("status", ["healthy", "degraded", "unknown"])
def test_document_of_another_status_resets_the_unhealthy_count(status: str) -> None:
    known = add_up(read(0, "unhealthy"), read(300, "unhealthy"), read(600, status))
    assert (known.unhealthy_documents_in_row, known.last_unhealthy_timestamp_s) == (0, None)


@pytest.mark.parametrize("status", ["healthy", "unhealthy"])
def test_stale_document_does_not_change_the_unhealthy_count(status: str) -> None:
    first = read(0, "unhealthy", 0)
    stale = read(300, status, -5000, is_stale=True)
    assert add_up(first, stale).unhealthy_documents_in_row == 1
    assert add_up(first, stale, read(600, "unhealthy", 0)).unhealthy_documents_in_row == 1


def test_unreadable_document_keeps_the_last_document() -> None:
    known = add_up(read(0, "unhealthy"), observed(300, readiness="timeout"))
    assert reported_health(known) is HealthStatus.UNHEALTHY
    assert evidence_of(known).health_until_s == NOW_S + 900
    assert known.unhealthy_documents_in_row == 1


def test_health_is_unknown_once_the_document_is_stale() -> None:
    known = add_up(read(0, "degraded", -100))
    assert current_health(known, NOW_S + 800) is HealthStatus.DEGRADED
    assert current_health(known, NOW_S + 800.1) is HealthStatus.UNKNOWN
    assert reported_health(known) is HealthStatus.DEGRADED, "the passage of time changed a stored value"
    later = taken(known, observed(900, **LIFE), NOW_S + 900)
    assert reported_health(later) is HealthStatus.UNKNOWN


def test_document_with_a_long_max_age_expires_with_the_evidence() -> None:
    known = add_up(read(0, "healthy", -100, max_age_s=1800))
    assert known.document is not None
    assert known.document.fresh_until_s == NOW_S + 3500
    assert evidence_of(known).health_until_s == NOW_S + 900
    assert current_health(known, NOW_S + 900.1) is HealthStatus.UNKNOWN
    again = taken(known, observed(900, **LIFE), NOW_S + 900)
    assert current_health(again, NOW_S + 1800) is HealthStatus.HEALTHY


def test_measured_failures_leave_unknown_health_unknown() -> None:
    """Three intervals pass without a result, then the agent fails with a witness."""
    known = add_up(read(0, "healthy", max_age_s=3600))
    assert current_health(known, NOW_S + 1000) is HealthStatus.UNKNOWN
    failed = taken(known, observed(1000, **FAILURE), NOW_S + 1000)
    assert unknown_reason(evidence_of(failed), NOW_S + 1000) is None
    assert evidence_of(failed).health_until_s == NOW_S + 900
    assert shown_health(HealthStatus.HEALTHY, evidence_of(failed), NOW_S + 1000) == (
        HealthStatus.UNKNOWN,
        UnknownReason.DOCUMENT_ENDED,
    )
    assert reported_health(failed) is HealthStatus.UNKNOWN
    assert not is_document_current(failed, NOW_S + 1000)


def test_health_becomes_unknown_three_intervals_after_the_last_liveness_signal() -> None:
    known = add_up(
        read(0, "healthy", max_age_s=3600), *(observed(at_s, **FAILURE) for at_s in (300, 600, 900))
    )
    assert current_health(known, NOW_S + 900) is HealthStatus.HEALTHY
    assert current_health(known, NOW_S + 900.1) is HealthStatus.UNKNOWN


def test_an_outage_of_the_prober_changes_no_stored_health() -> None:
    known = add_up(read(0, "healthy", max_age_s=3600), observed(1000, **NOTHING))
    assert reported_health(known) is HealthStatus.HEALTHY
    assert current_health(known, NOW_S + 1000) is HealthStatus.UNKNOWN


@pytest.mark.parametrize("computed_at_s", [-5000, 5000])
def test_document_that_was_stale_when_fetched_gives_unknown_health(computed_at_s: float) -> None:
    known = add_up(read(0, "healthy", computed_at_s, is_stale=True))
    assert current_health(known, NOW_S) is reported_health(known) is HealthStatus.UNKNOWN


def test_wrong_clock_of_an_agent_does_not_age_its_documents() -> None:
    # Ten minutes behind ours; by the answer's own `Date` the document is five seconds old.
    known = add_up(read(0, "healthy", -605, age_s=5))
    assert evidence_of(known).health_until_s == NOW_S + 895


def test_a_document_from_the_near_future_stays_fresh_no_longer_than_a_new_one() -> None:
    assert evidence_of(add_up(read(0, "healthy", 250))).health_until_s == NOW_S + 900


@pytest.mark.parametrize("offset_s", [-3600, 3600])
def test_document_without_a_date_is_aged_by_our_clock(offset_s: float) -> None:
    """The prober's clock is wrong by an hour; the document was computed when it was read."""
    result = read(offset_s, "healthy", 0, is_stale=True)
    observation = with_document_age(result, NOW_S)
    assert observation.readiness is not None
    assert observation.readiness.result is ResultClass.OK
    known = taken(None, observation, NOW_S)
    assert current_health(known, NOW_S) is HealthStatus.HEALTHY
    assert evidence_of(known).health_until_s == NOW_S + 900


def test_document_fresh_for_its_prober_can_be_stale_by_the_registrys_clock() -> None:
    observation = with_document_age(read(-3600, "healthy", -3600), NOW_S)
    assert (observation.result, observation.is_liveness_signal) == (ResultClass.STALE_DOCUMENT, False)
    # A running agent stays alive if the registry's clock is wrong.
    renewed = with_document_age(read(-3600, "healthy", -3600, is_renewed=True), NOW_S)
    assert (renewed.result, renewed.is_liveness_signal) == (ResultClass.STALE_DOCUMENT, True)
    dated = read(-3600, "healthy", -3600, age_s=0.5)
    assert with_document_age(dated, NOW_S) is dated


def test_document_is_stored_with_its_claims() -> None:
    held = add_up(read(0, "healthy", -3, response_ratio=0.97, sample_count=40, latency_p99_ms=12.5)).document
    assert held is not None
    assert (held.timestamp_s, held.observed_at_s) == (NOW_S - 3, NOW_S)
    assert (held.response_ratio, held.sample_count, held.latency_p99_ms) == (0.97, 40, 12.5)


def test_reported_agent_id_stays_until_it_changes() -> None:
    named = observed(0, reported_agent_id="urn:one")
    assert add_up(named, observed(1, **LIFE)).reported_agent_id == "urn:one"
    assert add_up(named, observed(1, reported_agent_id="urn:two")).reported_agent_id == "urn:two"


def test_consecutive_counts_stop_at_their_limit() -> None:
    known = Observed(failures_in_row=MAX_IN_ROW, unhealthy_documents_in_row=MAX_IN_ROW)
    assert taken(known, observed(0, **FAILURE), NOW_S).failures_in_row == MAX_IN_ROW
    assert taken(known, read(0, "unhealthy"), NOW_S).unhealthy_documents_in_row == MAX_IN_ROW


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        '{"surprise": 1}',
        '{"failures_in_row": -1}',
        '{"recent_interactions": "012"}',
        '{"recent_interactions": "%s"}' % ("1" * 21),
        '{"last_observed_at_s": NaN}',
    ],
)
def test_foreign_stored_facts_are_refused(text: str) -> None:
    with pytest.raises(ValidationError):
        Observed.from_json(text)


results = st.none() | st.sampled_from(sorted(set(ResultClass) - {ResultClass.STALE_DOCUMENT}))


@st.composite
def observations(draw: st.DrawFn) -> Observation:
    at_s = draw(st.integers(-2000, 2000))
    layers = {name: draw(results) for name in ("discovery", "transport", "message")}
    members: dict[str, Any] = {name: result for name, result in layers.items() if result is not None}
    if draw(st.booleans()):
        is_stale = draw(st.booleans())
        members["readiness"] = "stale_document" if is_stale else "ok"
        members["document"] = document(
            draw(st.sampled_from(list(HealthStatus))), NOW_S + draw(st.integers(-5, 5)), is_stale=is_stale
        )
    return observed(at_s, **members)


histories = st.lists(st.tuples(observations(), st.integers(-2000, 2000)), max_size=40)


@given(histories)
def test_facts_are_consistent_in_any_order(
    history: list[tuple[Observation, int]],
) -> None:
    known = Observed()
    for observation, received in history:
        after = taken(known, observation, NOW_S + received)
        assert after.last_observed_at_s is not None
        was_clock_set_back = is_in_future(known.last_observed_at_s or 0, NOW_S + received)
        if was_clock_set_back:
            known = Observed()
            continue
        assert after.last_observed_at_s >= (known.last_observed_at_s or -1)
        assert (after.silence_s == 0) or not observation.is_liveness_signal
        assert after.silence_s - known.silence_s <= 2 * INTERVAL_S
        assert (after.last_liveness_signal_at_s or -1) >= (known.last_liveness_signal_at_s or -1)
        known = after
        if known.alive_since_s is not None:
            assert known.last_liveness_signal_at_s is not None
            assert known.alive_since_s <= known.last_liveness_signal_at_s
            assert known.failures_in_row == 0
        assert (known.unhealthy_documents_in_row == 0) is (known.last_unhealthy_timestamp_s is None)
        assert len(known.recent_interactions) <= MAX_INTERACTIONS
        assert Observed.from_json(known.to_json()) == known


@given(histories, st.integers(0, 5000))
def test_health_holds_until_the_moment_that_is_stored(
    history: list[tuple[Observation, int]], later: int
) -> None:
    known = reduce(lambda known, step: taken(known, step[0], NOW_S + step[1]), history, Observed())
    if reported_health(known) is HealthStatus.UNKNOWN:
        return
    until_s, last_s = evidence_of(known).health_until_s, known.last_observed_at_s
    assert until_s is not None
    assert last_s is not None
    is_over = last_s + later > until_s
    expected_status = HealthStatus.UNKNOWN if is_over else reported_health(known)
    assert current_health(known, last_s + later) is expected_status


def test_future_times_are_corrected_once_after_the_clock_was_set_back() -> None:
    known = add_up(read(0, "healthy"))
    back = moved_back(known, -3600, NOW_S - 3600)
    assert back.last_observed_at_s == back.measured_at_s == back.last_liveness_signal_at_s == NOW_S - 3600
    assert back.evidence_until_s == back.results_until_s == back.liveness_until_s == NOW_S - 2700
    assert back.slot == known.slot
    assert current_health(back, NOW_S - 3600) is HealthStatus.HEALTHY
    assert current_health(back, NOW_S - 2699) is HealthStatus.UNKNOWN
    assert moved_back(back, -3600, NOW_S - 3600) == back


def test_failures_before_the_end_of_a_decision_of_an_operator_are_excused() -> None:
    known = add_up(observed(0, **LIFE), *(observed(at, **FAILURE) for at in (300, 600)))
    receipt = receipt_of(NOW_S + 900, INTERVAL_S, None)
    known = fold(known, observed(900, **FAILURE), receipt, NOW_S, is_excused=True)
    assert (known.failures_in_row, known.silence_s) == (3, 900)
    assert (known.counted_failures, known.counted_silence_s) == (0, 0)
    known = taken(known, observed(1200, **FAILURE), NOW_S + 1200)
    assert (known.failures_in_row, known.counted_failures, known.counted_silence_s) == (4, 1, 300)
    known = taken(known, observed(1500, **LIFE), NOW_S + 1500)
    assert (known.excused_failures, known.excused_silence_s) == (0, 0)


def test_failures_after_an_excuse_count_at_the_limit_of_consecutive_failures() -> None:
    known = excused(Observed(failures_in_row=MAX_IN_ROW, measured_at_s=NOW_S))
    for number in range(1, 4):
        known = taken(known, observed(300 * number, **FAILURE), NOW_S + 300 * number)
        assert (known.failures_in_row, known.counted_failures) == (MAX_IN_ROW, number)


@pytest.mark.parametrize("check", ["text_contains", "latency_below", "certificate_days", "status"])
def test_failed_assertions_are_counted_by_probe_until_one_passes_all(check: str) -> None:
    name = (
        "failed_limits_in_row"
        if check in {"latency_below", "certificate_days"}
        else "failed_assertions_in_row"
    )
    other = "status" if name == "failed_limits_in_row" else "latency_below"
    rows = []
    known = Observed()
    results = ["assertion_failed", "not_measured", "assertion_failed", "ok", "assertion_failed"]
    for number, result in enumerate(results):
        given = (asserted(result, check), asserted("ok", other))
        known = taken(known, observed(number, transport="ok", assertions=given), NOW_S + number)
        # A result without a measurement keeps the failure before it.
        assert known.assertions[0].result == ("assertion_failed" if number == 1 else result)
        rows.append(getattr(known, name))
    assert rows == [1, 1, 2, 0, 1]
    assert Observed.from_json(known.to_json()) == known


def test_login_is_kept_until_the_interface_answers_without_one() -> None:
    login = login_of(["Bearer"], ())
    probes: list[tuple[dict[str, Any], Login | None]] = [
        ({"transport": "gated", "login": login}, login),
        ({"discovery": "ok"}, login),
        ({"transport": "timeout"}, login),
        ({"transport": "ok"}, None),
    ]
    known = Observed()
    for number, (members, expected_login) in enumerate(probes):
        known = taken(known, observed(number, **members), NOW_S + number)
        assert known.login == expected_login
        assert Observed.from_json(known.to_json()) == known


def test_unmeasured_assertion_does_not_delay_the_recovery_of_others() -> None:
    known = Observed()
    rows = []
    for number, result in enumerate(["assertion_failed", "assertion_failed", "ok"]):
        given = (asserted(result, "latency_below"), asserted("not_measured", "certificate_days"))
        known = taken(known, observed(number, transport="ok", assertions=given), NOW_S + number)
        rows.append(known.failed_limits_in_row)
    assert rows == [1, 2, 0]


def test_failure_of_another_assertion_remains_until_that_assertion_passes() -> None:
    known = Observed()
    rows = []
    for number, (one, other) in enumerate([("assertion_failed", "ok"), ("not_measured", "ok"), ("ok", "ok")]):
        given = (asserted(one), asserted(other, of="/status"))
        known = taken(known, observed(number, transport="ok", assertions=given), NOW_S + number)
        rows.append(known.failed_assertions_in_row)
    assert rows == [1, 1, 0]


def test_failure_that_is_not_measured_again_keeps_its_time_and_has_the_last_reason() -> None:
    known = add_up(observed(0, transport="ok", assertions=(asserted("assertion_failed"),)))
    for number, reason in ((1, "HTTP 401"), (2, "HTTP 403")):
        unmeasured = asserted("not_measured").model_copy(update={"reason": reason})
        known = taken(known, observed(number, transport="ok", assertions=(unmeasured,)), NOW_S + number)
        (kept,) = known.assertions
        assert isinstance(kept, KeptFailure)
        assert (kept.has_failed, kept.measured_at.timestamp(), kept.actual) == (True, NOW_S, "no idea")
        assert kept.unmeasured_reason == reason
        assert Observed.from_json(known.to_json()) == known
    passed = (asserted("ok"),)
    assert taken(known, observed(3, transport="ok", assertions=passed), NOW_S + 3).assertions == passed


def test_last_result_of_each_path_that_is_requested_is_kept() -> None:
    layers = {name: LayerResult(result=ResultClass(name)) for name in ("ok", "token_error", "not_measured")}

    def after(known: Observed, number: int, **paths: str) -> Observed:
        results = {f"/{path}": layers[result] for path, result in paths.items()} or None
        seen = observed(number, transport="ok").model_copy(update={"paths": results})
        return taken(known, seen, NOW_S + number)

    known = after(Observed(), 0, a="ok", b="token_error")
    known = after(known, 1, a="token_error", b="not_measured")
    found = known.paths or {}
    assert {path: (last.layer.result, last.observed_at_s - NOW_S) for path, last in found.items()} == {
        "/a": ("token_error", 1),
        "/b": ("token_error", 0),
    }
    assert Observed.from_json(known.to_json()) == known
    # A target that does not answer shows nothing about its paths.
    assert taken(known, observed(2, transport="timeout"), NOW_S + 2).paths == known.paths
    assert after(known, 3).paths is None


def test_passed_assertion_does_not_reset_the_count_of_failed_assertions() -> None:
    given = (asserted("ok"), asserted("assertion_failed"))
    known = add_up(*(observed(number, transport="ok", assertions=given) for number in range(3)))
    assert known.failed_assertions_in_row == 3


def test_probe_without_measurement_keeps_assertions_and_a_target_without_them_has_none() -> None:
    failed = (asserted("assertion_failed"),)
    known = add_up(observed(0, transport="ok", assertions=failed), observed(1, **NOTHING))
    assert (known.failed_assertions_in_row, known.assertions) == (1, failed)
    known = taken(known, observed(2, transport="ok"), NOW_S + 2)
    assert (known.failed_assertions_in_row, known.assertions) == (0, ())


@pytest.mark.parametrize(
    ("status", "members", "health"),
    [
        ("healthy", {}, "healthy"),
        ("healthy", {"failed_limits_in_row": 1}, "healthy"),
        ("healthy", {"failed_limits_in_row": 2}, "degraded"),
        ("unknown", {"failed_limits_in_row": 2}, "degraded"),
        ("unhealthy", {"failed_limits_in_row": 2}, "unhealthy"),
        ("healthy", {"failed_assertions_in_row": 2}, "unhealthy"),
        ("degraded", {"failed_assertions_in_row": 2, "failed_limits_in_row": 2}, "unhealthy"),
    ],
)
def test_observed_health_is_the_worse_of_report_and_assertions(
    status: str, members: dict[str, int], health: str
) -> None:
    known = add_up(read(0, status)).model_copy(update=members)
    assert observed_health(known) == health
    failed = taken(known, observed(10_000, transport="refused", discovery="refused"), NOW_S + 10_000)
    assert observed_health(failed) is HealthStatus.UNKNOWN
    assert observed_health(None) is HealthStatus.UNKNOWN
