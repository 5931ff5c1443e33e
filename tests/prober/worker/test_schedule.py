import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.properties import examples

from lifesign.domain.observation.probe_memory import ProbeMemory
from lifesign.domain.probing.cadence import Cadence
from lifesign.domain.targets.target import phase_of, target_id
from lifesign.prober.registry_exchange.ledger import ShardClaim, TargetEntry
from lifesign.prober.worker.schedule import MAX_TRIES, CensusPlan, WatchPlan, missed_before
from lifesign.prober.worker.shards import Shard, TargetSlot

CADENCE = Cadence()
NEVER = ProbeMemory()
A = "https://a.example/"
BASE_S = 1_763_640_000.0
"""A multiple of the interval."""


def slot_of(url: str = A) -> TargetSlot:
    shard = Shard(ShardClaim(shard=1, fencing_token=1, expires_at_s=1e9))
    entry = TargetEntry(subject_id=target_id(url), url=url, memory=NEVER)
    slot = shard.slots[entry.subject_id] = TargetSlot(shard, entry)
    return slot


def tick_s(number: int, url: str = A) -> float:
    return BASE_S + (number + phase_of(target_id(url))) * CADENCE.interval_s


def test_target_is_due_at_its_tick_and_not_again_before_it_is_rescheduled() -> None:
    plan, slot = WatchPlan(CADENCE), slot_of()
    plan.add(slot, NEVER, BASE_S - 1)
    assert slot.due_at_s == pytest.approx(tick_s(0))
    assert list(plan.take(tick_s(0) - 0.1)) == []
    assert [one for _, one in plan.take(tick_s(0) + 0.1)] == [slot]
    assert list(plan.take(tick_s(5))) == []
    assert plan.left is None


def test_backed_off_targets_are_counted() -> None:
    plan = WatchPlan(CADENCE)
    dead, limited, well = (slot_of(f"https://{name}.example/") for name in ("a", "b", "c"))
    for _ in range(2):
        plan.add(dead, ProbeMemory(failures_in_row=3, doublings=3), BASE_S)
        plan.add(limited, ProbeMemory(slowdowns=1), BASE_S)
        plan.add(well, NEVER, BASE_S)
        assert plan.backed_off == 2
    # A target being probed counts as before.
    assert len(list(plan.take(BASE_S + 2 * CADENCE.max_backoff_s))) == 3
    assert plan.backed_off == 2
    plan.add(dead, NEVER, BASE_S)
    assert plan.backed_off == 1
    for slot in (limited, limited, well):
        plan.remove(slot)
    assert plan.backed_off == 0
    assert CensusPlan(BASE_S).backed_off is None


def test_requested_recheck_overrides_the_tick() -> None:
    plan, slot = WatchPlan(CADENCE), slot_of()
    plan.add(slot, ProbeMemory(probed_at_s=BASE_S - 100), BASE_S)
    slot.recheck_at_s = BASE_S
    plan.add(slot, ProbeMemory(probed_at_s=BASE_S - 100), BASE_S)
    assert slot.due_at_s == BASE_S


def test_census_hands_out_each_unprobed_target_once() -> None:
    plan = CensusPlan(BASE_S)
    never, before, since = (slot_of(f"https://{name}.example/") for name in ("a", "b", "c"))
    plan.add(never, NEVER, BASE_S)
    plan.add(never, NEVER, BASE_S)
    plan.add(before, ProbeMemory(probed_at_s=BASE_S - 0.1), BASE_S)
    plan.add(since, ProbeMemory(probed_at_s=BASE_S), BASE_S)
    assert plan.left == 2
    assert [one for _, one in plan.take(BASE_S)] == [never, before]
    assert (plan.left, list(plan.take(BASE_S))) == (0, [])


def test_census_includes_targets_with_a_requested_recheck() -> None:
    plan, slot = CensusPlan(BASE_S), slot_of()
    slot.recheck_at_s = BASE_S + 10
    plan.add(slot, ProbeMemory(probed_at_s=BASE_S + 5), BASE_S)
    assert [one for _, one in plan.take(BASE_S)] == [slot]
    plan.add(slot, ProbeMemory(probed_at_s=BASE_S + 11), BASE_S)
    assert plan.left == 0


def test_target_removed_during_a_census_is_not_handed_out() -> None:
    plan, slot = CensusPlan(BASE_S), slot_of()
    plan.add(slot, NEVER, BASE_S)
    plan.remove(slot)
    plan.remove(slot)
    assert (plan.left, list(plan.take(BASE_S))) == (0, [])


def test_unproven_failure_is_probed_again_a_few_times() -> None:
    plan, slot = CensusPlan(BASE_S), slot_of()
    tries = [plan.tries_again(slot) for _ in range(MAX_TRIES)]
    assert tries == [True] * (MAX_TRIES - 1) + [False]
    assert not WatchPlan(CADENCE).tries_again(slot)


def missed(memory: ProbeMemory, began_at_s: float) -> tuple[int, float] | None:
    return missed_before(target_id(A), memory, CADENCE, began_at_s)


def test_target_probed_at_every_tick_has_missed_none() -> None:
    assert missed(NEVER, tick_s(9)) is None
    assert missed(ProbeMemory(probed_at_s=tick_s(0)), tick_s(1)) is None
    assert missed(ProbeMemory(probed_at_s=tick_s(0) + 20), tick_s(1) + 20) is None


def test_missed_ticks_of_a_day_are_reported_once_and_the_last_is_probed_late() -> None:
    count, last_s = missed(ProbeMemory(probed_at_s=tick_s(0) + 0.1), tick_s(288) + 0.1) or (0, 0.0)
    assert count == 287
    assert last_s == pytest.approx(tick_s(287))


def test_probe_one_interval_late_missed_one_tick() -> None:
    count, last_s = missed(ProbeMemory(probed_at_s=tick_s(0)), tick_s(2) + 10) or (0, 0.0)
    assert count == 1
    assert last_s == pytest.approx(tick_s(1))


def test_ticks_skipped_by_back_off_are_not_missed() -> None:
    dead = ProbeMemory(probed_at_s=tick_s(0), failures_in_row=5, doublings=5)
    assert missed(dead, tick_s(30)) is None
    assert missed(dead, tick_s(70)) is not None


@settings(max_examples=examples(60))
@given(st.floats(0, 300), st.floats(0, 100_000))
def test_missed_ticks_lie_between_two_probes(after_s: float, took_s: float) -> None:
    last_s = BASE_S + after_s
    result = missed(ProbeMemory(probed_at_s=last_s), last_s + took_s)
    if result is None:
        assert took_s < 2.5 * CADENCE.interval_s
    else:
        count, at_s = result
        assert last_s < at_s < last_s + took_s
        assert abs(count - took_s / CADENCE.interval_s) <= 2.5
