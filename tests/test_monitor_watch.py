"""When living agents with old evidence are reported."""

import pytest

from agent_health.evidence_age import UnknownReason
from agent_health.monitor_watch import EvidenceTurn, Watched, is_due, watched_after

NOW_S = 1_782_900_000.0
LOST_S = 300.0
CUT = {UnknownReason.NO_WITNESS: 3, UnknownReason.NO_PROBER: 0}


def test_a_loss_is_reported_once_after_an_interval_and_its_end_once() -> None:
    watched, turn = watched_after(Watched(), CUT, NOW_S, LOST_S)
    assert (watched.agents, watched.since_s, turn) == (3, NOW_S, None)
    watched, turn = watched_after(watched, {UnknownReason.PROBER_SLOW: 1}, NOW_S + 299, LOST_S)
    assert (watched.since_s, turn) == (NOW_S, None)
    watched, turn = watched_after(watched, CUT, NOW_S + 300, LOST_S)
    assert (watched.is_reported, turn) == (True, EvidenceTurn.LOST)
    watched, turn = watched_after(watched, CUT, NOW_S + 900, LOST_S)
    assert (watched.is_reported, turn) == (True, None)
    watched, turn = watched_after(watched, {}, NOW_S + 915, LOST_S)
    assert (watched, turn) == (Watched(counted_at_s=NOW_S + 915), EvidenceTurn.RESTORED)
    assert watched_after(watched, {}, NOW_S + 930, LOST_S)[1] is None


def test_a_short_loss_is_not_reported_at_all() -> None:
    watched, _ = watched_after(Watched(), CUT, NOW_S, LOST_S)
    watched, turn = watched_after(watched, {}, NOW_S + 299, LOST_S)
    assert turn is None
    # The next one begins anew.
    assert watched_after(watched, CUT, NOW_S + 400, LOST_S)[0].since_s == NOW_S + 400


@pytest.mark.parametrize("reason", [UnknownReason.ASKED_TO_WAIT, UnknownReason.NOT_ALLOWED])
def test_what_an_agent_asked_for_is_no_loss(reason: UnknownReason) -> None:
    assert watched_after(Watched(), {reason: 5}, NOW_S, 0)[1] is None


def test_a_clock_that_was_set_back_delays_no_report_for_ever() -> None:
    watched, _ = watched_after(Watched(), CUT, NOW_S + 3_600, LOST_S)
    assert is_due(watched.counted_at_s, NOW_S, 15)
    watched, _ = watched_after(watched, CUT, NOW_S, LOST_S)
    assert watched_after(watched, CUT, NOW_S + 300, LOST_S)[1] is EvidenceTurn.LOST


def test_a_count_is_due_after_its_period() -> None:
    assert [is_due(NOW_S, NOW_S + passed_s, 15) for passed_s in (0, 14.9, 15)] == [False, False, True]
