"""How is an agent's process, or a server's of its tools, started, and ended with all that it has started?"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, Self

from agent_health.adapter import warden
from agent_health.adapter.lease_environment import RUN_ID_VARIABLE
from agent_health.adapter.left_behind import KILL_SECONDS, end_left
from agent_health.errors import CommandFailed

START_SECONDS: Final = 60.0
"""For its first process to begin; an agent may stop its warden before that is told."""
_MAX_STATUS_BYTES: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is to be started."""

    command: Sequence[str]
    environment: Mapping[str, str]
    """All of it: nothing of ours comes with it."""
    directory: Path
    """In which it is started."""
    input_fd: int | None = None
    """What its standard input is; None for nothing."""


class Output(Protocol):
    """Where what it writes goes."""

    @property
    def stdout_fd(self) -> int:
        """What its standard output has to be."""

    @property
    def stderr_fd(self) -> int:
        """What its standard error has to be."""

    def begin(self) -> None:
        """Hear that it has its descriptors, or will never have them."""


class AgentProcess:
    """An agent's process and all below it, behind its warden."""

    def __init__(
        self, process: asyncio.subprocess.Process, status: asyncio.StreamReader, run_id: str | None
    ) -> None:
        self._process = process
        self._run_id = run_id
        self._status = status
        self._pid: int | None = None
        loop = asyncio.get_running_loop()
        self._started: asyncio.Future[int] = loop.create_future()
        self._exited: asyncio.Future[int] = loop.create_future()
        self._is_gone = asyncio.Event()
        self._listening = asyncio.create_task(self._listen())

    @classmethod
    async def start(cls, job: Job, output: Output) -> Self:
        """Start it in a session of its own; CommandFailed if there is no such program."""
        run_id = job.environment.get(RUN_ID_VARIABLE)
        read_fd, write_fd = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                # Neither the environment nor what is installed decides what the warden does.
                "-I",
                "-S",
                warden.__file__,
                str(write_fd),
                stdin=asyncio.subprocess.PIPE,
                stdout=output.stdout_fd,
                stderr=output.stderr_fd,
                # By which they are found should they be stopped, and the adapter be killed.
                env={} if run_id is None else {RUN_ID_VARIABLE: run_id},
                cwd="/",
                pass_fds=[write_fd] if job.input_fd is None else [write_fd, job.input_fd],
            )
        except BaseException:
            os.close(read_fd)
            raise
        finally:
            os.close(write_fd)
            output.begin()
        status = asyncio.StreamReader(limit=_MAX_STATUS_BYTES)
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(status), os.fdopen(read_fd, "rb")
        )
        started = cls(process, status, run_id)
        started._tell(_job_line(job))
        # Retrieved, so that nobody is told of what was given up.
        started._started.add_done_callback(asyncio.Future.exception)
        try:
            async with asyncio.timeout(START_SECONDS):
                await asyncio.shield(started._started)
        except TimeoutError:
            await started.kill()
            raise CommandFailed(f"it has not begun within {START_SECONDS:g} s") from None
        except BaseException:
            await started.kill()
            raise
        return started

    @property
    def pid(self) -> int | None:
        """Of the agent's first process, which is the number of its group and session."""
        return self._pid

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
            self._tell(warden.ASK)
            gone, hurries = asyncio.ensure_future(self.wait_gone()), asyncio.ensure_future(hurry.wait())
            try:
                await asyncio.wait({gone, hurries}, timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
            finally:
                gone.cancel()
                hurries.cancel()
        return await self.kill()

    async def kill(self) -> bool:
        """Kill all of it; return whether all has ended."""
        self._wake()
        self._tell(warden.KILL)
        with suppress(TimeoutError):
            async with asyncio.timeout(KILL_SECONDS):
                await self._is_gone.wait()
        if not self._is_gone.is_set():
            return False
        await self._process.wait()
        await self._listening
        return True

    def _wake(self) -> None:
        """Let all of it go on that the agent has stopped, who may have stopped its warden too."""
        if self._process.returncode is None and not self._is_gone.is_set():
            for pid in (self._process.pid, *warden.descendants(self._process.pid)):
                with suppress(OSError):
                    os.kill(pid, signal.SIGCONT)

    def _tell(self, what: bytes) -> None:
        assert self._process.stdin is not None  # noqa: S101 - it was asked for
        if not self._process.stdin.is_closing():
            self._process.stdin.write(what)

    async def _listen(self) -> None:
        """Take in what the warden says until its end."""
        said_gone = False
        async for line in self._status:
            word, _, number = line.decode("ascii", "replace").strip().partition(" ")
            if word == "started":
                self._pid = int(number)
                self._started.set_result(self._pid)
            elif word == "failed":
                self._started.set_exception(CommandFailed(os.strerror(int(number))))
                said_gone = True
            elif word == "exited":
                self._exited.set_result(int(number))
            elif word == "gone":
                said_gone = True
        if not said_gone:
            # Warden and keeper were killed, and their end killed the first: the rest is for us to find.
            await end_left([] if self._run_id is None else [self._run_id], self._pid)
        if not self._started.done():
            self._started.set_exception(CommandFailed("what watches over it was killed"))
        if not self._exited.done():
            # The kernel ended it with its warden.
            self._exited.set_result(-signal.SIGKILL)
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._is_gone.set()


def _job_line(job: Job) -> bytes:
    """Return what the warden reads, byte for byte as the kernel is to get it."""
    said = {
        "adapter": os.getpid(),
        "command": [_said(part) for part in job.command],
        "environment": {_said(name): _said(value) for name, value in job.environment.items()},
        "cwd": _said(str(job.directory)),
        "input": job.input_fd,
    }
    return json.dumps(said).encode() + b"\n"


def _said(text: str) -> str:
    return os.fsencode(text).decode("latin-1")
