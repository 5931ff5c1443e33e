import pytest

from lifesign.domain.common.backoff import MAX_WAIT_SECONDS, Backoff


@pytest.mark.parametrize(("chance", "share"), [(0.0, 0.5), (1.0, 1.0)])
def test_longer_each_time_and_never_longer_than_half_a_minute(chance: float, share: float) -> None:
    away = Backoff(lambda: chance)
    waits = [away.wait_s() / share for _ in range(2_000)]
    assert waits[:5] == [1, 2, 4, 8, 16]
    assert set(waits[5:]) == {MAX_WAIT_SECONDS}


def test_once_they_answered_they_are_asked_soon_again() -> None:
    away = Backoff(lambda: 1.0)
    for _ in range(9):
        away.wait_s()
    away.over()
    assert (away.tries, away.wait_s()) == (0, 1.0)


def test_the_first_wait_may_be_chosen() -> None:
    backoff = Backoff(lambda: 1.0, first_wait_s=2.0)
    assert [backoff.wait_s() for _ in range(3)] == [2.0, 4.0, 8.0]


def test_the_longest_wait_may_be_chosen() -> None:
    away = Backoff(lambda: 1.0, max_wait_s=900.0)
    waits = [away.wait_s() for _ in range(20)]
    assert waits[:11] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 900]
    assert set(waits[11:]) == {900}
