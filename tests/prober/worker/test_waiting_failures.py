"""Failures that wait for a witness."""

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from lifesign.domain.net.network_class import PUBLIC_IPV4, PUBLIC_IPV6
from lifesign.domain.observation.probe_memory import ProbeMemory
from lifesign.domain.observation.results import LayerResult, Observation, ResultClass
from lifesign.domain.observation.witness_rule import WitnessAnswer
from lifesign.domain.targets.target import target_id
from lifesign.prober.registry_exchange.ledger import (
    ProbeConnection,
    ProbeReport,
    ShardClaim,
    TargetEntry,
)
from lifesign.prober.worker.shards import Shard, TargetSlot
from lifesign.prober.worker.waiting_failures import WaitingFailure, WaitingFailures

URL = "https://a.example/"
MEMORY = ProbeMemory(probed_at_s=500.0, result=ResultClass.OK, alive_at_s=500.0)


def failure(
    at_s: float,
    network_class: str = PUBLIC_IPV4,
    *,
    is_name_failure: bool = False,
    is_date_failure: bool = False,
    is_tls_failure: bool = False,
    card: str = "timeout",
    unreached: tuple[str, ...] = (),
) -> WaitingFailure:
    shard = Shard(ShardClaim(shard=1, fencing_token=1, expires_at_s=1e9))
    slot = TargetSlot(shard, TargetEntry(subject_id=target_id(URL), url=URL, memory=MEMORY))
    observation = Observation(
        target_url=URL,
        observed_at=datetime.fromtimestamp(1_763_640_000, UTC),
        discovery=LayerResult(result=ResultClass(card), reason="as seen"),
    )
    after = MEMORY.model_copy(update={"probed_at_s": 800.0, "failures_in_row": 1, "card_digest": "0" * 64})
    report = ProbeReport(
        subject_id=slot.subject_id,
        observation=observation,
        memory=after,
        contact=ProbeConnection(
            is_name_failure=is_name_failure,
            is_date_failure=is_date_failure,
            is_tls_failure=is_tls_failure,
            unreached_layers=unreached,
        ),
    )
    return WaitingFailure(
        slot,
        report,
        MEMORY,
        network_class=network_class,
        began_at_s=800.0,
        failed_at_s=at_s,
        made_at_s=at_s,
    )


def answer(at_s: float, network_class: str = PUBLIC_IPV4, **facts: bool) -> WitnessAnswer:
    return WitnessAnswer(network_class=network_class, sent_at_s=at_s, **facts)


def test_answer_releases_earlier_failures_of_its_class() -> None:
    failures = WaitingFailures()
    first, second, later = failure(10.0), failure(20.0), failure(30.0)
    other = failure(10.0, PUBLIC_IPV6)
    for each in (first, second, later, other):
        failures.add(each)
    assert failures.release(answer(20.0), 21.0) == [first, second]
    assert (first.answered_at_s, first.answer) == (21.0, answer(20.0))
    assert (len(failures), failures.asked_again) == (2, 2)
    assert failures.first_at_s(PUBLIC_IPV4) == 30.0
    assert failures.first_at_s(PUBLIC_IPV6) == 10.0
    assert failures.release(answer(25.0), 26.0) == []


def test_name_failure_waits_for_a_resolved_witness() -> None:
    failures = WaitingFailures()
    name, other = failure(10.0, is_name_failure=True), failure(11.0)
    failures.add(name)
    failures.add(other)
    assert failures.release(answer(12.0), 12.0) == [other]
    assert failures.first_at_s(PUBLIC_IPV4) == 10.0
    assert failures.release(answer(13.0, is_looked_up=True), 13.0) == [name]
    assert failures.first_at_s(PUBLIC_IPV4) is None


def test_date_failure_waits_for_a_witness_with_the_same_time() -> None:
    failures = WaitingFailures()
    both = failure(10.0, is_name_failure=True, is_date_failure=True)
    date, other = failure(10.5, is_date_failure=True), failure(11.0)
    for each in (both, date, other):
        failures.add(each)
    assert failures.release(answer(12.0, is_looked_up=True), 12.0) == [other]
    assert failures.release(answer(13.0, confirms_clock=True), 13.0) == [date]
    assert failures.first_at_s(PUBLIC_IPV4) == 10.0
    assert failures.release(answer(14.0, is_looked_up=True, confirms_clock=True), 14.0) == [both]
    assert (len(failures), failures.first_at_s(PUBLIC_IPV4)) == (0, None)


def test_tls_failure_waits_for_a_witness_over_tls() -> None:
    failures = WaitingFailures()
    tls, other = failure(10.0, is_tls_failure=True), failure(11.0)
    failures.add(tls)
    failures.add(other)
    assert failures.release(answer(12.0), 12.0) == [other]
    assert failures.release(answer(13.0, is_over_tls=True), 13.0) == [tls]


def test_cancelled_request_stops_waiting() -> None:
    failures = WaitingFailures()
    first, later = failure(10.0, is_name_failure=True), failure(20.0)
    failures.add(first)
    failures.add(later)
    assert failures.give_up(PUBLIC_IPV4, 10.0) == [first]
    assert failures.give_up(PUBLIC_IPV6, 99.0) == []
    assert (len(failures), failures.asked_again) == (1, 0)


def test_waiting_failure_keeps_facts_without_the_result() -> None:
    kept = failure(10.0)
    assert kept.observation.discovery == LayerResult(result=ResultClass.TIMEOUT, reason="as seen")
    assert kept.memory == MEMORY.model_copy(update={"card_digest": "0" * 64})
    assert kept.memory_after == kept.memory
    assert kept.layers is None


def test_liveness_signals_of_a_target_are_remembered() -> None:
    kept = failure(10.0, card="ok", unreached=("transport",))
    assert kept.memory_after.probed_at_s == 800.0
    assert kept.memory.probed_at_s == 500.0
    assert kept.layers == ("transport",)


def test_number_of_waiting_failures_and_second_requests_is_bounded() -> None:
    failures = WaitingFailures(max_waiting=3)
    for at_s in (1.0, 2.0):
        failures.add(failure(at_s))
    assert (failures.is_full, len(failures)) == (False, 2)
    failures.add(failure(3.0))
    assert (failures.is_full, len(failures)) == (True, 3)
    failures.release(answer(2.0), 2.0)
    assert (failures.is_full, len(failures)) == (True, 1)
    failures.asked_again -= 1
    assert (failures.is_full, len(failures)) == (False, 1)


@given(
    st.lists(st.tuples(st.floats(0, 100), st.booleans()), max_size=30),
    st.lists(st.tuples(st.floats(0, 100), st.booleans()), max_size=10),
)
def test_waiting_failure_is_neither_lost_nor_released_by_an_earlier_answer(
    made: list[tuple[float, bool]], answers: list[tuple[float, bool]]
) -> None:
    failures = WaitingFailures()
    for at_s, is_name in sorted(made):
        failures.add(failure(at_s, is_name_failure=is_name))
    released = []
    for at_s, is_looked_up in answers:
        for each in failures.release(answer(at_s, is_looked_up=is_looked_up), at_s):
            assert each.failed_at_s <= at_s
            assert is_looked_up or not each.is_name_failure
            released.append(each)
    assert len(released) == failures.asked_again
    left = failures.give_up(PUBLIC_IPV4, 101.0)
    assert len(released) + len(left) == len(made)
    assert len(failures) == 0
