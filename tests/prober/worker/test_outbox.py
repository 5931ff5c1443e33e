"""Results that wait to be reported, within bounds."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.properties import examples

from lifesign.domain.observation.probe_memory import ProbeMemory
from lifesign.domain.observation.results import LayerResult, Observation, Phases, ResultClass
from lifesign.domain.targets.target import target_id
from lifesign.prober.registry_exchange.ledger import ProbeReport, ShardClaim, TargetEntry
from lifesign.prober.worker import outbox as outbox_module
from lifesign.prober.worker.outbox import Outbox, Result
from lifesign.prober.worker.shards import Shard, TargetSlot

NOON = datetime(2026, 7, 1, 12, 0, 0, 123_456, UTC)


def shard_of_ours(number: int) -> Shard:
    shard = Shard(ShardClaim(shard=number, fencing_token=1, expires_at_s=1e9))
    shard.is_current = True
    return shard


def slot_in(shard: Shard, name: str) -> TargetSlot:
    url = f"https://{name}.example/"
    entry = TargetEntry(subject_id=target_id(url), url=url, memory=ProbeMemory())
    slot = shard.slots[entry.subject_id] = TargetSlot(shard, entry)
    return slot


def report_of(slot: TargetSlot, number: int) -> ProbeReport:
    layer = LayerResult(
        result=ResultClass.TIMEOUT, reason="nothing came — “really”", phases=Phases(dns_ms=1.25)
    )
    observation = Observation(
        target_url=slot.url, observed_at=NOON + timedelta(seconds=number), discovery=layer
    )
    return ProbeReport(
        subject_id=slot.subject_id, observation=observation, memory=ProbeMemory(probed_at_s=1000.5 + number)
    )


def result_of(slot: TargetSlot, number: int = 0) -> Result:
    report = report_of(slot, number)
    return Result(slot, report, made_at_s=float(number))


def anywhere(_shard: Shard) -> bool:
    return True


def numbers(results: list[Result]) -> list[float]:
    return [result.made_at_s for result in results]


def filled(count: int, **bounds: Any) -> tuple[Outbox, list[TargetSlot]]:
    outbox, shard = Outbox(**bounds), shard_of_ours(1)
    slots = [slot_in(shard, f"h{number}") for number in range(count)]
    for number, slot in enumerate(slots):
        outbox.add(result_of(slot, number))
    return outbox, slots


def test_results_are_sent_in_the_order_of_their_probes() -> None:
    outbox, _ = filled(5)
    assert numbers(outbox.take(3, anywhere)) == [0, 1, 2]
    assert (outbox.oldest_at_s, outbox.ready) == (3, 2)
    assert numbers(outbox.take(3, anywhere)) == [3, 4]
    assert (outbox.oldest_at_s, len(outbox), outbox.ready) == (None, 0, 0)


def test_returned_results_are_sent_first() -> None:
    outbox, slots = filled(5)
    taken = outbox.take(3, anywhere)
    outbox.put_back(taken)
    results = outbox.take(10, anywhere)
    assert numbers(results) == [0, 1, 2, 3, 4]
    assert [result.report for result in results] == [report_of(slot, n) for n, slot in enumerate(slots)]


def test_results_of_an_expired_shard_claim_wait_until_the_shard_is_claimed_again() -> None:
    outbox, ours, over = Outbox(), shard_of_ours(1), shard_of_ours(2)
    first, second = slot_in(ours, "a"), slot_in(over, "b")
    for number, slot in enumerate([first, second, first, second]):
        outbox.add(result_of(slot, number))
    assert numbers(outbox.take(10, lambda shard: shard is ours)) == [0, 2]
    assert (len(outbox), outbox.ready) == (2, 0)
    outbox.release(2)
    assert numbers(outbox.take(10, anywhere)) == [1, 3]


def test_results_of_a_shard_that_was_lost_are_dropped() -> None:
    outbox, lost, ours = Outbox(), shard_of_ours(1), shard_of_ours(2)
    outbox.add(result_of(slot_in(lost, "a"), 0))
    outbox.add(result_of(slot_in(ours, "b"), 1))
    outbox.add(result_of(slot_in(lost, "c"), 2))
    outbox.take(1, lambda shard: shard is ours)
    lost.claim = None
    outbox.release(1)
    assert numbers(outbox.take(10, anywhere)) == []
    assert len(outbox) == 0


def test_results_of_removed_targets_are_dropped() -> None:
    outbox, slots = filled(3)
    del slots[1].shard.slots[slots[1].subject_id]
    assert numbers(outbox.take(10, anywhere)) == [0, 2]


def test_results_above_the_limit_are_dropped_oldest_first_and_noted_for_their_targets() -> None:
    outbox, slots = filled(10, max_results=7)
    assert outbox.is_full
    assert outbox.give_up(0.0) == 3
    assert numbers(outbox.take(10, anywhere)) == [3, 4, 5, 6, 7, 8, 9]
    assert [slot.given_up for slot in slots[:4]] == [1, 1, 1, 0]
    assert outbox.given_up == 3


def test_results_above_the_byte_limit_are_dropped() -> None:
    outbox, _ = filled(10, max_bytes=2_000)
    was_full = outbox.is_full
    outbox.put_back(outbox.take(10, anywhere))
    assert (was_full, outbox.is_full) == (False, True)
    given_up = outbox.give_up(0.0)
    left = outbox.take(10, anywhere)
    assert given_up == 10 - len(left)
    assert sum(result.bytes for result in left) <= 2_000
    assert len(left) >= 2


def test_overdue_results_are_dropped() -> None:
    outbox, slots = filled(10, max_seconds=900)
    outbox.put_back(outbox.take(10, lambda _: True))
    assert outbox.give_up(904.5) == 5
    outbox.add(result_of(slots[0], 2_000))
    assert outbox.give_up(2_950.0) == 6
    assert slots[0].given_up == 2


def test_results_being_sent_count_towards_the_limits() -> None:
    outbox, _ = filled(10, max_results=4)
    assert outbox.take(10, lambda _: False) == []
    assert outbox.give_up(0.0) == 6
    outbox.release(1)
    assert numbers(outbox.take(10, anywhere)) == [6, 7, 8, 9]


def test_waiting_results_beyond_a_limit_are_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox_module, "MAX_UNPACKED", 3)
    outbox, _ = filled(5)
    assert [result.bytes > 0 for result in outbox] == [False, False, False, True, True]


def test_results_are_no_longer_packed_after_the_ledger_recovers() -> None:
    outbox, slots = filled(2)
    outbox.put_back(outbox.take(2, anywhere))
    outbox.add(result_of(slots[0], 5))
    outbox.note_return()
    outbox.add(result_of(slots[0], 6))
    assert [result.bytes > 0 for result in outbox] == [True, True, True, False]


def test_result_older_than_a_reported_one_is_dropped() -> None:
    outbox, slots = filled(4)
    outbox.take(1, lambda _: False)
    assert outbox.drop([slots[0], slots[2]]) == 2
    outbox.release(1)
    assert numbers(outbox.take(10, anywhere)) == [1, 3]


def test_results_are_numbered_by_their_shard_and_keep_their_token() -> None:
    outbox, ours, others = Outbox(), shard_of_ours(1), shard_of_ours(2)
    a, b, c = slot_in(ours, "a"), slot_in(ours, "b"), slot_in(others, "c")
    for slot in (a, b, c, a):
        outbox.add(result_of(slot))
    assert [(result.token, result.number) for result in outbox] == [(1, 1), (1, 2), (1, 1), (1, 3)]


def test_results_measured_under_an_older_token_are_dropped() -> None:
    outbox, won_again, ours = Outbox(), shard_of_ours(1), shard_of_ours(2)
    first, second = slot_in(won_again, "a"), slot_in(ours, "b")
    for number, slot in enumerate([first, second, first]):
        outbox.add(result_of(slot, number))
    outbox.put_back([])
    won_again.claim = ShardClaim(shard=1, fencing_token=2, expires_at_s=1e9)
    won_again.numbered = 0
    outbox.add(result_of(first, 3))
    taken = outbox.take(10, anywhere)
    assert numbers(taken) == [1, 3]
    assert (taken[1].token, taken[1].number) == (2, 1)
    assert (first.given_up, second.given_up, outbox.given_up) == (2, 0, 2)
    assert outbox._bytes == 0


@settings(max_examples=examples(40))
@given(st.data())
def test_state_machine_of_the_outbox_neither_loses_nor_repeats_nor_reorders_results(
    data: st.DataObject,
) -> None:
    outbox = Outbox(max_results=30, max_bytes=20_000, max_seconds=40)
    shards = [shard_of_ours(number) for number in range(3)]
    slots = [slot_in(shard, f"h{shard.number}{name}") for shard in shards for name in "ab"]
    made = gone = 0
    sent: dict[TargetSlot, list[float]] = {slot: [] for slot in slots}
    functions = ["add", "add", "add", "take", "away", "aside", "give up"]
    for number, function in enumerate(data.draw(st.lists(st.sampled_from(functions), max_size=80))):
        if function == "add":
            outbox.add(result_of(data.draw(st.sampled_from(slots)), number))
            made += 1
        elif function == "take":
            outbox.note_return()
            for shard in shards:
                outbox.release(shard.number)
            for result in outbox.take(data.draw(st.integers(1, 10)), anywhere):
                sent[result.slot].append(result.made_at_s)
        elif function == "away":
            outbox.put_back(outbox.take(5, anywhere))
        elif function == "aside":
            closed = data.draw(st.sampled_from(shards))
            taken = outbox.take(100, lambda shard, closed=closed: shard is not closed)  # type: ignore[misc]  # the parameter is bound here
            outbox.put_back(taken)
        else:
            gone += outbox.give_up(float(number))
        assert made == gone + len(outbox) + sum(map(len, sent.values()))
        assert outbox._bytes == sum(result.bytes for result in outbox)
        assert len(outbox) == len(list(outbox))
        assert all(one == sorted(set(one)) for one in sent.values())
