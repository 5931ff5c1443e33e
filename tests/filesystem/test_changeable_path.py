import grp
import os
import pwd
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.support.access_list import give_access

from lifesign.filesystem.changeable_path import (
    MAX_LINKS,
    SYSTEMD_DIRECTORY,
    TRUSTED_DIRECTORIES,
    PathWeakness,
    foreign_owner,
    is_managed,
    is_own_group,
    path_weakness,
    target_of,
)

OTHER = 65534
needs_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="NOT TESTED: only root can give files to another user"
)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    set_names(monkeypatch, "ann", ["ann"])
    directory = tmp_path / "directory"
    directory.mkdir(mode=0o755)
    file = directory / "lab.yml"
    file.touch()
    file.chmod(0o644)
    for each in (file, directory):
        os.chown(each, -1, os.getegid())
    return file


def weakness_of(file: Path, *, status: os.stat_result | None = None) -> PathWeakness | None:
    return path_weakness(file, status or file.stat())


def give(place: Path) -> None:
    os.chown(place, OTHER, -1)


def give_group(place: Path, mode: int) -> None:
    os.chown(place, -1, OTHER)
    place.chmod(mode)


def remedies(file: Path, *, status: os.stat_result | None = None) -> str | None:
    found = weakness_of(file, status=status)
    return None if found is None else found.remedy


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o644, 0o664, 0o444])
def test_file_that_only_this_user_can_change_has_no_weakness(file: Path, mode: int) -> None:
    file.chmod(mode)
    assert weakness_of(file) is None


@pytest.mark.parametrize(
    ("change", "remedy"),
    [
        (lambda file: file.chmod(0o646), "chmod o-w {file}"),
        (lambda file: file.parent.chmod(0o777), "chmod o-w {file.parent}"),
        (lambda file: file.parent.chmod(0o1777), None),
        (lambda file: file.parent.chmod(0o775), None),
        (lambda file: file.parent.parent.chmod(0o777), "chmod o-w {file.parent.parent}"),
    ],
)
def test_file_or_directory_that_others_can_write_is_a_weakness(
    file: Path, change: Callable[[Path], None], remedy: str | None
) -> None:
    change(file)
    assert remedies(file) == (remedy and remedy.format(file=file))


@needs_root
@pytest.mark.parametrize(
    ("change", "remedy"),
    [
        (give, "chown -h 0 {file}"),
        (lambda file: give(file.parent), "chown -h 0 {file.parent}"),
        (lambda file: give_group(file, 0o644), None),
        (lambda file: give_group(file, 0o664), "chmod g-w {file}"),
        (
            lambda file: give_group(file.parent, 0o775),
            "chmod g-w {file.parent}",
        ),
    ],
)
def test_owner_and_group_other_than_of_this_process_are_a_weakness(
    file: Path, change: Callable[[Path], None], remedy: str | None
) -> None:
    change(file)
    assert remedies(file) == (remedy and remedy.format(file=file))


def set_names(monkeypatch: pytest.MonkeyPatch, user: str | None, group: Sequence[str]) -> None:
    """Set the names of the user of this process, of its group and of the members of the group."""

    def account(uid: int) -> SimpleNamespace:
        if user is None:
            raise KeyError(uid)
        return SimpleNamespace(pw_name=user)

    def members(gid: int) -> SimpleNamespace:
        if not group:
            raise KeyError(gid)
        return SimpleNamespace(gr_name=group[0], gr_mem=[*group[1:]])

    monkeypatch.setattr(pwd, "getpwuid", account)
    monkeypatch.setattr(grp, "getgrgid", members)


@pytest.mark.parametrize(
    ("gid", "user", "group", "expected"),
    [
        (1000, "ann", ["ann"], "own"),
        (1000, "ann", ["ann", "ann", "root"], "own"),
        (1000, "ann", ["ann", "bob"], "shared"),
        (100, "ann", ["users"], "shared"),
        (100, "ann", [], "shared"),
        # Containers.
        (1000, None, [], "own"),
        (1001, None, [], "shared"),
        (0, None, ["root"], "own"),
        (0, "ann", ["root", "bob"], "shared"),
    ],
)
def test_group_with_the_name_of_its_only_member_is_their_own(
    gid: int, user: str | None, group: Sequence[str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_names(monkeypatch, user, group)
    assert ("own" if is_own_group(gid, 1000) else "shared") == expected


@pytest.mark.parametrize("place", ["lab.yml", "."])
def test_shared_primary_group_that_can_write_is_a_weakness(
    file: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = file.parent / place
    changed.chmod(changed.stat().st_mode | 0o020)
    assert weakness_of(file) is None
    set_names(monkeypatch, "ann", ["users", "bob"])
    assert remedies(file) == f"chmod g-w {changed}"


@needs_root
def test_symbolic_link_of_another_user_is_a_weakness(file: Path, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    for target in (file, file.parent):
        link = shared / target.name
        link.symlink_to(target)
        place = link if target is file else link / file.name
        assert weakness_of(place) is None
        os.lchown(link, OTHER, -1)
        # Linux may forbid to follow this link (`fs.protected_symlinks`).
        assert remedies(place, status=file.stat()) == f"chown -h 0 {link}"


@needs_root
@pytest.mark.parametrize("is_there", [True, False])
def test_target_of_a_path_is_not_where_a_link_of_another_user_leads(file: Path, *, is_there: bool) -> None:
    if not is_there:
        file.unlink()
    shared = file.parent.parent / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    link = shared / "link"
    link.symlink_to(Path("..", "directory", file.name))
    assert target_of(link) == target_of(file) == file.resolve()
    os.lchown(link, OTHER, -1)
    found = target_of(link)
    assert isinstance(found, PathWeakness)
    assert found.remedy == f"chown -h 0 {link}"


def test_target_below_a_missing_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        target_of(tmp_path / "missing" / "file")


def test_target_in_a_managed_directory_is_not_examined(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.chmod(0o666)
    assert isinstance(target_of(file), PathWeakness)
    monkeypatch.setenv(SYSTEMD_DIRECTORY, str(file.parent))
    assert target_of(file) == file.resolve()


def test_mount_of_kubernetes_has_no_weakness(tmp_path: Path) -> None:
    """It has a sticky directory, and relative links that are replaced with each update."""
    mount = tmp_path / "mount"
    (mount / "..2026_11_29").mkdir(parents=True)
    mount.chmod(0o3777)
    (mount / "..2026_11_29").chmod(0o2755)
    (mount / "..2026_11_29" / "lab.yml").touch(mode=0o440)
    (mount / "..data").symlink_to("..2026_11_29")
    (mount / "lab.yml").symlink_to("..data/lab.yml")
    assert weakness_of(mount / "lab.yml") is None
    assert weakness_of(mount / ".." / "mount" / "lab.yml") is None
    (mount / "..2026_11_29" / "lab.yml").chmod(0o442)
    assert remedies(mount / "lab.yml") == f"chmod o-w {mount}/..2026_11_29/lab.yml"


def test_file_that_was_replaced_after_it_was_opened_is_a_weakness(file: Path) -> None:
    opened = file.stat()
    other = file.with_name("other")
    other.touch()
    other.rename(file)
    for _ in ("replaced", "removed"):
        found = path_weakness(file, opened)
        assert found is not None
        assert found.remedy == f"ls -l {file}"
        file.unlink(missing_ok=True)


def test_link_of_others_into_a_managed_directory_is_a_weakness(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SYSTEMD_DIRECTORY, str(file.parent))
    shared = tmp_path / "shared"
    shared.mkdir()
    link = shared / "lab.token"
    link.symlink_to(file)
    assert weakness_of(link) is None
    shared.chmod(0o777)
    assert remedies(link) == f"chmod o-w {shared}"


def test_access_control_list_is_a_weakness(file: Path) -> None:
    file.chmod(0o664)
    assert weakness_of(file) is None
    give_access(file, 6)
    assert remedies(file) == f"setfacl -b {file}"


def test_files_of_systemd_and_containers_are_not_examined(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.chmod(0o666)
    assert weakness_of(file) is not None
    monkeypatch.setenv(SYSTEMD_DIRECTORY, str(tmp_path))
    assert weakness_of(file) is None
    assert all(is_managed(Path(each, "lab.token"), {}) for each in TRUSTED_DIRECTORIES)
    assert not is_managed(file, {})


@needs_root
def test_named_pipe_of_another_user_is_a_weakness(tmp_path: Path) -> None:
    pipe = tmp_path / "lab.yml"
    os.mkfifo(pipe, 0o644)
    assert weakness_of(pipe) is None
    give(pipe)
    assert remedies(pipe) == f"chown -h 0 {pipe}"


def test_examination_of_pipes_and_many_links_ends(tmp_path: Path) -> None:
    read, write = os.pipe()
    assert weakness_of(Path(f"/dev/fd/{read}")) is None
    os.close(read)
    os.close(write)
    place = tmp_path / "file"
    place.touch()
    place.chmod(0o602)
    for count in range(MAX_LINKS - 1):
        link = tmp_path / f"link-{count}"
        link.symlink_to(place)
        place = link
    assert remedies(place) == f"chmod o-w {tmp_path}/file"


@needs_root
def test_file_of_another_user_passes_only_with_the_owner_or_group_of_its_directory(file: Path) -> None:
    assert foreign_owner(file, file.stat()) is None
    os.chown(file, OTHER, OTHER)
    assert foreign_owner(file, file.stat()) == OTHER
    file.parent.chmod(0o1777)
    assert foreign_owner(file, file.stat()) == OTHER
    for owner, group in ((OTHER, -1), (0, OTHER)):
        os.chown(file.parent, owner, group)
        assert foreign_owner(file, file.stat()) is None
