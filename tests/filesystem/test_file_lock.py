"""Locks of files: one holder, released with its process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lifesign.filesystem.file_lock import lock_if_free, open_lock_file, try_lock, unlock


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lock"


def test_lock_file_is_private_and_kept(path: Path) -> None:
    os.close(open_lock_file(path))
    os.close(open_lock_file(path))
    assert path.stat().st_mode & 0o777 == 0o600


def test_lock_file_is_not_opened_through_a_link(path: Path, tmp_path: Path) -> None:
    path.symlink_to(tmp_path / "target")
    with pytest.raises(OSError, match="symbolic"):
        open_lock_file(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT RUN: only root may give files to another user")
def test_lock_file_of_another_user_is_refused(path: Path) -> None:
    path.touch(mode=0o600)
    os.chown(path, 65_534, 65_534)
    with pytest.raises(PermissionError, match="user 65534"):
        open_lock_file(path)


def test_lock_has_one_holder_and_is_released(path: Path) -> None:
    with path.open("w") as one, path.open("w") as other:
        assert try_lock(one.fileno())
        assert not try_lock(other.fileno())
        with lock_if_free(other.fileno()) as is_held:
            assert not is_held
        # A caller without the lock does not release it.
        assert not try_lock(other.fileno())
        unlock(one.fileno())
        with lock_if_free(other.fileno()) as is_held:
            assert is_held
            assert not try_lock(one.fileno())
        assert try_lock(one.fileno())


def test_lock_is_released_if_its_holder_raises(path: Path) -> None:
    def work(fd: int) -> None:
        with lock_if_free(fd):
            raise LookupError

    with path.open("w") as one, path.open("w") as other:
        with pytest.raises(LookupError):
            work(one.fileno())
        assert try_lock(other.fileno())


HOLD = """
import sys
from pathlib import Path
from lifesign.filesystem.file_lock import open_lock_file, try_lock
assert try_lock(open_lock_file(Path(sys.argv[1])))
print("held", flush=True)
sys.stdin.read()
"""


def test_lock_is_released_when_its_process_ends_in_any_way(path: Path) -> None:
    with (
        path.open("w") as file,
        subprocess.Popen(
            [sys.executable, "-c", HOLD, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as process,
    ):
        path.chmod(0o600)
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        assert not try_lock(file.fileno())
        process.kill()
        process.wait()
        assert try_lock(file.fileno())
