import time

import pytest

from lifesign.adapter.process.run_deadline import RunDeadline


def clock_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


@pytest.mark.parametrize(
    ("left_s", "is_due"), [(-1e9, True), (-1.0, True), (0.0, True), (1e3, False), (1e8, False)]
)
def test_timer_is_due_after_its_time(left_s: float, *, is_due: bool) -> None:
    before_ns = clock_ns()
    run_deadline = RunDeadline(left_s)
    assert run_deadline.is_due == is_due
    assert before_ns <= run_deadline.due_ns - round(left_s * 1e9) <= clock_ns()


def test_watchers_get_each_new_deadline() -> None:
    run_deadline, result = RunDeadline(-1.0), list[int]()
    run_deadline.add(result.append)
    run_deadline.set(1_000.0)
    assert not run_deadline.is_due
    run_deadline.set(0.0)
    assert result[0] > result[1] == run_deadline.due_ns
    assert run_deadline.is_due


def test_removed_watcher_gets_no_deadline() -> None:
    run_deadline, result = RunDeadline(1.0), list[int]()
    run_deadline.add(result.append)
    run_deadline.remove(result.append)
    run_deadline.remove(result.append)
    run_deadline.set(2.0)
    assert result == []
