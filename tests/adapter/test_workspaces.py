import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from lifesign.adapter.process.agent_user import AgentUser
from lifesign.adapter.workspaces import LEVELS_AT_ONCE, Workspace, Workspaces
from lifesign.errors import InvalidValue

DAY_S = 86_400.0
RUN = f"run_{'0' * 26}"
OTHER = f"run_{'1' * 26}"


class Clock:
    at_s = 1_000_000.0

    def now_s(self) -> float:
        return self.at_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def places(tmp_path: Path, clock: Clock) -> Iterator[Workspaces]:
    with Workspaces(tmp_path / "state" / "runs", wall_s=clock.now_s) as places:
        yield places


def failed(places: Workspaces, run_id: str = RUN) -> Workspace:
    workspace = places.prepare(run_id, task_id="task_1")
    places.finish(workspace, keep=True, exit_reason="crash", exit_code=1)
    return workspace


def note(places: Workspaces, run_id: str = RUN) -> dict[str, object]:
    read: dict[str, object] = json.loads((places.root / f"{run_id}.json").read_text())
    return read


def test_all_files_are_private(places: Workspaces) -> None:
    workspace = places.prepare(RUN)
    workspace.put("input.json", {"a": "ä"})
    modes = [
        stat.S_IMODE(path.stat().st_mode)
        for path in (
            places.root,
            workspace.path,
            workspace.path / "input.json",
            places.root / f"{RUN}.json",
        )
    ]
    assert modes == [0o700, 0o700, 0o600, 0o600]
    assert json.loads((workspace.path / "input.json").read_text()) == {"a": "ä"}
    places.finish(workspace, keep=False)
    assert list(places.root.iterdir()) == []


def test_directory_writable_by_others_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(InvalidValue, match="other user") as refused:
        Workspaces(tmp_path)
    assert (refused.value.name, refused.value.given) == ("workspaces", str(tmp_path))
    (tmp_path / "file").touch()
    with pytest.raises(InvalidValue, match="workspaces"):
        Workspaces(tmp_path / "file")


def test_directory_below_one_writable_by_others_is_refused(tmp_path: Path) -> None:
    above = tmp_path / "above"
    above.mkdir()
    above.chmod(0o777)
    with pytest.raises(InvalidValue, match=f"{above} has mode 0777"):
        Workspaces(above / "state" / "runs")
    (tmp_path / "link").symlink_to(above)
    with pytest.raises(InvalidValue, match=f"{above} has mode 0777"):
        Workspaces(tmp_path / "link" / "runs")
    # In a sticky directory only owners can remove their files.
    above.chmod(0o1777)
    with Workspaces(above / "state" / "runs"):
        pass


def test_created_directories_are_private(tmp_path: Path) -> None:
    former = os.umask(0)
    try:
        with Workspaces(tmp_path / "a" / "b" / "runs"):
            pass
    finally:
        os.umask(former)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT RUN: only root may give a directory to another user")
def test_workspace_of_another_user_is_refused(tmp_path: Path) -> None:
    above = tmp_path / "theirs"
    (above / "runs").mkdir(parents=True, mode=0o700)
    os.chown(above, 12345, 12345)
    with pytest.raises(InvalidValue, match="user 12345"):
        Workspaces(above / "runs")
    os.chown(above / "runs", 12345, 12345)
    with pytest.raises(InvalidValue, match="this user"):
        Workspaces(above / "runs")


def test_user_without_access_is_refused_before_a_directory_is_created(tmp_path: Path) -> None:
    user = AgentUser(name="its", uid=12345, gid=12346, groups=(12346,), home="/", login_shell="/bin/sh")
    tmp_path.chmod(0o700)
    with pytest.raises(InvalidValue, match=r"\bits has access"):
        Workspaces(tmp_path / "state" / "runs", user=user)
    assert list(tmp_path.iterdir()) == []


def test_directories_for_another_user_do_not_depend_on_the_umask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = AgentUser(name="its", uid=12345, gid=12346, groups=(12346,), home="/", login_shell="/bin/sh")
    # pytest's own directories are private.
    monkeypatch.setattr(AgentUser, "unsearchable_directory", lambda _user, _place: None)
    former = os.umask(0o077)
    try:
        with Workspaces(tmp_path / "state" / "runs", user=user):
            pass
    finally:
        os.umask(former)
    made = (tmp_path / "state", tmp_path / "state" / "runs")
    assert [stat.S_IMODE(place.stat().st_mode) for place in made] == [0o711] * 2


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT RUN: only root may give a directory to another user")
def test_workspace_files_belong_to_the_user_of_the_command(places: Workspaces) -> None:
    user = AgentUser(name="its", uid=12345, gid=12346, groups=(12346,), home="/", login_shell="/bin/sh")
    workspace = places.prepare(RUN)
    workspace.put("input.json", {})
    (workspace.path / "link").symlink_to(places.root)
    workspace.hand_over(user)
    found = [os.lstat(path) for path in (workspace.path, *sorted(workspace.path.iterdir()))]
    assert [(one.st_uid, one.st_gid) for one in found] == [(12345, 12346)] * 3
    assert places.root.stat().st_uid == 0
    secret = places.root / "secret"
    secret.write_text('{"key": "of root"}')
    os.link(secret, workspace.path / "output.json")
    assert workspace.result().output is None
    assert "agent's user" in (workspace.result().fault or "")
    os.chown(secret, 12345, 12346)
    assert workspace.result().output == {"key": "of root"}


def test_invalid_run_id_is_refused_as_a_workspace_name(places: Workspaces) -> None:
    for name in ("../elsewhere", "run_", "", "run_" + "a" * 27, "RUN_" + "0" * 26):
        with pytest.raises(ValueError, match="valid run id"):
            places.prepare(name)
    assert list(places.root.iterdir()) == []


def test_second_workspace_of_a_run_is_refused(places: Workspaces) -> None:
    failed(places)
    with pytest.raises(FileExistsError):
        places.prepare(RUN)


def test_workspace_of_a_failed_run_is_kept_for_seven_days(places: Workspaces, clock: Clock) -> None:
    failed(places)
    assert note(places)["exit_reason"] == "crash"
    clock.at_s += 7 * DAY_S
    assert places.prune() == 0
    clock.at_s += 1
    assert places.prune() == 1
    assert list(places.root.iterdir()) == []


def test_workspace_of_a_running_run_is_kept_at_any_age(places: Workspaces, clock: Clock) -> None:
    workspace = places.prepare(RUN)
    clock.at_s += 100 * DAY_S
    assert places.prune() == 0
    assert workspace.path.is_dir()
    workspace.close()


def test_workspace_of_a_killed_adapter_is_kept_from_its_discovery(places: Workspaces, clock: Clock) -> None:
    places.prepare(RUN).close()
    clock.at_s += 100 * DAY_S
    assert places.prune() == 0
    assert note(places)["ended_at_s"] == clock.at_s
    clock.at_s += 8 * DAY_S
    assert places.prune() == 1


def test_target_of_a_symlink_is_never_removed(places: Workspaces, clock: Clock, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("dear")
    workspace = failed(places)
    (workspace.path / "link").symlink_to(outside)
    (workspace.path / "file").symlink_to(outside / "file")
    # A symbolic link that replaces a workspace.
    failed(places, OTHER)
    (places.root / OTHER).rmdir()
    (places.root / OTHER).symlink_to(outside)
    clock.at_s += 8 * DAY_S
    assert places.prune() == 2
    assert (outside / "file").read_text() == "dear"
    assert list(places.root.iterdir()) == []


def test_unreadable_directories_of_a_workspace_are_removed(places: Workspaces, clock: Clock) -> None:
    workspace = failed(places)
    (workspace.path / "shut" / "inner").mkdir(parents=True)
    (workspace.path / "shut" / "inner" / "file").touch(mode=0)
    os.mkfifo(workspace.path / "pipe")
    for path in (workspace.path / "shut" / "inner", workspace.path / "shut", workspace.path):
        path.chmod(0)
    clock.at_s += 8 * DAY_S
    assert places.prune() == 1
    assert not workspace.path.exists()


def test_unremovable_workspace_does_not_end_the_adapter(
    places: Workspaces, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = places.prepare(RUN)
    # Simulates a directory without permissions: real permissions do not stop root.
    monkeypatch.setattr(places, "_remove", lambda _run_id: os.rmdir("/proc/1"))  # noqa: PTH106 - see above
    places.finish(workspace, keep=False, exit_reason="completed")
    assert note(places)["exit_reason"] == "completed"
    assert workspace.path.is_dir()


def test_deeply_nested_workspace_is_removed(places: Workspaces, clock: Clock) -> None:
    workspace = failed(places)
    failed(places, OTHER)
    fd = os.open(workspace.path, os.O_RDONLY)
    for _ in range(12 * LEVELS_AT_ONCE + 50):
        os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
        os.mkdir("deeper", dir_fd=fd)
        inner = os.open("deeper", os.O_RDONLY, dir_fd=fd)
        # An agent may remove all permissions of a directory.
        os.fchmod(fd, 0)
        os.close(fd)
        fd = inner
    os.close(fd)
    clock.at_s += 8 * DAY_S
    assert places.prune() == 2
    assert list(places.root.iterdir()) == []


@pytest.mark.parametrize("message", ["no JSON", "[" * 8_000, '{"ended_at_s": NaN}', '{"ended_at_s": 1e400}'])
def test_files_of_others_are_not_removed(places: Workspaces, clock: Clock, message: str) -> None:
    (places.root / "notes.json").write_text("{}")
    (places.root / f"{RUN}.json").mkdir()
    (places.root / f"{OTHER}.json").write_text(message)
    clock.at_s += 8 * DAY_S
    assert places.prune() == 0
    assert (places.root / "notes.json").exists()
    assert note(places, OTHER)["ended_at_s"] == clock.at_s


def test_workspace_path_is_resolved(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    with Workspaces(tmp_path / "below" / ".." / "runs") as places:
        assert places.root == tmp_path / "runs"


def test_half_of_a_surrogate_pair_in_the_output_becomes_the_replacement_character(places: Workspaces) -> None:
    workspace = places.prepare(RUN)
    (workspace.path / "output.json").write_bytes(rb'{"text": "\ud83d"}')
    assert workspace.result().output == {"text": "\ufffd"}


def test_missing_room_for_a_workspace_is_an_error(places: Workspaces) -> None:
    places.check_room()
    assert list(places.root.iterdir()) == []
    places.root.rmdir()
    with pytest.raises(OSError, match="No such file"):
        places.check_room()
