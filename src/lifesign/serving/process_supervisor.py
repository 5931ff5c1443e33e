"""Supervision of server processes: start, replacement and end.

The supervisor itself serves nothing: it starts the processes over one socket, replaces those that die,
replaces all of them one after the other on SIGHUP, and ends with them.
"""

import logging
import signal
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import uvicorn
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors.multiprocess import Multiprocess, Process

from lifesign.errors import InvalidValue
from lifesign.serving.bounded_server import BoundedServer
from lifesign.serving.tls_files import check_validity
from lifesign.serving.worker_start import (
    WorkerContext,
    WorkerProcess,
    death_text,
    main_with_listeners,
    start_worker,
)

START_SECONDS = 60
"""Time limit for a process to start when all are replaced (SIGHUP)."""
READY_SECONDS = 0.05
"""Time limit for a process to report whether it has started; then it is asked again."""
STOP_SECONDS = 20.0
"""Time limit for a process to end before it is killed."""
STEP_SECONDS = 0.1
"""Interval of checks of a process that is being replaced."""
SIGNAL_SECONDS = 0.2
"""Maximum delay between the signals to the processes and to the supervisor."""
FIRST_PAUSE_SECONDS = 1.0
"""Wait before a process is replaced whose predecessor died early, too; doubled each time."""
MAX_PAUSE_SECONDS = 30.0
STEADY_SECONDS = 60.0
"""A process that lived longer did not fail at its start."""
EXIT_FAILED = 1
"""Exit code of a failure that another process need not repeat."""
ENDED_WHEN_ASKED = frozenset({0, -signal.SIGTERM, -signal.SIGINT})
"""Exit codes of a process that was asked to end."""
_IS_END = frozenset({signal.SIGTERM, signal.SIGINT})

_log = logging.getLogger("lifesign.registry")


class ServerProcess(Process):
    """One server process; its failures are logged in the format of the log."""

    process: WorkerProcess  # type: ignore[assignment]
    """uvicorn would start a new interpreter, which loads all modules."""

    def __init__(
        self, config: uvicorn.Config, sockets: list[socket.socket], modules: Sequence[str] = ()
    ) -> None:
        """`modules`: what the process imports."""
        super().__init__(config, sockets)
        self._sockets, self._modules = sockets, modules

    def start(self) -> None:
        """Start the process."""
        self.process = start_worker(self._new_process, self._modules)

    def _new_process(self, context: WorkerContext) -> WorkerProcess:
        return context.Process(**main_with_listeners(self.run, self._sockets))

    def run(self, sockets: list[socket.socket]) -> None:
        """Log and serve; runs in the process itself."""
        self.config.configure_logging()
        # Ctrl-C ends the process without a traceback.
        with suppress(KeyboardInterrupt):
            self.target(sockets)

    @property
    def server(self) -> uvicorn.Server:
        """Return the server that runs in the process."""
        if self._server is None:
            self._server = BoundedServer(self.config)
        return self._server

    def target(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve; runs in the process itself."""
        try:
            super().target(sockets)
        except Exception:  # noqa: BLE001 - multiprocessing would write lines that are none of the log
            _log.exception("this process has failed")
            raise SystemExit(EXIT_FAILED) from None

    def is_ready(self, timeout: float = 5) -> bool:
        """Return whether the process has started, by its latest answer.

        Earlier questions are answered at once.
        """
        ready = super().is_ready(timeout)
        with suppress(OSError, EOFError):
            while not ready and self.parent_conn.poll():
                ready = self.parent_conn.recv()
        return ready


@dataclass(slots=True)
class _WorkerSlot:
    """History of the processes in one slot."""

    began_s: float
    """When the present one was started; like all times here by the monotonic clock."""
    early_deaths: int = 0
    """Early deaths in a row."""
    replace_at_s: float | None = None
    """None while the present process lives."""

    def note_death(self, now_s: float) -> float:
        """Note that the process of this slot died; return the seconds until it is replaced."""
        self.early_deaths = self.early_deaths + 1 if now_s - self.began_s < STEADY_SECONDS else 0
        pause_s = pause_before_next_s(self.early_deaths)
        self.replace_at_s = now_s + pause_s
        return pause_s

    def note_start(self, now_s: float) -> None:
        """Note that a process was started in this slot."""
        self.began_s, self.replace_at_s = now_s, None


def pause_before_next_s(early_deaths: int) -> float:
    """Return the delay before a process is replaced, in seconds; the first early death causes none."""
    if early_deaths <= 1:
        return 0.0
    return min(MAX_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0 ** min(early_deaths - 2, 10))


class Supervisor(Multiprocess):
    """Keeps the server processes running; one that dies is replaced."""

    def __init__(
        self,
        config: uvicorn.Config,
        sockets: list[socket.socket],
        say_ready: Callable[[], None],
        modules: Sequence[str] = (),
    ) -> None:
        """`modules`: what each process imports."""
        super().__init__(config, sockets)
        self._modules = modules
        self._say_ready: Callable[[], None] | None = say_ready
        """Called until readiness was reported."""
        self._is_hopeless = False
        self._places: dict[int, _WorkerSlot] = {}
        """Slots by the position of a process in `processes`."""

    def run_to_end(self) -> int:
        """Run until a request to end; return 1 if a process could not start."""
        self.run()
        return int(self._is_hopeless)

    def init_processes(self) -> None:
        """Start all server processes."""
        for place in range(self.processes_num):
            self.processes.append(self._started())
            self._places[place] = _WorkerSlot(time.monotonic())

    def _started(self) -> ServerProcess:
        process = ServerProcess(self.config, self.sockets, self._modules)
        process.start()
        return process

    def keep_subprocess_alive(self) -> None:
        """Replace server processes that died, and only these.

        uvicorn also kills a process that does not answer within 5 s, which one that is still starting on a
        busy machine cannot; and while it waits for the answer, no signal is handled.
        """
        if self._say_ready is not None and any(process.is_ready(READY_SECONDS) for process in self.processes):
            self._say_ready()
            self._say_ready = None
        for place, process in enumerate(self.processes):
            if process.process.is_alive():
                continue
            history = self._places.setdefault(place, _WorkerSlot(time.monotonic()))
            if history.replace_at_s is None and not self._note_death(process, history):
                return
            if history.replace_at_s is not None and time.monotonic() >= history.replace_at_s:
                self.processes[place] = self._started()
                # A process whose exit code is unknown may still run; this ends it.
                process.process.close()
                history.note_start(time.monotonic())

    def _note_death(self, process: Process, history: _WorkerSlot) -> bool:
        """Log the death of a process; return whether the others continue."""
        if process.exitcode in ENDED_WHEN_ASKED and not self.should_exit.is_set():
            # A signal to the whole process group reaches the processes before it reaches us, or was sent to
            # one of them alone. In the former case it reaches us within this time.
            time.sleep(SIGNAL_SECONDS)
        if self.should_exit.is_set() or self._is_asked_to_end():
            return False
        if process.exitcode == STARTUP_FAILURE or self._say_ready is not None:
            _log.error(
                "process %s could not start (%s): all processes end",
                process.pid,
                death_text(process.exitcode),
            )
            self._is_hopeless = True
            self.should_exit.set()
            return False
        pause_s = history.note_death(time.monotonic())
        when = f"in {pause_s:g} s" if pause_s else "now"
        _log.error("process %s died (%s): it is replaced %s", process.pid, death_text(process.exitcode), when)
        return True

    def restart_all(self) -> None:
        """Replace each process once its successor answers, until all are asked to end.

        uvicorn would notice that request only when the last process is replaced, and waits without a limit
        for each. A certificate that clients would refuse replaces none: the present processes keep theirs.
        """
        if self.config.ssl_certfile is not None:
            try:
                check_validity(Path(self.config.ssl_certfile), time.time())
            except InvalidValue as error:
                _log.error("cannot serve with this certificate: %s: no process is replaced", error)
                return
        for place, former in enumerate([*self.processes]):
            if self._is_asked_to_end():
                return
            successor = self._started()
            # A process that is listed twice ends with all others.
            self.processes.append(successor)
            has_started = self._waits(partial(_is_ready_or_dead, successor), START_SECONDS)
            if self._is_asked_to_end():
                return
            if not has_started or _is_dead(successor):
                _log.error(
                    "new process %s %s: the old process %s stays, and no other process is replaced",
                    successor.pid,
                    f"ended before it was ready ({death_text(successor.exitcode)})"
                    if _is_dead(successor)
                    else f"was not ready within {START_SECONDS:g} s",
                    former.pid,
                )
                self.processes.pop()
                _kill(successor)
                return
            former.terminate()
            has_ended = self._waits(partial(_is_dead, former), STOP_SECONDS)
            if self._is_asked_to_end():
                return
            if not has_ended:
                _kill_late(former)
            self.processes[place] = self.processes.pop()
            self._places[place] = _WorkerSlot(time.monotonic())

    def _waits(self, is_so: Callable[[], bool], most_s: float) -> bool:
        """Wait for a condition, at most so long, or until all are asked to end; return whether it holds."""
        deadline_s = time.monotonic() + most_s
        while not (found := is_so()) and time.monotonic() < deadline_s and not self._is_asked_to_end():
            time.sleep(STEP_SECONDS)
        return found

    def _is_asked_to_end(self) -> bool:
        return not _IS_END.isdisjoint(self.signal_queue)

    def join_all(self) -> None:
        """Wait for all processes, and kill those that do not end."""
        deadline_s = time.monotonic() + STOP_SECONDS
        for process in self.processes:
            process.process.join(max(0.0, deadline_s - time.monotonic()))
            if process.process.is_alive():
                _kill_late(process)


def _is_ready_or_dead(process: Process) -> bool:
    return _is_dead(process) or process.is_ready(READY_SECONDS)


def _is_dead(process: Process) -> bool:
    return not process.process.is_alive()


def _kill_late(process: Process) -> None:
    _log.error("process %s did not end within %g s and is killed", process.pid, STOP_SECONDS)
    _kill(process)


def _kill(process: Process) -> None:
    process.kill()
    process.process.join()
