"""Process watcher: no process of an agent or of its tools outlives its run, even if the adapter is killed.

A small program between the two, started by its path, with the standard library only. All processes that the
agent starts are its descendants, also after a double fork (PR_SET_CHILD_SUBREAPER). It ends them all on
request, and at once when the adapter is gone: then its pipe from the adapter ends. Each tool server has a
watcher of its own, for which it is the agent.

An agent may kill its watcher. Above the watcher is a keeper, whose only task is to kill the remaining
processes of a killed watcher; if the keeper is killed, the watcher kills all. Each has a process group of its
own. Both kill all processes when their timer is due, which the adapter sets to the lease's deadline
(`lease_timer`). The keeper creates it once other processes cannot open its descriptors any more.

    adapter -> watcher  one line of JSON (`Job`), then T: ask all to end, K: kill all
    watcher -> adapter  `started PID`, before anything of the agent runs; `exited CODE`; then its end
    agent   -> adapter  the errno of a program that cannot be started; its pipe ends as the program begins
    keeper  -> adapter  its timer, by a socket for that alone; its pipe ends with it, and exit code 0 means
                        that no process is left

An agent of the same user cannot open their descriptors: they hide their memory, and their descriptors with
it. It can block what they may open: from its start on they need nothing that they do not hold already.
"""

import ctypes
import io
import json
import os
import select
import signal
import socket
import struct
import sys
import time
from contextlib import suppress
from typing import Any, Final, NoReturn

MAX_JOB_BYTES: Final = 4 * 1024 * 1024
"""The kernel takes no larger command and environment."""
ASK: Final = b"T"
KILL: Final = b"K"
STATUS_FD_AT: Final = 1
"""Position in the arguments of the descriptor to which the watcher writes."""
LIFETIME_FD_INDEX: Final = 2
"""Position of the descriptor that only the keeper holds, and that is never written to."""
KILL_AGAIN_SECONDS: Final = 0.02
"""A killed process may have forked just before."""
KILLS_AT_ONCE: Final = 100
"""Number of its own children that are killed before it looks at all processes again."""
EXIT_NOT_STARTED: Final = 127

_CONTROL_FD: Final = 0
_GO: Final = b"G"
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_DUMPABLE: Final = 4
_PR_SET_CHILD_SUBREAPER: Final = 36
_AT_A_TIME: Final = 1
"""TFD_TIMER_ABSTIME"""
_NANOSECONDS: Final = 1_000_000_000

GONE: Final = (FileNotFoundError, ProcessLookupError, PermissionError)
"""Errors about a process that has just ended, or that is hidden."""


def prctl(option: int, value: int) -> None:
    """Ask the kernel for a property of this process; OSError if it refuses."""
    libc = ctypes.CDLL(None, use_errno=True)
    _checked(libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0))


def hide_memory() -> None:
    """Hide this process's memory and initial environment from others of this user: they may contain keys."""
    prctl(_PR_SET_DUMPABLE, 0)


def go_on_every_second() -> None:
    """Have the kernel let this process go on, should an agent have stopped it; none is sent to its children.

    A C library that has no such timers leaves it as it is.
    """
    libc = ctypes.CDLL(None)
    # A sigevent: no value, the signal, SIGEV_SIGNAL; and when it is due: again and again, and first.
    event = struct.pack("@Pii64x", 0, signal.SIGCONT, 0)
    timer, every_second = ctypes.c_void_p(), (ctypes.c_long * 4)(1, 0, 1, 0)
    with suppress(AttributeError):
        if libc.timer_create(time.CLOCK_BOOTTIME, event, ctypes.byref(timer)) == 0:
            libc.timer_settime(timer, 0, every_second, None)


def open_timer(due_ns: int) -> int:
    """Return a new timer of the kernel, readable from that time of CLOCK_BOOTTIME on; OSError if none."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd = _checked(libc.timerfd_create(time.CLOCK_BOOTTIME, os.O_CLOEXEC | os.O_NONBLOCK))
    set_timer(fd, due_ns)
    return fd


def set_timer(fd: int, due_ns: int) -> None:
    """Set a timer; OSError if it is none."""
    libc = ctypes.CDLL(None, use_errno=True)
    # 0 would unset it; in the past, it is due.
    due = (ctypes.c_long * 4)(0, 0, *divmod(max(1, due_ns), _NANOSECONDS))
    _checked(libc.timerfd_settime(fd, _AT_A_TIME, due, None))


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def processes() -> dict[int, tuple[int, int, int]]:
    """Return parent, group and session of every process that is not dead already, by its id.

    OSError if we may not look.
    """
    found = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - loads what the warden does not need
        if name.isdigit():
            with suppress(*GONE), io.FileIO(f"/proc/{name}/stat") as stat:
                # The name in brackets may hold anything.
                state, parent, group, session = stat.read().rpartition(b")")[2].split()[:4]
                if state not in (b"Z", b"X"):
                    found[int(name)] = (int(parent), int(group), int(session))
    return found


def descendants(of: int) -> dict[int, int]:
    """Return the groups of all processes below one, by their ids."""
    living = processes()
    below: dict[int, int] = {}
    parents = {of}
    while parents:
        children = {pid for pid, (parent, _, _) in living.items() if parent in parents} - below.keys()
        below.update((pid, living[pid][1]) for pid in children)
        parents = children
    return below


class Children:
    """Direct children of a process, from a list that is opened once.

    Sufficient to kill all without another look: an orphan becomes a child of its watcher or keeper. A kernel
    without such a list gives an empty one.
    """

    def __init__(self, of: int) -> None:
        self._list: io.FileIO | None = None
        with suppress(OSError):
            self._list = io.FileIO(f"/proc/{of}/task/{of}/children")

    def now(self) -> list[int]:
        """Return their ids."""
        if self._list is not None:
            with suppress(OSError):
                self._list.seek(0)
                return [int(pid) for pid in self._list.read().split()]
        return []

    def kill(self) -> None:
        """Kill them, and who has just become one: of a chain of forks that outruns other looks, the last."""
        for _ in range(KILLS_AT_ONCE):
            pids = self.now()
            if not pids:
                return
            for pid in pids:
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)


class ProcessWatcher:
    """Watches over one agent's processes."""

    def __init__(
        self, job: dict[str, Any], status_fd: int, keeper: int, ready_fd: int, timer: int | None
    ) -> None:
        self._job = job
        self._timer = timer
        self._status_fd = status_fd
        self._keeper = keeper
        self._ready_fd = ready_fd
        self._pid = 0
        self._is_killing = False
        self._children = Children(os.getpid())

    def run(self) -> None:
        """Start the agent; return once nothing of it is left."""
        woken = _be_woken()
        self._start()
        waits = {fd for fd in (_CONTROL_FD, woken, self._timer) if fd is not None}
        while self._reap():
            if os.getppid() != self._keeper:
                self._is_killing = True
            if self._is_killing:
                self._signal_all(signal.SIGKILL)
                self._children.kill()
            ready = _first_ready(waits, is_killing=self._is_killing)
            if woken in ready:
                os.read(woken, 4096)
            if self._timer in ready:
                self._is_killing = True
                waits.discard(self._timer)
            if _CONTROL_FD in ready and not self._obey():
                waits.discard(_CONTROL_FD)

    def _start(self) -> None:
        waits, goes = os.pipe2(os.O_CLOEXEC)
        warden = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            _become_agent(self._job, warden, waits)
        os.close(waits)
        _drop_output()
        _drop_given(self._job)
        # From then on only the agent holds the descriptor that closes as its program begins: it may stop this
        # process.
        os.read(self._ready_fd, 1)
        _say(self._status_fd, f"started {self._pid}")
        with suppress(OSError):
            os.write(goes, _GO)
        os.close(goes)

    def _reap(self) -> bool:
        """Reap ended children; return whether any is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self._pid:
                _say(self._status_fd, f"exited {os.waitstatus_to_exitcode(status)}")

    def _obey(self) -> bool:
        """Do what the adapter says; return False when it will not say anything any more."""
        asked = os.read(_CONTROL_FD, 64)
        if ASK in asked:
            self._signal_all(signal.SIGTERM)
            # A stopped process handles signals only when it continues.
            self._signal_all(signal.SIGCONT)
        self._is_killing |= KILL in asked or not asked
        return bool(asked)

    def _signal_all(self, number: int) -> None:
        """Signal each group below as a whole: who forks without end is gone when it is signalled alone."""
        below = self._below()
        for group in set(below.values()) - {os.getpgrp()}:
            with suppress(OSError):
                os.killpg(group, number)
        for pid in [pid for pid, group in below.items() if group == os.getpgrp()]:
            # It has just begun.
            with suppress(OSError):
                os.kill(pid, number)

    def _below(self) -> dict[int, int]:
        """Return the groups of who is below; of those next to us alone, if we may not look at all."""
        with suppress(OSError):
            return descendants(os.getpid())
        groups = {}
        for pid in self._children.now():
            with suppress(OSError):
                groups[pid] = os.getpgid(pid)
        return groups


def keep(warden: int, adapter: int, timer: int | None, is_ready_fd: int) -> None:
    """Return once no process of a watcher is left; kill what remains.

    Kill all once the adapter is gone, and all but the watcher, which has to report, when the timer is due.
    Close `is_ready_fd` as soon as the agent may start.
    """
    woken = _be_woken()
    ours, its = Children(os.getpid()), Children(warden)
    os.close(is_ready_fd)
    waits = {fd for fd in (woken, timer) if fd is not None}
    has_ended = is_due = False
    with suppress(ChildProcessError):
        while True:
            while pid := os.waitpid(-1, os.WNOHANG)[0]:
                has_ended |= pid == warden
            is_alone = has_ended or os.getppid() != adapter
            if is_alone or is_due:
                for pid in _all_below():
                    with suppress(OSError):
                        os.kill(pid, signal.SIGKILL if is_alone or pid != warden else signal.SIGCONT)
                (ours if is_alone else its).kill()
            if is_due and not has_ended:
                os.kill(warden, signal.SIGCONT)
            ready = _first_ready(waits, is_killing=is_alone or is_due)
            if woken in ready:
                os.read(woken, 4096)
            if timer in ready:
                is_due = True
                waits.discard(timer)


def _all_below() -> list[int]:
    """Return all descendants; none without permission to look."""
    with suppress(OSError):
        return list(descendants(os.getpid()))
    return []


def _first_ready(waits: set[int], *, is_killing: bool) -> list[int]:
    """Wait until there is something to read, or it is time to kill again.

    Not with poll(2), which refuses more descriptors than a process may open by now.
    """
    return select.select(list(waits), [], [], KILL_AGAIN_SECONDS if is_killing else None)[0]


def _be_woken() -> int:
    """Adopt orphans among the descendants, and handle the end of the adapter, even while stopped.

    Return the descriptors that wake this process.
    """
    woken, wakes = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    # The group's leader is the agent's: signals for this process come through the pipe.
    for number in (signal.SIGCHLD, signal.SIGCONT, signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    prctl(_PR_SET_CHILD_SUBREAPER, 1)
    # The one signal that also lets go on whom an agent has stopped.
    prctl(_PR_SET_PDEATHSIG, signal.SIGCONT)
    return woken


def _drop_output() -> None:
    """Close the output, so that its reader sees the end when the agent's processes are gone."""
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)


def _drop_given(job: dict[str, Any]) -> None:
    """Leave to the agent alone what it reads, and what ends as its program begins."""
    if job["input"] is not None:
        os.close(job["input"])
    os.close(job["begun"])


def _say(status_fd: int, line: str) -> None:
    with suppress(OSError):
        os.write(status_fd, f"{line}\n".encode())


def _become_agent(job: dict[str, Any], warden: int, waits: int) -> NoReturn:
    """Become the agent's program once the watcher says so; never return."""
    try:
        os.setsid()
        _become_user(job["user"])
        # The watcher's own death; its pipe cannot show that. A process loses this setting when it changes its
        # user.
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != warden or os.read(waits, 1) != _GO:
            os._exit(EXIT_NOT_STARTED)
        signal.set_wakeup_fd(-1)
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            with suppress(OSError):
                signal.signal(number, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDONLY) if job["input"] is None else job["input"], 0)
        os.chdir(_bytes(job["cwd"]))
        command = [_bytes(part) for part in job["command"]]
        environment = {_bytes(name): _bytes(value) for name, value in job["environment"].items()}
        os.execvpe(command[0], command, environment)  # noqa: S606 - it is what we are for
    except OSError as error:
        os.write(job["begun"], str(error.errno or 1).encode())
    except BaseException:  # noqa: BLE001 - nothing of this copy of the warden may go on
        os.write(job["begun"], b"1")
    os._exit(EXIT_NOT_STARTED)


def _become_user(user: dict[str, Any] | None) -> None:
    """Give up all that root may, for good."""
    if user is not None:
        os.setgroups(user["groups"])
        os.setresgid(user["gid"], user["gid"], user["gid"])
        os.setresuid(user["uid"], user["uid"], user["uid"])


def _bytes(text: str) -> bytes:
    """Return what was sent byte for byte: a command need not be UTF-8."""
    return text.encode("latin-1")


def _read_job() -> dict[str, Any] | None:
    """Return what is to be started; None if it is over before it has begun."""
    read = b""
    while b"\n" not in read and len(read) < MAX_JOB_BYTES:
        piece = os.read(_CONTROL_FD, 65_536)
        if not piece:
            return None
        read += piece
    written, _, asked = read.partition(b"\n")
    if asked:
        return None
    job: dict[str, Any] = json.loads(written)
    for fd in (job["input"], job["timer"], job["begun"]):
        if fd is not None:
            os.set_inheritable(fd, False)  # noqa: FBT003 - has no name
    return job


def _give_timer(job: dict[str, Any]) -> int | None:
    """Return what is due with the job, set already; the adapter gets it as well."""
    with socket.socket(fileno=job["timer"]) as asked:
        if job["due_ns"] is None:
            return None
        timer = open_timer(job["due_ns"])
        with suppress(OSError):
            socket.send_fds(asked, [b"t"], [timer])
        return timer


def main() -> None:
    """Run the keeper of one run's watcher."""
    hide_memory()
    status_fd, life_fd = int(sys.argv[STATUS_FD_AT]), int(sys.argv[LIFETIME_FD_INDEX])
    os.set_inheritable(status_fd, False)  # noqa: FBT003 - has no name
    os.setsid()
    job = _read_job()
    if job is None:
        return
    keeper = os.getpid()
    # First, or the remains of a watcher that ends right after its start would have no parent.
    prctl(_PR_SET_CHILD_SUBREAPER, 1)
    go_on_every_second()
    timer = _give_timer(job)
    ready, is_ready = os.pipe2(os.O_CLOEXEC)
    warden = os.fork()
    if warden == 0:
        os.close(is_ready)
        os.close(life_fd)
        os.setsid()
        ProcessWatcher(job, status_fd, keeper, ready, timer).run()
        return
    os.close(status_fd)
    _drop_output()
    _drop_given(job)
    os.close(ready)
    keep(warden, job["adapter"], timer, is_ready)


if __name__ == "__main__":
    main()
