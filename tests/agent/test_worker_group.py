import errno
import os
import shutil
from pathlib import Path

import pytest

from lifesign.agent.beat_election import IS_LOST, BeatElection
from lifesign.agent.worker_group import WorkerGroup


def joined(directory: Path) -> WorkerGroup:
    group = WorkerGroup(directory, "a")
    group.join()
    return group


def test_leader_restores_removed_files_before_another_worker_can_lead(tmp_path: Path) -> None:
    leader, other = joined(tmp_path / "a"), joined(tmp_path / "a")
    assert leader.can_lead()
    leader.note_incarnation(7)
    other.set_load(2)
    shutil.rmtree(tmp_path / "a")
    # The other worker leaves the first try to the leader.
    assert not other.can_lead()
    leader.keep_lead()
    assert not other.can_lead()
    assert leader.total_load() == 2
    leader.give_lead()
    assert other.can_lead()
    assert other.incarnation == 7
    assert leader.leave() is None
    assert other.leave() == 7


def test_leader_that_stood_still_steps_back_if_another_worker_leads(tmp_path: Path) -> None:
    former, other = joined(tmp_path / "a"), joined(tmp_path / "a")
    assert former.can_lead()
    assert former.keep_lead()
    shutil.rmtree(tmp_path / "a")
    assert not other.can_lead()
    assert other.can_lead()
    other.note_incarnation(8)
    assert not former.keep_lead()
    assert not former.keep_lead()
    assert other.keep_lead()
    other.give_lead()
    assert former.can_lead()
    assert former.incarnation == 8


@pytest.mark.parametrize(
    "method", ["lead", "incarnation", "is_alone", "total_load", "is_in_place", "workers"]
)
def test_fault_of_the_directory_is_never_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    def no_descriptors(_: BeatElection) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    group = joined(tmp_path / "a")
    group.set_load(3)
    with monkeypatch.context() as patch:
        patch.setattr(BeatElection, method, no_descriptors)
        group.can_lead()
        group.keep_lead()
        group.is_alone()
        assert group.names()
        assert group.total_load() == 3
    assert group.can_lead()
    assert group.leave() is None


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOSPC])
def test_lasting_fault_of_the_directory_is_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    names = iter(range(100))

    def failing(_: BeatElection) -> None:
        raise OSError(number, os.strerror(number), f"new-{next(names)}")

    group = joined(tmp_path / "a")
    with monkeypatch.context() as patch:
        patch.setattr(BeatElection, "is_in_place", failing)
        for _ in range(3):
            group.keep_lead()
            assert not group.can_lead()
    assert len(caplog.messages) == 1
    group.leave()


def test_last_worker_ends_its_own_incarnation_if_the_stored_one_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(_: BeatElection) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    group = joined(tmp_path / "a")
    monkeypatch.setattr(BeatElection, "incarnation", unreadable)
    assert group.leave(5) == 5


def test_last_worker_ends_no_incarnation_if_the_registry_has_ended_it(tmp_path: Path) -> None:
    group = joined(tmp_path / "a")
    assert group.can_lead()
    group.note_incarnation(IS_LOST)
    assert group.leave() is None


def test_worker_leads_itself_if_the_directory_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("in the way")
    group = joined(tmp_path / "a")
    assert group.can_lead()
    assert group.is_alone()
    group.note_incarnation(1)
    assert group.leave(1) is None


def test_worker_that_does_not_lead_after_a_drain_logs_that_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    drained = joined(tmp_path / "a")
    assert drained.can_lead()
    workers = drained.names()
    new = joined(tmp_path / "a")
    drained.note_drain(workers)
    assert not new.can_lead()
    assert not new.can_lead()
    assert len(caplog.messages) == 1
    assert drained.leave() is None
    assert new.can_lead()
    assert new.incarnation is None
    new.leave()
