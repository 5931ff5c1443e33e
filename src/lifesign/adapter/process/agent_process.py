"""Process of an agent, or of a tool server: start, and end with all its descendants."""

import asyncio
import json
import os
import re
import secrets
import signal
import socket
import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, Self

from lifesign.adapter.errors import CommandFailed
from lifesign.adapter.process import process_watcher
from lifesign.adapter.process.agent_user import AgentUser
from lifesign.adapter.process.lease_environment import RUN_ID_VARIABLE
from lifesign.adapter.process.lease_timer import LeaseTimer
from lifesign.adapter.process.orphan_cleanup import end_left

START_SECONDS: Final = 60.0
"""For its first process to begin."""
WATCHER_TIMEOUT_SECONDS: Final = 5.0
"""Time for the watchers to kill all processes, before the adapter does."""
_MAX_STATUS_BYTES: Final = 4096
_MEDDLED: Final = "its watcher process was manipulated"
_WATCHER_REPORT: Final = re.compile(rb"(?:started (?P<pid>[1-9]\d{0,9})|exited (?P<code>-?\d{1,4}))\n")
"""All messages of a watcher."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A program to start."""

    command: Sequence[str]
    environment: Mapping[str, str]
    """All of it: nothing of ours comes with it."""
    directory: Path
    """Working directory."""
    user: AgentUser | None = None
    """As whom; None: as ours."""
    input_fd: int | None = None
    """Standard input; None for none."""
    timer: LeaseTimer | None = None
    """All of it is killed when that is due; None for never."""


class Output(Protocol):
    """Destination of the output."""

    @property
    def stdout_fd(self) -> int:
        """Descriptor for standard output."""

    @property
    def stderr_fd(self) -> int:
        """Descriptor for standard error."""

    def begin(self) -> None:
        """Hear that it has its descriptors, or will never have them."""


class AgentProcess:
    """An agent's process with its descendants, behind its watcher."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        control: asyncio.WriteTransport,
        status: asyncio.StreamReader,
        life: asyncio.StreamReader,
        *,
        mark: str,
        timer: LeaseTimer | None,
    ) -> None:
        self._process = process
        self._control = control
        self._status = status
        self._life = life
        self._mark = mark
        self._timer = timer
        self._timer_fd: int | None = None
        self._pid: int | None = None
        self._fault = ""
        self._doubt = ""
        loop = asyncio.get_running_loop()
        self._started: asyncio.Future[int] = loop.create_future()
        self._exited: asyncio.Future[int] = loop.create_future()
        self._is_overdue = asyncio.Event()
        self._is_gone = asyncio.Event()
        self._watching = asyncio.create_task(self._watch())

    @classmethod
    async def start(cls, job: Job, output: Output) -> Self:
        """Start it in a session of its own; CommandFailed if there is no such program."""
        # Identifies the watchers if they are stopped and the adapter is killed.
        mark = job.environment.get(RUN_ID_VARIABLE) or f"server_{secrets.token_hex(8)}"
        control, status, life, begun = os.pipe()[::-1], os.pipe(), os.pipe(), os.pipe()
        asks, asked = socket.socketpair()
        given = [] if job.input_fd is None else [job.input_fd]
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                # Neither the environment nor installed packages influence the watcher.
                "-I",
                "-S",
                process_watcher.__file__,
                str(status[1]),
                str(life[1]),
                mark,
                stdin=control[1],
                stdout=output.stdout_fd,
                stderr=output.stderr_fd,
                env={},
                cwd="/",
                pass_fds=[status[1], life[1], begun[1], asked.fileno(), *given],
            )
        except BaseException:
            asks.close()
            for ours, _ in (control, status, life, begun):
                os.close(ours)
            raise
        finally:
            for _, theirs in (control, status, life, begun):
                os.close(theirs)
            timer_to = asked.detach()
            os.close(timer_to)
            output.begin()
        begins = await _reader(begun[0])
        started = cls(
            process,
            await _writer(control[0]),
            await _reader(status[0]),
            await _reader(life[0]),
            mark=mark,
            timer=job.timer,
        )
        started._send(_job_line(job, begun[1], timer_to))
        # Retrieved, so that abandoned results are not reported.
        started._started.add_done_callback(asyncio.Future.exception)
        try:
            async with asyncio.timeout(START_SECONDS):
                await started._until_begun(begins, asks)
        except TimeoutError:
            await started.kill()
            raise CommandFailed(f"it has not begun within {START_SECONDS:g} s") from None
        except BaseException:
            await started.kill()
            raise
        finally:
            asks.close()
        return started

    @property
    def pid(self) -> int | None:
        """Process id of the agent's first process, which is also that of its group and session."""
        return self._pid

    @property
    def fault(self) -> str:
        """Why it is not watched any more, if that ended it; else empty."""
        return self._fault

    @property
    def uncertainty(self) -> str:
        """Why it is not known, after its end, whether anything of it goes on; else nothing."""
        return self._doubt

    @property
    def is_gone(self) -> bool:
        """Whether nothing of it is left."""
        return self._is_gone.is_set()

    async def wait(self) -> int:
        """Wait until the first process has ended; return its exit code, negative for a signal."""
        return await asyncio.shield(self._exited)

    async def wait_gone(self) -> None:
        """Wait until nothing of it is left."""
        await self._is_gone.wait()

    async def end(self, grace_s: float, hurry: asyncio.Event) -> bool:
        """Ask all of it to end, and kill what is left after so long, or as soon as there is hurry.

        Returns whether all has ended.
        """
        if not self._is_gone.is_set():
            self._wake()
            self._send(process_watcher.ASK)
            hurries = asyncio.ensure_future(hurry.wait())
            either: set[asyncio.Future[Any]] = {self._watching, hurries}
            try:
                await asyncio.wait(either, timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
            finally:
                hurries.cancel()
        return await self.kill()

    async def kill(self) -> bool:
        """Kill all its processes, even if the watchers do not; return whether all have ended."""
        self._wake()
        self._send(process_watcher.KILL)
        with suppress(TimeoutError):
            async with asyncio.timeout(WATCHER_TIMEOUT_SECONDS):
                await self._is_gone.wait()
        self._is_overdue.set()
        await self._watching
        return self._is_gone.is_set()

    async def _until_begun(self, begins: asyncio.StreamReader, asks: socket.socket) -> None:
        if self._timer is not None:
            await self._take_timer(self._timer, asks)
        await asyncio.shield(self._started)
        if failure := await begins.read():
            raise CommandFailed(os.strerror(int(failure)))

    async def _take_timer(self, timer: LeaseTimer, asks: socket.socket) -> None:
        """Set the timer of the watchers from now on; watchers that are gone have none."""
        for fd in await _received(asks):
            try:
                timer.take(fd)
            except OSError:
                raise CommandFailed(_MEDDLED) from None
            self._timer_fd = fd
            if self._watching.done():
                timer.drop(fd)

    def _wake(self) -> None:
        """Continue all processes that the agent has stopped, possibly its watcher too."""
        if self._process.returncode is None and not self._is_gone.is_set():
            below: Collection[int] = ()
            # Without permission to look, this wakes the keeper, which wakes the watcher at the deadline.
            with suppress(OSError):
                below = process_watcher.descendants(self._process.pid)
            for pid in (self._process.pid, *below):
                with suppress(OSError):
                    os.kill(pid, signal.SIGCONT)

    def _send(self, what: bytes) -> None:
        if not self._control.is_closing():
            self._control.write(what)

    async def _watch(self) -> None:
        """Take in how it goes, until nothing of it is left; what its watchers leave is ours to kill."""
        listening = asyncio.create_task(self._listen())
        living = asyncio.create_task(self._life.read())
        overdue = asyncio.create_task(self._is_overdue.wait())
        try:
            await asyncio.wait({listening, living, overdue}, return_when=asyncio.FIRST_COMPLETED)
            # A watcher without its keeper notices that as well.
            self._control.close()
            if not self._fault:
                both: asyncio.Future[Any] = asyncio.gather(listening, living)
                rest: set[asyncio.Future[Any]] = {both, overdue}
                await asyncio.wait(rest, timeout=WATCHER_TIMEOUT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if await self._end_all(is_over=listening.done() and living.done()):
                self._is_gone.set()
        finally:
            for task in (listening, living, overdue):
                task.cancel()
            if self._timer is not None and self._timer_fd is not None:
                self._timer.drop(self._timer_fd)
            self._conclude()

    async def _end_all(self, *, is_over: bool) -> bool:
        """Kill what is left, unless the keeper says that nothing is; return whether all has ended."""
        if is_over and not self._fault and await self._process.wait() == 0:
            return True
        self._note_killed()
        try:
            ended = await end_left([self._mark], self._pid)
        except (OSError, RuntimeError) as error:
            # An agent of our user may take from us what it needs to look: descriptors, threads.
            self._doubt = str(error)
            return False
        if not ended.left:
            await self._process.wait()
        return not ended.left

    def _conclude(self) -> None:
        """Report the end of a watcher that cannot do so itself."""
        if not self._exited.done():
            self._note_killed()
        if not self._started.done():
            self._started.set_exception(CommandFailed(self._fault or "it was killed"))
        if not self._exited.done():
            # The kernel, or the adapter, ended it with its watcher.
            self._exited.set_result(-signal.SIGKILL)

    def _note_killed(self) -> None:
        if not self._is_overdue.is_set():
            self._fault = self._fault or "what watches over it was killed"

    async def _listen(self) -> None:
        """Receive the watcher's messages, until its end or an invalid message."""
        # ValueError: a line that is longer than any of its.
        with suppress(ValueError):
            async for line in self._status:
                said = _WATCHER_REPORT.fullmatch(line)
                if said is None or (said["pid"] and self._started.done()):
                    break
                self._take(said)
            else:
                return
        self._fault = _MEDDLED

    def _take(self, match: re.Match[bytes]) -> None:
        if match["pid"]:
            self._pid = int(match["pid"])
            self._started.set_result(self._pid)
        elif match["code"] and not self._exited.done():
            self._exited.set_result(int(match["code"]))


async def _reader(read_fd: int) -> asyncio.StreamReader:
    reader = asyncio.StreamReader(limit=_MAX_STATUS_BYTES)
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(read_fd, "rb")
    )
    return reader


async def _writer(write_fd: int) -> asyncio.WriteTransport:
    # Errors of its protocol are ignored: the reader may be gone at any time.
    transport, _ = await asyncio.get_running_loop().connect_write_pipe(
        asyncio.BaseProtocol, os.fdopen(write_fd, "wb")
    )
    return transport


async def _received(asks: socket.socket) -> list[int]:
    """Wait for a descriptor; empty if none comes, or something else."""
    loop = asyncio.get_running_loop()
    asks.settimeout(0.0)
    is_there = asyncio.Event()
    loop.add_reader(asks, is_there.set)
    try:
        await is_there.wait()
    finally:
        loop.remove_reader(asks)
    return socket.recv_fds(asks, 1, 1, socket.MSG_CMSG_CLOEXEC)[1]


def _job_line(job: Job, begun_fd: int, timer_to_fd: int) -> bytes:
    """Return the line for the watcher, with the exact bytes for the kernel."""
    members = {
        "adapter": os.getpid(),
        "command": [_report_text(part) for part in job.command],
        "environment": {_report_text(name): _report_text(value) for name, value in job.environment.items()},
        "cwd": _report_text(str(job.directory)),
        "user": None if job.user is None else _rights_of(job.user),
        "input": job.input_fd,
        "timer": timer_to_fd,
        "due_ns": None if job.timer is None else job.timer.due_ns,
        "begun": begun_fd,
    }
    return json.dumps(members).encode() + b"\n"


def _rights_of(user: AgentUser) -> dict[str, Any]:
    return {"uid": user.uid, "gid": user.gid, "groups": user.groups}


def _report_text(text: str) -> str:
    return os.fsencode(text).decode("latin-1")
