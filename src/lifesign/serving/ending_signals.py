"""Signals that end a command in good order, and the end of its terminal."""

import os
import signal
import stat
import threading
from collections.abc import Coroutine, Iterable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, Final, TypeVar

OUTPUTS = (1, 2)
"""Standard output and standard error, by their descriptors."""

Result = TypeVar("Result")

_unfinished: Final[list[str]] = []
"""What the process waits for, before a second signal may end it."""


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


def end_at_next(numbers: Iterable[signal.Signals]) -> None:
    """Let the next of these signals end the process at once, unless it arrives in a block of `finishing`."""
    for number in numbers:
        signal.signal(number, _end_unless_unfinished)


def restore_default(numbers: Iterable[signal.Signals]) -> None:
    """Let these signals have their default action again, if `end_at_next` has changed it."""
    for number in numbers:
        if signal.getsignal(number) is _end_unless_unfinished:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def _end_unless_unfinished(number: int, _frame: FrameType | None) -> None:
    if _unfinished:
        with suppress(OSError):
            os.write(OUTPUTS[1], f"{_unfinished[0]}\n".encode())
        return
    restore_default([signal.Signals(number)])
    signal.raise_signal(number)


def run_until_signal(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine. A signal cancels it, and ends the process after its `finally` blocks.

    A second signal ends the process at once, except in a block of `finishing`.
    """
    import asyncio  # noqa: PLC0415 - takes 20 ms, which `--help` need not pay

    came: list[signal.Signals] = []
    numbers = ending_signals()

    async def run() -> Result:
        task = asyncio.current_task()
        if task is not None and threading.current_thread() is threading.main_thread():
            loop = asyncio.get_running_loop()

            def on_signal(number: signal.Signals) -> None:
                came.append(number)
                for again in numbers:
                    loop.remove_signal_handler(again)
                end_at_next(numbers)
                task.cancel()

            for number in numbers:
                loop.add_signal_handler(number, on_signal, number)
        return await work

    try:
        return asyncio.run(run())
    except asyncio.CancelledError:
        for number in came[:1]:
            signal.raise_signal(number)
        raise
    finally:
        restore_default(numbers)
