"""Process of an agent, or of a tool server: start, and end with all its descendants."""

import asyncio
import json
import os
import secrets
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, Self, cast

from lifesign.adapter.errors import CommandFailed
from lifesign.adapter.process import process_watcher
from lifesign.adapter.process.agent_user import AgentUser
from lifesign.adapter.process.lease_environment import RUN_ID_VARIABLE
from lifesign.adapter.process.orphan_cleanup import end_remaining
from lifesign.adapter.process.run_deadline import RunDeadline

START_SECONDS: Final = 60.0
"""Time limit for the agent's first process to start."""
WATCHER_TIMEOUT_SECONDS: Final = 5.0
"""Time for the watcher to kill all processes, before the adapter does."""
_MAX_STATUS_BYTES: Final = 4096
_WATCHER_KILLED: Final = "its watcher process was killed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A program to start as an agent or tool server, with its environment and limits."""

    command: Sequence[str]
    environment: Mapping[str, str]
    """All environment variables of the process: it inherits none of the adapter's."""
    directory: Path
    """Working directory."""
    user: AgentUser | None = None
    """User that runs the process; None: the adapter's own."""
    input_fd: int | None = None
    """Standard input; None for none."""
    run_deadline: RunDeadline | None = None
    """The process and its descendants are killed when this is due; None for never."""


class Output(Protocol):
    """Receives the output of a process."""

    @property
    def stdout_fd(self) -> int:
        """Descriptor to which the process writes its standard output."""

    @property
    def stderr_fd(self) -> int:
        """Descriptor to which the process writes its standard error."""

    def begin(self) -> None:
        """Called once the process has the two descriptors, or could not be started."""


class AgentProcess:
    """An agent's process and its descendants, which a watcher process starts and observes."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        control: asyncio.StreamWriter,
        status: asyncio.StreamReader,
        *,
        mark: str,
        run_deadline: RunDeadline | None,
    ) -> None:
        self._process = process
        self._control = control
        self._status = status
        self._mark = mark
        self._run_deadline = run_deadline
        self._pid: int | None = None
        self._fault = ""
        self._doubt = ""
        self._outside_signal: int | None = None
        loop = self._loop = asyncio.get_running_loop()
        self._started: asyncio.Future[int] = loop.create_future()
        # Retrieved, so that an abandoned failure is not reported.
        self._started.add_done_callback(asyncio.Future.exception)
        self._exited: asyncio.Future[int] = loop.create_future()
        self._is_overdue = asyncio.Event()
        self._is_gone = asyncio.Event()
        self._watching = asyncio.create_task(self._watch())

    @classmethod
    async def start(cls, job: Job, output: Output) -> Self:
        """Start the process in a session of its own; CommandFailed if there is no such program."""
        # Identifies its processes if the watcher is killed.
        mark = job.environment.get(RUN_ID_VARIABLE) or f"server_{secrets.token_hex(8)}"
        status_fd, watchers_fd = os.pipe()
        given = [] if job.input_fd is None else [job.input_fd]
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                # Neither the environment nor installed packages influence the watcher.
                "-I",
                "-S",
                process_watcher.__file__,
                str(watchers_fd),
                mark,
                stdin=asyncio.subprocess.PIPE,
                stdout=output.stdout_fd,
                stderr=output.stderr_fd,
                env={},
                cwd="/",
                pass_fds=[watchers_fd, *given],
            )
        except BaseException:
            os.close(status_fd)
            raise
        finally:
            os.close(watchers_fd)
            output.begin()
        control, status = cast("asyncio.StreamWriter", process.stdin), await _reader(status_fd)
        started = cls(process, control, status, mark=mark, run_deadline=job.run_deadline)
        if job.run_deadline is not None:
            # Before the job is written: another thread may set the deadline between the two.
            job.run_deadline.add(started._set_deadline)
        started._send(_job_line(job, mark))
        try:
            async with asyncio.timeout(START_SECONDS):
                await asyncio.shield(started._started)
        except TimeoutError:
            await started.kill()
            raise CommandFailed(f"it has not started within {START_SECONDS:g} s") from None
        except BaseException:
            await started.kill()
            raise
        return started

    @property
    def pid(self) -> int | None:
        """Process id of the agent's first process; its process group and session have the same id."""
        return self._pid

    @property
    def fault(self) -> str:
        """Reason why the watcher stopped observing the process before its end; empty if it did not."""
        return self._fault

    @property
    def uncertainty(self) -> str:
        """Reason why descendants of the process may still run after its end; empty if none can."""
        return self._doubt

    @property
    def outside_signal(self) -> int | None:
        """Signal to end that others sent to the watcher, and so probably to the agent; None without one."""
        return self._outside_signal

    @property
    def is_gone(self) -> bool:
        """Whether all processes of the agent have ended."""
        return self._is_gone.is_set()

    async def wait(self) -> int:
        """Wait until the agent's first process has ended; return its exit code, negative for a signal."""
        return await asyncio.shield(self._exited)

    async def wait_ended(self) -> None:
        """Wait until all processes of the agent have ended."""
        await self._is_gone.wait()

    async def end(self, grace_s: float, hurry: asyncio.Event) -> bool:
        """Ask all processes of the agent to end.

        Those that still run after `grace_s`, or once `hurry` is set, are killed. Returns whether all has
        ended.
        """
        if not self._is_gone.is_set():
            self._send(process_watcher.END)
            hurries = asyncio.ensure_future(hurry.wait())
            either: set[asyncio.Future[Any]] = {self._watching, hurries}
            try:
                await asyncio.wait(either, timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
            finally:
                hurries.cancel()
        return await self.kill()

    async def kill(self) -> bool:
        """Kill all of the agent's processes, with or without the watcher; return whether all have ended."""
        self._send(process_watcher.KILL)
        with suppress(TimeoutError):
            async with asyncio.timeout(WATCHER_TIMEOUT_SECONDS):
                await self._is_gone.wait()
        self._is_overdue.set()
        await self._watching
        return self._is_gone.is_set()

    def _send(self, line: str) -> None:
        if not self._control.is_closing():
            self._control.write(f"{line}\n".encode())

    def _set_deadline(self, due_ns: int) -> None:
        """Send the new deadline to the watcher, after what is being written; any thread may call this."""
        with suppress(RuntimeError):
            # The loop of a tool server is closed once its processes have ended.
            self._loop.call_soon_threadsafe(self._send, f"{process_watcher.DEADLINE} {due_ns}")

    async def _watch(self) -> None:
        """Follow the agent until all of its processes have ended.

        The adapter kills processes that its watcher leaves.
        """
        listening = asyncio.create_task(self._listen())
        overdue = asyncio.create_task(self._is_overdue.wait())
        try:
            await asyncio.wait({listening, overdue}, return_when=asyncio.FIRST_COMPLETED)
            self._control.close()
            if await self._end_all(has_watcher_ended=listening.done()):
                self._is_gone.set()
        finally:
            for task in (listening, overdue):
                task.cancel()
            if self._run_deadline is not None:
                self._run_deadline.remove(self._set_deadline)
            self._conclude()

    async def _end_all(self, *, has_watcher_ended: bool) -> bool:
        """Kill the rest, unless the watcher reports that nothing is left; return whether all has ended."""
        if has_watcher_ended and await self._process.wait() == 0:
            return True
        self._note_killed()
        try:
            ended = await end_remaining([self._mark], self._pid)
        except (OSError, RuntimeError) as error:
            # This process can open no further file, or start no thread.
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
            self._fault = self._fault or _WATCHER_KILLED

    async def _listen(self) -> None:
        """Receive the watcher's messages until its end."""
        async for line in self._status:
            what, _, number = line.decode().partition(" ")
            if what == "failed":
                self._started.set_exception(CommandFailed(os.strerror(int(number))))
                self._exited.set_result(process_watcher.EXIT_NOT_STARTED)
            elif what == "started":
                self._pid = int(number)
                self._started.set_result(self._pid)
            elif what == "exited":
                self._exited.set_result(int(number))
            elif what == "signalled":
                self._outside_signal = int(number)


async def _reader(read_fd: int) -> asyncio.StreamReader:
    reader = asyncio.StreamReader(limit=_MAX_STATUS_BYTES)
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(read_fd, "rb")
    )
    return reader


def _job_line(job: Job, mark: str) -> str:
    """Return the line for the watcher, with the exact bytes for the kernel."""
    environment = {RUN_ID_VARIABLE: mark, **job.environment}
    return json.dumps(
        {
            "command": [_latin_1(part) for part in job.command],
            "environment": {_latin_1(name): _latin_1(value) for name, value in environment.items()},
            "cwd": _latin_1(str(job.directory)),
            "user": None if job.user is None else _rights_of(job.user),
            "input": job.input_fd,
            "deadline_ns": None if job.run_deadline is None else job.run_deadline.due_ns,
        }
    )


def _rights_of(user: AgentUser) -> dict[str, Any]:
    return {"uid": user.uid, "gid": user.gid, "groups": user.groups}


def _latin_1(text: str) -> str:
    return os.fsencode(text).decode("latin-1")
