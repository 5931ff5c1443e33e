"""When lost evidence is reported, and a key whose results are mostly failures."""

import pytest

from lifesign.domain.lifecycle.monitoring_alerts import (
    MAX_KEYS,
    EvidenceAlert,
    EvidenceWatchState,
    KeysWatched,
    disallowed_targets,
    is_due,
    keys_after,
    watched_after,
)
from lifesign.domain.observation.evidence_age import UnknownReason

NOW_S = 1_782_900_000.0
LOST_S = 300.0
CUT = {UnknownReason.NO_WITNESS: 3, UnknownReason.NO_PROBER: 0}


def test_a_loss_is_reported_once_after_an_interval_and_its_end_once() -> None:
    watched, turn = watched_after(EvidenceWatchState(), CUT, NOW_S, LOST_S)
    assert (watched.agents, watched.since_s, turn) == (3, NOW_S, None)
    watched, turn = watched_after(watched, {UnknownReason.PROBER_SLOW: 1}, NOW_S + 299, LOST_S)
    assert (watched.since_s, turn) == (NOW_S, None)
    watched, turn = watched_after(watched, CUT, NOW_S + 300, LOST_S)
    assert (watched.is_reported, turn) == (True, EvidenceAlert.LOST)
    watched, turn = watched_after(watched, CUT, NOW_S + 900, LOST_S)
    assert (watched.is_reported, turn) == (True, None)
    watched, turn = watched_after(watched, {}, NOW_S + 915, LOST_S)
    assert (watched, turn) == (EvidenceWatchState(counted_at_s=NOW_S + 915), EvidenceAlert.RESTORED)
    assert watched_after(watched, {}, NOW_S + 930, LOST_S)[1] is None


def test_a_short_loss_is_not_reported_at_all() -> None:
    watched, _ = watched_after(EvidenceWatchState(), CUT, NOW_S, LOST_S)
    watched, turn = watched_after(watched, {}, NOW_S + 299, LOST_S)
    assert turn is None
    # The next one restarts.
    assert watched_after(watched, CUT, NOW_S + 400, LOST_S)[0].since_s == NOW_S + 400


@pytest.mark.parametrize("reason", [UnknownReason.ASKED_TO_WAIT, UnknownReason.NOT_ALLOWED])
def test_requested_wait_is_no_loss_of_evidence(reason: UnknownReason) -> None:
    assert watched_after(EvidenceWatchState(), {reason: 5}, NOW_S, 0)[1] is None


def test_clock_setback_delays_reports_only_briefly() -> None:
    watched, _ = watched_after(EvidenceWatchState(), CUT, NOW_S + 3_600, LOST_S)
    assert is_due(watched.counted_at_s, NOW_S, 15)
    watched, _ = watched_after(watched, CUT, NOW_S, LOST_S)
    assert watched_after(watched, CUT, NOW_S + 300, LOST_S)[1] is EvidenceAlert.LOST


def test_next_count_is_due_after_its_period() -> None:
    assert [is_due(NOW_S, NOW_S + passed_s, 15) for passed_s in (0, 14.9, 15)] == [False, False, True]


def test_a_key_whose_results_are_mostly_failures_is_reported_once_and_its_end_once() -> None:
    watched, turns = keys_after(KeysWatched(), {"a": (500, 500), "b": (9, 0)}, NOW_S, 300)
    assert turns == []
    # Too early to compare.
    assert keys_after(watched, {"a": (500, 900)}, NOW_S + 299, 300) == (watched, [])
    watched, turns = keys_after(watched, {"a": (509, 511), "b": (9, 19)}, NOW_S + 300, 300)
    assert [(turn.key, turn.is_high, turn.results, turn.failed) for turn in turns] == [("a", True, 20, 11)]
    watched, turns = keys_after(watched, {"a": (509, 600), "b": (9, 19)}, NOW_S + 600, 300)
    assert turns == []
    # Too few results do not end an alert.
    watched, turns = keys_after(watched, {"a": (519, 600), "b": (9, 19)}, NOW_S + 900, 300)
    assert turns == []
    watched, turns = keys_after(watched, {"a": (530, 609), "b": (9, 19)}, NOW_S + 1200, 300)
    assert [(turn.key, turn.is_high, turn.results, turn.failed) for turn in turns] == [("a", False, 20, 9)]


def test_half_of_the_results_are_not_too_many() -> None:
    watched, _ = keys_after(KeysWatched(), {"a": (0, 0)}, NOW_S, 300)
    assert keys_after(watched, {"a": (10, 10)}, NOW_S + 300, 300)[1] == []


def test_reset_counter_of_a_key_is_compared_from_the_start() -> None:
    watched, _ = keys_after(KeysWatched(), {"a": (100, 100)}, NOW_S, 300)
    watched, turns = keys_after(watched, {"a": (0, 150)}, NOW_S + 300, 300)
    assert turns == []
    assert [turn.is_high for turn in keys_after(watched, {"a": (0, 200)}, NOW_S + 600, 300)[1]] == [True]


def test_number_of_watched_keys_is_bounded() -> None:
    sums = {f"key_{number}": (number, 0) for number in range(MAX_KEYS + 1)}
    watched, _ = keys_after(KeysWatched(), sums, NOW_S, 300)
    assert len(watched.keys) == MAX_KEYS
    assert "key_0" not in watched.keys


@pytest.mark.parametrize(
    ("own", "others", "found"),
    [
        ({"v4"}, {"b": {"v4", "private"}, "c": {"private"}}, [(7, "b")]),
        ({"v4"}, {"b": {"v4"}, "c": None}, [(7, None)]),
        ({"v4", "private"}, {"b": {"v4"}}, []),
        (None, {"b": {"private"}}, []),
    ],
)
def test_targets_of_a_class_that_their_prober_does_not_reach_are_reported(
    own: set[str] | None, others: dict[str, set[str] | None], found: list[tuple[int, str | None]]
) -> None:
    reported = disallowed_targets({("a", "private"): 7}, {"a": own, **others})
    assert [(each.targets, each.reached_by) for each in reported] == found
