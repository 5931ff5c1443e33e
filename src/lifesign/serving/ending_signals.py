"""Signals that end a command in good order, and the end of its terminal."""

import os
import signal
import stat
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

OUTPUTS = (1, 2)
"""Standard output and standard error, by their descriptors."""

Result = TypeVar("Result")


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


def run_until_signal(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine. A signal cancels it, and ends the process after its `finally` blocks.

    A second signal ends the process at once.
    """
    import asyncio  # noqa: PLC0415 - takes 20 ms, which `--help` need not pay

    came: list[signal.Signals] = []

    async def run() -> Result:
        task = asyncio.current_task()
        if task is not None and threading.current_thread() is threading.main_thread():
            loop = asyncio.get_running_loop()

            def on_signal(number: signal.Signals) -> None:
                came.append(number)
                loop.remove_signal_handler(number)
                task.cancel()

            # `asyncio.run` handles Ctrl-C alike.
            for number in set(ending_signals()) - {signal.SIGINT}:
                loop.add_signal_handler(number, on_signal, number)
        return await work

    try:
        return asyncio.run(run())
    except asyncio.CancelledError:
        for number in came[:1]:
            signal.raise_signal(number)
        raise
