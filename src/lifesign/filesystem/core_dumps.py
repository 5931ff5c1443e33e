"""Core dumps of this process: they would contain its secrets."""

import ctypes
import os
import sys
from typing import Final

_PR_SET_DUMPABLE: Final = 4


def forbid_core_dumps() -> None:
    """Disable core dumps of this process, because they would contain secrets."""
    try:
        import resource  # noqa: PLC0415 - absent outside of Unix
    except ImportError:
        return
    # Linux ignores a limit of 0 if `core_pattern` names a program. With 1 it starts none (fs/coredump.c).
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (1, 1))
    except ValueError:
        # The hard limit is 0, and only a privileged process may raise it.
        if sys.platform == "linux":
            _make_undumpable()


def _make_undumpable() -> None:
    """Tell the Linux kernel to write no core dump of this process; OSError if the kernel refuses.

    Other processes of the user cannot read its memory any more, which nothing of lifesign does.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_DUMPABLE, ctypes.c_ulong(0), 0, 0, 0) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
