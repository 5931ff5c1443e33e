from pathlib import Path

import pytest

from lifesign.cli.options.json_file import MAX_FILE_BYTES, object_in
from lifesign.errors import InvalidValue


def test_object_of_a_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "input.json"
    file.write_text('{\n  "page": 1\n}\n')
    assert object_in(file, "--input") == {"page": 1}
    file.write_text('{"a": "' + "x" * (MAX_FILE_BYTES - 9) + '"}')
    assert len(object_in(file, "--input")["a"]) == MAX_FILE_BYTES - 9


TOO_DEEP = '{"a":' * 100_000
TOO_LONG = '{"a": "' + "x" * (MAX_FILE_BYTES - 8) + '"}'


@pytest.mark.parametrize(
    "text", ["", "[1]", "1", "{", "{'a': 1}", "\udcff", TOO_DEEP, TOO_LONG], ids=lambda text: ascii(text[:8])
)
def test_invalid_json_file_is_refused_with_option_and_path(text: str, tmp_path: Path) -> None:
    file = tmp_path / "input.json"
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(InvalidValue) as refused:
        object_in(file, "--input")
    assert str(refused.value).startswith("--input")
    assert str(file) in str(refused.value)


def test_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="No such file"):
        object_in(tmp_path / "absent.json", "--output")
