"""Intake of results: decides which ones count, wait for a witness, are reported and are remembered."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from lifesign.domain.common.fast_dataclass import fast_dataclass
from lifesign.domain.observation.probe_memory import ProbeMemory
from lifesign.domain.observation.results import InconclusiveReason, Observation, ResultClass
from lifesign.domain.observation.witness_rule import (
    FailureFacts,
    WitnessNeed,
    WitnessPolicy,
    bears_out,
    is_second_request_in_time,
    witness_need,
)
from lifesign.domain.probing.cadence import (
    Cadence,
    last_alive_s,
    with_backoff_restarted,
    without_card,
    without_result,
)
from lifesign.prober.definition.lag_limits import SelfCheck
from lifesign.prober.network.clock import Clock
from lifesign.prober.registry_exchange.ledger import ProbeReport
from lifesign.prober.worker import inconclusive
from lifesign.prober.worker.outbox import Result
from lifesign.prober.worker.progress_counts import Tally
from lifesign.prober.worker.reporting import Reporter
from lifesign.prober.worker.schedule import Plan
from lifesign.prober.worker.shards import TargetSlot
from lifesign.prober.worker.waiting_failures import WaitingFailure, WaitingFailures

if TYPE_CHECKING:
    from lifesign.prober.worker.reachability_witnesses import ReachabilityWitnesses

MAX_ROUNDS: Final = 3
"""Maximum number of witness rounds for one failure, if the second request is late or fails in another way."""
NAME_ROUNDS: Final = 2
"""Number of rounds with a witness before a name counts as one that does not resolve.

A name server may answer wrongly only now and then, such as one of two behind one address.
"""

_ASKING: Final = frozenset({WitnessNeed.ASK_CANARIES, WitnessNeed.ASK_TARGETS})


@fast_dataclass(kw_only=True)
class FinishedProbe:
    """One probe that has ended, with its report."""

    slot: TargetSlot
    memory: ProbeMemory
    """Memory before the probe."""
    report: ProbeReport
    began_at_s: float
    """Start in seconds since the epoch, by the ledger's calendar."""
    began_s: float
    """Start on the monotonic clock."""
    ended_s: float
    first: WaitingFailure | None = None
    """The failure of which this is the second request; None if it is of none."""

    @property
    def due_at_s(self) -> float:
        """Time at which the first request of the probe began, since the epoch."""
        return self.began_at_s if self.first is None else self.first.began_at_s


class Intake:
    """Decides what happens with the result of each probe: report it, or wait for a witness."""

    def __init__(
        self,
        *,
        plan: Callable[[], Plan],
        planned: Callable[[TargetSlot], None],
        asks_again: Callable[[WaitingFailure], None],
        clock: Clock,
        cadence: Cadence,
        reporter: Reporter,
        tally: Tally,
        check: SelfCheck,
        failures: WaitingFailures,
        policy: WitnessPolicy,
        clock_offset_s: Callable[[], float],
    ) -> None:
        """`planned` is called when a target has got its next time, `asks_again` for a second request."""
        self.witnesses: ReachabilityWitnesses
        """Set by the worker."""
        self._plan = plan
        self._planned = planned
        self._asks_again = asks_again
        self._clock = clock
        self._cadence = cadence
        self._reporter = reporter
        self._tally = tally
        self._check = check
        self._failures = failures
        self._policy = policy
        self._clock_offset_s = clock_offset_s

    def take(self, probed: FinishedProbe) -> None:
        """Process the result of a probe: report it and schedule the next probe, or wait for a witness."""
        slot = probed.slot
        if probed.first is not None:
            self._failures.asked_again -= 1
        if slot.is_gone:
            slot.is_busy = False
            self._tally.note(probed.report.result, probed.ended_s)
            return
        self._note_contact(probed)
        probed = self._with_interface_waiting(probed)
        report = self._discount_local_faults(probed)
        if report is not probed.report:
            probed = replace(probed, report=report)
            unreached = {*report.contact.unreached_layers}
            discounted = report.observation.layers_with(ResultClass.NOT_MEASURED)
            has_failed = report.observation.is_measured_failure or report.observation.has_wrong_answer
            if not has_failed and unreached.issubset(discounted):
                self._settle_or_retry(probed, report)
                return
        first = probed.first
        if first is not None and first.is_alive and report.observation.is_measured_failure:
            self._settle_first(first, probed.ended_s)
            return
        match self._witness_need(probed):
            case WitnessNeed.COUNTS:
                self._settle(probed, report)
            case WitnessNeed.NO_WITNESS:
                self._settle_unwitnessed(probed, "no witness could answer")
            case WitnessNeed.ASK_CANARIES | WitnessNeed.ASK_TARGETS:
                self._wait_for_witness(probed)

    def note_witnessed(self, failures: Sequence[WaitingFailure]) -> None:
        """Request the targets of these failures a second time, because a witness has answered."""
        for failure in failures:
            if failure.slot.is_gone:
                self.drop(failure)
            else:
                self._asks_again(failure)

    def note_unwitnessed(self, failures: Sequence[WaitingFailure], why: str) -> None:
        """Report these failures as not measured, because no witness has answered."""
        now_s = self._clock.monotonic_s()
        for failure in failures:
            slot = failure.slot
            if slot.is_gone:
                slot.is_busy = False
                continue
            is_date, reason = failure.is_date_failure, why
            if is_date:
                reason = "no witness confirmed this machine's clock"
            elif failure.is_tls_failure:
                reason = "no witness answered over TLS"
            self._settle_unwitnessed(
                _finished(failure, now_s),
                reason,
                reason=InconclusiveReason.PROBER_CLOCK if is_date else InconclusiveReason.NO_WITNESS,
                layers=failure.layers,
                made_at_s=failure.made_at_s,
            )

    def drop(self, failure: WaitingFailure) -> None:
        """Give up a failure that waits for a second request, since another worker has its target now."""
        self._failures.asked_again -= 1
        failure.slot.is_busy = False

    def _with_interface_waiting(self, probed: FinishedProbe) -> FinishedProbe:
        """Queue a newly read interface for delivery; if the queue is full, it is read again the next time."""
        interface = probed.report.interface
        if interface is None or self._reporter.interfaces.add(probed.slot, interface):
            return probed
        memory = without_card(probed.report.memory)
        return replace(probed, report=replace(probed.report, memory=memory, interface=None))

    def _note_contact(self, probed: FinishedProbe) -> None:
        """Note that an answer may be a witness for others, and a failure may not."""
        contact, memory = probed.report.contact, probed.report.memory
        may_be_asked = memory.not_before_s is None and not memory.is_excluded
        if contact.answered is not None and may_be_asked:
            self.witnesses.note_answer(probed.slot.host, contact.answered)
        elif contact.network_class is not None:
            self.witnesses.note_failure(probed.slot.host, contact.network_class)

    def _discount_local_faults(self, probed: FinishedProbe) -> ProbeReport:
        """Return the report without failures by this machine's own slowness or calendar."""
        report = probed.report
        observation = report.observation
        late = observation.layers_with(ResultClass.TIMEOUT)
        if not (observation.is_measured_failure or late or observation.has_late_answer):
            return report
        why = self._check.slowness_since(probed.began_s, probed.ended_s)
        if observation.has_late_answer and why is not None:
            observation = observation.without_late_answers()
            report = replace(report, observation=observation)
        changed = observation
        if late and why is not None:
            changed = changed.discounted(InconclusiveReason.PROBER_SLOW, f"not counted: {why}", layers=late)
        offset_s = self._clock_offset_s()
        if report.contact.is_date_failure and abs(offset_s) > self._policy.max_clock_offset_s:
            changed = changed.discounted(
                InconclusiveReason.PROBER_CLOCK,
                f"not counted: this machine's clock differs from the registry's by {offset_s:.0f} s",
                layers=observation.layers_with(ResultClass.TLS_FAILURE),
            )
        return report if changed is observation else self._replaced(probed, changed)

    def _replaced(self, probed: FinishedProbe, observation: Observation) -> ProbeReport:
        learned = without_result(probed.memory, probed.report.memory)
        cadence = probed.slot.cadence(self._cadence)
        return inconclusive.discount_failures(learned, probed.report, observation, cadence, probed.began_at_s)

    def _witness_need(self, probed: FinishedProbe) -> WitnessNeed:
        """Return the consequence of a probe, which need not have failed."""
        observation, contact, slot = probed.report.observation, probed.report.contact, probed.slot
        # A gateway may have given an answer that counts as one of the agent, such as HTTP 400.
        is_newly_wrong = observation.has_wrong_answer and not slot.had_wrong_answer
        if not (contact.unreached_layers or observation.is_measured_failure or is_newly_wrong):
            return WitnessNeed.COUNTS
        network_class = self.witnesses.class_for(contact.network_class)
        moments = (slot.confirmed_at_s, self.witnesses.confirmed_at_s(network_class))
        facts = FailureFacts(
            network_class=network_class,
            # A target that lives has something to lose, whatever was confirmed before.
            alive_at_s=last_alive_s(probed.memory) if observation.is_measured_failure else probed.began_at_s,
            has_answered_itself=contact.has_answered_itself,
            confirmed_at_s=max((at_s for at_s in moments if at_s is not None), default=None),
            has_canaries=self.witnesses.has_canaries(network_class),
            is_without_witness=self.witnesses.is_without_witness(network_class),
        )
        found = witness_need(facts)
        if found in _ASKING and self._is_second_failure(probed, network_class):
            return WitnessNeed.COUNTS
        return found

    def _is_second_failure(self, probed: FinishedProbe, network_class: str) -> bool:
        """Return whether a failure follows one that has a witness, which is a witness for this one too."""
        first, contact = probed.first, probed.report.contact
        # A living target waits for one round only, or its other results would come late.
        has_one_round = not contact.is_name_failure or bool(contact.unreached_layers)
        return (
            first is not None
            and first.answer is not None
            and first.rounds >= (1 if has_one_round else NAME_ROUNDS)
            and is_second_request_in_time(first.answered_at_s, probed.began_s, self._policy)
            and bears_out(
                first.answer,
                network_class,
                first.failed_at_s,
                is_name_failure=contact.is_name_failure,
                is_date_failure=contact.is_date_failure,
                is_tls_failure=contact.is_tls_failure,
            )
        )

    def _wait_for_witness(self, probed: FinishedProbe) -> None:
        rounds = 1 if probed.first is None else probed.first.rounds + 1
        if rounds > MAX_ROUNDS:
            self._settle_unwitnessed(probed, f"no witness in {MAX_ROUNDS} rounds")
            return
        if self._failures.is_full:
            self._settle_unwitnessed(probed, "too many failures wait for a witness")
            return
        probed.slot.is_busy = True
        self.witnesses.add(
            WaitingFailure(
                probed.slot,
                probed.report,
                probed.memory,
                network_class=self.witnesses.class_for(probed.report.contact.network_class),
                began_at_s=probed.due_at_s,
                failed_at_s=probed.ended_s,
                made_at_s=self._clock.boot_s(),
                rounds=rounds,
            )
        )

    def _settle_first(self, first: WaitingFailure, ended_s: float) -> None:
        """Report the first result of a living target whose second request failed as a whole.

        The message of the first may still block its process. The failed layers count, because a witness has
        answered. A failed assertion does not: the second request could not repeat it.
        """
        probed = _finished(first, ended_s)
        if first.layers is None:
            self._settle_unwitnessed(probed, "the second request failed", made_at_s=first.made_at_s)
        else:
            self._settle(probed, probed.report, made_at_s=first.made_at_s)

    def _settle_unwitnessed(
        self,
        probed: FinishedProbe,
        why: str,
        *,
        reason: InconclusiveReason = InconclusiveReason.NO_WITNESS,
        layers: Sequence[str] | None = None,
        made_at_s: float | None = None,
    ) -> None:
        layers = layers or probed.report.contact.unreached_layers or None
        observation = probed.report.observation.discounted(reason, f"not counted: {why}", layers=layers)
        self._tally.unwitnessed += 1
        self._settle_or_retry(probed, self._replaced(probed, observation), made_at_s)

    def _settle_or_retry(
        self, probed: FinishedProbe, report: ProbeReport, made_at_s: float | None = None
    ) -> None:
        """Report a result that does not count; a census probes the target once more instead."""
        if not report.observation.is_measured_failure and self._plan().tries_again(probed.slot):
            probed.slot.is_busy = False
            self._planned(probed.slot)
            return
        self._settle(probed, report, made_at_s)

    def _settle(self, probed: FinishedProbe, report: ProbeReport, made_at_s: float | None = None) -> None:
        """Report and store a result, and schedule the next probe of its target."""
        slot, result = probed.slot, report.result
        slot.is_busy = False
        self._tally.note(result, probed.ended_s)
        if report.observation.assertions:
            self._tally.note_assertions(slot.subject_id, report.observation.assertions)
        slot.had_wrong_answer = report.observation.has_wrong_answer
        now_s = self._clock.boot_s()
        self._report_missed(probed, now_s)
        has_waited = made_at_s is not None or probed.first is not None
        slot.waited_until_s = self._clock.wall_s() if has_waited else None
        is_asked_for = slot.recheck_at_s is not None and slot.recheck_at_s <= probed.due_at_s
        if is_asked_for:
            slot.recheck_at_s = None
            report = replace(report, memory=with_backoff_restarted(report.memory))
        slot.remember(report.memory)
        slot.note(result, report.memory, self._cadence.interval_s)
        self._reporter.add(
            Result(slot, report, made_at_s=now_s if made_at_s is None else made_at_s), is_urgent=is_asked_for
        )
        self._plan().add(slot, report.memory, self._clock.wall_s())
        self._planned(slot)

    def _report_missed(self, probed: FinishedProbe, now_s: float) -> None:
        """Report that probes before this one left no result, if some did not."""
        slot, plan, memory = probed.slot, self._plan(), probed.memory
        if slot.waited_until_s is not None:
            # Ticks that passed while a failure waited for its witness, or in a jump of the clock.
            memory = memory.model_copy(update={"probed_at_s": slot.waited_until_s})
        missed = inconclusive.missed(
            slot,
            memory,
            slot.cadence(self._cadence),
            probed.due_at_s,
            keeps_ticks=plan.keeps_ticks,
        )
        if missed is None:
            return
        count, report = missed
        report = replace(report, memory=probed.memory)
        if self._reporter.outage is not None:
            # It would replace a result that can still be reported.
            slot.given_up = count
            return
        slot.given_up = 0
        self._tally.missed += count
        self._reporter.add(Result(slot, report, made_at_s=now_s, count=count))


def _finished(failure: WaitingFailure, ended_s: float) -> FinishedProbe:
    """Return the first probe of a target, once its wait for a witness has ended."""
    report = ProbeReport(
        subject_id=failure.slot.subject_id, observation=failure.observation, memory=failure.memory_after
    )
    return FinishedProbe(
        slot=failure.slot,
        memory=failure.memory,
        report=report,
        began_at_s=failure.began_at_s,
        began_s=failure.failed_at_s,
        ended_s=ended_s,
    )
