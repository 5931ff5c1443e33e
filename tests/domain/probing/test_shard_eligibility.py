"""Standing of probers: which workers keep shards, and which count for a fair share."""

from math import inf

import pytest

from lifesign.domain.probing.shard_eligibility import (
    MAX_BAR_S,
    Idleness,
    LivingWorker,
    WithheldReason,
    count_sharers,
    has_turn,
    makes_no_progress,
    most_lack_results,
    withheld,
    within_known,
)

NOW_S = 10_000.0
INTERVAL_S = 300.0


def worker(
    name: str,
    *reached: str,
    reported_s: float = 0,
    barred_s: float = -inf,
    knows: bool = True,
    key: str = "key:one",
) -> LivingWorker:
    return LivingWorker(
        holder=f"{key}/{name}",
        interval_s=INTERVAL_S,
        reached=frozenset(reached) if knows else None,
        reported_at_s=NOW_S - reported_s,
        barred_until_s=NOW_S + barred_s,
    )


@pytest.mark.parametrize(
    ("mine", "theirs", "is_withheld"),
    [
        (["v4"], ["v4", "v6"], True),
        ([], ["v4"], True),
        (["v4", "v6"], ["v4"], False),
        (["v4"], ["v6"], False),
        (["v4"], ["v4"], False),
        ([], [], False),
    ],
)
def test_shards_move_from_a_worker_to_one_that_reaches_all_its_classes_and_more(
    mine: list[str], theirs: list[str], *, is_withheld: bool
) -> None:
    reason = withheld(worker("a", *mine), [worker("b", *theirs)], NOW_S)
    assert reason == (WithheldReason.REACHES_LESS if is_withheld else None)


def test_worker_of_another_key_takes_no_shard() -> None:
    other = worker("b", "v4", "v6", "invented", key="key:two")
    assert withheld(worker("a", "v4"), [other], NOW_S) is None
    assert count_sharers([worker("a", "v4"), other], NOW_S) == {"key:one": 1, "key:two": 1}


@pytest.mark.parametrize(("reported_s", "has"), [(3_600, True), (3_601, False)])
def test_worker_with_a_daily_interval_counts_as_reporting_for_a_day(reported_s: float, *, has: bool) -> None:
    seldom = LivingWorker(holder="key:one/a", interval_s=86_400.0, reported_at_s=NOW_S - reported_s)
    assert seldom.has_reported_lately(NOW_S) is has


def test_new_worker_without_network_classes_is_not_compared() -> None:
    new = worker("a", knows=False)
    assert withheld(new, [worker("b", "v4")], NOW_S) is None
    assert withheld(worker("b"), [new], NOW_S) is None


def test_worker_without_the_network_class_counts_for_no_fair_share() -> None:
    cut_off = worker("a", "v4")
    whole = [worker("b", "v4", "v6"), worker("c", "v4", "v6")]
    assert count_sharers([cut_off, *whole], NOW_S) == {"key:one": 2}
    assert count_sharers([cut_off], NOW_S) == {"key:one": 1}
    assert count_sharers([], NOW_S) == {}


def test_classes_in_which_no_target_is_expected_to_answer_are_not_compared() -> None:
    assert within_known(["v4", "made up"], {"v4", "v6"}) == frozenset({"v4"})
    assert within_known(None, {"v4"}) is None


@pytest.mark.parametrize(
    ("idle_s", "interval_s", "other_quiet_s", "is_stuck"),
    [
        (601, INTERVAL_S, 10, True),
        (600, INTERVAL_S, 10, False),
        (601, INTERVAL_S, 301, False),  # the other one makes no progress either
        (601, INTERVAL_S, 300, True),
        (4_501, 86_400.0, 10, True),  # it says that it probes seldom
        (4_500, 86_400.0, 10, False),
        (4_501, 3_600.0, 10, True),
        (21, 10.0, 10, True),
    ],
)
def test_two_intervals_without_a_result_are_no_progress_while_another_worker_reports(
    idle_s: float, interval_s: float, other_quiet_s: float, *, is_stuck: bool
) -> None:
    other = worker("b", reported_s=other_quiet_s)
    assert makes_no_progress(idle_s, interval_s, [other], NOW_S) is is_stuck
    # The interval of the other prober does not matter.
    often = LivingWorker(holder="key:two/b", interval_s=10.0, reported_at_s=NOW_S)
    assert makes_no_progress(idle_s, interval_s, [often], NOW_S) is (is_stuck or other_quiet_s > INTERVAL_S)
    assert not makes_no_progress(idle_s, interval_s, [], NOW_S)


def test_idle_time_is_counted_while_shards_are_held_and_ends_with_a_result() -> None:
    idle = Idleness(at_s=0).counted(-inf, 100, held_until_s=100)
    assert idle == Idleness(at_s=100, idle_s=100)
    idle = idle.counted(-inf, 200, held_until_s=-inf).counted(-inf, 250, held_until_s=300)
    assert (idle.idle_s, idle.at_s) == (150, 250)
    # An expired claim counts until its expiry.
    assert idle.counted(-inf, 400, held_until_s=300).idle_s == 200
    # A result from before the last count changes nothing.
    assert idle.counted(250, 260, held_until_s=260).idle_s == 160
    assert idle.counted(255, 260, held_until_s=260).idle_s == 5
    assert idle.counted(255, 260, held_until_s=-inf).idle_s == 0


def test_time_barred_from_claims_doubles_until_a_result() -> None:
    first = Idleness(at_s=0, idle_s=700).barred(INTERVAL_S, 1_000)
    assert first == Idleness(at_s=1_000, bar_s=700, barred_until_s=1_700)
    second = first.counted(-inf, 1_900, held_until_s=1_900).barred(INTERVAL_S, 1_900)
    assert (second.bar_s, second.barred_until_s) == (1_400, 3_300)
    assert second.counted(2_000, 2_100, held_until_s=2_100).bar_s == 0
    # A short claimed interval does not shorten the bar.
    assert Idleness(at_s=0, idle_s=300).barred(10.0, 0).bar_s == 300
    longest = Idleness(at_s=0, bar_s=80_000).barred(INTERVAL_S, 0)
    assert longest.bar_s == MAX_BAR_S == 86_400


def test_one_key_at_a_time_may_use_each_witness() -> None:
    keys = ["a", "b", "c"]
    for target in range(6):
        for at_s in (0.0, 119.0, 120.0, 240.0):
            assert sum(has_turn(target, key, keys, at_s, 120.0) for key in keys) == 1
        assert [any(has_turn(target, key, keys, at_s, 120.0) for at_s in (0, 120, 240)) for key in keys] == [
            True
        ] * 3
    assert has_turn(7, "a", ["a"], NOW_S, 120.0)


def test_a_worker_that_reports_nothing_takes_no_shard_from_one_that_reaches_less() -> None:
    boaster = worker("b", "v4", "v6", reported_s=301)
    assert withheld(worker("a", "v4"), [boaster], NOW_S) is None


def test_a_barred_worker_gets_no_shard_until_its_time_is_over_or_no_other_reports() -> None:
    barred, other = worker("a", barred_s=1), worker("b")
    assert withheld(barred, [other], NOW_S) is WithheldReason.NO_PROGRESS
    assert count_sharers([barred, other], NOW_S) == {"key:one": 1}
    assert withheld(worker("a", barred_s=0), [other], NOW_S) is None
    assert withheld(barred, [worker("b", reported_s=301)], NOW_S) is None
    assert withheld(barred, [worker("b", barred_s=1)], NOW_S) is None


@pytest.mark.parametrize(
    ("due_s", "lack"),
    [
        ((), False),
        ((1_000.0,), False),
        ((999.0,), True),
        ((-inf, 1_000.0), False),
        ((-inf, 0.0, 2_000.0), True),
    ],
)
def test_most_agents_lack_results_if_more_than_half_are_overdue(
    due_s: tuple[float, ...],
    lack: bool,  # noqa: FBT001 - a parameter of pytest
) -> None:
    assert most_lack_results(due_s, 1_000.0) is lack


@pytest.mark.parametrize("by_s", [-3_600.0, 3_600.0])
def test_times_of_a_worker_move_once_when_the_clock_is_set(by_s: float) -> None:
    known = Idleness(at_s=NOW_S, idle_s=60.0, barred_until_s=NOW_S + 600)
    now_s = NOW_S + by_s + (1.0 if by_s > 0 else 0.0)
    moved = known.moved(by_s, now_s)
    assert moved == Idleness(at_s=NOW_S + by_s, idle_s=60.0, barred_until_s=NOW_S + 600 + by_s)
    assert moved.moved(by_s, now_s) is moved
