import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.hand_clock import START_NS, HandClock
from tests.support.recording import agent, calibration, outcomes, p99_ms, published, record, samples, trend

from lifesign import AgentHealth
from lifesign.domain.health.document import Trend
from lifesign.middleware import document_file, shared_windows
from lifesign.middleware.window_storage import RecorderClock

WINDOW_S = 2400
SLOT_S = WINDOW_S / 24
DAY_S = 86_400


class Workers:
    """The workers of agents in one state directory; in one process, yet their locks are as apart as ever."""

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = state_dir
        self.clock = HandClock()
        self._living: list[AgentHealth] = []

    def start(self, **settings: Any) -> AgentHealth:
        given = {"state_dir": self.state_dir, "window_seconds": WINDOW_S} | settings
        worker = agent(self.clock, **given)
        worker.open()
        self._living.append(worker)
        return worker

    def end(self) -> None:
        """Kill all workers; a holder must release its lock."""
        for worker in self._living:
            worker.close()
        self._living.clear()

    def leave_behind(self, count: int, outcome: str = "answered", **settings: Any) -> None:
        """Have a worker count and die."""
        self.start(**settings)
        worker = self._living.pop()
        record(worker, count, outcome)
        worker.close()

    def files(self) -> list[str]:
        return sorted(path.name for path in self.state_dir.glob("*/worker-*.window"))


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    made = Workers(tmp_path / "state")
    yield made
    made.end()


# --- one agent --------------------------------------------------------------------------------------------


def test_each_worker_reports_the_exact_sum(workers: Workers) -> None:
    team = [workers.start() for _ in range(4)]
    for number, worker in enumerate(team, 1):
        record(worker, 10 * number)
        record(worker, number, "server_fault", latency_ms=700)
        record(worker, number, "abandoned")
    for worker in team:
        assert outcomes(worker) == {"answered": 100, "server_fault": 10, "abandoned": 10}
        assert samples(worker) == 110
        assert p99_ms(worker) == pytest.approx(700, rel=0.01)
        assert calibration(worker).latency_p50_ms == pytest.approx(5, rel=0.01)
    assert len(workers.files()) == 4


def test_a_worker_that_starts_later_is_found(workers: Workers) -> None:
    first = workers.start()
    record(first, 1)
    assert samples(first) == 1
    record(workers.start(), 2)
    assert samples(first) == 3


def test_uptime_is_that_of_the_oldest_running_worker(workers: Workers) -> None:
    workers.leave_behind(1)
    workers.clock.advance(100)
    old = workers.start()
    workers.clock.advance(1000)
    young = workers.start()
    workers.clock.advance(10)
    assert [worker.document().health.uptime_seconds for worker in (old, young)] == [1010, 1010]


@pytest.mark.parametrize(
    "others",
    [{"agent_id": "another"}, {"window_seconds": 300}, {"counting": "literal"}, {"agent_id": "agent/"}],
)
def test_counts_of_another_agent_window_or_profile_are_separate(
    workers: Workers, others: dict[str, Any]
) -> None:
    ours, theirs = workers.start(), workers.start(**others)
    record(ours, 3)
    record(theirs, 5, "server_fault")
    assert outcomes(ours) == {"answered": 3}
    assert outcomes(theirs) == {"server_fault": 5}
    assert published(ours) != published(theirs)


def test_workers_above_the_limit_report_only_their_own_counts(
    workers: Workers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(shared_windows, "MOST_WORKERS", 3)
    team = [workers.start() for _ in range(3)]
    assert caplog.records == []
    one_too_many = workers.start()
    for worker in (*team, one_too_many):
        record(worker, 1)
    assert [samples(worker) for worker in team] == [3, 3, 3]
    assert samples(one_too_many) == 1
    assert len(workers.files()) == 3
    assert [record.levelname for record in caplog.records] == ["WARNING"]


# --- dead workers -----------------------------------------------------------------------------------------


def test_file_of_a_dead_worker_is_reused_with_its_counts(workers: Workers) -> None:
    for _ in range(5):
        workers.leave_behind(10)
        assert workers.files() == ["worker-0.window"]
    assert samples(workers.start()) == 50
    assert workers.files() == ["worker-0.window"]


def test_file_of_a_running_worker_is_never_reused(workers: Workers) -> None:
    living = workers.start()
    for _ in range(3):
        workers.leave_behind(10)
    assert workers.files() == ["worker-0.window", "worker-1.window"]
    record(living, 1)
    assert samples(living) == samples(workers.start()) == 31


def test_closed_recorder_releases_its_file(workers: Workers) -> None:
    """The lock belongs to every copy of the descriptor, and a mapping keeps one."""
    closed = workers.start()
    record(closed, 10)
    closed.close()
    record(workers.start(), 1)
    assert workers.files() == ["worker-0.window"]


def test_reopened_recorder_continues_with_its_counts(workers: Workers) -> None:
    worker = workers.start()
    record(worker, 10)
    worker.close()
    record(worker, 1)
    assert samples(worker) == 11
    assert workers.files() == ["worker-0.window"]


def test_file_of_a_dead_worker_is_removed_when_its_samples_are_old(workers: Workers) -> None:
    living = workers.start()
    workers.leave_behind(10)
    workers.clock.advance(WINDOW_S - SLOT_S - 1)
    assert samples(living) == 10
    workers.clock.advance(2 * SLOT_S + 2)
    assert samples(living) == 0
    # The window before this one still needs them.
    assert len(workers.files()) == 2
    record(living, 10, "server_fault")
    assert trend(living) is Trend.DECLINING
    workers.clock.advance(WINDOW_S + SLOT_S)
    assert samples(living) in {0, 10}
    assert workers.files() == ["worker-0.window"]


def test_file_of_an_idle_running_worker_is_kept(workers: Workers) -> None:
    one, idle = workers.start(), workers.start()
    workers.clock.advance(100 * WINDOW_S)
    record(one, 1)
    assert samples(one) == 1
    assert len(workers.files()) == 2
    record(idle, 1)
    assert samples(one) == samples(idle) == 2


# --- restarts and reboots ---------------------------------------------------------------------------------


def test_a_restart_keeps_windows_trend_and_last_healthy_at(workers: Workers) -> None:
    workers.leave_behind(100)
    workers.clock.advance(WINDOW_S)
    worker = workers.start()
    record(worker, 100)
    workers.clock.advance(60)
    healthy_at = published(worker).health.last_healthy_at
    assert healthy_at is not None
    record(worker, 30, "server_fault")
    workers.clock.advance(60)
    assert published(worker).health.last_healthy_at == healthy_at
    del worker
    workers.end()
    workers.clock.advance(600)
    again = workers.start()
    assert again.document().health.last_healthy_at == healthy_at
    assert outcomes(again) == {"answered": 100, "server_fault": 30}
    assert trend(again) is Trend.DECLINING
    assert again.document().health.uptime_seconds == 0


def test_a_restart_serves_what_was_published_until_it_is_due(workers: Workers) -> None:
    worker = workers.start()
    record(worker, 10)
    before = published(worker)
    del worker
    workers.end()
    workers.clock.advance(30)
    again = workers.start()
    assert published(again) == before
    assert again.seconds_to_refresh(workers.clock.monotonic_ns()) == 30
    workers.clock.advance(30)
    assert published(again).timestamp > before.timestamp


class AfterReboot(Workers):
    """The same state directory on a machine whose monotonic clock restarted 5 s ago."""

    def __init__(self, before: Workers, wall_step_s: float) -> None:
        super().__init__(before.state_dir)
        clock = self.clock
        clock.advance((before.clock.monotonic_ns() - START_NS) / 1e9)
        clock.step_wall(wall_step_s)
        rebooted_ns = clock.monotonic_ns() - 5_000_000_000
        clock.clock = RecorderClock(lambda: clock.monotonic_ns() - rebooted_ns, clock.wall_ns)


@pytest.mark.parametrize("down_s", [0, 30, 1000])
def test_windows_continue_with_the_wall_clock_after_a_reboot(
    workers: Workers, monkeypatch: pytest.MonkeyPatch, down_s: float
) -> None:
    monkeypatch.setattr(document_file, "_boot_id", lambda *_: b"before")
    workers.leave_behind(10)
    monkeypatch.setattr(document_file, "_boot_id", lambda *_: b"after")
    rebooted = AfterReboot(workers, down_s)
    worker = rebooted.start()
    assert samples(worker) == 10
    record(worker, 1)
    rebooted.clock.advance(WINDOW_S - SLOT_S - down_s - 1)
    assert samples(worker) == 11
    rebooted.clock.advance(2 * SLOT_S + 2)
    assert samples(worker) == (1 if down_s > 2 * SLOT_S else samples(worker)) <= 1
    rebooted.clock.advance(down_s + SLOT_S)
    assert samples(worker) == 0
    rebooted.end()


@pytest.mark.parametrize("back_s", [1, WINDOW_S, 20 * 365 * DAY_S])
def test_a_reboot_into_an_earlier_wall_clock_loses_nothing(
    workers: Workers, monkeypatch: pytest.MonkeyPatch, back_s: float
) -> None:
    monkeypatch.setattr(document_file, "_boot_id", lambda *_: b"before")
    worker = workers.start()
    record(worker, 10)
    workers.clock.advance(60)
    published(worker)
    record(worker, 10)
    del worker
    workers.end()
    monkeypatch.setattr(document_file, "_boot_id", lambda *_: b"after")
    rebooted = AfterReboot(workers, -back_s)
    again = rebooted.start()
    assert samples(again) == 20
    document = again.document()
    assert document.health.last_healthy_at is not None
    assert document.health.last_healthy_at <= document.timestamp
    record(again, 1)
    assert samples(again) == 21
    rebooted.clock.advance(WINDOW_S + 2 * SLOT_S)
    assert samples(again) == 0
    rebooted.end()


# --- opening ----------------------------------------------------------------------------------------------


def test_opening_windows_never_sleeps_for_a_lock(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    """The windows are opened on the event loop, at ASGI's lifespan startup or with the first request."""

    def refuse(_: float) -> None:
        raise AssertionError("slept")

    monkeypatch.setattr(time, "sleep", refuse)
    workers.start()
    workers.end()
    # Simulates a reboot, after which a new time base is needed.
    monkeypatch.setattr(document_file, "_boot_id", lambda *_: b"another boot")
    (path,) = workers.state_dir.glob("*/board")
    held = os.open(path, os.O_RDWR)
    fcntl.flock(held, fcntl.LOCK_EX)
    one, other = workers.start(), workers.start()
    record(one, 10)
    record(other, 20)
    assert samples(one) == samples(other) == 30
    os.close(held)
    workers.clock.advance(60)
    assert published(one).calibration == published(other).calibration
    workers.clock.step_wall(3600)
    late = workers.start()
    assert samples(late) == 30
    assert published(late) == published(one)


# --- counts of other settings -----------------------------------------------------------------------------


def age(directory: Path, days: float, clock: HandClock) -> None:
    """Set the modification times of all files in it so long ago."""
    at_ns = clock.wall_ns() - round(days * DAY_S * 1e9)
    for path in (*directory.iterdir(), directory):
        os.utime(path, ns=(at_ns, at_ns), follow_symlinks=False)


def shape_dirs(workers: Workers) -> set[Path]:
    return set(workers.state_dir.iterdir())


@pytest.mark.parametrize(("days", "is_kept"), [(13.9, True), (14.1, False)])
def test_counts_of_other_settings_are_removed_after_14_days(
    workers: Workers, days: float, *, is_kept: bool
) -> None:
    workers.leave_behind(10, window_seconds=300)
    (other,) = shape_dirs(workers)
    age(other, days, workers.clock)
    workers.start()
    assert other.exists() == is_kept
    assert len(shape_dirs(workers)) == 1 + is_kept


def test_one_recent_file_keeps_all_counts_of_its_settings(workers: Workers) -> None:
    workers.leave_behind(10, window_seconds=300)
    (other,) = shape_dirs(workers)
    age(other, 100, workers.clock)
    os.utime(other / "board", ns=(workers.clock.wall_ns(), workers.clock.wall_ns()))
    workers.start()
    assert (other / "worker-0.window").exists()


def test_files_of_other_agents_and_programs_are_not_changed(workers: Workers) -> None:
    workers.leave_behind(10, agent_id="another")
    (other,) = shape_dirs(workers)
    age(other, 1000, workers.clock)
    notes = workers.state_dir / "notes"
    notes.mkdir()
    age(notes, 1000, workers.clock)
    workers.start()
    assert other.exists()
    assert notes.exists()


def test_counts_of_other_settings_of_a_running_worker_are_kept(workers: Workers) -> None:
    """An idle worker writes nothing for weeks; on a tmpfs, no mapping ever changes a file's time."""
    living = workers.start(window_seconds=300)
    (other,) = shape_dirs(workers)
    age(other, 100, workers.clock)
    workers.start()
    assert other.exists()
    record(living, 10)
    assert samples(living) == 10


# --- confidential facts -----------------------------------------------------------------------------------


def test_document_reveals_no_paths_processes_or_versions(tmp_path: Path) -> None:
    workers = Workers(tmp_path / "canary-place")
    team = [workers.start() for _ in range(3)]
    record(team[0], 20)
    document = published(team[0])
    written = document.to_json().decode()
    inside = ["canary", str(tmp_path), "worker", "shared_windows", "python", "pid"]
    assert [word for word in inside if word in written] == []
    assert document.model_dump(exclude_unset=True).keys() == {
        "schema_version", "agent_id", "timestamp", "health", "calibration", "decay", "extensions",
    }  # fmt: skip
    assert all(name.startswith("io.github.lifesign.") for name in document.extensions or {})
    del team
    workers.end()
