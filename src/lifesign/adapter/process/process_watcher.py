"""Process watcher: no process of an agent or of its tools outlives its run, even if the adapter is killed.

A small program between adapter and agent, started by its path, with the standard library only. All processes
that the agent starts are its descendants, also after a double fork (PR_SET_CHILD_SUBREAPER). It ends them on
request, at the deadline of the lease, and at once when the adapter is gone: then its pipe from the adapter
ends. Each tool server has a watcher of its own, for which it is the agent.

    adapter -> watcher  one line of JSON (`Job`), then the lines `end`, `kill`, `deadline NANOSECONDS`
    watcher -> adapter  `failed ERRNO` or `started PID`, then `exited CODE`, and `signalled NUMBER` if the
                        watcher gets a signal to end; exit code 0 means that no process is left

An agent of the same user can stop or kill its watcher; docs/adapter.md says what helps against that.
"""

import ctypes
import errno
import io
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

MAX_JOB_BYTES: Final = 4 * 1024 * 1024
"""The kernel accepts no larger command and environment."""
END: Final = "end"
KILL: Final = "kill"
DEADLINE: Final = "deadline"
STATUS_FD_AT: Final = 1
"""Position in the arguments of the descriptor to which the watcher writes."""
KILL_AGAIN_SECONDS: Final = 0.02
"""A killed process may have forked just before."""
CLOCK_SECONDS: Final = 1.0
"""The clock is read this often before a deadline: a wait does not count the time that a machine sleeps."""
LATE_SIGNAL_SECONDS: Final = 0.1
"""Time after the agent's end in which the watcher still waits for a signal that was sent to both."""
KILLS_AT_ONCE: Final = 100
"""Number of its own children that are killed before it looks at all processes again."""

EXIT_NOT_STARTED: Final = 127
OOM_SCORE_ADDED: Final = 200
"""Added to the agent's score if memory runs out, in thousandths of the memory: the adapter is to survive."""
_MAX_OOM_SCORE: Final = 1_000
_OOM_SCORE_FILE: Final = "/proc/self/oom_score_adj"

ENDING_SIGNALS: Final = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
"""The adapter decides when to end: the watcher only reports these."""

_CONTROL_FD: Final = 0
_NANOSECONDS: Final = 1_000_000_000
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_DUMPABLE: Final = 4
_PR_SET_CHILD_SUBREAPER: Final = 36

GONE: Final = (FileNotFoundError, ProcessLookupError, PermissionError)
"""Errors about a process that has just ended, or that is hidden."""


def prctl(option: int, value: int) -> None:
    """Set an attribute of this process in the Linux kernel (prctl); OSError if the kernel refuses."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def hide_memory() -> None:
    """Hide this process's memory and initial environment from others of this user: they may contain keys."""
    prctl(_PR_SET_DUMPABLE, 0)


def processes() -> dict[int, tuple[int, int, int]]:
    """Return every process that has not ended: its id, with its parent, process group and session.

    OSError if this process may open nothing.
    """
    found = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - loads what the watcher does not need
        if name.isdigit():
            with suppress(*GONE), io.FileIO(f"/proc/{name}/stat") as stat:
                # The name in brackets may contain any character.
                state, parent, group, session = stat.read().rpartition(b")")[2].split()[:4]
                if state not in (b"Z", b"X"):
                    found[int(name)] = (int(parent), int(group), int(session))
    return found


def descendants(of: int) -> dict[int, int]:
    """Return all descendants of the process `of`: the id of each, with its process group."""
    living = processes()
    below: dict[int, int] = {}
    parents = {of}
    while parents:
        children = {pid for pid, (parent, _, _) in living.items() if parent in parents} - below.keys()
        below.update((pid, living[pid][1]) for pid in children)
        parents = children
    return below


class ProcessWatcher:
    """Starts one agent's process, and observes all its descendants until they have ended."""

    def __init__(self, job: dict[str, Any], received: bytes, status_fd: int) -> None:
        self._job = job
        self._received = received
        self._status_fd = status_fd
        self._deadline_ns: int | None = job["deadline_ns"]
        self._agent: subprocess.Popen[bytes] | None = None
        self._is_ending = False
        self._is_killing = False
        self._was_signalled = False

    def run(self) -> None:
        """Start the agent; return once all of its processes have ended."""
        prctl(_PR_SET_CHILD_SUBREAPER, 1)
        woken, wakes = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, *ENDING_SIGNALS):
            signal.signal(number, lambda *_: None)
        waits = {_CONTROL_FD, woken}
        self._start()
        self._obey(b"")
        while self._reap():
            self._is_killing |= self._left_seconds() == 0.0
            if self._is_killing:
                self._signal_all(signal.SIGKILL)
                _kill_children()
            ready = select.select(list(waits), [], [], self._wait_seconds())[0]
            if woken in ready:
                self._note_signals(woken)
            if _CONTROL_FD in ready:
                piece = os.read(_CONTROL_FD, 4096)
                self._obey(piece)
                if not piece:
                    self._is_killing = True
                    waits.discard(_CONTROL_FD)
        self._await_late_signal(woken)

    def _note_signals(self, woken: int) -> None:
        """Report the first signal to end: a service manager signals all processes of a unit."""
        for number in os.read(woken, 4096):
            if number in ENDING_SIGNALS and not self._was_signalled:
                self._was_signalled = True
                self._report(f"signalled {number}")

    def _await_late_signal(self, woken: int) -> None:
        """Wait for a signal to all processes, which an agent that ended by itself may have got earlier."""
        if self._agent is None or self._is_ending or self._is_killing:
            return
        until_s = time.monotonic() + LATE_SIGNAL_SECONDS
        while not self._was_signalled and (left_s := until_s - time.monotonic()) > 0.0:
            if select.select([woken], [], [], left_s)[0]:
                self._note_signals(woken)

    def _start(self) -> None:
        try:
            self._agent = _started(self._job)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            self._report(f"failed {getattr(error, 'errno', None) or errno.EINVAL}")
        else:
            self._report(f"started {self._agent.pid}")
        # The reader of the output sees its end when the agent's processes have ended.
        for fd in (1, 2):
            os.dup2(os.open(os.devnull, os.O_RDWR), fd)
        if self._job["input"] is not None:
            os.close(self._job["input"])

    def _reap(self) -> bool:
        """Reap ended children; return whether any is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if self._agent is not None and pid == self._agent.pid:
                self._report(f"exited {os.waitstatus_to_exitcode(status)}")

    def _left_seconds(self) -> float | None:
        """Return the time to the deadline; None if there is no deadline."""
        if self._deadline_ns is None:
            return None
        return max(0.0, (self._deadline_ns - time.clock_gettime_ns(time.CLOCK_BOOTTIME)) / _NANOSECONDS)

    def _wait_seconds(self) -> float | None:
        if self._is_killing:
            return KILL_AGAIN_SECONDS
        left_s = self._left_seconds()
        return None if left_s is None else min(left_s, CLOCK_SECONDS)

    def _obey(self, piece: bytes) -> None:
        """Execute the adapter's commands, line by line."""
        *lines, self._received = (self._received + piece).split(b"\n")
        for line in lines:
            what, _, value = line.decode("ascii").partition(" ")
            if what == END:
                self._is_ending = True
                self._signal_all(signal.SIGTERM)
                # A stopped process handles signals only when it continues.
                self._signal_all(signal.SIGCONT)
            elif what == DEADLINE:
                self._deadline_ns = int(value)
            elif what == KILL:
                self._is_killing = True

    def _signal_all(self, number: int) -> None:
        """Signal each group below as a whole: a process that forks endlessly evades single signals."""
        with suppress(OSError):
            for group in set(descendants(os.getpid()).values()):
                with suppress(OSError):
                    os.killpg(group, number)

    def _report(self, line: str) -> None:
        with suppress(OSError):
            os.write(self._status_fd, f"{line}\n".encode())


def _started(job: dict[str, Any]) -> "subprocess.Popen[bytes]":
    """Start the agent's program in a session of its own; OSError if that fails."""
    watcher = os.getpid()

    def prepare() -> None:
        # After a change of the user, with which a process loses this setting.
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != watcher:
            os._exit(EXIT_NOT_STARTED)
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            with suppress(OSError):
                signal.signal(number, signal.SIG_DFL)

    user = job["user"] or {}
    with _inherited_oom_score():
        return subprocess.Popen(  # noqa: S603 - it is what the watcher is for
            [_bytes(part) for part in job["command"]],
            stdin=subprocess.DEVNULL if job["input"] is None else job["input"],
            cwd=_bytes(job["cwd"]),
            env={_bytes(name): _bytes(value) for name, value in job["environment"].items()},
            start_new_session=True,
            user=user.get("uid"),
            group=user.get("gid"),
            extra_groups=user.get("groups"),
            preexec_fn=prepare,  # noqa: PLW1509 - the watcher has one thread
        )


@contextmanager
def _inherited_oom_score() -> Iterator[None]:
    """Let processes that are started within the block be killed before others when memory runs out.

    The score of this process is raised for that time: a child that changes its user may not raise its own.
    """
    before = b""
    with suppress(OSError, ValueError), io.FileIO(_OOM_SCORE_FILE, "r+") as score:
        found = score.read()
        score.write(b"%d" % min(_MAX_OOM_SCORE, int(found) + OOM_SCORE_ADDED))
        before = found
    try:
        yield
    finally:
        if before:
            with suppress(OSError), io.FileIO(_OOM_SCORE_FILE, "w") as score:
                score.write(before)


def _kill_children() -> None:
    """Kill direct children, and processes that have just become children: the last of a chain of forks."""
    file = f"/proc/self/task/{os.getpid()}/children"
    for _ in range(KILLS_AT_ONCE):
        pids = list[bytes]()
        with suppress(OSError), io.FileIO(file) as children:
            pids = children.read().split()
        if not pids:
            return
        for pid in pids:
            with suppress(OSError):
                os.kill(int(pid), signal.SIGKILL)


def _bytes(text: str) -> bytes:
    """Return the text as the received bytes: a command need not be UTF-8."""
    return text.encode("latin-1")


def _read_job() -> tuple[dict[str, Any], bytes] | None:
    """Return the job, and the bytes received after it; None if the adapter ended before."""
    received = bytearray()
    while b"\n" not in received:
        piece = os.read(_CONTROL_FD, 65_536)
        if not piece:
            return None
        received += piece
    line, _, rest = bytes(received).partition(b"\n")
    return json.loads(line), rest


def main() -> None:
    """Run the watcher process: read the job, start the agent, and wait until all its processes have ended."""
    status_fd = int(sys.argv[STATUS_FD_AT])
    os.set_inheritable(status_fd, False)  # noqa: FBT003 - has no name
    os.setsid()
    for number in ENDING_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    received = _read_job()
    if received is not None:
        ProcessWatcher(*received, status_fd).run()


if __name__ == "__main__":
    main()
