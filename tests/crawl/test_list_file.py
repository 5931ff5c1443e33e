import os
import time
from pathlib import Path

import pytest

from lifesign.crawl.list_file import QUIET_S, UNENDED_QUIET_S, unsettled_for_s


def aged(file: Path, content: bytes, age_s: float) -> Path:
    file.write_bytes(content)
    os.utime(file, (time.time() - age_s,) * 2)
    return file


@pytest.mark.parametrize(
    ("content", "quiet_s"),
    [
        (b"a.example\n", QUIET_S),
        (b'["a.example"]', QUIET_S),
        ("\ufeffa.example\n".encode("utf-16-le"), QUIET_S),
        (b"a.example\nb.exa", UNENDED_QUIET_S),
    ],
)
def test_changed_file_counts_as_complete_after_some_time(
    content: bytes, quiet_s: float, tmp_path: Path
) -> None:
    file = aged(tmp_path / "list.txt", content, 3)
    assert unsettled_for_s(file) == pytest.approx(quiet_s - 3, abs=2)
    assert unsettled_for_s(aged(file, content, quiet_s + 1)) == 0


def test_file_of_another_clock_counts_as_complete(tmp_path: Path) -> None:
    assert unsettled_for_s(aged(tmp_path / "list.txt", b"a.example\n", -60)) == 0


def test_missing_file_is_left_to_its_reader(tmp_path: Path) -> None:
    assert unsettled_for_s(tmp_path / "absent") == 0
