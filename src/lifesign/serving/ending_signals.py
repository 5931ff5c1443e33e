"""Signals that end a command in good order, and the end of its terminal."""

import os
import signal
import stat
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final, TypeVar

OUTPUTS = (1, 2)
"""Standard output and standard error, by their descriptors."""
REPEAT_SECONDS: Final = 1.0
"""Time after a request to end in which each further signal is a repetition of the same request.

Wrappers such as `uv run` and `timeout` pass on a signal that the whole process group gets, too.
"""

Result = TypeVar("Result")

_unfinished: Final[list[str]] = []
"""What the process waits for, before a second signal may end it."""


class EndRequests:
    """Requests to end a program, counted by their signals."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._latest_s: float | None = None
        self._has_hung_up = False

    def is_new(self, number: int) -> bool:
        """Count a signal; return whether it is a request of its own, and no repetition of an earlier one."""
        now_s = self._now_s()
        is_repeated = self._latest_s is not None and now_s - self._latest_s < REPEAT_SECONDS
        if number == signal.SIGHUP:
            # The shell of a closed terminal sends one, and the kernel another one after it.
            is_repeated = is_repeated or self._has_hung_up
            self._has_hung_up = True
        if not is_repeated:
            self._latest_s = now_s
        return not is_repeated


def ending_signals() -> tuple[signal.Signals, ...]:
    """Return the signals that end a command: SIGINT, SIGTERM, and SIGHUP unless it is ignored (`nohup`)."""
    requests = (signal.SIGINT, signal.SIGTERM)
    return requests if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (*requests, signal.SIGHUP)


def redirect_closed_terminal() -> None:
    """Redirect outputs to a closed terminal to nowhere: otherwise each line fails."""
    for descriptor in OUTPUTS:
        with suppress(OSError):
            if stat.S_ISCHR(os.fstat(descriptor).st_mode) and not os.isatty(descriptor):
                os.dup2(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), descriptor)


@contextmanager
def finishing(what: str) -> Iterator[None]:
    """Keep a second signal from ending the process within the block, whose time the caller limits.

    Such a signal writes the line `what` to standard error. The first signal is handled as usual.
    """
    _unfinished.append(what)
    try:
        yield
    finally:
        _unfinished.remove(what)


def end_at_next(numbers: Iterable[signal.Signals], requests: EndRequests) -> None:
    """Let the next request by these signals end the process at once, except in a block of `finishing`."""
    for number in numbers:
        signal.signal(number, _EndUnlessUnfinished(requests))


def restore_default(numbers: Iterable[signal.Signals]) -> None:
    """Let these signals have their default action again, if `end_at_next` has changed it."""
    for number in numbers:
        if isinstance(signal.getsignal(number), _EndUnlessUnfinished):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


@dataclass(frozen=True, slots=True)
class _EndUnlessUnfinished:
    requests: EndRequests

    def __call__(self, number: int, _frame: FrameType | None) -> None:
        if not self.requests.is_new(number):
            return
        if _unfinished:
            with suppress(OSError):
                os.write(OUTPUTS[1], f"{_unfinished[0]}\n".encode())
            return
        restore_default([signal.Signals(number)])
        signal.raise_signal(number)


def run_until_signal(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine. A signal cancels it, and ends the process after its `finally` blocks.

    A second request ends the process at once, except in a block of `finishing`.
    """
    import asyncio  # noqa: PLC0415 - takes 20 ms, which `--help` need not pay

    came: list[signal.Signals] = []
    numbers = ending_signals()
    requests = EndRequests()

    async def run() -> Result:
        task = asyncio.current_task()
        if task is not None and threading.current_thread() is threading.main_thread():
            loop = asyncio.get_running_loop()

            def on_signal(number: signal.Signals) -> None:
                if not requests.is_new(number):
                    return
                came.append(number)
                for again in numbers:
                    loop.remove_signal_handler(again)
                end_at_next(numbers, requests)
                task.cancel()

            for number in numbers:
                loop.add_signal_handler(number, on_signal, number)
        return await work

    try:
        return asyncio.run(run())
    except asyncio.CancelledError:
        restore_default(numbers)
        for number in came[:1]:
            signal.raise_signal(number)
        raise
    finally:
        restore_default(numbers)
