"""How does the server run as several processes, and replace or end them?

One process serves nothing itself: it starts the others over one socket, replaces those that die, and all
of them one after the other on SIGHUP, and ends with them.
"""

import logging
import signal
import socket
import time
from collections.abc import Callable
from functools import partial

import uvicorn
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors.multiprocess import Multiprocess, Process

START_SECONDS = 60
"""How long a process may take over its start when all are replaced (SIGHUP)."""
READY_SECONDS = 0.05
"""How long a process may take to say whether it has started; it is asked again."""
STOP_SECONDS = 20.0
"""How long a process may take over its end; then it is killed."""
STEP_SECONDS = 0.1
"""Between two looks at one that is replaced."""
SIGNAL_SECONDS = 0.2
"""How much later than its processes the supervisor may be told to end."""
ENDED_WHEN_ASKED = frozenset({0, -signal.SIGTERM, -signal.SIGINT})
"""Exit codes of a process that was asked to end."""
_IS_END = frozenset({signal.SIGTERM, signal.SIGINT})

_log = logging.getLogger("agent_health.registry")


class Supervisor(Multiprocess):
    """Keeps the server processes running; one that dies is replaced."""

    def __init__(
        self, config: uvicorn.Config, sockets: list[socket.socket], say_ready: Callable[[], None]
    ) -> None:
        super().__init__(config, sockets)
        self._say_ready: Callable[[], None] | None = say_ready
        """Until it was said."""
        self._is_hopeless = False

    def run_to_end(self) -> int:
        """Run until asked to end; return 1 if a process could not even start."""
        self.run()
        return int(self._is_hopeless)

    def keep_subprocess_alive(self) -> None:
        """Replace the dead, and them alone.

        uvicorn also kills whoever does not answer within 5 s, which a process that is still starting on
        a busy machine cannot; and while it waits for the answer, no signal is heard.
        """
        if self._say_ready is not None and any(process.is_ready(READY_SECONDS) for process in self.processes):
            self._say_ready()
            self._say_ready = None
        for place, process in enumerate(self.processes):
            if process.process.is_alive():
                continue
            if process.exitcode in ENDED_WHEN_ASKED and not self.should_exit.is_set():
                # A signal to the whole process group reaches the processes before it reaches us, or was
                # sent to one of them alone; it says so to us within this time if it is the former.
                time.sleep(SIGNAL_SECONDS)
            if self.should_exit.is_set() or self._is_asked_to_end():
                return
            if process.exitcode == STARTUP_FAILURE or self._say_ready is not None:
                _log.error("process %s could not start: its successor could not either", process.pid)
                self._is_hopeless = True
                self.should_exit.set()
                return
            _log.error("process %s died (%s) and is replaced", process.pid, process.exitcode)
            self.processes[place] = Process(self.config, self.sockets)
            self.processes[place].start()

    def restart_all(self) -> None:
        """Replace each process once its successor answers, until all are asked to end.

        uvicorn hears of that only when the last one is replaced, and waits without a bound for each.
        """
        for place, former in enumerate([*self.processes]):
            if self._is_asked_to_end():
                return
            successor = Process(self.config, self.sockets)
            successor.start()
            # Whoever is there twice is ended with all others.
            self.processes.append(successor)
            has_started = self._waits(partial(_is_ready_or_dead, successor), START_SECONDS)
            if self._is_asked_to_end():
                return
            if not has_started or _is_dead(successor):
                _log.error(
                    "process %s was not ready within %g s: process %s stays, and nobody else is replaced",
                    successor.pid, START_SECONDS, former.pid,
                )  # fmt: skip
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

    def _waits(self, is_so: Callable[[], bool], most_s: float) -> bool:
        """Wait until something is so, for so long at most or until all are asked to end; return if it is."""
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
