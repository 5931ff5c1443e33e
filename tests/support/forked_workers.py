"""Processes that multiprocessing starts as new interpreters, as forks that have the modules loaded.

They are workers of the method `spawn`, and the fork server of the method `forkserver`. A new interpreter
would load the modules again, which took most of the CPU time of a server's journey.
"""

import atexit
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing import util
from typing import Final

_start_interpreter: Final = util.spawnv_passfds


def fork_instead_of_spawning() -> None:
    """From now on, let multiprocessing fork this process instead of starting an interpreter."""
    util.spawnv_passfds = _start  # type: ignore[assignment]


def _start(path: bytes, command: Sequence[str | bytes], descriptors: Sequence[int]) -> int:
    """Do as `spawnv_passfds`; return the process id."""
    place = command.index("-c") + 1
    program, *arguments = map(str, command[place:])
    if "resource_tracker" in program:
        # It loads few modules.
        return _start_interpreter(path, command, descriptors)
    return _fork(program, arguments, descriptors)


def _fork(program: str, arguments: Sequence[str], descriptors: Sequence[int]) -> int:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    if pid := os.fork():
        return pid
    code = 1
    try:
        _forget_the_parent(descriptors)
        code = _run(program, arguments)
    except BaseException:  # noqa: BLE001 - it ends here, and says why
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)


def _forget_the_parent(descriptors: Sequence[int]) -> None:
    """Reset what an interpreter that was started by this process would not have."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            signal.signal(number, usual)
    opened = {int(name) for name in os.listdir("/proc/self/fd")}  # noqa: PTH208 - also the directory's own
    for descriptor in opened - {0, 1, 2, *descriptors}:
        with suppress(OSError):
            os.close(descriptor)
    atexit._clear()


def _run(program: str, arguments: Sequence[str]) -> int:
    """Do as an interpreter does; return the exit code."""
    sys.argv[:] = ["-c", *arguments]
    try:
        exec(program, vars(sys.modules["__main__"]))  # noqa: S102 - of multiprocessing
    except SystemExit as ended:
        return int(ended.code or 0)
    finally:
        atexit._run_exitfuncs()
    return 0
