"""Set-up of a fork server: the process that loads the modules of worker processes and forks for each of them.

multiprocessing imports it first in that process. Elsewhere, importing it has no effect.
"""

import gc
import os
import signal
import sys
from multiprocessing import forkserver
from typing import Final

OF_WORKERS: Final = frozenset({signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM})
"""Signals that a terminal or a service manager sends to all processes. The fork server must outlive its
workers; it ends with the last of them.
"""


def set_up() -> None:
    """Prepare this process, which has one thread, for forks."""
    # Blocked and not ignored: a worker gets the signals that were sent to it before it has handlers.
    signal.pthread_sigmask(signal.SIG_BLOCK, OF_WORKERS)
    # The modules leave no garbage, and a collection in a worker would copy their memory.
    gc.disable()
    os.register_at_fork(before=gc.freeze, after_in_child=_begin_worker)


def _begin_worker() -> None:
    gc.enable()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, OF_WORKERS)


if getattr(sys.modules["__main__"], "main", None) is forkserver.main:
    set_up()
