from pathlib import Path

import pytest

from lifesign.cli.options.secret_file import read_secret


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
