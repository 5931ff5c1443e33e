from lifesign.registry.request_handling.stall_detector import (
    INTERVAL_SECONDS,
    MAX_STALLS,
    MIN_PAUSE_SECONDS,
    SETTLE_SECONDS,
    StallDetector,
)


def beating(*times_s: float) -> StallDetector:
    pauses = StallDetector()
    for at_s in times_s:
        pauses.tick(at_s)
    return pauses


def test_heartbeats_without_pauses_were_not_delayed() -> None:
    assert StallDetector().sent_after_s(5.0) == 5.0
    pauses = beating(*(number * INTERVAL_SECONDS for number in range(100)))
    assert pauses.sent_after_s(25.0) == 25.0


def test_state_is_unknown_during_and_shortly_after_a_stall() -> None:
    # The request is read before or after the first tick that follows the stall.
    assert beating(100.0).sent_after_s(115.0) == 100.0
    pauses = beating(100.0, 115.0, 115.25)
    assert pauses.sent_after_s(115.3) == 100.0
    assert pauses.sent_after_s(115.0 + SETTLE_SECONDS) == 100.0
    pauses.tick(125.25)
    assert pauses.sent_after_s(125.3) == 115.25


def test_several_pauses_count_from_the_first() -> None:
    pauses = beating(100.0, 103.0, 105.0)
    assert pauses.sent_after_s(105.1) == 100.0
    assert pauses.sent_after_s(105.0 + MIN_PAUSE_SECONDS) == 100.0
    pauses.tick(105.7)
    assert beating(100.0, 103.0, 105.0).sent_after_s(113.5) == 103.0


def test_stored_stalls_cover_the_settling_time() -> None:
    assert MAX_STALLS * MIN_PAUSE_SECONDS > SETTLE_SECONDS
