"""The key of a command that asks the registry."""

from pathlib import Path

import pytest

from lifesign.cli.options.registry_access import read_key
from lifesign.client.environment_variables import KEY_VARIABLE
from lifesign.errors import InvalidValue


def test_key_of_a_file_comes_before_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "of-the-environment")
    file = tmp_path / "key"
    file.write_text("of-the-file\n")
    file.chmod(0o600)
    assert read_key(file) == "of-the-file"
    assert read_key(None) == "of-the-environment"


def test_invalid_key_is_refused_with_its_place_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "key"
    file.write_text("two words")
    file.chmod(0o600)
    with pytest.raises(InvalidValue) as of_a_file:
        read_key(file)
    monkeypatch.setenv(KEY_VARIABLE, "two words")
    with pytest.raises(InvalidValue) as of_the_environment:
        read_key(None)
    assert str(of_a_file.value).startswith(f"--key-file {file}: ")
    assert str(of_the_environment.value).startswith(f"${KEY_VARIABLE}: ")
    assert "two words" not in f"{of_a_file.value}{of_the_environment.value}"


def test_absent_key_is_refused_with_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    with pytest.raises(InvalidValue) as refused:
        read_key(None)
    assert refused.value.hint
