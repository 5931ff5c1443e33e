import os
from pathlib import Path

import pytest
from tests.support.file_mount import run_with_mounted

from lifesign.domain.credentials.token import TokenFault
from lifesign.prober.secrets.refresh_token_file import LOCK_SUFFIX, RefreshTokenFile

FIRST, SECOND, THIRD = "refresh-canary-1", "refresh-canary-2", "refresh-canary-3"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "acme.refresh"
    path.touch(mode=0o600)
    path.write_text(f"{FIRST}\n")
    return path


def test_refresh_token_file_is_replaced_atomically(file: Path) -> None:
    tokens = RefreshTokenFile(file)
    assert tokens.read() == FIRST
    tokens.replace(SECOND)
    assert (tokens.read(), file.read_text()) == (SECOND, f"{SECOND}\n")
    assert file.stat().st_mode & 0o777 == 0o600
    assert {path.name for path in file.parent.iterdir()} == {file.name, file.name + LOCK_SUFFIX}
    tokens.close()


def test_a_new_login_is_read_at_the_next_use(file: Path) -> None:
    tokens = RefreshTokenFile(file)
    assert tokens.read() == FIRST
    file.write_text(THIRD)
    assert tokens.read() == THIRD
    tokens.close()


def test_files_of_killed_processes_are_removed_with_the_lock(file: Path) -> None:
    unfinished = file.with_name(f".{file.name}.0123456789abcdef")
    others = [f".{file.name}.0123", f".{file.name}.0123456789abcdef.bak", ".other.0123456789abcdef"]
    for name in (unfinished.name, *others):
        file.with_name(name).write_text(SECOND)
    first, second = RefreshTokenFile(file), RefreshTokenFile(file)
    assert first.read() == FIRST
    assert not unfinished.exists()
    # Only the holder of the lock may remove them: another process may be writing one.
    unfinished.touch()
    assert second.claim() is not None
    assert unfinished.exists()
    first.close()
    assert second.claim() is None
    assert not unfinished.exists()
    assert all(file.with_name(name).exists() for name in others)
    second.close()


def test_refresh_token_file_is_locked_by_one_process(file: Path) -> None:
    first, second = RefreshTokenFile(file), RefreshTokenFile(file)
    assert first.read() == FIRST
    fault = second.read()
    assert isinstance(fault, TokenFault)
    assert fault.kind == "token_file"
    first.close()
    assert second.read() == FIRST
    second.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT RUN: only root may give files to another user")
def test_fault_names_the_user_whose_lock_file_is_in_the_way(file: Path) -> None:
    lock = file.with_name(file.name + LOCK_SUFFIX)
    lock.touch(mode=0o600)
    os.chown(lock, 65_534, 65_534)
    fault = RefreshTokenFile(file).claim()
    assert fault is not None
    assert "user 65534" in fault.reason


def test_symbolic_link_to_a_refresh_token_file_is_kept(file: Path) -> None:
    link = file.with_name("link")
    link.symlink_to(file)
    tokens = RefreshTokenFile(link)
    assert tokens.claim() is None
    tokens.replace(SECOND)
    assert link.is_symlink()
    assert tokens.read() == SECOND
    # The lock is that of the file.
    assert isinstance(RefreshTokenFile(file).read(), TokenFault)
    tokens.close()


def full(_path: Path, _line: str) -> None:
    """Write to a full disk."""
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("is_used_again", [True, False])
def test_a_token_that_cannot_be_written_stays_in_use_and_is_written_later(
    file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *, is_used_again: bool
) -> None:
    tokens = RefreshTokenFile(file)
    assert tokens.read() == FIRST
    with monkeypatch.context() as disk:
        disk.setattr("lifesign.prober.secrets.refresh_token_file.write_private", full)
        tokens.replace(SECOND)
        assert tokens.read() == SECOND
        assert file.read_text() == f"{FIRST}\n"
    if is_used_again:
        assert tokens.read() == SECOND
        assert file.read_text() == f"{SECOND}\n"
    tokens.close()
    assert file.read_text() == f"{SECOND}\n"
    assert SECOND not in caplog.text


@pytest.mark.parametrize("is_used_again", [True, False])
def test_token_that_an_operator_has_written_is_not_replaced_by_an_older_one(
    file: Path, monkeypatch: pytest.MonkeyPatch, *, is_used_again: bool
) -> None:
    tokens = RefreshTokenFile(file)
    assert tokens.read() == FIRST
    with monkeypatch.context() as disk:
        disk.setattr("lifesign.prober.secrets.refresh_token_file.write_private", full)
        tokens.replace(SECOND)
    file.write_text(THIRD)
    if is_used_again:
        assert tokens.read() == THIRD
    tokens.close()
    assert file.read_text() == THIRD


@pytest.mark.parametrize("spoil", ["missing", "open", "lines", "no_directory"])
def test_unusable_refresh_token_file_is_a_fault(file: Path, spoil: str) -> None:
    if spoil == "missing":
        file.unlink()
    elif spoil == "open":
        file.chmod(0o644)
    elif spoil == "lines":
        file.write_text("two\nlines-of-token")
    else:
        file = file.parent / "none" / "acme.refresh"
    tokens = RefreshTokenFile(file)
    fault = tokens.read()
    assert isinstance(fault, TokenFault)
    assert fault.kind == "token_file"
    assert "lines-of-token" not in fault.reason
    tokens.close()


def test_file_is_claimed_before_it_exists_and_stored_at_the_end(tmp_path: Path) -> None:
    file = RefreshTokenFile(tmp_path / "acme.refresh")
    assert file.claim() is None
    other = RefreshTokenFile(tmp_path / "acme.refresh")
    assert isinstance(other.claim(), TokenFault)
    assert file.store("refresh-canary") is None
    assert file.read() == "refresh-canary"
    file.close()
    assert other.claim() is None
    other.close()


def test_missing_directory_is_a_fault_before_the_login(tmp_path: Path) -> None:
    file = RefreshTokenFile(tmp_path / "missing" / "acme.refresh")
    assert isinstance(file.claim(), TokenFault)
    assert isinstance(file.store("refresh-canary"), TokenFault)


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: only root can give links to another user")
@pytest.mark.parametrize("is_there", [True, False])
def test_a_link_of_another_user_is_a_fault_before_the_login(file: Path, *, is_there: bool) -> None:
    """Anyone can create a link in a directory such as /tmp."""
    if not is_there:
        file.unlink()
    link = file.with_name("link")
    link.symlink_to(file)
    os.lchown(link, 65534, -1)
    assert isinstance(RefreshTokenFile(link).claim(), TokenFault)
    assert file.exists() == is_there


def test_token_of_a_file_that_cannot_be_replaced_is_not_used(file: Path) -> None:
    module = "from lifesign.prober.secrets.refresh_token_file import RefreshTokenFile"
    code = f"import sys, pathlib; {module}; print(RefreshTokenFile(pathlib.Path(sys.argv[1])).read().kind)"
    assert run_with_mounted(file, code) == "token_file"
