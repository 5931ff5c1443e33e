"""A machine that sleeps: CLOCK_BOOTTIME goes on, and CLOCK_MONOTONIC stands still."""

import time

import pytest


class SleepingMachine:
    """Lets the machine sleep, as the process sees it afterwards."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._slept_s = 0.0
        real = time.clock_gettime
        monkeypatch.setattr(
            time,
            "clock_gettime",
            lambda clock: real(clock) + (self._slept_s if clock == time.CLOCK_BOOTTIME else 0.0),
        )

    def sleep(self, seconds: float) -> None:
        """Let the machine sleep."""
        self._slept_s += seconds
