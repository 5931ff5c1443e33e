"""Private files: opened only if they are ours alone, created and replaced as a whole."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.file_mount import run_with_mounted

from lifesign.filesystem.private_file import (
    allocate,
    create_private,
    is_at,
    map_shared,
    open_private,
    replacement_remedy,
    replacing_private,
    set_aside,
    write_private,
)

ONLY_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="NOT RUN: only root may give files to another user")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "worker-0.window"


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_missing_private_file_is_none(path: Path) -> None:
    assert open_private(path, create=False) is None
    assert not path.exists()


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_opened_private_file_ignores_the_umask(path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        fd = open_private(path, create=True)
    finally:
        os.umask(before)
    assert fd is not None
    os.close(fd)
    assert mode_of(path) == 0o600


def test_existing_file_is_opened_unchanged_and_not_inherited(path: Path) -> None:
    path.touch(mode=0o600)
    path.write_bytes(b"counts")
    fd = open_private(path, create=True)
    assert fd is not None
    assert os.pread(fd, 10, 0) == b"counts"
    assert not os.get_inheritable(fd)
    os.close(fd)


def _readable_by_all(path: Path) -> None:
    path.write_text("counts")
    path.chmod(0o644)


def _writable_by_group(path: Path) -> None:
    path.write_text("counts")
    path.chmod(0o620)


def _symlink(path: Path) -> None:
    target = path.with_name("target")
    target.touch(mode=0o600)
    path.symlink_to(target)


def _dangling_symlink(path: Path) -> None:
    path.symlink_to(path.with_name("nowhere"))


def _fifo(path: Path) -> None:
    os.mkfifo(path, 0o600)


def _directory(path: Path) -> None:
    path.mkdir(mode=0o700)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))


FOREIGN: list[Callable[[Path], None]] = [
    _readable_by_all, _writable_by_group, _symlink, _dangling_symlink, _fifo, _directory, _socket,
]  # fmt: skip


@pytest.mark.parametrize("create", [True, False])
@pytest.mark.parametrize("make", FOREIGN)
def test_insecure_file_is_quarantined_with_a_warning(
    path: Path, caplog: pytest.LogCaptureFixture, make: Callable[[Path], None], *, create: bool
) -> None:
    make(path)
    assert open_private(path, create=create) is None
    assert not path.is_symlink()
    assert not path.exists()
    assert os.path.lexists(path.with_name(path.name + ".set-aside"))
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    # The next one is ours, and what a link pointed to was left alone.
    fd = open_private(path, create=True)
    assert fd is not None
    os.close(fd)
    assert not path.with_name("nowhere").exists()


@ONLY_ROOT
def test_file_of_another_user_is_quarantined(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path.touch(mode=0o600)
    os.chown(path, 65_534, 65_534)
    assert open_private(path, create=True) is None
    assert not path.exists()
    assert len(caplog.records) == 1


def test_last_of_several_quarantined_files_is_kept(path: Path) -> None:
    for text in ("one", "two"):
        path.write_text(text)
        set_aside(path, "is corrupt")
    assert [found.name for found in path.parent.iterdir()] == [path.name + ".set-aside"]
    assert path.with_name(path.name + ".set-aside").read_text() == "two"


def test_unmovable_file_stays_without_an_error(path: Path) -> None:
    path.write_text("a file")
    path.with_name(path.name + ".set-aside").mkdir()
    set_aside(path, "is corrupt")
    assert path.read_text() == "a file"


@pytest.mark.parametrize("has_posix_fallocate", [True, False])
def test_allocation_reserves_disk_space_and_keeps_content(
    path: Path, monkeypatch: pytest.MonkeyPatch, *, has_posix_fallocate: bool
) -> None:
    if not has_posix_fallocate:
        monkeypatch.delattr(os, "posix_fallocate")
    path.write_bytes(b"counts")
    with path.open("r+b") as file:
        allocate(file.fileno(), 100_000)
        allocate(file.fileno(), 50_000)
    assert path.stat().st_size == 100_000
    assert path.stat().st_blocks * 512 >= 100_000
    assert path.read_bytes().startswith(b"counts\0")


def test_mappings_share_content_and_a_read_only_one_cannot_write(path: Path) -> None:
    fd = open_private(path, create=True)
    assert fd is not None
    allocate(fd, 4096)
    writing, reading = (map_shared(fd, 4096, writable=writable) for writable in (True, False))
    os.close(fd)
    writing[4000:4004] = b"seen"
    assert bytes(reading[4000:4004]) == b"seen"
    with pytest.raises(TypeError):
        reading[0] = 1


def test_file_is_at_its_path_until_it_is_replaced(path: Path) -> None:
    with path.open("w") as file:
        assert is_at(file.fileno(), path)
        path.rename(path.with_name("elsewhere"))
        assert not is_at(file.fileno(), path)
        path.symlink_to("elsewhere")
        assert not is_at(file.fileno(), path)
        path.unlink()
        path.touch()
        assert not is_at(file.fileno(), path)


def test_created_file_is_private_whatever_the_umask(path: Path) -> None:
    before = os.umask(0o000)
    try:
        os.close(create_private(path))
    finally:
        os.umask(before)
    assert mode_of(path) == 0o600


def test_create_private_refuses_a_name_that_is_taken(path: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    path.symlink_to(target)
    with pytest.raises(FileExistsError):
        create_private(path)
    assert not target.exists()


def test_create_private_is_relative_to_a_directory(tmp_path: Path) -> None:
    directory_fd = os.open(tmp_path, os.O_RDONLY)
    try:
        os.close(create_private("run.json", dir_fd=directory_fd))
    finally:
        os.close(directory_fd)
    assert mode_of(tmp_path / "run.json") == 0o600


def test_write_private_replaces_a_file_as_a_whole(path: Path) -> None:
    path.write_text("before")
    path.chmod(0o644)
    write_private(path, "after")
    assert path.read_text() == "after\n"
    assert mode_of(path) == 0o600
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_failed_replacement_keeps_the_file(path: Path) -> None:
    def write(file_path: Path) -> None:
        with replacing_private(file_path) as file:
            file.write(b"half")
            raise LookupError

    path.write_text("before")
    with pytest.raises(LookupError):
        write(path)
    assert path.read_text() == "before"
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_file_that_is_a_mount_point_cannot_be_replaced(path: Path) -> None:
    path.touch(mode=0o600)
    module = "from lifesign.filesystem.private_file import replacement_remedy; from pathlib import Path"
    code = f"import sys; {module}; print(replacement_remedy(Path(sys.argv[1])))"
    assert str(path.parent) in run_with_mounted(path, code)


def test_file_and_link_in_a_writable_directory_can_be_replaced(path: Path) -> None:
    assert replacement_remedy(path) is None
    path.symlink_to("/proc/version")
    assert replacement_remedy(path) is None
    directory = path.with_name("link")
    directory.symlink_to(path.parent)
    write_private(directory / "key", "canary")
    assert replacement_remedy(directory / "key") is None


def test_file_in_a_directory_that_is_not_writable_cannot_be_replaced(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.touch()
    # Root may write to each directory of a writable file system.
    monkeypatch.setattr(os, "access", lambda place, _mode: place != path.parent)
    assert f"user {os.geteuid()}" in (replacement_remedy(path) or "")
