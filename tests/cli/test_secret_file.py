"""Is a file with a key read whole, or refused, and is one that others may read complained of?"""

import os
from pathlib import Path

import pytest

from agent_health.cli.secret_file import MAX_BYTES, read_secret
from agent_health.errors import InvalidSetting


@pytest.mark.parametrize(("mode", "warnings"), [(0o600, 0), (0o400, 0), (0o640, 1), (0o604, 1)])
def test_one_that_others_may_read_is_used_and_complained_of_once(
    mode: int, warnings: int, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "a token"
    file.write_text("\n  abc \n")
    file.chmod(mode)
    for _ in range(2):
        assert read_secret(file, "--token-file", "token") == "abc"
    told = capsys.readouterr().err
    expected = f"the token in {file} is open to others (mode {mode:04o}): chmod 600 '{file}'\n"
    assert told.count(expected) == told.count("\n") == warnings


def test_a_pipe_is_nobody_elses(capsys: pytest.CaptureFixture[str]) -> None:
    read, write = os.pipe()
    os.write(write, b"abc")
    os.close(write)
    assert read_secret(Path(f"/dev/fd/{read}"), "--key-file", "key") == "abc"
    os.close(read)
    # Whoever can open it has it already.
    assert capsys.readouterr().err == ""


def test_one_that_cannot_be_a_secret_is_refused(tmp_path: Path) -> None:
    large = tmp_path / "large"
    large.write_bytes(b"x" * (MAX_BYTES + 1))
    with pytest.raises(InvalidSetting, match=f"--key-file: expected a file of at most {MAX_BYTES} bytes"):
        read_secret(large, "--key-file", "key")
    with pytest.raises(InvalidSetting, match=r"--key-file: expected a readable file \(Is a directory\)"):
        read_secret(tmp_path, "--key-file", "key")
