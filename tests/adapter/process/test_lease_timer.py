import os
import select
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from lifesign.adapter.process import process_watcher
from lifesign.adapter.process.lease_timer import LeaseTimer


@contextmanager
def timer(left_s: float) -> Iterator[tuple[LeaseTimer, int]]:
    """Yield one, and what watchers have of it."""
    opened = LeaseTimer(left_s)
    theirs = process_watcher.open_timer(opened.due_ns)
    try:
        opened.take(os.dup(theirs))
        yield opened, theirs
    finally:
        opened.close()
        os.close(theirs)


def is_readable_within(fd: int, milliseconds: int) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(milliseconds))


@pytest.mark.parametrize("left_s", [0.0, -1.0, -1e9, 0.05])
def test_it_is_readable_when_it_is_due_and_stays_so(left_s: float) -> None:
    with timer(left_s) as (due, theirs):
        assert is_readable_within(theirs, 10_000)
        assert due.is_due
        assert is_readable_within(theirs, 0)


@pytest.mark.parametrize("left_s", [1_000.0, 1e8])
def test_it_is_not_due_before(left_s: float) -> None:
    with timer(left_s) as (far, theirs):
        assert not far.is_due
        assert not is_readable_within(theirs, 50)


def test_waiting_thread_notices_a_changed_deadline() -> None:
    with timer(-1.0) as (moved, theirs):
        moved.set(1_000.0)
        assert not is_readable_within(theirs, 0)
        moved.set(0.0)
        assert is_readable_within(theirs, 10_000)


def test_who_comes_later_has_the_deadline_of_now() -> None:
    with timer(-1.0) as (moved, _):
        moved.set(1_000.0)
        later = process_watcher.open_timer(time.clock_gettime_ns(time.CLOCK_BOOTTIME))
        moved.take(os.dup(later))
        assert not is_readable_within(later, 0)
        os.close(later)


def test_who_has_let_go_is_not_set_any_more() -> None:
    with timer(1_000.0) as (moved, theirs):
        kept = os.dup(theirs)
        moved.take(kept)
        moved.drop(kept)
        moved.drop(kept)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(kept)
        moved.close()
        moved.set(0.0)
        assert not is_readable_within(theirs, 0)


def test_what_is_no_timer_is_not_taken_and_not_kept() -> None:
    far, other = LeaseTimer(1_000.0), os.open(os.devnull, os.O_RDONLY)
    with pytest.raises(OSError, match="Invalid argument"):
        far.take(other)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(other)
