"""When must nothing of a run be left, whoever still lives to see to that?

A timer of the kernel that the adapter sets, and that warden and keeper wait for: whichever of the three goes
on when the lease's deadline comes kills the agent's processes. It counts the time that a machine sleeps.
"""

import ctypes
import os
import select
import time
from typing import Final

_AT_A_TIME: Final = 1
"""TFD_TIMER_ABSTIME"""
_NANOSECONDS: Final = 1_000_000_000


class _TimeSpec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Setting(ctypes.Structure):
    _fields_ = (("interval", _TimeSpec), ("due", _TimeSpec))


class LeaseTimer:
    """Readable from the deadline on; `fd` is handed to whoever waits for it, and set for all at once."""

    def __init__(self, left_s: float) -> None:
        """Set it to so many seconds from now; OSError if the kernel gives none."""
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.fd = self._libc.timerfd_create(time.CLOCK_BOOTTIME, os.O_CLOEXEC | os.O_NONBLOCK)
        _check(self.fd)
        try:
            self.set(left_s)
        except BaseException:
            self.close()
            raise

    def set(self, left_s: float) -> None:
        """Set it anew."""
        # 0 would unset it; in the past, it is due.
        due_ns = max(1, time.clock_gettime_ns(time.CLOCK_BOOTTIME) + round(left_s * _NANOSECONDS))
        due = _TimeSpec(*divmod(due_ns, _NANOSECONDS))
        _check(self._libc.timerfd_settime(self.fd, _AT_A_TIME, ctypes.byref(_Setting(due=due)), None))

    @property
    def is_due(self) -> bool:
        """Whether it is time, though the loop may not have seen to it."""
        poll = select.poll()
        poll.register(self.fd, select.POLLIN)
        return bool(poll.poll(0))

    def close(self) -> None:
        """Let go of it; whoever else has it keeps it."""
        os.close(self.fd)


def _check(result: int) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
