"""Signals that begin a drain, in a program whose handlers may fork."""

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from lifesign.serving.ending_signals import redirect_closed_terminal

ENDING_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

_drains: Final[dict[asyncio.AbstractEventLoop, list[Callable[[str], None]]]] = {}
"""Functions to call at a signal, by event loop."""
_caught: Final[list[signal.Signals]] = []
"""Signals that event loops of this process handle, once for each loop."""
_masks: Final = threading.local()
"""`before`: blocked signals of a thread that forks."""


@contextmanager
def catching_signals(drain: Callable[[str], None]) -> Iterator[None]:
    """Call `drain` with a reason for each ending signal, until the block ends.

    Several agents may run in one event loop: a signal drains them all. A forked child handles the signals as
    Python does by default. SIGHUP is left to a program that handles or ignores it (`nohup`).
    """
    running = asyncio.get_running_loop()
    drains = _drains.setdefault(running, [])
    if not drains:
        for number in ENDING_SIGNALS:
            if number == signal.SIGHUP and signal.getsignal(number) is not signal.SIG_DFL:
                continue
            # Outside the main thread, or on a system without signals: the embedding program drains.
            with suppress(ValueError, RuntimeError):
                running.add_signal_handler(number, _on_signal, drains, number)
                _caught.append(number)
    drains.append(drain)
    try:
        yield
    finally:
        drains.remove(drain)
        if not drains:
            del _drains[running]
            for number in ENDING_SIGNALS:
                if running.remove_signal_handler(number):
                    _caught.remove(number)


def _on_signal(drains: list[Callable[[str], None]], number: signal.Signals) -> None:
    if number == signal.SIGHUP:
        redirect_closed_terminal()
        # The shell of a closed terminal sends one, and the kernel another one after it.
        asyncio.get_running_loop().add_signal_handler(number, redirect_closed_terminal)
    for drain in tuple(drains):
        drain(f"{number.name} came")


def _hold_signals() -> None:
    """Let signals of a new child wait until `_reset_in_child` has run."""
    if _caught:
        _masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING_SIGNALS)


def _release_signals() -> None:
    before = _masks.__dict__.pop("before", None)
    if before is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _reset_in_child() -> None:
    """Handle signals as by default in a forked child.

    It shares the pipe by which signals reach the event loop: a signal to the child, such as the SIGTERM that
    ends a worker of `multiprocessing.Pool`, would not end the child, and drain its parent.
    """
    if _caught:
        signal.set_wakeup_fd(-1)
        for number in _caught:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        _caught.clear()
    _release_signals()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_hold_signals, after_in_parent=_release_signals, after_in_child=_reset_in_child
    )
