"""Verdicts from heartbeats and observations."""

import re
from dataclasses import replace
from datetime import UTC, datetime
from functools import reduce
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.support.assertions import asserted

from lifesign.domain.health.document import HealthStatus
from lifesign.domain.lifecycle.heartbeat_timeout import (
    PROBE_THRESHOLDS,
    ExcludedSpan,
    ExtendedThresholds,
    Thresholds,
)
from lifesign.domain.lifecycle.observed_facts import LastDocument, LastResult, Observed, fold
from lifesign.domain.lifecycle.status_table import Reason, Signal, Status, reason_of, status_after
from lifesign.domain.lifecycle.verdict import (
    DEAD_AFTER_FAILURES,
    DecidingEvidence,
    Facts,
    Override,
    Verdict,
    has_decision_in_force,
    is_judged_by_probes,
    judge,
)
from lifesign.domain.observation.assertion import AssertionResult
from lifesign.domain.observation.results import LayerResult, Observation, ResultClass
from lifesign.domain.probing.result_receipt import receipt_of

NOW = 1_782_900_000.0
BEATING = [DecidingEvidence.HEARTBEAT, DecidingEvidence.BOTH]
WATCHED = [DecidingEvidence.PROBE, DecidingEvidence.BOTH]
RECOVERIES = {Signal.HEARTBEAT_RESUMED, Signal.PROBE_RECOVERED, Signal.HEALTH_RECOVERED}


def facts(monitoring: DecidingEvidence = DecidingEvidence.HEARTBEAT, **members: Any) -> Facts:
    """Return an agent that has been active for a day and sends a heartbeat now."""
    is_probed = monitoring is DecidingEvidence.PROBE
    known: dict[str, Any] = {
        "status": Status.ACTIVE,
        "reason": Reason.REGISTERED,
        "status_since_s": NOW - 86_400,
        "thresholds": PROBE_THRESHOLDS if is_probed else Thresholds(),
        "last_heartbeat_at_s": None if is_probed else NOW,
    }
    return Facts(monitoring=monitoring, **known | members)


def unhealthy(
    reason: Reason, monitoring: DecidingEvidence = DecidingEvidence.HEARTBEAT, **members: Any
) -> Facts:
    known: dict[str, Any] = {"status": Status.UNHEALTHY, "reason": reason, "status_since_s": NOW - 10}
    return facts(monitoring, **known | members)


def assessed(
    known: Facts,
    now_s: float = NOW,
    *,
    is_suspended: bool = False,
    excluded_downtime: tuple[ExcludedSpan, ...] = (),
) -> Verdict:
    return judge(known, now_s, is_suspended=is_suspended, excluded_downtime=excluded_downtime)


def after(known: Facts, verdict: Verdict, now_s: float) -> Facts:
    """Apply a verdict to the record, as the registry does."""
    status = known.status
    for signal in verdict.signals:
        status = status_after(status, signal)
        known = replace(known, status=status, reason=reason_of(signal), status_since_s=now_s)
        if signal in RECOVERIES:
            known = replace(known, recoveries_s=(*known.recoveries_s, now_s))
    return known


def held_document(status: str, fresh_until_s: float = NOW + 900, *, is_stale: bool = False) -> LastDocument:
    return LastDocument(
        status=HealthStatus(status),
        timestamp_s=NOW,
        observed_at_s=NOW,
        fresh_until_s=fresh_until_s,
        is_stale=is_stale,
        response_ratio=None,
        sample_count=None,
        latency_p99_ms=None,
    )


def alive(**members: Any) -> Observed:
    """Seen alive just now, after a run of signs of life."""
    run = {"last_liveness_signal_at_s": NOW, "alive_since_s": NOW - 600}
    return Observed(**{"last_observed_at_s": NOW} | run | members)


def failing(failures: int, silence_s: float = 10.0**6, **members: Any) -> Observed:
    """Seen failing just now, after so much observed silence; the evidence counts for another 900 s."""
    known: dict[str, Any] = {
        "last_observed_at_s": NOW,
        "measured_at_s": NOW,
        "evidence_until_s": NOW + 900,
        "results_until_s": NOW + 900,
        "last_liveness_signal_at_s": NOW - silence_s,
    }
    return Observed(failures_in_row=failures, silence_s=silence_s, **known | members)


def reporting(status: str, in_row: int = 0, **members: Any) -> Observed:
    """Alive, with a fresh document of this status."""
    return alive(document=held_document(status), unhealthy_documents_in_row=in_row, **members)


# Row 1: silence beyond the thresholds of RFC-0016 4.5.


@pytest.mark.parametrize("monitoring", BEATING)
def test_missed_heartbeats_make_an_agent_unhealthy_and_then_dead(monitoring: DecidingEvidence) -> None:
    silent = facts(monitoring, last_heartbeat_at_s=NOW - 91)
    verdict = assessed(silent)
    assert verdict.signals == (Signal.HEARTBEAT_TIMEOUT,)
    assert (verdict.status, verdict.reason) == (Status.UNHEALTHY, Reason.HEARTBEAT_TIMEOUT)
    assert verdict.explanation == "no heartbeat for 1 min 31 s, more than 1 min 30 s"
    later = assessed(after(silent, verdict, NOW), NOW + 210)
    assert later.signals == (Signal.HEARTBEAT_TIMEOUT,)
    assert (later.status, later.explanation) == (Status.DEAD, "no heartbeat for 5 min 1 s, more than 5 min")


def test_silence_as_long_as_the_threshold_is_not_beyond_it() -> None:
    assert assessed(facts(last_heartbeat_at_s=NOW - 90)).signals == ()
    assert assessed(facts(last_heartbeat_at_s=NOW - 90), NOW + 1e-6).signals == (Signal.HEARTBEAT_TIMEOUT,)
    down = unhealthy(Reason.HEARTBEAT_TIMEOUT, last_heartbeat_at_s=NOW - 300)
    assert assessed(down).signals == ()
    assert assessed(down, NOW + 1e-6).signals == (Signal.HEARTBEAT_TIMEOUT,)


@pytest.mark.parametrize("monitoring", BEATING)
def test_extended_thresholds_hold_for_missed_heartbeats(monitoring: DecidingEvidence) -> None:
    silent = facts(monitoring, last_heartbeat_at_s=NOW - 91, extended=ExtendedThresholds(30.0, 95.0, 320.0))
    assert assessed(silent).signals == ()
    assert assessed(silent, NOW + 5).signals == (Signal.HEARTBEAT_TIMEOUT,)


def test_extended_thresholds_have_no_effect_on_probed_agents() -> None:
    probed = facts(DecidingEvidence.PROBE, observed=failing(4, 901.0))
    extended = replace(probed, extended=ExtendedThresholds(300.0, 2000.0, 4000.0))
    assert assessed(probed).signals == assessed(extended).signals == (Signal.PROBE_FAILURES,)


def test_silence_just_beyond_the_threshold_is_shown_as_longer() -> None:
    explanation = assessed(facts(last_heartbeat_at_s=NOW - 90.02)).explanation
    assert explanation == "no heartbeat for 1 min 31 s, more than 1 min 30 s"


def test_long_silent_agent_dies_in_two_steps() -> None:
    verdict = assessed(facts(last_heartbeat_at_s=NOW - 301))
    assert verdict.signals == (Signal.HEARTBEAT_TIMEOUT, Signal.HEARTBEAT_TIMEOUT)
    assert verdict.status is Status.DEAD


@pytest.mark.parametrize("monitoring", BEATING)
@pytest.mark.parametrize(
    "reason",
    [
        Reason.HEARTBEAT_TIMEOUT,
        Reason.HEALTH_REPORTED_UNHEALTHY,
        Reason.OBSERVED_CONTRADICTS_REPORT,
        Reason.OPERATOR_OVERRIDE,
    ],
)
def test_missed_heartbeats_kill_an_unhealthy_agent_with_any_reason(
    reason: Reason, monitoring: DecidingEvidence
) -> None:
    down = unhealthy(reason, monitoring, last_heartbeat_at_s=NOW - 301, observed=reporting("unhealthy", 2))
    verdict = assessed(down)
    assert (verdict.signals, verdict.status) == ((Signal.HEARTBEAT_TIMEOUT,), Status.DEAD)


def test_agent_without_heartbeats_is_silent_since_its_status() -> None:
    new = facts(last_heartbeat_at_s=None, status_since_s=NOW - 90)
    assert assessed(new).signals == ()
    assert assessed(new, NOW + 1).signals == (Signal.HEARTBEAT_TIMEOUT,)


def test_excused_time_is_no_silence() -> None:
    silent = facts(last_heartbeat_at_s=NOW - 400)
    assert assessed(silent, excluded_downtime=(ExcludedSpan(NOW - 390, NOW - 80),)).signals == ()
    assert assessed(silent, excluded_downtime=(ExcludedSpan(NOW - 390, NOW - 81),)).signals == (
        Signal.HEARTBEAT_TIMEOUT,
    )


# Row 2: a heartbeat restores an agent that missed heartbeats.


@pytest.mark.parametrize("monitoring", BEATING)
def test_a_heartbeat_ends_the_silence_of_heartbeats(monitoring: DecidingEvidence) -> None:
    verdict = assessed(unhealthy(Reason.HEARTBEAT_TIMEOUT, monitoring, last_heartbeat_at_s=NOW - 2))
    assert verdict.signals == (Signal.HEARTBEAT_RESUMED,)
    assert (verdict.status, verdict.explanation) == (Status.ACTIVE, "a heartbeat 2 s ago")


def test_a_heartbeat_that_is_itself_too_old_ends_no_silence() -> None:
    down = unhealthy(Reason.HEARTBEAT_TIMEOUT, last_heartbeat_at_s=NOW - 90)
    assert assessed(down).signals == (Signal.HEARTBEAT_RESUMED,)
    assert assessed(down, NOW + 0.001).signals == ()


@pytest.mark.parametrize("reason", [Reason.HEALTH_REPORTED_UNHEALTHY, Reason.OBSERVED_CONTRADICTS_REPORT])
def test_heartbeat_does_not_heal_unhealthy_for_another_reason(reason: Reason) -> None:
    seen = reporting("unhealthy", 2, recent_interactions="0" * 10)
    assert assessed(unhealthy(reason, DecidingEvidence.BOTH, observed=seen)).signals == ()


@pytest.mark.parametrize(
    "observed", [failing(9), failing(9, last_liveness_signal_at_s=None), reporting("healthy")]
)
@pytest.mark.parametrize("monitoring", BEATING)
def test_heartbeat_outweighs_an_unreachable_target(monitoring: DecidingEvidence, observed: Observed) -> None:
    assert assessed(facts(monitoring, observed=observed)).signals == ()


def test_probe_failures_do_not_affect_heartbeat_agents() -> None:
    observed = reporting("unhealthy", 9, recent_interactions="0" * 20)
    assert assessed(facts(observed=observed)).signals == ()


# Rows 3 and 4: no sign of life, and enough measured failures in a row.


@pytest.mark.parametrize(
    ("silent_s", "failures", "signals"),
    [
        (900, 2, 0),
        (900.1, 1, 0),
        (900.1, 2, 1),
        (3600, 4, 1),
        (3600.1, 3, 1),
        (3600.1, 4, 2),
        (10**6, 0, 0),
    ],
)
def test_a_probed_agent_goes_down_by_silence_and_failures_together(
    silent_s: float, failures: int, signals: int
) -> None:
    observed = failing(failures, silent_s)
    assert (
        assessed(facts(DecidingEvidence.PROBE, observed=observed)).signals
        == (Signal.PROBE_FAILURES,) * signals
    )


@pytest.mark.parametrize("failures", [1, 2, 3, 4, 9])
def test_elapsed_time_without_failures_takes_no_probed_agent_down(failures: int) -> None:
    """Observed silence grows by measured results alone, so that an idle prober takes no agent down."""
    known = facts(
        DecidingEvidence.PROBE, observed=failing(failures, 900, last_liveness_signal_at_s=NOW - 10**6)
    )
    for later_s in (0, 900, 10**6):
        verdict = assessed(known, NOW + later_s)
        assert (verdict.signals, verdict.assess_at_s) == ((), None)


def test_outdated_failure_takes_no_agent_down() -> None:
    known = facts(DecidingEvidence.PROBE, observed=failing(9))
    assert assessed(known, NOW + 900).status is Status.DEAD
    verdict = assessed(known, NOW + 900.1)
    assert (verdict.signals, verdict.assess_at_s) == ((), None)


def test_excused_time_shortens_no_observed_silence() -> None:
    known = facts(DecidingEvidence.PROBE, observed=failing(2, 901))
    assert assessed(known, excluded_downtime=(ExcludedSpan(NOW - 10**6, NOW),)).signals == (
        Signal.PROBE_FAILURES,
    )


@pytest.mark.parametrize(("unhealthy_after_s", "dead_after_s"), [(60, 120), (7_200, 86_400)])
def test_probed_agent_has_its_own_thresholds(unhealthy_after_s: int, dead_after_s: int) -> None:
    own = {"thresholds": Thresholds(30, unhealthy_after_s, dead_after_s)}
    for silence_s, signals in (
        (unhealthy_after_s, 0),
        (unhealthy_after_s + 1, 1),
        (dead_after_s, 1),
        (dead_after_s + 1, 2),
    ):
        known = facts(DecidingEvidence.PROBE, observed=failing(4, silence_s), **own)
        assert assessed(known).signals == (Signal.PROBE_FAILURES,) * signals


@pytest.mark.parametrize(("silent_s", "failures", "dies"), [(3600, 4, 0), (3600.1, 3, 0), (3600.1, 4, 1)])
@pytest.mark.parametrize(
    "reason",
    [Reason.PROBE_FAILURES, Reason.HEALTH_REPORTED_UNHEALTHY, Reason.OBSERVED_CONTRADICTS_REPORT],
)
def test_a_probed_agent_dies_after_an_hour_and_four_failures(
    reason: Reason, silent_s: float, failures: int, dies: int
) -> None:
    observed = failing(failures, silent_s, recent_interactions="0" * 10)
    down = unhealthy(reason, DecidingEvidence.PROBE, observed=observed)
    assert assessed(down).signals == (Signal.PROBE_FAILURES,) * dies


def test_silent_probed_agent_is_reported_with_its_figures() -> None:
    verdict = assessed(facts(DecidingEvidence.PROBE, observed=failing(3, 1000)))
    assert re.findall(r"\d+ \w+", verdict.explanation) == ["16 min", "40 s", "15 min", "3 failures"]


@pytest.mark.parametrize(
    ("members", "end"),
    [
        # For 50 minutes no prober ran: of that time two intervals count.
        (
            {"last_liveness_signal_at_s": NOW - 4000},
            "3 failures in a row; 50 min without measured results do not count",
        ),
        (
            {"last_liveness_signal_at_s": NOW - 1060},
            "3 failures in a row; 1 min without measured results do not count",
        ),
        ({"last_liveness_signal_at_s": NOW - 1059}, "3 failures in a row"),
        (
            {"excused_failures": 1},
            "2 failures in a row; 1 earlier failure does not count (maintenance, override or former URL)",
        ),
    ],
)
def test_explanation_states_what_does_not_count(members: dict[str, Any], end: str) -> None:
    verdict = assessed(facts(DecidingEvidence.PROBE, observed=failing(3, 1000, **members)))
    assert verdict.explanation.endswith(end)


def test_probed_agent_does_not_go_down_for_missing_heartbeats() -> None:
    assert (
        assessed(facts(DecidingEvidence.PROBE, last_heartbeat_at_s=NOW - 10**6, observed=alive())).signals
        == ()
    )


def test_never_alive_probed_agent_goes_down_by_failures() -> None:
    never = facts(DecidingEvidence.PROBE, observed=failing(5, 901, last_liveness_signal_at_s=None))
    assert assessed(never).signals == (Signal.PROBE_FAILURES,)
    assert assessed(facts(DecidingEvidence.PROBE, status_since_s=NOW - 10**6)).signals == ()


# Row 5: a liveness signal restores an agent that was down because of a timeout.


@pytest.mark.parametrize(("failures", "signals"), [(0, 1), (1, 1), (2, 0)])
def test_a_liveness_signal_ends_the_silence_of_a_probed_agent(failures: int, signals: int) -> None:
    observed = failing(failures, 5)
    down = unhealthy(Reason.PROBE_FAILURES, DecidingEvidence.PROBE, observed=observed)
    verdict = assessed(down)
    assert verdict.signals == (Signal.PROBE_RECOVERED,) * signals
    if signals:
        assert "5 s ago" in verdict.explanation


def test_no_recovery_without_a_liveness_signal() -> None:
    for observed in (None, Observed()):
        assert (
            assessed(unhealthy(Reason.PROBE_FAILURES, DecidingEvidence.PROBE, observed=observed)).signals
            == ()
        )


# Row 6: two signs of life of a dead agent.


def dead(since_s: float = NOW - 1000, reason: Reason = Reason.PROBE_FAILURES, **members: Any) -> Facts:
    return facts(DecidingEvidence.PROBE, status=Status.DEAD, reason=reason, status_since_s=since_s, **members)


@pytest.mark.parametrize(("apart_s", "signals"), [(0, 0), (29.9, 0), (30, 1), (300, 1)])
def test_two_liveness_signals_half_a_minute_apart_revive_the_dead(apart_s: float, signals: int) -> None:
    verdict = assessed(dead(observed=alive(alive_since_s=NOW - apart_s)))
    assert verdict.signals == (Signal.PROBE_REDISCOVERED,) * signals
    assert verdict.status is (Status.ACTIVE if signals else Status.DEAD)


def test_interrupted_successes_do_not_recover_an_agent() -> None:
    assert assessed(dead(observed=failing(1, 0))).signals == ()
    assert assessed(dead(observed=None)).signals == ()
    assert assessed(dead(observed=Observed())).signals == ()


@pytest.mark.parametrize(("since_s", "signals"), [(NOW - 30, 1), (NOW - 29, 0)])
def test_liveness_signal_from_before_death_is_dated_to_the_death(since_s: float, signals: int) -> None:
    assert len(assessed(dead(since_s, observed=alive())).signals) == signals


def test_agent_alive_at_its_drain_timeout_dies_only_after_missed_heartbeats() -> None:
    gone = dead(NOW - 300, Reason.DRAIN_TIMEOUT, observed=alive(alive_since_s=NOW - 301))
    assert assessed(gone).signals == ()
    for ago_s in (200, 300):
        back = dead(NOW - 300, Reason.DRAIN_TIMEOUT, observed=alive(alive_since_s=NOW - ago_s))
        assert assessed(back).signals == (Signal.PROBE_REDISCOVERED,)


@pytest.mark.parametrize("monitoring", BEATING)
def test_prober_does_not_recover_a_heartbeat_agent(monitoring: DecidingEvidence) -> None:
    gone = facts(monitoring, status=Status.DEAD, reason=Reason.HEARTBEAT_TIMEOUT, observed=alive())
    assert assessed(gone).signals == ()


# Rows 7 and 8: what the health document says.


@pytest.mark.parametrize("monitoring", WATCHED)
def test_two_unhealthy_documents_make_an_agent_unhealthy(monitoring: DecidingEvidence) -> None:
    assert assessed(facts(monitoring, observed=reporting("unhealthy", 1))).signals == ()
    verdict = assessed(facts(monitoring, observed=reporting("unhealthy", 2)))
    assert verdict.signals == (Signal.HEALTH_REPORTED_UNHEALTHY,)
    assert re.search(r"\b2 health documents .*\bunhealthy$", verdict.explanation)
    assert verdict.health is HealthStatus.UNHEALTHY


def test_outdated_documents_take_no_agent_down() -> None:
    known = facts(DecidingEvidence.PROBE, observed=reporting("unhealthy", 2))
    assert assessed(known, NOW + 900).signals == (Signal.HEALTH_REPORTED_UNHEALTHY,)
    assert assessed(known, NOW + 900.1).signals == ()


@pytest.mark.parametrize("monitoring", WATCHED)
@pytest.mark.parametrize("status", ["healthy", "degraded", "unknown"])
def test_document_with_another_status_ends_reported_unhealthy(
    monitoring: DecidingEvidence, status: str
) -> None:
    down = unhealthy(Reason.HEALTH_REPORTED_UNHEALTHY, monitoring, observed=reporting(status))
    verdict = assessed(down)
    assert (verdict.signals, verdict.status) == ((Signal.HEALTH_RECOVERED,), Status.ACTIVE)
    assert re.search(rf"health document .*\b{status}$", verdict.explanation)


@pytest.mark.parametrize(
    "observed",
    [
        reporting("unhealthy", 2),
        alive(),
        alive(document=held_document("healthy", is_stale=True)),
        alive(document=held_document("healthy", NOW - 1)),
        alive(document=held_document("unhealthy", NOW - 1)),
    ],
)
def test_missing_fresh_document_does_not_end_reported_unhealthy(observed: Observed) -> None:
    down = unhealthy(Reason.HEALTH_REPORTED_UNHEALTHY, DecidingEvidence.PROBE, observed=observed)
    assert assessed(down).signals == ()


def without_document(status_code: int, fresh_until_s: float = NOW - 1, **members: Any) -> Observed:
    """Alive; the latest request for its document failed, and the last document reports `unhealthy`."""
    result = ResultClass.HTTP_ERROR if status_code >= 500 else ResultClass.NOT_AN_AGENT
    layer = LayerResult(result=result, status_code=status_code)
    return alive(
        document=held_document("unhealthy", fresh_until_s),
        readiness=LastResult(layer=layer, observed_at_s=NOW),
        unhealthy_documents_in_row=2,
        **members,
    )


@pytest.mark.parametrize("monitoring", WATCHED)
@pytest.mark.parametrize(
    ("observed", "signals"),
    [
        (without_document(404), (Signal.HEALTH_RECOVERED,)),
        (without_document(410), (Signal.HEALTH_RECOVERED,)),
        (without_document(401), (Signal.HEALTH_RECOVERED,)),
        (without_document(503), (Signal.HEALTH_RECOVERED,)),
        # It may be the document's last minute, or the agent may be down.
        (without_document(404, NOW), ()),
        (without_document(404, failures_in_row=1), ()),
    ],
)
def test_agent_that_answers_without_its_expired_document_recovers(
    monitoring: DecidingEvidence, observed: Observed, signals: tuple[Signal, ...]
) -> None:
    down = unhealthy(Reason.HEALTH_REPORTED_UNHEALTHY, monitoring, observed=observed)
    assert assessed(down).signals == signals


def test_degraded_stays_active() -> None:
    verdict = assessed(facts(DecidingEvidence.PROBE, observed=reporting("degraded")))
    assert (verdict.status, verdict.health) == (Status.ACTIVE, HealthStatus.DEGRADED)


# Row 8a: assertions about the answers.


@pytest.mark.parametrize("monitoring", WATCHED)
def test_wrong_answers_of_two_probes_make_an_agent_unhealthy(monitoring: DecidingEvidence) -> None:
    assert (
        assessed(facts(monitoring, observed=reporting("healthy", failed_assertions_in_row=1))).signals == ()
    )
    wrong = reporting("healthy", failed_assertions_in_row=2, assertions=(asserted("assertion_failed"),))
    verdict = assessed(facts(monitoring, observed=wrong))
    assert (verdict.signals, verdict.reason) == ((Signal.ASSERTION_FAILED,), Reason.ASSERTION_FAILED)
    assert (verdict.status, verdict.health) == (Status.UNHEALTHY, HealthStatus.UNHEALTHY)
    assert re.search("2 probes .*message text_contains 'OK', .*'no idea'$", verdict.explanation)


@pytest.mark.parametrize(
    ("assertions", "end"),
    [
        ((), "in a row"),
        ((asserted("assertion_failed", check="latency_below"),), "in a row"),
        ((asserted("ok"), asserted("assertion_failed")), "'no idea'"),
        ((asserted("assertion_failed"),) * 2, "'no idea', and 1 more"),
        ((asserted("assertion_failed"),) * 3, "'no idea', and 2 more"),
    ],
)
def test_wrong_answer_is_quoted_with_the_number_of_others(
    assertions: tuple[AssertionResult, ...], end: str
) -> None:
    wrong = alive(failed_assertions_in_row=2, assertions=assertions)
    assert assessed(facts(DecidingEvidence.PROBE, observed=wrong)).explanation.endswith(end)


@pytest.mark.parametrize("monitoring", WATCHED)
@pytest.mark.parametrize(
    "observed", [alive(failed_limits_in_row=9), reporting("healthy", failed_limits_in_row=2)]
)
def test_slow_answers_of_two_probes_degrade_and_take_no_agent_down(
    monitoring: DecidingEvidence, observed: Observed
) -> None:
    verdict = assessed(facts(monitoring, observed=observed))
    assert (verdict.signals, verdict.health) == ((), HealthStatus.DEGRADED)


def test_failed_assertions_of_a_heartbeat_agent_do_not_decide() -> None:
    wrong = reporting("healthy", failed_assertions_in_row=9, failed_limits_in_row=9)
    verdict = assessed(facts(observed=wrong))
    assert (verdict.signals, verdict.health) == ((), HealthStatus.HEALTHY)
    assert assessed(unhealthy(Reason.ASSERTION_FAILED, observed=wrong)).signals == (Signal.ASSERTIONS_PASSED,)


@pytest.mark.parametrize("in_row", [1, 2, 1000])
def test_wrong_answers_hold_until_a_probe_passes(in_row: int) -> None:
    wrong = reporting("healthy", failed_assertions_in_row=in_row)
    assert assessed(unhealthy(Reason.ASSERTION_FAILED, DecidingEvidence.PROBE, observed=wrong)).signals == ()
    right = reporting("healthy", assertions=(asserted("ok"),))
    verdict = assessed(unhealthy(Reason.ASSERTION_FAILED, DecidingEvidence.PROBE, observed=right))
    assert (verdict.signals, verdict.status) == ((Signal.ASSERTIONS_PASSED,), Status.ACTIVE)


def test_wrong_answers_never_kill() -> None:
    wrong = reporting("healthy", failed_assertions_in_row=1000)
    down = unhealthy(
        Reason.ASSERTION_FAILED, DecidingEvidence.PROBE, observed=wrong, status_since_s=NOW - 10**7
    )
    assert assessed(down).signals == ()


def test_old_wrong_answers_take_no_agent_down() -> None:
    wrong = alive(failed_assertions_in_row=2, evidence_until_s=NOW, results_until_s=NOW, measured_at_s=NOW)
    known = facts(DecidingEvidence.PROBE, observed=wrong)
    assert assessed(known).signals == (Signal.ASSERTION_FAILED,)
    assert assessed(known, NOW + 1).signals == ()


def test_wrong_answers_take_no_agent_down_in_maintenance() -> None:
    wrong = alive(failed_assertions_in_row=2)
    kept = facts(DecidingEvidence.PROBE, observed=wrong, maintenance_until_s=NOW + 60)
    assert assessed(kept).signals == ()


# Row 8b: faults of a credential, which are no evidence.

LOGIN_RESULTS = ["gated", "credentials_rejected", "token_error"]


def probed_behind_login(
    known: Observed | None, result: str, number: int, assertion: str | None = None
) -> Observed:
    """Add a probe whose card is public, and whose interface and message ended with `result`."""
    at_s = NOW + 300 * number
    observation = Observation(
        agent_id="a",
        observed_at=datetime.fromtimestamp(at_s, UTC),
        discovery=LayerResult(result=ResultClass.OK),
        transport=LayerResult(result=ResultClass(result)),
        message=LayerResult(result=ResultClass(result)),
        assertions=None if assertion is None else (asserted(assertion),),
    )
    return fold(known, observation, receipt_of(at_s, 300, None), at_s)


@pytest.mark.parametrize("result", LOGIN_RESULTS)
def test_a_fault_of_a_credential_keeps_an_agent_active(result: str) -> None:
    known = None
    for number in range(2 * DEAD_AFTER_FAILURES):
        at_s = NOW + 300 * number
        observation = Observation(
            agent_id="a",
            observed_at=datetime.fromtimestamp(at_s, UTC),
            transport=LayerResult(result=ResultClass(result)),
            readiness=LayerResult(result=ResultClass(result)),
        )
        known = fold(known, observation, receipt_of(at_s, 300, None), at_s)
        verdict = assessed(facts(DecidingEvidence.PROBE, observed=known), at_s)
        assert (verdict.status, verdict.signals) == (Status.ACTIVE, ())
        assert verdict.health is HealthStatus.UNKNOWN


@pytest.mark.parametrize("monitoring", WATCHED)
@pytest.mark.parametrize("result", LOGIN_RESULTS)
def test_credential_fault_neither_adds_nor_ends_a_failed_assertion(
    result: str, monitoring: DecidingEvidence
) -> None:
    known = probed_behind_login(None, "ok", 0, "assertion_failed")
    for number in range(1, 6):
        known = probed_behind_login(known, result, number, "not_measured")
        at_s = NOW + 300 * number
        assert assessed(facts(monitoring, observed=known, last_heartbeat_at_s=at_s), at_s).signals == ()
    known = probed_behind_login(known, "ok", 6, "assertion_failed")
    at_s = NOW + 300 * 6
    active = facts(monitoring, observed=known, last_heartbeat_at_s=at_s)
    assert assessed(active, at_s).signals == (Signal.ASSERTION_FAILED,)
    known = probed_behind_login(known, result, 7, "not_measured")
    at_s += 300
    down = unhealthy(
        Reason.ASSERTION_FAILED,
        monitoring,
        observed=known,
        last_heartbeat_at_s=at_s,
        status_since_s=at_s - 300,
    )
    assert assessed(down, at_s).signals == ()
    known = probed_behind_login(known, "ok", 8, "ok")
    at_s += 300
    recovered = replace(down, observed=known, last_heartbeat_at_s=at_s)
    assert assessed(recovered, at_s).signals == (Signal.ASSERTIONS_PASSED,)


@pytest.mark.parametrize("result", LOGIN_RESULTS)
def test_a_fault_of_a_credential_ends_probe_failures(result: str) -> None:
    known = probed_behind_login(None, result, 0)
    down = unhealthy(Reason.PROBE_FAILURES, DecidingEvidence.PROBE, observed=known)
    assert assessed(down).signals == (Signal.PROBE_RECOVERED,)


# Row 9: the document claims healthy, and what was measured says otherwise.


@pytest.mark.parametrize("monitoring", WATCHED)
@pytest.mark.parametrize(
    ("recent", "signals"),
    [("0" * 9, 0), ("0" * 10, 1), ("0" * 6 + "1" * 4, 1), ("01" * 5, 0), ("0" * 11 + "1" * 9, 1)],
)
def test_healthy_report_is_contradicted_by_ten_mostly_failed_interactions(
    monitoring: DecidingEvidence, recent: str, signals: int
) -> None:
    verdict = assessed(facts(monitoring, observed=reporting("healthy", recent_interactions=recent)))
    assert verdict.signals == (Signal.OBSERVED_CONTRADICTS_REPORT,) * signals
    if signals:
        count = f"{recent.count('1')} of .*{len(recent)} interactions succeeded"
        assert re.search(rf"\bhealthy, .*\b{count}$", verdict.explanation)


def test_contradiction_states_the_age_of_a_removed_document() -> None:
    gone = LayerResult(result=ResultClass.HTTP_ERROR, reason="HTTP 404", status_code=404)
    observed = reporting(
        "healthy", recent_interactions="0" * 10, readiness=LastResult(layer=gone, observed_at_s=NOW)
    )
    assert observed.document is not None
    before = observed.document.model_copy(update={"observed_at_s": NOW - 300})
    verdict = assessed(
        facts(DecidingEvidence.PROBE, observed=observed.model_copy(update={"document": before}))
    )
    assert verdict.signals == (Signal.OBSERVED_CONTRADICTS_REPORT,)
    assert "5 min ago" in verdict.explanation
    assert "HTTP 404" in verdict.explanation
    assert "calls itself" not in verdict.explanation
    together = assessed(facts(DecidingEvidence.PROBE, observed=observed))
    assert "calls itself" in together.explanation


@pytest.mark.parametrize("status", ["degraded", "unhealthy", "unknown"])
def test_agent_without_a_claim_is_not_contradicted(status: str) -> None:
    known = facts(DecidingEvidence.PROBE, observed=reporting(status, recent_interactions="0" * 20))
    assert assessed(known).signals == ()
    assert assessed(facts(DecidingEvidence.PROBE, observed=alive(recent_interactions="0" * 20))).signals == ()


@pytest.mark.parametrize(("recent", "signals"), [("0" * 11 + "1" * 9, 0), ("01" * 10, 1), ("1" * 20, 1)])
def test_a_contradiction_ends_when_half_succeed_again(recent: str, signals: int) -> None:
    observed = reporting("degraded", recent_interactions=recent)
    down = unhealthy(Reason.OBSERVED_CONTRADICTS_REPORT, DecidingEvidence.BOTH, observed=observed)
    assert assessed(down).signals == (Signal.PROBE_RECOVERED,) * signals


# Rules for all rows.


def test_change_of_the_fault_is_reported_in_two_steps() -> None:
    late = unhealthy(
        Reason.HEALTH_REPORTED_UNHEALTHY,
        DecidingEvidence.BOTH,
        observed=reporting("healthy"),
        last_heartbeat_at_s=NOW - 91,
    )
    verdict = assessed(late)
    assert verdict.signals == (Signal.HEALTH_RECOVERED, Signal.HEARTBEAT_TIMEOUT)
    assert (verdict.status, verdict.reason) == (Status.UNHEALTHY, Reason.HEARTBEAT_TIMEOUT)
    beats = unhealthy(Reason.HEARTBEAT_TIMEOUT, DecidingEvidence.BOTH, observed=reporting("unhealthy", 2))
    assert assessed(beats).signals == (Signal.HEARTBEAT_RESUMED, Signal.HEALTH_REPORTED_UNHEALTHY)


def test_unhealthy_reason_of_an_ignored_track_ends() -> None:
    seen = reporting("unhealthy", 9)
    assert assessed(unhealthy(Reason.HEALTH_REPORTED_UNHEALTHY, observed=seen)).status is Status.ACTIVE
    forgotten = unhealthy(Reason.OBSERVED_CONTRADICTS_REPORT, DecidingEvidence.PROBE, observed=None)
    assert assessed(forgotten).status is Status.ACTIVE
    assert assessed(unhealthy(Reason.PROBE_FAILURES)).signals == (Signal.HEARTBEAT_RESUMED,)
    silent = unhealthy(Reason.HEARTBEAT_TIMEOUT, DecidingEvidence.PROBE, observed=alive())
    assert assessed(silent).signals == (Signal.PROBE_RECOVERED,)


def test_unhealthy_with_an_unrelated_reason_is_unchanged() -> None:
    assert assessed(unhealthy(Reason.REGISTERED)).signals == ()


@pytest.mark.parametrize("status", [Status.REGISTERING, Status.DEREGISTERED])
def test_status_without_monitoring_gets_no_verdict(status: Status) -> None:
    verdict = assessed(facts(status=status, last_heartbeat_at_s=NOW - 10**6))
    assert (verdict.signals, verdict.assess_at_s) == ((), None)


# Draining (decisions 1, 4 and 13 of the registry).


def draining(**members: Any) -> Facts:
    drain: dict[str, Any] = {
        "status": Status.DRAINING,
        "reason": Reason.DRAIN_INITIATED,
        "drain_deadline_s": NOW + 120,
    }
    return facts(**drain | members)


def test_draining_agent_without_leases_is_deregistered_with_or_without_heartbeats() -> None:
    for last_heartbeat_at_s in (NOW, NOW - 10**6):
        verdict = assessed(draining(last_heartbeat_at_s=last_heartbeat_at_s))
        assert (verdict.signals, verdict.status) == ((Signal.DRAIN_COMPLETED,), Status.DEREGISTERED)


def test_a_draining_agent_that_still_holds_leases_dies_at_the_deadline() -> None:
    holding = draining(leases_held=2)
    assert assessed(holding).assess_at_s == NOW + 120
    assert assessed(holding, NOW + 119.9).signals == ()
    verdict = assessed(holding, NOW + 120)
    assert (verdict.signals, verdict.status) == ((Signal.DRAIN_TIMEOUT,), Status.DEAD)
    assert "2 leases" in verdict.explanation


def test_draining_agent_may_finish_its_work_until_the_deadline_and_does_not_die() -> None:
    working = draining(current_load=1)
    assert assessed(working, NOW + 119.9).signals == ()
    verdict = assessed(working, NOW + 120)
    assert (verdict.signals, verdict.status) == ((Signal.DRAIN_COMPLETED,), Status.DEREGISTERED)


def test_draining_agent_without_heartbeats_stays_draining() -> None:
    verdict = assessed(draining(leases_held=1, last_heartbeat_at_s=NOW - 10**6))
    assert verdict.signals == ()
    assert verdict.explanation == "draining for another 2 min, 1 lease is held"


def test_drain_without_a_deadline_waits() -> None:
    verdict = assessed(draining(leases_held=1, drain_deadline_s=None), NOW + 10**6)
    assert (verdict.signals, verdict.assess_at_s) == ((), None)


@pytest.mark.parametrize("is_suspended", [True, False])
def test_neither_suspension_nor_maintenance_nor_override_stops_a_completed_drain(
    *, is_suspended: bool
) -> None:
    stops: dict[str, Any] = {"maintenance_until_s": NOW + 999, "override": Override(Status.ACTIVE, NOW + 999)}
    assert assessed(draining(**stops), is_suspended=is_suspended).signals == (Signal.DRAIN_COMPLETED,)
    over = draining(leases_held=1, drain_deadline_s=NOW, **stops)
    assert assessed(over).signals == (Signal.DRAIN_TIMEOUT,)


@pytest.mark.parametrize(
    ("monitoring", "signals"), [("heartbeat", ()), ("both", ()), ("probe", (Signal.DRAIN_TIMEOUT,))]
)
def test_drain_timeout_waits_while_verdicts_about_heartbeats_are_suspended(
    monitoring: str, signals: tuple[Signal, ...]
) -> None:
    over = draining(monitoring=DecidingEvidence(monitoring), leases_held=1, drain_deadline_s=NOW)
    assert assessed(over, is_suspended=True).signals == signals
    assert assessed(over).signals == (Signal.DRAIN_TIMEOUT,)


# Suspension, maintenance and override.


@pytest.mark.parametrize(
    "silent",
    [
        facts(last_heartbeat_at_s=NOW - 10**6),
        unhealthy(Reason.HEARTBEAT_TIMEOUT, last_heartbeat_at_s=NOW - 10**6),
        facts(DecidingEvidence.PROBE, observed=failing(9)),
        unhealthy(Reason.PROBE_FAILURES, DecidingEvidence.PROBE, observed=failing(9)),
    ],
)
def test_suspension_delays_verdicts_about_silence_until_its_end(silent: Facts) -> None:
    held = assessed(silent, is_suspended=True)
    assert (held.signals, held.status) == ((), silent.status)
    assert held.assess_at_s is not None
    assert held.assess_at_s <= NOW, "a suspension may end at any time: each sweep must assess the agent again"
    assert assessed(silent).status is Status.DEAD


def test_liveness_signals_and_reports_count_while_suspended() -> None:
    for known, signal in [
        (unhealthy(Reason.HEARTBEAT_TIMEOUT), Signal.HEARTBEAT_RESUMED),
        (unhealthy(Reason.PROBE_FAILURES, DecidingEvidence.PROBE, observed=alive()), Signal.PROBE_RECOVERED),
        (dead(observed=alive()), Signal.PROBE_REDISCOVERED),
        (facts(DecidingEvidence.PROBE, observed=reporting("unhealthy", 2)), Signal.HEALTH_REPORTED_UNHEALTHY),
    ]:
        assert assessed(known, is_suspended=True).signals == (signal,)


@pytest.mark.parametrize(
    ("known", "signals"),
    [
        (facts(last_heartbeat_at_s=NOW - 95), 1),
        (unhealthy(Reason.HEARTBEAT_TIMEOUT, last_heartbeat_at_s=NOW - 305), 1),
        (facts(last_heartbeat_at_s=NOW - 305), 2),
        (facts(DecidingEvidence.PROBE, observed=failing(9)), 2),
        (facts(DecidingEvidence.PROBE, observed=reporting("unhealthy", 2)), 1),
        (facts(DecidingEvidence.PROBE, observed=reporting("healthy", recent_interactions="0" * 10)), 1),
    ],
)
def test_maintenance_prevents_failure_and_its_end_applies_all_verdicts(known: Facts, signals: int) -> None:
    maintained = replace(known, maintenance_until_s=NOW + 60)
    verdict = assessed(maintained)
    assert (verdict.signals, verdict.assess_at_s) == ((), NOW + 60)
    assert assessed(maintained, NOW + 59.9).signals == ()
    assert len(assessed(maintained, NOW + 60).signals) == signals


def test_recovery_during_maintenance_makes_active() -> None:
    down = unhealthy(Reason.HEARTBEAT_TIMEOUT, maintenance_until_s=NOW + 60)
    assert assessed(down).signals == (Signal.HEARTBEAT_RESUMED,)


def test_override_lasts_until_its_end() -> None:
    silent = facts(last_heartbeat_at_s=NOW - 10**6, override=Override(Status.ACTIVE, NOW + 60))
    verdict = assessed(silent)
    assert (verdict.signals, verdict.assess_at_s) == ((), NOW + 60)
    assert re.search(r"operator .*\bactive .*\b1 min$", verdict.explanation)
    assert assessed(silent, NOW + 60).status is Status.DEAD


def test_an_operator_can_declare_either_status() -> None:
    down = assessed(facts(override=Override(Status.UNHEALTHY, NOW + 60), maintenance_until_s=NOW + 60))
    assert (down.signals, down.reason) == ((Signal.DECLARED_UNHEALTHY,), Reason.OPERATOR_OVERRIDE)
    silent = unhealthy(Reason.HEARTBEAT_TIMEOUT, last_heartbeat_at_s=NOW - 200)
    up = assessed(replace(silent, override=Override(Status.ACTIVE, NOW + 60)))
    assert (up.signals, up.reason) == ((Signal.DECLARED_ACTIVE,), Reason.OPERATOR_OVERRIDE)


def test_override_ends_at_its_time() -> None:
    declared = unhealthy(Reason.OPERATOR_OVERRIDE, override=Override(Status.UNHEALTHY, NOW))
    assert assessed(declared, NOW - 0.1).signals == ()
    assert assessed(declared).signals == (Signal.DECLARED_ACTIVE,)
    assert assessed(replace(declared, override=None)).signals == (Signal.DECLARED_ACTIVE,)
    silent = replace(declared, last_heartbeat_at_s=NOW - 200)
    assert assessed(silent).signals == (Signal.DECLARED_ACTIVE, Signal.HEARTBEAT_TIMEOUT)


def test_active_override_does_not_revive_a_dead_agent() -> None:
    assert assessed(dead(override=Override(Status.ACTIVE, NOW + 60))).signals == ()


@pytest.mark.parametrize(
    ("known", "is_decided", "is_judged"),
    [
        (facts(), False, False),
        (facts(DecidingEvidence.BOTH), False, False),
        (facts(DecidingEvidence.PROBE), False, True),
        (unhealthy(Reason.PROBE_FAILURES, DecidingEvidence.PROBE), False, True),
        (dead(), False, False),
        (facts(DecidingEvidence.PROBE, maintenance_until_s=NOW + 1), True, False),
        (facts(DecidingEvidence.PROBE, maintenance_until_s=NOW), False, True),
        (facts(DecidingEvidence.PROBE, override=Override(Status.ACTIVE, NOW + 1)), True, False),
        (facts(DecidingEvidence.PROBE, override=Override(Status.ACTIVE, NOW)), False, True),
    ],
)
def test_probes_decide_unless_an_operator_has_decided(
    *, known: Facts, is_decided: bool, is_judged: bool
) -> None:
    assert has_decision_in_force(known, NOW) is is_decided
    assert is_judged_by_probes(known, NOW) is is_judged


# Flap damping.


@pytest.mark.parametrize(
    ("recoveries", "factor"), [(0, 1), (1, 1), (2, 2), (3, 2), (4, 3), (6, 4), (7, 4), (100, 4)]
)
def test_flapping_agent_gets_more_time(recoveries: int, factor: int) -> None:
    last_s = NOW - factor * 900
    for silence_s, signals in ((factor * 900, 0), (factor * 900 + 1, 1)):
        seen = failing(9, silence_s, last_liveness_signal_at_s=last_s)
        flapping = facts(DecidingEvidence.PROBE, observed=seen, recoveries_s=(last_s,) * recoveries)
        assert assessed(flapping).signals == (Signal.PROBE_FAILURES,) * signals


def test_recovery_is_forgotten_after_an_hour_alive() -> None:
    last_s = NOW - 901
    for recovered_s, signals in [(last_s - 3600, 1), (last_s - 3599, 0)]:
        flapping = facts(DecidingEvidence.PROBE, observed=failing(2, 901), recoveries_s=(recovered_s,) * 2)
        assert len(assessed(flapping).signals) == signals


def test_recovery_stored_while_the_clock_was_ahead_does_not_count() -> None:
    last_s = NOW - 901
    for ahead_s, signals in [(300, 0), (301, 1), (30 * 86_400, 1)]:
        often = (last_s + ahead_s,) * 2
        flapping = facts(DecidingEvidence.PROBE, observed=failing(2, 901), recoveries_s=often)
        assert len(assessed(flapping).signals) == signals


def test_damping_delays_neither_recovery_nor_a_declared_threshold() -> None:
    often = (NOW,) * 9
    assert assessed(facts(last_heartbeat_at_s=NOW - 91, recoveries_s=often)).status is Status.UNHEALTHY
    down = unhealthy(Reason.PROBE_FAILURES, DecidingEvidence.PROBE, observed=alive(), recoveries_s=often)
    assert assessed(down).status is Status.ACTIVE


# Fields beside the status.


def test_health_is_that_of_the_last_result_with_either_deciding_evidence() -> None:
    for monitoring in DecidingEvidence:
        known = facts(monitoring, observed=reporting("healthy"), last_heartbeat_at_s=NOW + 5000)
        for later_s in (0, 4000):
            assert assessed(known, NOW + later_s).health is HealthStatus.HEALTHY


@pytest.mark.parametrize(
    ("monitoring", "health"),
    [(DecidingEvidence.PROBE, HealthStatus.UNKNOWN), (DecidingEvidence.BOTH, HealthStatus.HEALTHY)],
)
def test_a_probed_agent_that_is_dead_has_no_health(
    monitoring: DecidingEvidence, health: HealthStatus
) -> None:
    """For an agent that died by its heartbeats, health belongs to the observed half."""
    gone = facts(
        monitoring,
        status=Status.DEAD,
        reason=Reason.DRAIN_TIMEOUT,
        status_since_s=NOW,
        observed=reporting("healthy"),
    )
    assert assessed(gone).health is health
    seen = failing(9, document=held_document("healthy"))
    dying = assessed(unhealthy(Reason.PROBE_FAILURES, DecidingEvidence.PROBE, observed=seen))
    assert (dying.status, dying.health) == (Status.DEAD, HealthStatus.UNKNOWN)


@pytest.mark.parametrize(
    ("known", "explanation"),
    [
        (facts(last_heartbeat_at_s=NOW - 12), "active for 1 d (registered); the last heartbeat 12 s ago"),
        (
            facts(DecidingEvidence.PROBE, observed=alive()),
            "active for 1 d (registered); the last sign of life 0 s ago",
        ),
        (
            unhealthy(Reason.HEARTBEAT_TIMEOUT, last_heartbeat_at_s=NOW - 100),
            "unhealthy for 10 s (heartbeat_timeout); the last heartbeat 1 min 40 s ago",
        ),
        (
            facts(last_heartbeat_at_s=None, status_since_s=NOW),
            "active for 0 s (registered); no heartbeat yet",
        ),
        (dead(), "dead for 16 min 40 s (probe_failures)"),
        (
            facts(maintenance_until_s=NOW + 60),
            "active for 1 d (registered), in maintenance for another 1 min",
        ),
    ],
)
def test_verdict_without_change_has_an_explanation(known: Facts, explanation: str) -> None:
    assert assessed(known).explanation == explanation


# Rules that hold whatever the facts.

SECONDS = st.integers(-12_000, 3000).map(lambda seconds: NOW + seconds)
DOCUMENTS = st.builds(
    held_document,
    st.sampled_from(list(HealthStatus)).map(str),
    SECONDS,
    is_stale=st.booleans(),
)


@st.composite
def observed_values(draw: st.DrawFn) -> Observed:
    signs = sorted(draw(st.lists(SECONDS, min_size=2, max_size=2)))
    failures = draw(st.integers(0, 5))
    is_alive = failures == 0 and draw(st.booleans())
    moments_s = draw(st.none() | st.tuples(SECONDS, st.integers(0, 3000), st.integers(0, 3000)))
    return Observed(
        measured_at_s=None if moments_s is None else moments_s[0],
        evidence_until_s=None if moments_s is None else moments_s[0] + moments_s[1],
        results_until_s=None if moments_s is None else moments_s[0] + moments_s[2],
        silence_s=draw(st.floats(0, 20_000)),
        last_liveness_signal_at_s=signs[1] if is_alive else draw(st.none() | SECONDS),
        alive_since_s=signs[0] if is_alive else None,
        failures_in_row=failures,
        recent_interactions=draw(st.text("01", max_size=20)),
        document=draw(st.none() | DOCUMENTS),
        unhealthy_documents_in_row=draw(st.integers(0, 3)),
    )


ALL_FACTS = st.builds(
    Facts,
    status=st.sampled_from(list(Status)),
    reason=st.sampled_from(list(Reason)),
    status_since_s=SECONDS,
    monitoring=st.sampled_from(list(DecidingEvidence)),
    thresholds=st.sampled_from([Thresholds(), Thresholds(60, 900, 1800), PROBE_THRESHOLDS]),
    last_heartbeat_at_s=st.none() | SECONDS,
    observed=st.none() | observed_values(),
    drain_deadline_s=st.none() | SECONDS,
    leases_held=st.integers(0, 2),
    maintenance_until_s=st.none() | SECONDS,
    override=st.none() | st.builds(Override, st.sampled_from([Status.ACTIVE, Status.UNHEALTHY]), SECONDS),
    recoveries_s=st.lists(SECONDS, max_size=8).map(tuple),
)
EXCUSED = st.lists(st.builds(ExcludedSpan, SECONDS, SECONDS), max_size=3).map(tuple)
LATER = st.integers(0, 15_000)


@given(known=ALL_FACTS, is_suspended=st.booleans(), excluded_downtime=EXCUSED)
def test_verdict_status_and_reason_follow_from_its_signals(
    *, known: Facts, is_suspended: bool, excluded_downtime: tuple[ExcludedSpan, ...]
) -> None:
    verdict = assessed(known, is_suspended=is_suspended, excluded_downtime=excluded_downtime)
    assert reduce(status_after, verdict.signals, known.status) is verdict.status
    assert verdict.reason is (reason_of(verdict.signals[-1]) if verdict.signals else known.reason)
    assert len(verdict.signals) <= 2
    assert verdict.explanation


@given(known=ALL_FACTS, is_suspended=st.booleans(), excluded_downtime=EXCUSED)
def test_applied_verdict_is_stable(
    *, known: Facts, is_suspended: bool, excluded_downtime: tuple[ExcludedSpan, ...]
) -> None:
    verdict = assessed(known, is_suspended=is_suspended, excluded_downtime=excluded_downtime)
    again = assessed(
        after(known, verdict, NOW), is_suspended=is_suspended, excluded_downtime=excluded_downtime
    )
    assert again.signals == ()
    assert (again.status, again.reason, again.health) == (verdict.status, verdict.reason, verdict.health)


@given(known=ALL_FACTS, is_suspended=st.booleans(), excluded_downtime=EXCUSED, seconds=LATER)
def test_no_verdict_changes_before_its_time(
    *, known: Facts, is_suspended: bool, excluded_downtime: tuple[ExcludedSpan, ...], seconds: int
) -> None:
    verdict = assessed(known, is_suspended=is_suspended, excluded_downtime=excluded_downtime)
    later_s = NOW + seconds
    assume(verdict.assess_at_s is None or later_s < verdict.assess_at_s)
    later = assessed(
        after(known, verdict, NOW), later_s, is_suspended=is_suspended, excluded_downtime=excluded_downtime
    )
    assert (later.signals, later.health) == ((), verdict.health)


@given(ALL_FACTS, EXCUSED)
def test_next_assessment_is_never_in_the_past_without_a_suspension(
    known: Facts, excluded_downtime: tuple[ExcludedSpan, ...]
) -> None:
    verdict = assessed(known, excluded_downtime=excluded_downtime)
    assert verdict.assess_at_s is None or verdict.assess_at_s >= NOW


@given(ALL_FACTS, EXCUSED)
def test_just_after_the_deadline_of_a_silence_the_agent_goes_down(
    known: Facts, excluded_downtime: tuple[ExcludedSpan, ...]
) -> None:
    known = replace(
        known, status=Status.ACTIVE, maintenance_until_s=None, override=None, observed=None, leases_held=0
    )
    assume(known.monitoring is not DecidingEvidence.PROBE)
    verdict = assessed(known, excluded_downtime=excluded_downtime)
    applied = after(known, verdict, NOW)
    for _ in range(2 - len(verdict.signals)):
        assert verdict.assess_at_s is not None
        assert assessed(applied, verdict.assess_at_s, excluded_downtime=excluded_downtime).signals == ()
        just_after_s = verdict.assess_at_s + 0.001
        verdict = assessed(applied, just_after_s, excluded_downtime=excluded_downtime)
        assert verdict.signals == (Signal.HEARTBEAT_TIMEOUT,)
        applied = after(applied, verdict, just_after_s)
    assert applied.status is Status.DEAD


@given(ALL_FACTS, EXCUSED)
def test_suspension_only_ever_keeps_agents_up(
    known: Facts, excluded_downtime: tuple[ExcludedSpan, ...]
) -> None:
    held = assessed(known, is_suspended=True, excluded_downtime=excluded_downtime)
    assert not {Signal.HEARTBEAT_TIMEOUT, Signal.PROBE_FAILURES} & set(held.signals)


@given(ALL_FACTS, EXCUSED, st.integers(1, 5000))
def test_more_excused_time_never_takes_an_agent_down(
    known: Facts, excluded_downtime: tuple[ExcludedSpan, ...], more: int
) -> None:
    ranks = {Status.ACTIVE: 0, Status.UNHEALTHY: 1, Status.DEAD: 2}
    known = replace(known, status=Status.ACTIVE)
    without = assessed(known, excluded_downtime=excluded_downtime)
    excusing = assessed(known, excluded_downtime=(*excluded_downtime, ExcludedSpan(NOW - more, NOW)))
    assert ranks[excusing.status] <= ranks[without.status]


@given(ALL_FACTS, EXCUSED)
def test_heartbeat_policy_ignores_probe_results(
    known: Facts, excluded_downtime: tuple[ExcludedSpan, ...]
) -> None:
    known = replace(known, monitoring=DecidingEvidence.HEARTBEAT)
    blind = assessed(replace(known, observed=None), excluded_downtime=excluded_downtime)
    seeing = assessed(known, excluded_downtime=excluded_downtime)
    assert (seeing.signals, seeing.status) == (blind.signals, blind.status)
