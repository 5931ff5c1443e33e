import errno
import os
from pathlib import Path

import pytest

from lifesign.client.secret_file import (
    MAX_KEY_CHARS,
    MAX_SECRET_BYTES,
    FixedKey,
    RenewedKey,
    find_secret,
    read_secret,
)
from lifesign.errors import InvalidValue


@pytest.fixture
def complaints() -> list[str]:
    return []


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o640, 0o604])
def test_readable_secret_file_is_used_with_a_warning(
    mode: int, complaints: list[str], tmp_path: Path
) -> None:
    file = tmp_path / "a token"
    file.write_text("\n  abc \n")
    file.chmod(mode)
    assert read_secret(file, "--token-file", "token", complaints.append) == "abc"
    message = f"(mode {mode:04o}): chmod 600 '{file}'"
    assert [complaint.endswith(message) for complaint in complaints] == [True] * bool(mode & 0o077)


def test_secret_file_in_a_directory_of_others_is_used_with_a_warning(
    complaints: list[str], tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.touch(mode=0o600)
    tmp_path.chmod(0o777)
    read_secret(file, "--token-file", "token", complaints.append)
    assert [each.endswith(f": chmod o-w {tmp_path}") for each in complaints] == [True]


def test_pipe_needs_no_ownership_check(complaints: list[str]) -> None:
    read, write = os.pipe()
    os.write(write, b"abc")
    os.close(write)
    assert read_secret(Path(f"/dev/fd/{read}"), "--key-file", "key", complaints.append) == "abc"
    os.close(read)
    assert complaints == []


def test_invalid_secret_is_refused(complaints: list[str], tmp_path: Path) -> None:
    large = tmp_path / "large"
    large.write_bytes(b"x" * (MAX_SECRET_BYTES + 1))
    with pytest.raises(InvalidValue, match=f"^--key-file: .* {MAX_SECRET_BYTES} bytes"):
        read_secret(large, "--key-file", "key", complaints.append)
    with pytest.raises(InvalidValue, match=rf"^--key-file: .*\({os.strerror(errno.EISDIR)}\)"):
        read_secret(tmp_path, "--key-file", "key", complaints.append)


def test_missing_secret_file_is_reported_without_reading(complaints: list[str], tmp_path: Path) -> None:
    assert find_secret(tmp_path / "absent", "key_file", "key", complaints.append) is None
    with pytest.raises(InvalidValue, match=rf"^key_file: .*\({os.strerror(errno.ENOENT)}\)"):
        read_secret(tmp_path / "absent", "key_file", "key", complaints.append)
    assert complaints == []


@pytest.mark.parametrize("key", ["", "two words", "ä", "x\n", "x" * (MAX_KEY_CHARS + 1)])
def test_key_that_no_header_can_contain_is_refused(key: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        FixedKey(key)
    assert not key or key not in str(refused.value)


def test_fixed_key_has_no_replacement() -> None:
    key = FixedKey("x" * MAX_KEY_CHARS)
    assert not key.is_replaced(key.current())
    assert FixedKey(None).current() is None


def test_refused_key_is_read_again_from_its_file(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("first\n")
    key = RenewedKey("first", file)
    assert not key.is_replaced("first")
    for content in ("", "two words"):
        file.write_text(content)
        assert not key.is_replaced("first")
    file.write_text("second\n")
    assert key.current() == "first"
    assert key.is_replaced("first")
    assert key.current() == "second"
    # The refusal of a request that was sent before.
    file.unlink()
    assert key.is_replaced("first")
    assert not key.is_replaced("second")
    assert not RenewedKey("first", None).is_replaced("first")


@pytest.mark.parametrize("name", ["tok" * 100, "tok" * 100 + "/tok", "/dev/null/tok"])
def test_name_that_no_file_can_have_and_may_be_a_token_is_not_quoted(
    name: str, complaints: list[str], tmp_path: Path
) -> None:
    with pytest.raises(InvalidValue, match="readable file in") as caught:
        read_secret(tmp_path / name, "--key-file", "key", complaints.append)
    assert "tok" not in str(caught.value).replace(str(tmp_path), "")
