from pathlib import Path

import pytest

from lifesign.cli.options.secret_file import new_key_file, read_secret
from lifesign.errors import InvalidValue


@pytest.mark.parametrize(("mode", "warnings"), [(0o600, 0), (0o400, 0), (0o640, 1), (0o604, 1)])
def test_readable_secret_file_is_warned_about_once(
    mode: int, warnings: int, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "a token"
    file.write_text("\n  abc \n")
    file.chmod(mode)
    for _ in range(2):
        assert read_secret(file, "--token-file", "token") == "abc"
    output = capsys.readouterr().err
    expected = f"(mode {mode:04o}): chmod 600 '{file}'\n"
    assert output.count(expected) == output.count("\n") == warnings


def test_new_key_is_written_to_a_file_of_its_owner(tmp_path: Path) -> None:
    file = tmp_path / "own.key"
    with new_key_file(file) as keep:
        assert keep is not None
        keep("a-key")
    assert file.read_text() == "a-key\n"
    assert file.stat().st_mode & 0o777 == 0o600


def test_file_is_removed_if_no_key_was_created(tmp_path: Path) -> None:
    file = tmp_path / "own.key"
    with pytest.raises(RuntimeError, match="refused"), new_key_file(file):
        raise RuntimeError("refused")
    assert not file.exists()


def test_without_a_file_the_key_goes_to_the_terminal() -> None:
    with new_key_file(None) as keep:
        assert keep is None


@pytest.mark.parametrize(("name", "has_hint"), [("own.key", True), ("absent/own.key", False)])
def test_existing_file_and_absent_directory_are_refused(name: str, *, has_hint: bool, tmp_path: Path) -> None:
    (tmp_path / "own.key").write_text("another key")
    with pytest.raises(InvalidValue) as refused, new_key_file(tmp_path / name):
        pass
    assert refused.value.name == "--write-key"
    assert bool(refused.value.hint) is has_hint
    assert (tmp_path / "own.key").read_text() == "another key"
