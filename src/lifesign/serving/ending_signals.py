"""Signals that end a command in good order, and the end of its terminal."""

import os
import signal
import stat
from contextlib import suppress

OUTPUTS = (1, 2)
"""Standard output and standard error, by their descriptors."""


def ending_signals() -> tuple[signal.Signals, ...]:
    """Return Ctrl-C, SIGTERM, and SIGHUP, which a terminal sends that is closed; not under `nohup`."""
    requests = (signal.SIGINT, signal.SIGTERM)
    return requests if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (*requests, signal.SIGHUP)


def redirect_closed_terminal() -> None:
    """Redirect outputs to a closed terminal to nowhere: otherwise each line fails."""
    for descriptor in OUTPUTS:
        with suppress(OSError):
            if stat.S_ISCHR(os.fstat(descriptor).st_mode) and not os.isatty(descriptor):
                os.dup2(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), descriptor)
