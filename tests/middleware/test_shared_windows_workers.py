import json
import os
import random
import signal
from pathlib import Path

import pytest
from tests.support.recording import samples
from tests.support.servers import until
from tests.support.worker_process import IN_MEMORY, Worker, worker_processes

from lifesign import AgentHealth
from lifesign.middleware.shared_windows import _WindowFile

pytestmark = pytest.mark.fault


def files(state_dir: Path) -> int:
    return len(list(state_dir.glob("*/worker-*.window")))


def counted(state_dir: Path) -> int:
    """Return the count that a new worker reports."""
    observer = AgentHealth(agent_id="agent", state_dir=state_dir)
    try:
        return samples(observer)
    finally:
        observer.close()


def test_each_process_reports_the_exact_sum(tmp_path: Path) -> None:
    with worker_processes(tmp_path, 3) as workers:
        for number, worker in enumerate(workers, 1):
            worker.ask(f"record {1000 * number}")
        assert [worker.count() for worker in workers] == [6000, 6000, 6000]

        def all_agree() -> bool:
            documents = {worker.ask("published") for worker in workers}
            return len(documents) == 1 and '"sample_count":6000' in documents.pop()

        until("all serve the same bytes, and the sum", all_agree)
        assert files(tmp_path) == 3


# --- killed workers ---------------------------------------------------------------------------------------


def kill_one_after_another(state_dir: Path, kills: int) -> None:
    chance = random.Random(kills)  # noqa: S311 - moments of a kill, not secrets
    sent = 0
    for _ in range(kills):
        with worker_processes(state_dir) as (worker,):
            sent += worker.kill_while_counting(after=chance.randrange(1, 500))
        assert files(state_dir) == 1
    # Each worker may have been killed after it counted a request and before it reported that.
    assert sent <= counted(state_dir) <= sent + kills


def kill_three_at_once(state_dir: Path, rounds: int) -> None:
    sent = 0
    for _ in range(rounds):
        with worker_processes(state_dir, 3) as workers:
            for worker in workers:
                worker.ask("record 100")
            sent += 300
            for worker in workers:
                sent += worker.kill_while_counting(after=50)
        assert files(state_dir) <= 3
    assert sent <= counted(state_dir) <= sent + 3 * rounds


def test_a_process_killed_in_the_middle_of_counting_loses_nothing(tmp_path: Path) -> None:
    with worker_processes(tmp_path, 2) as (victim, other):
        sent = victim.kill_while_counting(after=2000)
        assert sent <= other.count() <= sent + 1
    assert sent <= counted(tmp_path) <= sent + 1


def test_ten_processes_killed_one_after_another_leave_one_file_and_all_counts(tmp_path: Path) -> None:
    kill_one_after_another(tmp_path, 10)


def test_three_processes_killed_at_once_leave_three_files_and_all_counts(tmp_path: Path) -> None:
    kill_three_at_once(tmp_path, 3)


@pytest.mark.long
def test_two_hundred_killed_processes_leave_bounded_files_and_all_counts(tmp_path: Path) -> None:
    kill_one_after_another(tmp_path / "one", 200)
    kill_three_at_once(tmp_path / "three", 60)


def test_publisher_killed_between_lock_and_write_releases_the_document_file(tmp_path: Path) -> None:
    with worker_processes(tmp_path, 2) as (victim, other):
        other.ask("record 20")
        assert victim.ask("die_publishing") == "dying"
        victim.process.wait()
        assert json.loads(other.ask("published"))["calibration"]["sample_count"] == 20
        with worker_processes(tmp_path) as (successor,):
            assert successor.count() == 20
            assert files(tmp_path) == 2


def test_suspended_publisher_that_holds_the_lock_blocks_no_worker(tmp_path: Path) -> None:
    with worker_processes(tmp_path, 2) as (stopped, other):
        other.ask("record 20")
        held = other.ask("published")
        assert stopped.ask("hold") == "ok"
        os.kill(stopped.process.pid, signal.SIGSTOP)
        other.ask("record 20")
        until(
            "it goes on by itself",
            lambda: (now := other.ask("published")) != held and '"sample_count":40' in now,
        )
        assert other.count() == 40
        # A stopped worker is alive: its file is not taken, and a new worker waits only briefly.
        with worker_processes(tmp_path) as (late,):
            assert late.count() == 40
            assert json.loads(late.ask("published"))["health"]["status"] == "healthy"
            assert files(tmp_path) == 3


@pytest.mark.long
def test_new_worker_includes_the_counts_of_a_busy_worker(tmp_path: Path) -> None:
    """Its outcomes and latencies are not read at the same moment, and it continues in between."""
    with worker_processes(tmp_path, 4) as workers:
        for worker in workers:
            worker.ask("rush")
        observer = AgentHealth(agent_id="agent", state_dir=tmp_path)
        assert samples(observer) > 0
        assert observer._windows is not None
        overlooked = 0
        looks = range(40_000)
        paths = sorted(tmp_path.glob("*/worker-*.window"))[:4]
        for look in looks:
            now_ns = observer.clock.monotonic_ns() + observer._windows.offset_ns
            found = _WindowFile.open_peer(paths[look % 4], observer.settings.window_ns, now_ns)
            if found is None:
                overlooked += 1
            else:
                found.close()
        observer.close()
        assert overlooked == 0, f"{overlooked} of {len(looks)} attempts found no file"


# --- forked workers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", ["fork", "fork_while_locked"])
def test_each_interaction_is_counted_once_across_a_fork(tmp_path: Path, function: str) -> None:
    with worker_processes(tmp_path) as (parent,):
        parent.ask("record 5")
        assert parent.ask(f"{function} 7") == "5 12"
        parent.ask("record 11")
        assert parent.count() == 5 + 7 + 11
        assert parent.ask(f"{function} 2") == "23 25"
        assert parent.count() == 25
        assert files(tmp_path) == 2
    assert counted(tmp_path) == 25


@pytest.mark.parametrize("function", ["fork", "fork_while_locked"])
def test_forked_child_starts_empty_without_a_state_dir(function: str) -> None:
    with worker_processes(IN_MEMORY) as (parent,):
        parent.ask("record 5")
        assert parent.ask(f"{function} 7") == "0 7"
        parent.ask("record 11")
        assert parent.count() == 16


@pytest.mark.parametrize("of_the_master", [0, 5])
def test_an_app_that_was_loaded_before_the_fork_counts_in_each_worker(
    tmp_path: Path, of_the_master: int
) -> None:
    """As with gunicorn --preload: the master creates the recorder, and may have used it or not."""
    master = Worker(tmp_path)
    try:
        if of_the_master:
            master.ask(f"record {of_the_master}")
        for number in range(1, 5):
            before, after = map(int, master.ask("fork 100").split())
            assert before == of_the_master + 100 * (number - 1)
            assert after == before + 100
        # One worker at a time, beside the master if that has counted.
        assert files(tmp_path) == 1 + bool(of_the_master)
    finally:
        master.end()
    assert counted(tmp_path) == of_the_master + 400


def test_forks_during_concurrent_counting_lose_no_interaction(tmp_path: Path) -> None:
    with worker_processes(tmp_path) as (parent,):
        assert parent.count() == 0
        sent = int(parent.ask("rush_in_threads 20000"))
        assert parent.count() == sent
    assert counted(tmp_path) == sent


def test_idle_child_does_not_keep_the_file_of_its_dead_parent(tmp_path: Path) -> None:
    """A process pool that outlives its worker must not make a crash loop leave file after file."""
    idle: list[Worker] = []
    try:
        for _ in range(4):
            worker = Worker(tmp_path)
            idle.append(worker)
            worker.ask("record 10")
            assert worker.ask("fork_idle") == "ok"
            worker.process.kill()
            worker.process.wait()
        assert files(tmp_path) == 1
        assert counted(tmp_path) == 40
    finally:
        for worker in idle:
            worker.end()
