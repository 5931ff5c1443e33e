"""Signals that begin a drain, in a program whose handlers may fork and whose web server takes signals too."""

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import FrameType
from typing import Final

from lifesign.serving.ending_signals import EndRequests, redirect_closed_terminal

ENDING_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

_drains: Final[dict[asyncio.AbstractEventLoop, "_Drains"]] = {}
_caught: Final[list[signal.Signals]] = []
"""Signals that event loops of this process handle, once for each loop."""
_loop_handlers: Final[dict[signal.Signals, object]] = {}
"""Handlers that the event loop sets, whatever function it calls at the signal."""
_counts: Final[dict[signal.Signals, "_Counts"]] = {}
_masks: Final = threading.local()
"""`before`: blocked signals of a thread that forks."""


@dataclass(frozen=True, slots=True)
class _Drains:
    """Functions to call at a signal in one event loop, and the requests by signals so far."""

    functions: list[Callable[[str], None]] = field(default_factory=list)
    requests: EndRequests = field(default_factory=EndRequests)


@dataclass(slots=True)
class _Counts:
    """How often a signal came, in the event loop and in the handler of this module.

    uvicorn replaces the handler, and raises the signal again when it has restored the former one. The event
    loop gets both signals, perhaps together. So one signal of another handler and one of ours are one.
    """

    delivered: int = 0
    """Signals that the event loop got, whichever handler Python called."""
    handled: int = 0
    """Signals for which Python called the handler of this module."""
    used: int = 0
    """Signals that had an effect."""

    def count_delivered(self) -> bool:
        """Count one signal in the event loop; return whether it is not a repetition."""
        self.delivered += 1
        # Python calls the handler before the event loop: the last ones may not have been delivered yet.
        ours = min(self.handled, self.delivered)
        came = max(ours, self.delivered - ours)
        is_new = came > self.used
        self.used = max(self.used, came)
        return is_new


@contextmanager
def catching_signals(drain: Callable[[str], None]) -> Iterator[None]:
    """Call `drain` with a reason for each request by an ending signal, until the block ends.

    Several agents may run in one event loop: a signal drains them all. A forked child handles the signals as
    Python does by default. SIGHUP is left to a program that handles or ignores it (`nohup`).
    """
    running = asyncio.get_running_loop()
    drains = _drains.setdefault(running, _Drains())
    if not drains.functions:
        for number in ENDING_SIGNALS:
            if number == signal.SIGHUP and signal.getsignal(number) is not signal.SIG_DFL:
                continue
            # Outside the main thread, or on a system without signals: the embedding program drains.
            with suppress(ValueError, RuntimeError):
                _handle(running, number, drains)
                _caught.append(number)
    drains.functions.append(drain)
    try:
        yield
    finally:
        drains.functions.remove(drain)
        if not drains.functions:
            del _drains[running]
            for number in ENDING_SIGNALS:
                if running.remove_signal_handler(number):
                    _caught.remove(number)
                    _loop_handlers.pop(number, None)
                    _counts.pop(number, None)


def restore_handlers() -> bool:
    """Handle again the signals that were taken away from the agent; return whether there were any.

    A web server that uses `add_signal_handler` of the event loop, as hypercorn does, takes them away, also
    after its end. A handler of the module `signal` does not: the event loop gets the signal too.
    """
    running = asyncio.get_running_loop()
    drains = _drains.get(running)
    if drains is None or threading.current_thread() is not threading.main_thread():
        return False
    taken = [number for number in (signal.SIGTERM, signal.SIGINT) if _is_taken(number)]
    for number in taken:
        _handle(running, number, drains)
    return bool(taken)


def _handle(running: asyncio.AbstractEventLoop, number: signal.Signals, drains: _Drains) -> None:
    running.add_signal_handler(number, _on_signal, drains, number)
    of_loop = signal.getsignal(number)
    counts = _counts.setdefault(number, _Counts())

    def handler(signum: int, frame: FrameType | None) -> None:
        """Do what the event loop does, and count the signals that no other handler got."""
        counts.handled += 1
        if callable(of_loop):
            of_loop(signum, frame)

    signal.signal(number, handler)
    # As the event loop does: system calls continue.
    signal.siginterrupt(number, False)  # noqa: FBT003 - it takes no keywords
    _loop_handlers[number] = of_loop


def _is_taken(number: signal.Signals) -> bool:
    return number in _loop_handlers and signal.getsignal(number) == _loop_handlers[number]


def _on_signal(drains: _Drains, number: signal.Signals) -> None:
    if number in _counts and not _counts[number].count_delivered():
        return
    if number == signal.SIGHUP:
        redirect_closed_terminal()
    if drains.requests.is_new(number):
        for drain in tuple(drains.functions):
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
