"""Verdicts: the consequences of heartbeats and observations.

Two tracks of evidence are kept separate: `heartbeat` is the agent's own authenticated report, `observed` the
results of probers. `judge` takes both, the policy and the time. It returns the signals that move the agent
through `lifecycle`, its health, and the time of the next assessment. Nothing else decides. A heartbeat makes
an agent active only if missed heartbeats made it unhealthy: a departure from RFC-0016 4.4, which knows no
other reason. Times are seconds since the epoch.

Missed heartbeats are a matter of time. A probed agent becomes unhealthy only by a measured failure: time in
which no probe measured anything changes nothing. Nor does the end of a maintenance or an override: failures
that were observed before it do not count.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Final, Literal, TypeGuard

from lifesign.domain.common.clock_skew import is_in_future
from lifesign.domain.common.fast_dataclass import fast_dataclass
from lifesign.domain.health.document import HealthStatus
from lifesign.domain.lifecycle.heartbeat_timeout import (
    ExcludedSpan,
    ExtendedThresholds,
    Thresholds,
    deadline_s,
    silent_for_s,
)
from lifesign.domain.lifecycle.observed_facts import (
    FAILED_ASSERTION_PROBES,
    Observed,
    current_health,
    evidence_of,
    has_lost_document,
    is_document_current,
    observed_health,
    reported_health,
)
from lifesign.domain.lifecycle.status_table import Reason, Signal, Status, reason_of, status_after
from lifesign.domain.observation.evidence_age import unknown_reason
from lifesign.domain.text.counts import plural, pluralize
from lifesign.domain.text.durations import duration_text, excess_text

UNHEALTHY_AFTER_FAILURES: Final = 2
"""A probed agent is unhealthy only after so many measured failures in a row, however long they took."""
DEAD_AFTER_FAILURES: Final = 4
"""The same for its death."""
REDISCOVERED_AFTER_S: Final = 30.0
"""Minimum time between the two liveness signals that revive a dead agent."""
MIN_EXCLUDED_S: Final = 60.0
"""Excluded time of at least this length is mentioned in the explanation."""
UNHEALTHY_DOCUMENTS: Final = 2
"""Number of documents of different times with status unhealthy that make an agent unhealthy."""
MIN_INTERACTIONS: Final = 10
"""Minimum number of measured interactions that can contradict an agent's own report."""

FLAP_WINDOW_S: Final = 3600.0
RECOVERIES_PER_STEP: Final = 2
MAX_DAMPING: Final = 4
"""Flap damping: a probed agent's thresholds are multiplied by

    min(MAX_DAMPING, 1 + recoveries // RECOVERIES_PER_STEP)

with its recoveries since FLAP_WINDOW_S before its last sign of life. It only delays steps down. An agent that
often goes down and up causes fewer events, but is found unhealthy after an hour instead of 15 minutes, and
dead after four hours instead of one. Heartbeat timeouts are not damped: they are the agent's own declaration.
"""

_MAX_STEPS: Final = 4
"""The longest known sequences have two steps: down and down, up and down, revived and down."""


class DecidingEvidence(StrEnum):
    """Evidence that decides whether an agent is alive: heartbeats, probes or both."""

    HEARTBEAT = "heartbeat"
    """Heartbeats decide; observations are shown and have no effect."""
    PROBE = "probe"
    """Observations by a prober, including the health document."""
    BOTH = "both"
    """Heartbeats and health documents decide; only missed heartbeats count as silence."""


@dataclass(frozen=True, slots=True)
class Override:
    """A status that an operator has set for an agent until a time."""

    status: Literal[Status.ACTIVE, Status.UNHEALTHY]
    until_s: float


@fast_dataclass()
class Facts:
    """All facts on which the verdict about one agent depends."""

    status: Status
    reason: Reason
    """Reason for the status."""
    status_since_s: float
    monitoring: DecidingEvidence
    thresholds: Thresholds
    extended: ExtendedThresholds | None = None
    """In force instead of `thresholds` for missed heartbeats, if shorter ones were set since the last one."""
    last_heartbeat_at_s: float | None = None
    """When we received it; registering counts as the first one."""
    observed: Observed | None = None
    drain_deadline_s: float | None = None
    leases_held: int = 0
    current_load: int = 0
    """Number of tasks in the agent's last report; used only while it drains."""
    maintenance_until_s: float | None = None
    """No verdict makes the agent unhealthy or dead before; at exactly this time the maintenance is over."""
    override: Override | None = None
    recoveries_s: tuple[float, ...] = ()
    """When it last went from unhealthy to active, in any order; see MAX_DAMPING."""


@fast_dataclass()
class Verdict:
    """Decision about an agent's status at one moment, with its reason."""

    signals: tuple[Signal, ...]
    """Signals to apply in this order; each is valid in the status that it meets. Empty: nothing changes."""
    status: Status
    """After all signals."""
    reason: Reason
    """Reason of that status."""
    health: HealthStatus
    """Health by the last result, to be stored; the shown health depends on the time (`evidence_age`)."""
    assess_at_s: float | None
    """No verdict changes before this moment unless new facts arrive; None: time alone changes nothing.

    It may lie in the past while verdicts are suspended: then assess again at the next sweep.
    """
    _last_step: "_Step | None"
    _facts: Facts
    """After all signals."""
    _now_s: float
    _excluded: Sequence[ExcludedSpan]

    @property
    def explanation(self) -> str:
        """One sentence that explains the verdict to people, with its figures.

        Computed on demand: most verdicts are never shown.
        """
        if self._last_step is not None:
            return self._last_step.explanation
        return _unchanged_text(self._facts, self._now_s, self._excluded)


@dataclass(frozen=True, slots=True)
class _Step:
    signal: Signal
    explanation: str


_TIMEOUT_REASONS: Final = frozenset({Reason.HEARTBEAT_TIMEOUT, Reason.PROBE_FAILURES})
_OBSERVED_FAULTS: Final[Mapping[Reason, Signal]] = MappingProxyType({
    Reason.HEALTH_REPORTED_UNHEALTHY:   Signal.HEALTH_RECOVERED,
    Reason.OBSERVED_CONTRADICTS_REPORT: Signal.PROBE_RECOVERED,
    Reason.ASSERTION_FAILED:            Signal.ASSERTIONS_PASSED,
})  # fmt: skip
"""Signals by which observations make an agent unhealthy, each with the signal that ends it."""


def judge(
    facts: Facts, now_s: float, *, is_suspended: bool, excluded_downtime: Sequence[ExcludedSpan]
) -> Verdict:
    """Return the verdict about one agent. It depends only on these facts and this time.

    `is_suspended` while verdicts are suspended: then silence makes no agent unhealthy or dead, nor does the
    end of a drain of an agent that sends heartbeats. Everything else is unchanged. `excluded_downtime` is
    time that does not count as missed heartbeats; it does not concern probes.
    """
    if facts.monitoring is DecidingEvidence.PROBE:
        excluded_downtime = ()
    signals: list[Signal] = []
    last_step = None
    for _ in range(_MAX_STEPS):
        step = _next_step(facts, now_s, is_suspended=is_suspended, excluded_downtime=excluded_downtime)
        if step is None:
            break
        signals.append(step.signal)
        last_step = step
        status = status_after(facts.status, step.signal)
        facts = replace(facts, status=status, reason=reason_of(step.signal), status_since_s=now_s)
    return Verdict(
        signals=tuple(signals),
        status=facts.status,
        reason=facts.reason,
        health=_health(facts),
        assess_at_s=_next_move_s(facts, now_s, excluded_downtime),
        _last_step=last_step,
        _facts=facts,
        _now_s=now_s,
        _excluded=excluded_downtime,
    )


def _next_step(
    facts: Facts, now_s: float, *, is_suspended: bool, excluded_downtime: Sequence[ExcludedSpan]
) -> _Step | None:
    """Return the one signal that is due first, None if none is."""
    match facts.status:
        case Status.DRAINING:
            step = _drain(facts, now_s)
            is_late = step is not None and step.signal is Signal.DRAIN_TIMEOUT
            # If heartbeats may be lost, the agent may be unable to report that it is done.
            waits = is_late and is_suspended and facts.monitoring is not DecidingEvidence.PROBE
            return None if waits else step
        case Status.DEAD:
            return _rediscovery(facts)
        case Status.ACTIVE | Status.UNHEALTHY:
            declared = _in_force(facts, now_s)
            if declared is not None:
                return _declaration(facts.status, declared, now_s)
            return _move(facts, now_s, is_suspended=is_suspended, excluded_downtime=excluded_downtime)
        case Status.REGISTERING | Status.DEREGISTERED:
            return None


def _move(
    facts: Facts, now_s: float, *, is_suspended: bool, excluded_downtime: Sequence[ExcludedSpan]
) -> _Step | None:
    """Return the consequence of the evidence for an active or unhealthy agent without an override."""
    may_go_down = not is_in_force(facts.maintenance_until_s, now_s)
    if may_go_down and not is_suspended and _is_silent(facts, now_s, excluded_downtime):
        return _timeout_step(facts, now_s, excluded_downtime)
    if facts.status is Status.UNHEALTHY:
        return _recovery(facts, now_s, excluded_downtime)
    return _observed_fault(facts, now_s) if may_go_down else None


def _next_move_s(facts: Facts, now_s: float, excluded_downtime: Sequence[ExcludedSpan]) -> float | None:
    """Return the first time at which the agent may change without new evidence.

    The only function that knows a deadline. It ignores suspensions, which can end at any time.
    """
    if facts.status is Status.DRAINING:
        return facts.drain_deadline_s
    if facts.status not in {Status.ACTIVE, Status.UNHEALTHY}:
        return None
    declared = _in_force(facts, now_s)
    if declared is not None:
        return declared.until_s
    if is_in_force(facts.maintenance_until_s, now_s):
        return facts.maintenance_until_s
    if facts.monitoring is not DecidingEvidence.PROBE:
        return _heartbeat_deadline_s(facts, excluded_downtime)
    # The consequence of a measured failure waits for the next sweep.
    is_due = facts.observed is not None and _has_failed_for_long(facts, now_s)
    return facts.observed.measured_at_s if is_due and facts.observed is not None else None


def _in_force(facts: Facts, now_s: float) -> Override | None:
    override = facts.override
    return override if override is not None and is_in_force(override.until_s, now_s) else None


def is_in_force(until_s: float | None, now_s: float) -> TypeGuard[float]:
    """Return whether an override or a maintenance until this time still applies."""
    return until_s is not None and now_s < until_s


def is_judged_by_probes(facts: Facts, now_s: float) -> bool:
    """Return whether failed probes may make the agent unhealthy now."""
    is_alive = facts.monitoring is DecidingEvidence.PROBE and facts.status in {
        Status.ACTIVE,
        Status.UNHEALTHY,
    }
    return is_alive and not has_decision_in_force(facts, now_s)


def has_decision_in_force(facts: Facts, now_s: float) -> bool:
    """Return whether an operator's maintenance or override is in force."""
    return is_in_force(facts.maintenance_until_s, now_s) or _in_force(facts, now_s) is not None


# Timeouts


def _is_silent(facts: Facts, now_s: float, excluded_downtime: Sequence[ExcludedSpan]) -> bool:
    """Return whether a heartbeat timeout makes the next step down due."""
    if facts.monitoring is DecidingEvidence.PROBE:
        return _has_failed_for_long(facts, now_s)
    return now_s > _heartbeat_deadline_s(facts, excluded_downtime)


def _has_failed_for_long(facts: Facts, now_s: float) -> bool:
    """Return whether the measured failures are recent, and have lasted for the next threshold."""
    observed = facts.observed
    if observed is None or unknown_reason(evidence_of(observed), now_s) is not None:
        return False
    needed = UNHEALTHY_AFTER_FAILURES if facts.status is Status.ACTIVE else DEAD_AFTER_FAILURES
    return observed.counted_failures >= needed and observed.counted_silence_s > _patience_s(facts)


def _heartbeat_deadline_s(facts: Facts, excluded_downtime: Sequence[ExcludedSpan]) -> float:
    """Return the last moment before the next step down by missed heartbeats."""
    return deadline_s(silent_since_s(facts), _patience_s(facts), excluded_downtime)


def silent_since_s(facts: Facts) -> float:
    """Return the time of the last liveness signal; without one, when the present status began."""
    last_s = _last_liveness_s(facts)
    return facts.status_since_s if last_s is None else last_s


def _last_liveness_s(facts: Facts) -> float | None:
    """Return the last sign on the track that counts."""
    if facts.monitoring is not DecidingEvidence.PROBE:
        return facts.last_heartbeat_at_s
    return None if facts.observed is None else facts.observed.last_liveness_signal_at_s


def _patience_s(facts: Facts) -> float:
    """Return the silence that the next step down requires, including flap damping."""
    is_active = facts.status is Status.ACTIVE
    thresholds = thresholds_in_force(facts)
    patience_s = thresholds.unhealthy_after_s if is_active else thresholds.dead_after_s
    return patience_s * _damping(facts)


def thresholds_in_force(facts: Facts) -> Thresholds | ExtendedThresholds:
    """Return the thresholds for the present silence."""
    if facts.extended is None or facts.monitoring is DecidingEvidence.PROBE:
        return facts.thresholds
    return facts.extended


def _damping(facts: Facts) -> int:
    """Return the factor of MAX_DAMPING's formula, 1 or more; it depends on facts, never on now."""
    if facts.monitoring is not DecidingEvidence.PROBE:
        return 1
    last_s = silent_since_s(facts)
    since_s = last_s - FLAP_WINDOW_S
    # A recovery after the last liveness signal was stored while the clock was ahead.
    recoveries = sum(at_s > since_s and not is_in_future(at_s, last_s) for at_s in facts.recoveries_s)
    return min(MAX_DAMPING, 1 + recoveries // RECOVERIES_PER_STEP)


def _timeout_step(facts: Facts, now_s: float, excluded_downtime: Sequence[ExcludedSpan]) -> _Step:
    if facts.monitoring is not DecidingEvidence.PROBE:
        silent_s = silent_for_s(silent_since_s(facts), now_s, excluded_downtime)
        return _Step(
            Signal.HEARTBEAT_TIMEOUT, f"no heartbeat for {excess_text(silent_s, _patience_s(facts))}"
        )
    observed = facts.observed or _NEVER_OBSERVED
    length = excess_text(observed.counted_silence_s, _patience_s(facts))
    text = f"no liveness signal for {length}, and {pluralize(observed.counted_failures, 'failure')} in a row"
    if observed.excused_failures:
        text += f"; {pluralize(observed.excused_failures, 'earlier failure')}"
        text += f" {plural(observed.excused_failures, 'does', 'do')} not count"
        text += " (maintenance, override or former URL)"
    # Gaps between measured results count for two intervals at most.
    passed_s = 0.0 if observed.measured_at_s is None else observed.measured_at_s - silent_since_s(facts)
    if (left_out_s := passed_s - observed.silence_s) >= MIN_EXCLUDED_S:
        text += f"; {duration_text(left_out_s)} without measured results do not count"
    return _Step(Signal.PROBE_FAILURES, text)


# Transitions without a timeout


def _drain(facts: Facts, now_s: float) -> _Step | None:
    """Return how a drain ends (RFC-0016 2.1, 5.2).

    An agent that has work without a lease may finish it, and does not become dead.
    """
    if facts.leases_held == facts.current_load == 0:
        return _Step(Signal.DRAIN_COMPLETED, "drained: it holds no lease and has no work")
    if facts.drain_deadline_s is None or now_s < facts.drain_deadline_s:
        return None
    if facts.leases_held == 0:
        return _Step(Signal.DRAIN_COMPLETED, "the time to drain is over, and it holds no lease")
    leases_text = _leases_text(facts.leases_held)
    return _Step(Signal.DRAIN_TIMEOUT, f"the time to drain is over, and {leases_text} still held")


def _rediscovery(facts: Facts) -> _Step | None:
    """Return the new incarnation of an agent that timed out, died, and was observed alive twice.

    An agent that was alive when its drain ended was asked to leave: it must time out before it can be found
    again. After a death by timeout a first signal from shortly before it, which came late, counts from then.
    """
    observed = facts.observed
    if facts.monitoring is not DecidingEvidence.PROBE or observed is None:
        return None
    began_s, last_s = observed.alive_since_s, observed.last_liveness_signal_at_s
    if began_s is None or last_s is None:
        return None
    if began_s < facts.status_since_s and facts.reason not in _TIMEOUT_REASONS:
        return None
    alive_s = last_s - max(began_s, facts.status_since_s)
    if alive_s < REDISCOVERED_AFTER_S:
        return None
    return _Step(Signal.PROBE_REDISCOVERED, f"liveness signals again, over {duration_text(alive_s)}")


def _declaration(status: Status, override: Override, now_s: float) -> _Step | None:
    if status is override.status:
        return None
    is_active = override.status is Status.ACTIVE
    signal = Signal.DECLARED_ACTIVE if is_active else Signal.DECLARED_UNHEALTHY
    return _Step(signal, _declared_text(override, now_s))


def _observed_fault(facts: Facts, now_s: float) -> _Step | None:
    """Return the fault that a prober's evidence shows, apart from silence."""
    observed = facts.observed
    if observed is None or facts.monitoring is DecidingEvidence.HEARTBEAT:
        return None
    if _has_wrong_answers(observed, now_s):
        return _Step(Signal.ASSERTION_FAILED, _assertions_text(observed))
    health = current_health(observed, now_s)
    if health is HealthStatus.UNHEALTHY and observed.unhealthy_documents_in_row >= UNHEALTHY_DOCUMENTS:
        count = observed.unhealthy_documents_in_row
        return _Step(Signal.HEALTH_REPORTED_UNHEALTHY, f"its last {count} health documents report unhealthy")
    is_enough = len(observed.recent_interactions) >= MIN_INTERACTIONS
    if health is HealthStatus.HEALTHY and is_enough and not _half_succeed(observed):
        return _Step(
            Signal.OBSERVED_CONTRADICTS_REPORT,
            f"{_claim_text(observed, now_s)}, yet {_interactions_text(observed)}",
        )
    return None


def _recovery(facts: Facts, now_s: float, excluded_downtime: Sequence[ExcludedSpan]) -> _Step | None:
    """Return the recovery of an unhealthy agent once the reason has ended, None while it lasts."""
    if facts.reason is Reason.OPERATOR_OVERRIDE:
        return _Step(Signal.DECLARED_ACTIVE, "the override of an operator has ended")
    if facts.reason in _TIMEOUT_REASONS:
        return _end_of_silence(facts, now_s, excluded_downtime)
    signal = _OBSERVED_FAULTS.get(facts.reason)
    if signal is None:
        return None
    if facts.monitoring is DecidingEvidence.HEARTBEAT or facts.observed is None:
        return _Step(signal, "the observations of probers no longer decide")
    if signal is Signal.ASSERTIONS_PASSED:
        has_gone, text = facts.observed.failed_assertions_in_row == 0, "its last probe failed no assertion"
    elif signal is Signal.HEALTH_RECOVERED:
        health = current_health(facts.observed, now_s)
        # A document that is only too old has no consequence, no recovery either.
        has_gone = is_document_current(facts.observed, now_s) and health is not HealthStatus.UNHEALTHY
        text = f"its health document reports {health}"
        if has_lost_document(facts.observed):
            has_gone, text = True, "it answers, and its last health document has expired"
    else:
        has_gone, text = _half_succeed(facts.observed), _interactions_text(facts.observed)
    return _Step(signal, text) if has_gone else None


def _end_of_silence(facts: Facts, now_s: float, excluded_downtime: Sequence[ExcludedSpan]) -> _Step | None:
    """Return the end of a silence, on the track that counts now: the policy may have changed since."""
    last_s, seen = _last_liveness_s(facts), facts.observed
    if last_s is None:
        return None
    ago = f"{duration_text(silent_for_s(last_s, now_s, excluded_downtime))} ago"
    if facts.monitoring is not DecidingEvidence.PROBE:
        is_late = now_s > deadline_s(last_s, thresholds_in_force(facts).unhealthy_after_s, excluded_downtime)
        return None if is_late else _Step(Signal.HEARTBEAT_RESUMED, f"a heartbeat {ago}")
    is_failing = seen is not None and seen.failures_in_row >= UNHEALTHY_AFTER_FAILURES
    return None if is_failing else _Step(Signal.PROBE_RECOVERED, f"a liveness signal {ago}")


def _has_wrong_answers(seen: Observed, now_s: float) -> bool:
    """Return whether assertions failed in enough probes in a row, and the last result still counts."""
    has_failed = seen.failed_assertions_in_row >= FAILED_ASSERTION_PROBES
    return has_failed and unknown_reason(evidence_of(seen), now_s) is None


def _half_succeed(seen: Observed) -> bool:
    return 2 * seen.recent_interactions.count("1") >= len(seen.recent_interactions)


def _health(facts: Facts) -> HealthStatus:
    """Return the health to store: that of the observed half, but a probed agent that is dead has none."""
    is_probed_and_dead = facts.status is Status.DEAD and facts.monitoring is DecidingEvidence.PROBE
    if is_probed_and_dead:
        return HealthStatus.UNKNOWN
    # What a prober sees of an agent that is monitored by heartbeat is shown, and decides nothing.
    is_decided = facts.monitoring is not DecidingEvidence.HEARTBEAT
    return observed_health(facts.observed) if is_decided else reported_health(facts.observed)


_NEVER_OBSERVED: Final = Observed()


# Explanations


def _unchanged_text(facts: Facts, now_s: float, excluded_downtime: Sequence[ExcludedSpan]) -> str:
    """Return why nothing changes."""
    if facts.status is Status.DRAINING:
        left = (
            "" if facts.drain_deadline_s is None else f" for {_remaining_text(facts.drain_deadline_s, now_s)}"
        )
        return f"draining{left}, {_leases_text(facts.leases_held)} held"
    since = f"{facts.status} for {duration_text(now_s - facts.status_since_s)} ({facts.reason})"
    if facts.status not in {Status.ACTIVE, Status.UNHEALTHY}:
        return since
    declared = _in_force(facts, now_s)
    if declared is not None:
        return _declared_text(declared, now_s)
    if is_in_force(facts.maintenance_until_s, now_s):
        return f"{since}, in maintenance for {_remaining_text(facts.maintenance_until_s, now_s)}"
    sign = "sign of life" if facts.monitoring is DecidingEvidence.PROBE else "heartbeat"
    last_s = _last_liveness_s(facts)
    if last_s is None:
        return f"{since}; no {sign} yet"
    return f"{since}; the last {sign} {duration_text(silent_for_s(last_s, now_s, excluded_downtime))} ago"


def _declared_text(override: Override, now_s: float) -> str:
    return f"an operator declared it {override.status} for {_remaining_text(override.until_s, now_s)}"


def _assertions_text(seen: Observed) -> str:
    count = pluralize(seen.failed_assertions_in_row, "probe")
    failed = [each for each in seen.assertions if each.has_failed and not each.is_gradual]
    if not failed:
        return f"assertions failed in {count} in a row"
    first = failed[0]
    more = f", and {len(failed) - 1} more" if len(failed) > 1 else ""
    return f"assertions failed in {count} in a row: {first.explanation(max_chars=80)}{more}"


def _interactions_text(seen: Observed) -> str:
    recent = seen.recent_interactions
    return f"{recent.count('1')} of the last {len(recent)} interactions succeeded"


def _claim_text(seen: Observed, now_s: float) -> str:
    """Return that an agent calls itself healthy; if its document could not be read again, when it did."""
    document, readiness = seen.document, seen.readiness
    if document is None or readiness is None or readiness.observed_at_s <= document.observed_at_s:
        return "it calls itself healthy"
    layer = readiness.layer
    result = layer.result if layer.status_code is None else f"{layer.result}, HTTP {layer.status_code}"
    ago = duration_text(now_s - document.observed_at_s)
    return f"its health document of {ago} ago reports healthy (read again: {result})"


def _leases_text(count: int) -> str:
    return f"{count} {plural(count, 'lease is', 'leases are')}"


def _remaining_text(until_s: float, now_s: float) -> str:
    return f"another {duration_text(until_s - now_s)}"
