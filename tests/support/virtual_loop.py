"""An event loop in which an hour passes in a moment.

Its time stops while anything is to be done, and jumps to the next timer when nothing is. Real sockets work
if both ends are in this loop; threads and other processes do not.
"""

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from lifesign.prober.network.clock import Clock

START_WALL_S = 1_763_640_000.0
"""2025-11-20T12:00:00Z."""

DELIVERY_SECONDS = 0.01
"""A busy kernel delivers what was written to a socket of this machine a moment later, in real time."""

P = ParamSpec("P")
T = TypeVar("T")


class _JumpingSelector(selectors.DefaultSelector):
    """Instead of waiting for a timer, lets time pass."""

    now_s = 1_000.0

    def __init__(self, delivery_s: float) -> None:
        super().__init__()
        self._delivery_s = delivery_s

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(0 if timeout is not None else None)
        if not events and timeout and self._delivery_s:
            events = super().select(self._delivery_s)
        if not events and timeout is not None:
            self.now_s += timeout
        return events


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop with a time of its own, which waits so long for sockets before its time jumps."""

    def __init__(self, delivery_s: float = 0.0) -> None:
        self._jumping = _JumpingSelector(delivery_s)
        super().__init__(self._jumping)
        self.steps_s = 0.0
        self.suspended_s = 0.0
        """How long the machine slept, which its monotonic clock does not count."""

    def time(self) -> float:
        return self._jumping.now_s

    def stand_still(self, seconds: float) -> None:
        """Let time pass in which nothing is done: the process was stopped."""
        self._jumping.now_s += seconds

    def wall_s(self) -> float:
        return START_WALL_S + self.time() + self.steps_s

    @property
    def clock(self) -> Clock:
        """Return the clock of a worker."""
        return Clock(wall_s=self.wall_s, monotonic_s=self.time, boot_s=lambda: self.time() + self.suspended_s)


def virtual_loop() -> VirtualLoop:
    """Return the loop that runs the test."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    return loop


def in_virtual_time(test: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Run a test in a loop with a time of its own."""
    return _run_in(VirtualLoop, test)


def with_sockets_in_virtual_time(test: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Run a test with sockets in a loop with a time of its own. Each jump of the time costs 0.01 s."""
    return _run_in(functools.partial(VirtualLoop, DELIVERY_SECONDS), test)


def _run_in(
    make_loop: Callable[[], VirtualLoop], test: Callable[P, Coroutine[Any, Any, T]]
) -> Callable[P, T]:
    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        with asyncio.Runner(loop_factory=make_loop) as runner:
            return runner.run(test(*args, **kwargs))

    return run
