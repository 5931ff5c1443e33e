"""The intake of results."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.support.assertions import asserted
from tests.support.virtual_loop import in_virtual_time, virtual_loop

from lifesign.domain.net.network_class import (
    PUBLIC_CLASSES,
    PUBLIC_IPV4,
    PUBLIC_IPV6,
    THIS_MACHINE,
    UNKNOWN_CLASS,
)
from lifesign.domain.observation.assertion import AssertionOutcome, AssertionResult, Check
from lifesign.domain.observation.probe_memory import ProbeMemory
from lifesign.domain.observation.results import InconclusiveReason, LayerResult, Observation, ResultClass
from lifesign.domain.observation.witness_rule import WitnessAnswer, WitnessPolicy
from lifesign.domain.probing.cadence import Cadence, after_probe
from lifesign.domain.published_interface.published import Interface, InterfaceKind, bounded_interface
from lifesign.domain.targets.target import target_id
from lifesign.prober.definition.lag_limits import SelfCheck
from lifesign.prober.registry_exchange.ledger import (
    Answered,
    ProbeConnection,
    ProbeReport,
    ShardClaim,
    TargetEntry,
)
from lifesign.prober.worker.intake import MAX_ROUNDS, FinishedProbe, Intake
from lifesign.prober.worker.outbox import Outbox, Result
from lifesign.prober.worker.pending_interfaces import PendingInterfaces
from lifesign.prober.worker.progress_counts import Tally
from lifesign.prober.worker.reachability_witnesses import ReachabilityWitnesses
from lifesign.prober.worker.schedule import WatchPlan
from lifesign.prober.worker.shards import Shard, TargetSlot
from lifesign.prober.worker.waiting_failures import WaitingFailure, WaitingFailures

URL = "https://a.example/"
NOT_MEASURED = ResultClass.NOT_MEASURED
CADENCE = Cadence()


class _Reporter:
    """Takes results."""

    outage = None

    def __init__(self) -> None:
        self.outbox = Outbox()
        self.interfaces = PendingInterfaces()

    def add(self, result: Result, *, is_urgent: bool = False) -> None:
        del is_urgent
        self.outbox.add(result)


class Desk:
    """An intake, one target, and what becomes of its results."""

    def __init__(self, *, max_waiting: int = 10, **policy: float) -> None:
        self.loop = virtual_loop()
        now_s = self.loop.time()
        self.alive = ProbeMemory(
            probed_at_s=self.loop.wall_s() - 300,
            result=ResultClass.OK,
            alive_at_s=self.loop.wall_s() - 300,
            network_class=PUBLIC_IPV4,
        )
        shard = Shard(ShardClaim(shard=1, fencing_token=1, expires_at_s=1e9))
        entry = TargetEntry(subject_id=target_id(URL), url=URL, memory=self.alive)
        self.slot = shard.slots[entry.subject_id] = TargetSlot(shard, entry)
        self.reporter, self.tally, self.check = _Reporter(), Tally(now_s), SelfCheck(now_s)
        self.failures = WaitingFailures(max_waiting)
        self.plan = WatchPlan(CADENCE)
        self.offset_s = 0.0
        self.again: list[WaitingFailure] = []
        rule = WitnessPolicy(**policy)
        self.intake = Intake(
            plan=lambda: self.plan,
            planned=lambda _: None,
            asks_again=self.again.append,
            clock=self.loop.clock,
            cadence=CADENCE,
            reporter=self.reporter,  # type: ignore[arg-type]  # all that is used of one
            tally=self.tally,
            check=self.check,
            failures=self.failures,
            policy=rule,
            clock_offset_s=lambda: self.offset_s,
        )
        self.witnesses = self.intake.witnesses = ReachabilityWitnesses(
            self.failures,
            None,
            self.loop.clock,
            class_names=PUBLIC_CLASSES,
            canaries={},
            policy=rule,
            interval_s=300.0,
            witnessed=self.intake.note_witnessed,
            unwitnessed=self.intake.note_unwitnessed,
        )

    def probed(
        self, *, first: WaitingFailure | None = None, contact: ProbeConnection | None = None, **layers: str
    ) -> FinishedProbe:
        """Return a probe that ended just now, with layers by their classes."""
        memory = self.slot.recall() if first is None else first.memory
        observation = Observation(
            target_url=URL,
            observed_at=datetime.fromtimestamp(self.loop.wall_s(), UTC),
            **{name: LayerResult(result=ResultClass(result)) for name, result in layers.items()},  # type: ignore[arg-type]  # layers alone
        )
        report = ProbeReport(
            subject_id=self.slot.subject_id,
            observation=observation,
            memory=after_probe(memory, observation, CADENCE, self.loop.wall_s()),
            contact=contact or ProbeConnection(network_class=PUBLIC_IPV4),
        )
        now_s = self.loop.time()
        return FinishedProbe(
            slot=self.slot,
            memory=memory,
            report=report,
            began_at_s=self.loop.wall_s(),
            began_s=now_s,
            ended_s=now_s,
            first=first,
        )

    def take(self, **facts: Any) -> None:
        self.intake.take(self.probed(**facts))

    def witness(self, **facts: Any) -> WaitingFailure:
        """Let a witness answer; return the failure that it is one for."""
        answer = WitnessAnswer(network_class=PUBLIC_IPV4, sent_at_s=self.loop.time(), **facts)
        released = self.failures.release(answer, self.loop.time())
        self.intake.note_witnessed(released)
        return self.again.pop()

    @property
    def results(self) -> list[Observation]:
        return [result.report.observation for result in self.reporter.outbox]

    @property
    def last(self) -> Observation:
        return self.results[-1]


@in_virtual_time
async def test_first_failure_waits_for_a_second_failure() -> None:
    desk = Desk()
    desk.take(discovery="timeout")
    assert (desk.results, desk.slot.is_busy, len(desk.failures)) == ([], True, 1)
    first = desk.witness()
    desk.take(first=first, discovery="refused")
    # The second result is the result.
    assert [one.result for one in desk.results] == [ResultClass.REFUSED]
    assert (desk.slot.is_busy, desk.failures.asked_again) == (False, 0)
    assert desk.slot.recall().failures_in_row == 1


@in_virtual_time
async def test_interface_is_kept_while_a_failure_waits_for_a_witness() -> None:
    desk = Desk()
    interface = bounded_interface(InterfaceKind.AGENT_CARD, {"name": "a"})
    desk.intake.take(with_interface(desk.probed(discovery="timeout"), interface))
    desk.intake.note_unwitnessed(desk.failures.give_up(PUBLIC_IPV4, desk.loop.time()), "no witness answered")
    assert desk.reporter.interfaces.of(desk.slot) is interface


@in_virtual_time
async def test_interface_dropped_for_lack_of_space_is_read_again() -> None:
    desk = Desk()
    desk.reporter.interfaces = PendingInterfaces(max_bytes=0)
    interface = bounded_interface(InterfaceKind.AGENT_CARD, {"name": "a"})
    desk.intake.take(with_interface(desk.probed(discovery="ok"), interface))
    memory = desk.slot.recall()
    assert (memory.interface_digest, memory.card_digest, memory.card_etag) == (None, None, None)


@in_virtual_time
async def test_assertions_of_reported_probes_are_counted() -> None:
    desk = Desk()
    given = (asserted("ok"), asserted("assertion_failed"), asserted("assertion_failed"))
    probed = desk.probed(transport="ok")
    observation = probed.report.observation.model_copy(update={"assertions": given})
    desk.intake.take(replace(probed, report=replace(probed.report, observation=observation)))
    assert desk.tally.assertions == {"ok": 1, "assertion_failed": 2}


def with_wrong_answer(probed: FinishedProbe) -> FinishedProbe:
    assertions = (asserted("assertion_failed", "status", "/status"),)
    observation = probed.report.observation.model_copy(update={"assertions": assertions})
    return replace(probed, report=replace(probed.report, observation=observation))


def outcomes(desk: Desk) -> list[list[str]]:
    return [[each.result for each in result.assertions or ()] for result in desk.results]


@in_virtual_time
async def test_failed_assertion_counts_once_a_witness_answered_and_it_failed_again() -> None:
    desk = Desk()
    desk.intake.take(with_wrong_answer(desk.probed(transport="ok")))
    assert desk.results == []
    first = desk.witness()
    desk.intake.take(with_wrong_answer(desk.probed(first=first, transport="ok")))
    assert outcomes(desk) == [["assertion_failed"]]
    # Further failures need no witness, until the assertion passes.
    desk.intake.take(with_wrong_answer(desk.probed(transport="ok")))
    desk.take(transport="ok")
    desk.intake.take(with_wrong_answer(desk.probed(transport="ok")))
    assert outcomes(desk) == [["assertion_failed"], ["assertion_failed"], []]


@in_virtual_time
async def test_failed_assertion_without_a_witness_is_not_measured() -> None:
    desk = Desk()
    for _ in range(2):
        desk.intake.take(with_wrong_answer(desk.probed(transport="ok")))
        until_s = desk.loop.time()
        desk.intake.note_unwitnessed(desk.failures.give_up(PUBLIC_IPV4, until_s), "no canary answered")
    assert outcomes(desk) == [["not_measured"], ["not_measured"]]
    assert [result.result for result in desk.results] == [ResultClass.OK, ResultClass.OK]


@in_virtual_time
async def test_failed_assertion_about_a_host_that_answered_itself_needs_no_other_target() -> None:
    desk = Desk()
    contact = ProbeConnection(network_class=PUBLIC_IPV4, has_answered_itself=True)
    desk.intake.take(with_wrong_answer(desk.probed(contact=contact, transport="ok")))
    assert outcomes(desk) == [["assertion_failed"]]


def with_interface(probed: FinishedProbe, interface: Interface) -> FinishedProbe:
    learned = {"interface_digest": interface.digest, "card_digest": "0" * 64, "card_etag": '"t"'}
    memory = probed.report.memory.model_copy(update=learned)
    return replace(probed, report=replace(probed.report, memory=memory, interface=interface))


@in_virtual_time
async def test_answered_second_request_is_the_result() -> None:
    desk = Desk()
    desk.take(discovery="timeout")
    desk.take(first=desk.witness(), discovery="ok")
    assert [one.result for one in desk.results] == [ResultClass.OK]
    assert desk.slot.recall().failures_in_row == 0
    assert desk.slot.recall().confirm_at_s is None


@in_virtual_time
async def test_failure_without_a_witness_is_not_measured_and_keeps_its_time() -> None:
    desk = Desk()
    desk.take(discovery="timeout")
    desk.loop.stand_still(20)
    desk.intake.note_unwitnessed(desk.failures.give_up(PUBLIC_IPV4, desk.loop.time()), "no witness answered")
    assert (desk.last.result, desk.last.inconclusive_reason) == (NOT_MEASURED, InconclusiveReason.NO_WITNESS)
    (result,) = desk.reporter.outbox
    assert desk.loop.clock.boot_s() - result.made_at_s == 20
    memory = desk.slot.recall()
    assert (memory.failures_in_row, memory.result) == (0, ResultClass.OK)
    assert desk.tally.unwitnessed == 1
    assert desk.slot.due_at_s is not None


@in_virtual_time
async def test_late_second_failure_counts_as_a_first_failure() -> None:
    desk = Desk(second_request_s=60.0)
    desk.take(discovery="timeout")
    for number in range(2, MAX_ROUNDS + 1):
        first = desk.witness()
        desk.loop.stand_still(61)
        desk.take(first=first, discovery="refused")
        assert (len(desk.failures), desk.results) == (1, []), number
    first = desk.witness()
    desk.loop.stand_still(61)
    desk.take(first=first, discovery="refused")
    # It does not wait forever.
    assert (len(desk.failures), desk.failures.asked_again) == (0, 0)
    assert desk.last.inconclusive_reason is InconclusiveReason.NO_WITNESS


@in_virtual_time
async def test_second_name_failure_needs_a_resolved_witness() -> None:
    by_name = ProbeConnection(network_class=PUBLIC_IPV4, is_name_failure=True)
    desk = Desk()
    desk.take(discovery="timeout")
    desk.take(first=desk.witness(), discovery="dns_failure", contact=by_name)
    assert (len(desk.failures), desk.results) == (1, [])
    desk.take(first=desk.witness(is_looked_up=True), discovery="dns_failure", contact=by_name)
    assert [one.result for one in desk.results] == [ResultClass.DNS_FAILURE]


@pytest.mark.parametrize("ends", ["dns_failure", "ok"])
def test_name_counts_as_unresolved_only_after_two_rounds(ends: str) -> None:
    @in_virtual_time
    async def take() -> None:
        by_name = ProbeConnection(network_class=PUBLIC_IPV4, is_name_failure=True)
        desk = Desk()
        desk.take(discovery="dns_failure", contact=by_name)
        desk.take(first=desk.witness(is_looked_up=True), discovery="dns_failure", contact=by_name)
        assert (len(desk.failures), desk.results) == (1, [])
        desk.take(first=desk.witness(is_looked_up=True), discovery=ends, contact=by_name)
        assert [one.result for one in desk.results] == [ends]

    take()


@in_virtual_time
async def test_a_second_failure_in_another_class_needs_a_witness_of_that_class() -> None:
    desk = Desk()
    desk.take(discovery="timeout")
    desk.take(first=desk.witness(), discovery="timeout", contact=ProbeConnection(network_class=PUBLIC_IPV6))
    assert (len(desk.failures), desk.results) == (1, [])
    assert desk.failures.first_at_s(PUBLIC_IPV6) is not None


@pytest.mark.parametrize(
    "contact",
    [
        ProbeConnection(network_class=PUBLIC_IPV4, has_answered_itself=True),
        ProbeConnection(network_class=THIS_MACHINE),
    ],
)
def test_failure_of_an_answering_or_local_host_counts_without_a_witness(contact: ProbeConnection) -> None:
    @in_virtual_time
    async def take() -> None:
        desk = Desk()
        desk.take(discovery="http_error", contact=contact)
        assert [one.result for one in desk.results] == [ResultClass.HTTP_ERROR]

    take()


@in_virtual_time
async def test_failures_above_the_waiting_limit_are_not_measured() -> None:
    desk = Desk(max_waiting=0)
    desk.take(discovery="timeout")
    assert desk.last.inconclusive_reason is InconclusiveReason.NO_WITNESS
    assert not desk.slot.is_busy


@in_virtual_time
async def test_a_timeout_of_a_slow_prober_is_not_measured_and_another_failure_needs_a_witness() -> None:
    desk = Desk()
    desk.check.note_woken(desk.loop.time())
    desk.loop.stand_still(5)
    probed = replace(desk.probed(discovery="timeout"), began_s=desk.loop.time() - 6)
    desk.intake.take(probed)
    assert (desk.last.result, desk.last.inconclusive_reason) == (NOT_MEASURED, InconclusiveReason.PROBER_SLOW)
    desk.intake.take(replace(desk.probed(discovery="refused"), began_s=desk.loop.time() - 6))
    assert len(desk.failures) == 1


@in_virtual_time
async def test_latency_of_an_answer_is_not_measured_while_the_prober_is_slow() -> None:
    desk = Desk()
    desk.check.note_woken(desk.loop.time())
    late, wrong = (
        AssertionResult(of="card", check=check, result=AssertionOutcome.ASSERTION_FAILED, expected="x")
        for check in (Check.LATENCY_BELOW, Check.EQUALS)
    )
    probed = desk.probed(discovery="ok")
    observation = probed.report.observation.model_copy(update={"assertions": (late,)})
    probed = replace(probed, report=replace(probed.report, observation=observation))
    desk.intake.take(replace(probed, began_s=desk.loop.time()))
    assert outcomes(desk) == [["assertion_failed"]]
    desk.loop.stand_still(5)
    now_s = desk.loop.time()
    desk.intake.take(replace(probed, began_s=now_s - 6, ended_s=now_s))
    assert outcomes(desk)[1:] == [["not_measured"]]
    assert desk.last.result is ResultClass.OK
    observation = observation.model_copy(update={"assertions": (late, wrong)})
    assert observation.without_late_answers().assertions == (late.discounted(), wrong)


@in_virtual_time
async def test_other_failed_layer_needs_a_witness_while_the_prober_is_slow() -> None:
    desk = Desk()
    desk.check.note_woken(desk.loop.time())
    desk.loop.stand_still(5)
    probed = desk.probed(discovery="refused", readiness="timeout")
    desk.intake.take(replace(probed, began_s=desk.loop.time() - 6))
    assert (len(desk.failures), desk.results) == (1, [])


@pytest.mark.parametrize(("transport", "waiting"), [("dns_failure", 1), ("timeout", 0)])
def test_unreached_interface_of_a_living_agent_needs_a_witness_while_the_prober_is_slow(
    transport: str, waiting: int
) -> None:
    """Unless the prober's slowness explains this failure too."""

    @in_virtual_time
    async def take() -> None:
        unreached = ProbeConnection(network_class=PUBLIC_IPV4, unreached_layers=("transport",))
        desk = Desk()
        desk.check.note_woken(desk.loop.time())
        desk.loop.stand_still(5)
        probed = desk.probed(discovery="ok", readiness="timeout", transport=transport, contact=unreached)
        desk.intake.take(replace(probed, began_s=desk.loop.time() - 6))
        assert (len(desk.failures), len(desk.results)) == (waiting, 1 - waiting)

    take()


@pytest.mark.parametrize(
    ("offset_s", "reason"),
    [(3_600.0, InconclusiveReason.PROBER_CLOCK), (-31.0, InconclusiveReason.PROBER_CLOCK), (29.0, None)],
)
def test_a_certificate_that_fails_by_date_does_not_count_with_a_wrong_clock(
    offset_s: float, reason: InconclusiveReason | None
) -> None:
    @in_virtual_time
    async def take() -> None:
        desk = Desk()
        desk.offset_s = offset_s
        desk.take(
            discovery="tls_failure", contact=ProbeConnection(network_class=PUBLIC_IPV4, is_date_failure=True)
        )
        if reason is None:
            assert (len(desk.failures), desk.results) == (1, [])
            return
        assert (desk.last.result, desk.last.inconclusive_reason) == (NOT_MEASURED, reason)
        # Any other TLS failure is classified as usual.
        desk.take(discovery="tls_failure")
        assert len(desk.failures) == 1

    take()


@in_virtual_time
async def test_date_failure_counts_only_if_a_witness_confirms_the_clock() -> None:
    by_date = ProbeConnection(network_class=PUBLIC_IPV4, is_date_failure=True)
    desk = Desk()
    desk.take(discovery="timeout")
    desk.take(first=desk.witness(), discovery="tls_failure", contact=by_date)
    assert (len(desk.failures), desk.results) == (1, [])
    desk.take(first=desk.witness(confirms_clock=True), discovery="tls_failure", contact=by_date)
    assert [one.result for one in desk.results] == [ResultClass.TLS_FAILURE]


@in_virtual_time
async def test_tls_failure_counts_only_if_a_witness_answers_over_tls() -> None:
    untrusted = ProbeConnection(network_class=PUBLIC_IPV4, is_tls_failure=True)
    desk = Desk()
    desk.take(discovery="timeout")
    desk.take(first=desk.witness(), discovery="tls_failure", contact=untrusted)
    assert (len(desk.failures), desk.results) == (1, [])
    desk.take(first=desk.witness(is_over_tls=True), discovery="tls_failure", contact=untrusted)
    assert [one.result for one in desk.results] == [ResultClass.TLS_FAILURE]


@in_virtual_time
async def test_tls_failure_is_not_measured_if_no_witness_answers_over_tls() -> None:
    desk = Desk()
    desk.take(
        discovery="tls_failure", contact=ProbeConnection(network_class=PUBLIC_IPV4, is_tls_failure=True)
    )
    desk.intake.note_unwitnessed(desk.failures.give_up(PUBLIC_IPV4, desk.loop.time()), "no witness answered")
    last = desk.last
    assert (last.result, last.inconclusive_reason) == (NOT_MEASURED, InconclusiveReason.NO_WITNESS)
    assert desk.slot.recall().failures_in_row == 0


@in_virtual_time
async def test_date_failure_is_not_measured_if_no_witness_confirms_the_clock() -> None:
    by_date = ProbeConnection(network_class=PUBLIC_IPV4, is_date_failure=True)
    desk = Desk()
    desk.take(discovery="tls_failure", contact=by_date)
    desk.intake.note_unwitnessed(desk.failures.give_up(PUBLIC_IPV4, desk.loop.time()), "no witness answered")
    last = desk.last
    assert (last.result, last.inconclusive_reason) == (NOT_MEASURED, InconclusiveReason.PROBER_CLOCK)
    assert desk.slot.recall().failures_in_row == 0


@in_virtual_time
async def test_never_alive_target_fails_despite_a_wrong_clock() -> None:
    desk = Desk()
    desk.slot.remember(ProbeMemory())
    desk.offset_s = 3_600.0
    desk.take(discovery="tls_failure")
    assert [one.result for one in desk.results] == [ResultClass.TLS_FAILURE]


@in_virtual_time
async def test_interface_of_another_class_needs_a_witness_beside_a_card() -> None:
    unreached = ProbeConnection(network_class=PUBLIC_IPV6, unreached_layers=("transport",))
    desk = Desk()
    desk.take(discovery="ok", transport="timeout", contact=unreached)
    assert (len(desk.failures), desk.results) == (1, [])
    desk.intake.note_unwitnessed(desk.failures.give_up(PUBLIC_IPV6, desk.loop.time()), "none")
    assert desk.last.is_liveness_signal
    assert desk.last.inconclusive_reason is None
    assert desk.last.transport is not None
    assert desk.last.transport.result is NOT_MEASURED
    assert desk.slot.recall().alive_at_s == pytest.approx(desk.loop.wall_s())


@in_virtual_time
async def test_target_is_a_witness_after_an_answer_and_not_after_a_failure() -> None:
    desk = Desk()
    answered = Answered(network_class=PUBLIC_IPV4, url=URL, sent_at_s=desk.loop.time())
    alive = ProbeConnection(network_class=PUBLIC_IPV4, answered=answered)
    desk.take(discovery="ok", contact=alive)
    known = desk.witnesses._classes[PUBLIC_IPV4].known
    assert list(known) == ["a.example"]
    desk.take(discovery="timeout")
    assert list(known) == []
    # A server that requests a delay is asked for no other target.
    desk = Desk()
    desk.take(discovery="ok", contact=alive)
    waiting = desk.probed(discovery="ok", contact=alive)
    resting = waiting.report.memory.model_copy(update={"not_before_s": desk.loop.wall_s() + 600})
    desk.intake.take(replace(waiting, report=replace(waiting.report, memory=resting)))
    assert list(desk.witnesses._classes[PUBLIC_IPV4].known) == []


@in_virtual_time
async def test_results_of_a_removed_target_are_counted_and_not_reported() -> None:
    desk = Desk()
    desk.take(discovery="timeout")
    del desk.slot.shard.slots[desk.slot.subject_id]
    answer = WitnessAnswer(network_class=PUBLIC_IPV4, sent_at_s=desk.loop.time())
    desk.intake.note_witnessed(desk.failures.release(answer, desk.loop.time()))
    assert (desk.again, desk.failures.asked_again, desk.slot.is_busy) == ([], 0, False)
    desk.take(discovery="refused")
    assert (desk.results, desk.tally.probed) == ([], 1)


@in_virtual_time
async def test_ticks_that_pass_while_a_failure_waits_are_not_missed() -> None:
    desk = Desk()
    desk.take(discovery="timeout")
    desk.loop.stand_still(3_000)
    desk.intake.note_unwitnessed(desk.failures.give_up(PUBLIC_IPV4, desk.loop.time()), "no witness answered")
    desk.loop.stand_still(300)
    desk.take(discovery="ok")
    assert [one.inconclusive_reason for one in desk.results] == [InconclusiveReason.NO_WITNESS, None]
    # Ticks that pass without a waiting failure are missed.
    desk.loop.stand_still(3_000)
    desk.take(discovery="ok")
    assert [one.inconclusive_reason for one in desk.results[2:]] == [InconclusiveReason.NOT_PROBED, None]
    assert desk.tally.missed in {9, 10}


@in_virtual_time
async def test_a_recheck_that_fails_restarts_the_back_off() -> None:
    desk = Desk()
    counts = {"failures_in_row": 200, "disallowed_in_row": 200}
    desk.slot.remember(desk.alive.model_copy(update={"alive_at_s": None, **counts}))
    desk.slot.recheck_at_s = desk.loop.wall_s() - 1
    desk.take(
        discovery="refused", contact=ProbeConnection(network_class=PUBLIC_IPV4, has_answered_itself=True)
    )
    memory = desk.slot.recall()
    assert (memory.failures_in_row, memory.disallowed_in_row) == (1, 1)
    desk.take(
        discovery="refused", contact=ProbeConnection(network_class=PUBLIC_IPV4, has_answered_itself=True)
    )
    assert desk.slot.recall().failures_in_row == 2


@pytest.mark.parametrize(("layers", "is_counted"), [(("message",), True), ((), False)])
def test_living_result_stands_if_the_second_request_fails_as_a_whole(
    layers: tuple[str, ...], *, is_counted: bool
) -> None:
    """A message may block its process, so that the second request has no answer."""

    @in_virtual_time
    async def take() -> None:
        desk = Desk()
        message = "timeout" if is_counted else "ok"
        contact = ProbeConnection(network_class=PUBLIC_IPV4, unreached_layers=layers)
        alive = desk.probed(discovery="ok", transport="ok", message=message, contact=contact)
        desk.intake.take(alive if is_counted else with_wrong_answer(alive))
        assert (len(desk.failures), desk.results) == (1, [])
        desk.take(first=desk.witness(), discovery="timeout")
        last = desk.last
        assert (last.result, last.is_liveness_signal, last.has_wrong_answer) == (ResultClass.OK, True, False)
        assert last.message is not None
        assert last.message.result is ResultClass(message)
        assert desk.slot.recall().failures_in_row == 0
        assert len(desk.failures) == 0

    take()


@in_virtual_time
async def test_each_failure_without_a_witness_has_its_own_reason() -> None:
    desk = Desk()
    untrusted = ProbeConnection(network_class=PUBLIC_IPV4, is_tls_failure=True)
    desk.take(discovery="tls_failure", contact=untrusted)
    desk.take(discovery="refused")
    failures = desk.failures.give_up(PUBLIC_IPV4, desk.loop.time())
    failures.sort(key=lambda each: each.is_tls_failure, reverse=True)
    desk.intake.note_unwitnessed(failures, "no witness answered")
    reasons = [each.discovery.reason for each in desk.results if each.discovery is not None]
    assert ["over TLS" in reason for reason in reasons] == [True, False]


@in_virtual_time
async def test_wrong_answer_needs_a_witness_also_while_the_prober_is_slow() -> None:
    desk = Desk()
    desk.check.note_woken(desk.loop.time())
    desk.loop.stand_still(5)
    probed = desk.probed(discovery="ok")
    assertions = [asserted("assertion_failed", check, "/status") for check in ("status", "latency_below")]
    observation = probed.report.observation.model_copy(update={"assertions": tuple(assertions)})
    report = replace(probed.report, observation=observation)
    desk.intake.take(replace(probed, report=report, began_s=desk.loop.time() - 6))
    assert (len(desk.failures), desk.results) == (1, [])


@in_virtual_time
async def test_failure_in_an_unknown_class_is_not_measured() -> None:
    desk = Desk()
    desk.take(discovery="dns_failure", contact=ProbeConnection(network_class=UNKNOWN_CLASS))
    assert len(desk.failures) == 0
    (result,) = desk.results
    assert result.inconclusive_reason is InconclusiveReason.NO_WITNESS
