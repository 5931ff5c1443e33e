import errno
import multiprocessing
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.support.servers import PATIENCE_SECONDS

from lifesign.agent import beat_election
from lifesign.agent.beat_election import HAS_LEFT, BeatElection, default_directory

# Locks belong to openings of files: several crews of one process are like those of several.


def test_next_worker_becomes_leader_when_the_leader_ends(tmp_path: Path) -> None:
    first, second = BeatElection.join(tmp_path / "a"), BeatElection.join(tmp_path / "a")
    assert (first.lead(), second.lead(), first.lead()) == (True, False, True)
    first.give_lead()
    assert (second.lead(), first.lead()) == (True, False)
    assert not second.leave()
    assert first.lead()
    assert first.leave()


@pytest.mark.parametrize("step", ["try_lock", "allocate", "map_shared"])
def test_joining_worker_is_not_mistaken_for_a_dead_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    first = BeatElection.join(tmp_path)
    does: Callable[..., Any] = getattr(beat_election, step)

    def looked_at(*args: Any, **named: Any) -> Any:
        monkeypatch.setattr(beat_election, step, does)
        first.total_load()
        try:
            return does(*args, **named)
        finally:
            first.total_load()
            monkeypatch.setattr(beat_election, step, looked_at)

    monkeypatch.setattr(beat_election, step, looked_at)
    second = BeatElection.join(tmp_path)
    monkeypatch.undo()
    second.set_load(3)
    assert first.total_load() == 3
    assert not first.is_alone()
    second.leave()
    assert first.is_alone()
    first.leave()


def test_workers_join_and_leave_while_loads_are_read(tmp_path: Path) -> None:
    def come_and_go() -> None:
        for _ in range(200):
            BeatElection.join(tmp_path).leave()

    first = BeatElection.join(tmp_path)
    with ThreadPoolExecutor(2) as executor:
        coming = [executor.submit(come_and_go) for _ in range(2)]
        while not all(one.done() for one in coming):
            first.total_load()
    for one in coming:
        one.result()
    assert first.is_alone()
    first.leave()


def test_worker_that_cannot_join_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = BeatElection.join(tmp_path)

    def no_room(_fd: int, _size: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(beat_election, "allocate", no_room)
    with pytest.raises(OSError, match="No space left"):
        BeatElection.join(tmp_path)
    assert first.is_alone()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["crew", first._own.name]
    assert first.leave()


def test_record_of_a_killed_worker_is_removed_with_the_last_worker(tmp_path: Path) -> None:
    (tmp_path / "new-1-abcd").touch(mode=0o600)
    (tmp_path / "load-1-abcd").touch(mode=0o600)
    crew = BeatElection.join(tmp_path)
    assert crew.is_alone()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["crew", crew._own.name]
    crew.leave()


def test_killed_leader_is_replaced_and_its_load_is_removed(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path\n"
        "from lifesign.agent.beat_election import BeatElection\n"
        "crew = BeatElection.join(Path(sys.argv[1])); crew.set_load(3); crew.lead()\n"
        "crew.note_incarnation(7)\n"
        "print('leads', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE) as killed:
        assert killed.stdout is not None
        assert killed.stdout.readline() == b"leads\n"
        crew = BeatElection.join(tmp_path)
        crew.set_load(2)
        assert (crew.lead(), crew.total_load(), crew.is_alone()) == (False, 5, False)
        killed.send_signal(signal.SIGKILL)
        killed.wait(PATIENCE_SECONDS)
        assert (crew.lead(), crew.total_load(), crew.is_alone()) == (True, 2, True)
        assert crew.incarnation() == 7
    assert [path.name for path in tmp_path.glob("load-*")] == [crew._own.name]
    assert crew.leave()


def test_load_of_a_killed_worker_is_not_counted_while_its_forked_child_lives(tmp_path: Path) -> None:
    script = (
        "import os, sys, time; from pathlib import Path\n"
        "from lifesign.agent.beat_election import BeatElection\n"
        "crew = BeatElection.join(Path(sys.argv[1])); crew.set_load(3)\n"
        "if not os.fork(): print(os.getpid(), flush=True)\n"
        "time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE) as killed:
        assert killed.stdout is not None
        child = int(killed.stdout.readline())
        try:
            crew = BeatElection.join(tmp_path)
            assert crew.total_load() == 3
            killed.send_signal(signal.SIGKILL)
            killed.wait(PATIENCE_SECONDS)
            assert (crew.total_load(), crew.is_alone()) == (0, True)
            crew.leave()
        finally:
            os.kill(child, signal.SIGKILL)


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_forked_child_of_a_worker_keeps_no_lock(tmp_path: Path) -> None:
    forking = multiprocessing.get_context("fork")
    first = BeatElection.join(tmp_path)
    assert first.lead()
    is_running, may_end = forking.Event(), forking.Event()

    def outlive() -> None:
        is_running.set()
        may_end.wait(PATIENCE_SECONDS)

    child = forking.Process(target=outlive)
    child.start()
    try:
        assert is_running.wait(PATIENCE_SECONDS)
        assert first.leave()
        second = BeatElection.join(tmp_path)
        assert second.is_alone()
        assert second.lead()
        assert second.leave()
    finally:
        may_end.set()
        child.join()
    assert child.exitcode == 0


def test_incarnation_is_shared_with_later_workers_and_removed_with_the_last(tmp_path: Path) -> None:
    first = BeatElection.join(tmp_path)
    assert first.incarnation() is None
    first.note_incarnation(4)
    second = BeatElection.join(tmp_path)
    assert second.incarnation() == 4
    assert not first.leave()
    assert second.leave()
    # After a restart or kill of all workers, earlier records may be wrong.
    third = BeatElection.join(tmp_path)
    assert third.incarnation() is None
    third.note_incarnation(5)
    third.note_incarnation(None)
    assert third.incarnation() is None
    third.leave()


def test_drain_lasts_until_all_workers_of_that_time_have_ended(tmp_path: Path) -> None:
    first, second = BeatElection.join(tmp_path), BeatElection.join(tmp_path)
    first.note_drain(first.workers())
    third = BeatElection.join(tmp_path)
    assert third.incarnation() == HAS_LEFT
    first.leave()
    assert (second.incarnation(), third.incarnation()) == (HAS_LEFT, HAS_LEFT)
    second.leave()
    assert third.incarnation() is None
    third.leave()


def test_drain_of_the_largest_number_of_workers_is_stored(tmp_path: Path) -> None:
    crew = BeatElection.join(tmp_path)
    others = [f"load-4194304-{number:08x}" for number in range(beat_election.MAX_WORKERS - 1)]
    crew.note_drain([*others, crew.name])
    assert crew.incarnation() == HAS_LEFT
    crew.leave()


def test_exactly_one_of_leaving_workers_is_the_last(tmp_path: Path) -> None:
    for _ in range(20):
        crews = [BeatElection.join(tmp_path) for _ in range(8)]
        with ThreadPoolExecutor(8) as executor:
            assert sum(executor.map(BeatElection.leave, crews)) == 1


def test_malformed_incarnation_file_is_ignored(tmp_path: Path) -> None:
    crew = BeatElection.join(tmp_path)
    (tmp_path / "life").write_bytes(b"\xff" * 100)
    assert crew.incarnation() is None
    crew.leave()


def test_a_directory_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "open"
    place.mkdir()
    place.chmod(0o777)
    with pytest.raises(PermissionError, match="open"):
        BeatElection.join(place)
    linked = tmp_path / "linked"
    linked.symlink_to(tmp_path)
    with pytest.raises(PermissionError, match="linked"):
        BeatElection.join(linked)


def test_lock_directory_is_private_to_user_and_agent(tmp_path: Path) -> None:
    place = default_directory("https://registry.example", "a")
    assert place != default_directory("https://registry.example", "b")
    assert place != default_directory("https://other.example", "a")
    assert str(os.geteuid()) in place.parent.name
    before = os.umask(0)
    try:
        crew = BeatElection.join(tmp_path / "made" / "here")
    finally:
        os.umask(before)
    made = [tmp_path / "made", tmp_path / "made" / "here"]
    assert [stat.S_IMODE(place.stat().st_mode) for place in made] == [0o700, 0o700]
    crew.leave()
