import pytest

from lifesign.domain.common.backoff import MAX_WAIT_SECONDS, Backoff


@pytest.mark.parametrize(("chance", "share"), [(0.0, 0.5), (1.0, 1.0)])
def test_wait_doubles_up_to_thirty_seconds(chance: float, share: float) -> None:
    away = Backoff(lambda: chance)
    waits = [away.wait_s() / share for _ in range(2_000)]
    assert waits[:5] == [1, 2, 4, 8, 16]
    assert set(waits[5:]) == {MAX_WAIT_SECONDS}


def test_success_resets_the_wait_to_one_second() -> None:
    away = Backoff(lambda: 1.0)
    for _ in range(9):
        away.wait_s()
    away.over()
    assert (away.tries, away.wait_s()) == (0, 1.0)


def test_first_wait_can_be_configured() -> None:
    backoff = Backoff(lambda: 1.0, first_wait_s=2.0)
    assert [backoff.wait_s() for _ in range(3)] == [2.0, 4.0, 8.0]


def test_longest_wait_can_be_configured() -> None:
    away = Backoff(lambda: 1.0, max_wait_s=900.0)
    waits = [away.wait_s() for _ in range(20)]
    assert waits[:11] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 900]
    assert set(waits[11:]) == {900}
