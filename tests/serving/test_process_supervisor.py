from lifesign.serving.process_supervisor import FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS, pause_before_next_s


def test_dead_processes_are_replaced_at_once_and_then_after_longer_pauses() -> None:
    pauses = [pause_before_next_s(deaths) for deaths in range(2_000)]
    assert pauses[:4] == [0, 0, FIRST_PAUSE_SECONDS, 2 * FIRST_PAUSE_SECONDS]
    assert pauses == sorted(pauses)
    assert pauses[-1] == MAX_PAUSE_SECONDS
