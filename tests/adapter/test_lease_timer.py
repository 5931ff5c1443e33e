"""When must nothing of a run be left, whoever still lives to see to that?"""

import os
import select
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from agent_health.adapter.lease_timer import LeaseTimer


@contextmanager
def timer(left_s: float) -> Iterator[LeaseTimer]:
    opened = LeaseTimer(left_s)
    try:
        yield opened
    finally:
        opened.close()


def is_readable_within(fd: int, milliseconds: int) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(milliseconds))


@pytest.mark.parametrize("left_s", [0.0, -1.0, -1e9, 0.05])
def test_it_is_readable_when_it_is_due_and_stays_so(left_s: float) -> None:
    with timer(left_s) as due:
        assert is_readable_within(due.fd, 10_000)
        assert due.is_due
        assert is_readable_within(due.fd, 0)


@pytest.mark.parametrize("left_s", [1_000.0, 1e8])
def test_it_is_not_due_before(left_s: float) -> None:
    with timer(left_s) as far:
        assert not far.is_due
        assert not is_readable_within(far.fd, 50)


def test_who_waits_for_it_hears_that_it_is_set_anew() -> None:
    with timer(-1.0) as moved:
        theirs = os.dup(moved.fd)
        moved.set(1_000.0)
        assert not is_readable_within(theirs, 0)
        moved.set(0.0)
        assert is_readable_within(theirs, 10_000)
        os.close(theirs)
