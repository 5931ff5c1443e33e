from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.properties import examples

from lifesign.prober.worker import timer_queue
from lifesign.prober.worker.timer_queue import TimerQueue

TIMES = st.floats(min_value=0, max_value=100, allow_nan=False)


@dataclass(eq=False)
class Thing:
    name: int
    due_at_s: float | None = None


def names(due: TimerQueue[Thing], now_s: float) -> list[int]:
    return [thing.name for _, thing in due.pop(now_s)]


def test_due_items_come_in_order_and_not_early() -> None:
    due: TimerQueue[Thing] = TimerQueue()
    for name, at_s in enumerate([7.25, 3.5, 7.2, 0.0, 12.0]):
        due.add(Thing(name), at_s)
    assert names(due, 3.4) == [3]
    assert names(due, 7.2) == [1, 2]
    assert names(due, 7.2) == []
    assert names(due, 100) == [0, 4]
    assert len(due) == 0


def test_next_due_time_is_returned() -> None:
    due: TimerQueue[Thing] = TimerQueue()
    assert due.next_at_s() is None
    thing = Thing(1)
    due.add(thing, 7.25)
    # No later than the thing; its box is opened first.
    assert due.next_at_s() == 7.0
    assert names(due, 7.0) == []
    assert due.next_at_s() == 7.25
    due.add(Thing(2), 2.5)
    assert due.next_at_s() == 2.0


def test_moved_item_is_due_once_at_its_new_time() -> None:
    due: TimerQueue[Thing] = TimerQueue()
    thing = Thing(1)
    due.add(thing, 5.0)
    due.add(thing, 90.0)
    assert (len(due), names(due, 50)) == (1, [])
    due.add(thing, 60.5)
    due.add(thing, 60.5)
    assert names(due, 60.5) == [1]
    assert names(due, 1000) == []


def test_removed_item_is_never_due() -> None:
    due: TimerQueue[Thing] = TimerQueue()
    thing = Thing(1)
    due.add(thing, 5.0)
    due.remove(thing)
    due.remove(thing)
    assert (len(due), names(due, 10)) == (0, [])
    due.add(thing, 11.0)
    assert names(due, 11) == [1]


def test_items_added_during_iteration_are_returned_if_due() -> None:
    due: TimerQueue[Thing] = TimerQueue()
    due.add(Thing(1), 1.0)
    given_out = []
    for _, thing in due.pop(10.0):
        given_out.append(thing.name)
        if thing.name < 4:
            due.add(Thing(thing.name + 1), 9.0 + thing.name)
    assert given_out == [1, 2]
    assert len(due) == 1


@settings(max_examples=examples(50))
@given(st.lists(st.tuples(st.integers(0, 9), TIMES | st.none() | st.just("pop"))))
def test_due_times_come_in_sorted_order(functions: list[tuple[int, float | str | None]]) -> None:
    due: TimerQueue[Thing] = TimerQueue()
    things = [Thing(name) for name in range(10)]
    waiting: dict[int, float] = {}
    for name, function in functions:
        if function == "pop":
            now_s = float(name * 10)
            expected = sorted((at_s, number) for number, at_s in waiting.items() if at_s <= now_s)
            given_out = sorted((at_s, thing.name) for at_s, thing in due.pop(now_s))
            assert given_out == expected
            for _, number in expected:
                del waiting[number]
        elif isinstance(function, float):
            due.add(things[name], function)
            waiting[name] = function
        else:
            due.remove(things[name])
            waiting.pop(name, None)
        assert len(due) == len(waiting)
        assert {thing.name: thing.due_at_s for thing in things if thing.due_at_s is not None} == waiting


def test_stale_queue_entries_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timer_queue, "MAX_STALE_PLACES", 100)
    due: TimerQueue[Thing] = TimerQueue()
    things = [Thing(name) for name in range(10)]
    for turn in range(1000):
        due.add(things[turn % 10], float(turn))
    places = sum(map(len, due._boxes.values())) + len(due._open)
    assert places <= 2 * 10 + 100
    assert names(due, 1000.0) == list(range(10))
