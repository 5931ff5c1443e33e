import logging
import signal
import socket
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import uvicorn
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors import multiprocess

from lifesign.serving import process_supervisor
from lifesign.serving.bounded_server import BoundedServer
from lifesign.serving.process_supervisor import (
    EXIT_FAILED,
    FIRST_PAUSE_SECONDS,
    MAX_PAUSE_SECONDS,
    START_SECONDS,
    STEADY_SECONDS,
    STOP_SECONDS,
    ServerProcess,
    Supervisor,
    pause_before_next_s,
)

CONFIG = uvicorn.Config("tests.support.echo_app:app", workers=2)


class StandIn:
    """A process that starts, dies and ends as the test says."""

    def __init__(self, pid: int, *, starts: bool = True, ends: bool = True) -> None:
        self.pid = pid
        self.exitcode: int | None = None
        self.starts, self.ends = starts, ends
        self.signals: list[str] = []
        self.process = SimpleNamespace(
            is_alive=lambda: self.exitcode is None, join=lambda *_: None, close=lambda: None
        )

    def is_ready(self, _timeout_s: float) -> bool:
        return self.starts

    def terminate(self) -> None:
        self.signals.append("TERM")
        if self.ends:
            self.exitcode = 0

    def kill(self) -> None:
        self.signals.append("KILL")
        self.exitcode = -signal.SIGKILL


class Supervised(Supervisor):
    """A supervisor of stand-ins, on a clock that only its own waits advance."""

    def __init__(self) -> None:
        self.now_s = 1_000.0
        self.ready = 0
        self.next_starts = self.next_ends = True
        self.next_exit_code: int | None = None
        self.started: list[StandIn] = []
        super().__init__(CONFIG, [], self._count_ready)

    def _count_ready(self) -> None:
        self.ready += 1

    def _started(self) -> StandIn:  # type: ignore[override]
        process = StandIn(len(self.started) + 1, starts=self.next_starts, ends=self.next_ends)
        process.exitcode = self.next_exit_code
        self.started.append(process)
        return process

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def pids(self) -> list[int | None]:
        return [process.pid for process in self.processes]


@pytest.fixture
def supervisor(monkeypatch: pytest.MonkeyPatch) -> Supervised:
    # It would handle the signals of the process that runs the tests.
    monkeypatch.setattr(multiprocess, "SIGNALS", {})
    supervised = Supervised()
    clock = SimpleNamespace(monotonic=lambda: supervised.now_s, sleep=supervised.sleep)
    monkeypatch.setattr(process_supervisor, "time", clock)
    return supervised


def test_dead_processes_are_replaced_at_once_and_then_after_longer_pauses() -> None:
    pauses = [pause_before_next_s(deaths) for deaths in range(2_000)]
    assert pauses[:4] == [0, 0, FIRST_PAUSE_SECONDS, 2 * FIRST_PAUSE_SECONDS]
    assert pauses == sorted(pauses)
    assert pauses[-1] == MAX_PAUSE_SECONDS


def test_readiness_is_reported_once_when_the_first_process_has_started(supervisor: Supervised) -> None:
    supervisor.next_starts = False
    supervisor.init_processes()
    supervisor.keep_subprocess_alive()
    assert supervisor.ready == 0
    supervisor.started[1].starts = True
    supervisor.keep_subprocess_alive()
    supervisor.keep_subprocess_alive()
    assert (supervisor.ready, supervisor.pids()) == (1, [1, 2])


def test_a_process_that_keeps_dying_is_replaced_after_a_pause(supervisor: Supervised) -> None:
    supervisor.init_processes()
    supervisor.keep_subprocess_alive()
    supervisor.started[0].exitcode = -signal.SIGSEGV
    supervisor.keep_subprocess_alive()
    assert supervisor.pids() == [3, 2]
    supervisor.started[2].exitcode = 1
    supervisor.keep_subprocess_alive()
    supervisor.sleep(FIRST_PAUSE_SECONDS - 0.1)
    supervisor.keep_subprocess_alive()
    assert supervisor.pids() == [3, 2]
    supervisor.sleep(0.1)
    supervisor.keep_subprocess_alive()
    assert supervisor.pids() == [4, 2]
    # After a long life, no pause.
    supervisor.sleep(STEADY_SECONDS)
    supervisor.started[3].exitcode = 1
    supervisor.keep_subprocess_alive()
    assert supervisor.pids() == [5, 2]
    assert not supervisor.should_exit.is_set()


@pytest.mark.parametrize(("exit_code", "is_up"), [(STARTUP_FAILURE, True), (-signal.SIGKILL, False)])
def test_all_processes_end_if_one_cannot_start(
    supervisor: Supervised, exit_code: int, *, is_up: bool
) -> None:
    supervisor.next_starts = is_up
    supervisor.init_processes()
    supervisor.keep_subprocess_alive()
    supervisor.started[1].exitcode = exit_code
    supervisor.keep_subprocess_alive()
    assert supervisor.should_exit.is_set()
    assert supervisor.run_to_end() == 1


def test_a_process_that_was_asked_to_end_with_the_others_is_not_replaced(supervisor: Supervised) -> None:
    supervisor.init_processes()
    supervisor.keep_subprocess_alive()
    supervisor.started[0].exitcode = -signal.SIGTERM
    supervisor.signal_queue.append(signal.SIGTERM)
    supervisor.keep_subprocess_alive()
    assert supervisor.pids() == [1, 2]


def test_each_process_is_replaced_after_its_successor_has_started(supervisor: Supervised) -> None:
    supervisor.init_processes()
    supervisor.restart_all()
    assert supervisor.pids() == [3, 4]
    assert [process.signals for process in supervisor.started] == [["TERM"], ["TERM"], [], []]


def fail_to_start(supervisor: Supervised) -> None:
    supervisor.next_exit_code = STARTUP_FAILURE


def never_start(supervisor: Supervised) -> None:
    supervisor.next_starts = False


@pytest.mark.parametrize(
    ("fault", "waited_s"), [(fail_to_start, 0.0), (never_start, START_SECONDS)], ids=["fails", "hangs"]
)
def test_processes_stay_if_a_successor_does_not_start(
    supervisor: Supervised,
    fault: Callable[[Supervised], None],
    waited_s: float,
    caplog: pytest.LogCaptureFixture,
) -> None:
    supervisor.init_processes()
    began_s = supervisor.now_s
    fault(supervisor)
    supervisor.restart_all()
    assert supervisor.pids() == [1, 2]
    assert [process.signals for process in supervisor.started] == [[], [], ["KILL"]]
    assert supervisor.now_s - began_s == pytest.approx(waited_s, abs=1)
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


def test_a_replaced_process_that_does_not_end_is_killed(supervisor: Supervised) -> None:
    supervisor.next_ends = False
    supervisor.init_processes()
    began_s = supervisor.now_s
    supervisor.restart_all()
    assert supervisor.pids() == [3, 4]
    assert [process.signals for process in supervisor.started] == [["TERM", "KILL"], ["TERM", "KILL"], [], []]
    assert supervisor.now_s - began_s == pytest.approx(2 * STOP_SECONDS, abs=1)


def test_a_replacement_ends_with_a_request_to_end(supervisor: Supervised) -> None:
    supervisor.init_processes()
    supervisor.signal_queue.append(signal.SIGINT)
    supervisor.restart_all()
    assert len(supervisor.started) == 2


def test_processes_that_do_not_end_with_the_supervisor_are_killed(supervisor: Supervised) -> None:
    supervisor.init_processes()
    supervisor.started[0].exitcode = 0
    supervisor.join_all()
    assert [process.signals for process in supervisor.started] == [[], ["KILL"]]


def test_the_latest_answer_of_a_process_counts() -> None:
    process = ServerProcess(CONFIG, [])
    assert isinstance(process.server, BoundedServer)
    for is_started in (False, False, True):
        process.child_conn.send(is_started)
    assert process.is_ready(0.0)
    process.child_conn.close()
    assert not process.is_ready(0.0)
    process.parent_conn.close()


def test_failure_of_a_process_is_logged_and_ends_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_process: multiprocess.Process, _sockets: list[socket.socket] | None) -> None:
        raise RuntimeError("no memory")

    monkeypatch.setattr(multiprocess.Process, "target", fail)
    process = ServerProcess(CONFIG, [])
    with pytest.raises(SystemExit) as ended:
        process.target([])
    assert ended.value.code == EXIT_FAILED
    assert "no memory" in caplog.text
