import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from lifesign.cli.doctor.check_result import ahead_s, of_the_clock, of_the_directory, of_the_mode


@pytest.mark.parametrize(
    ("free", "verdict", "summary"),
    [
        (52_400_000_000, "ok", "52.4 GB are free in "),
        (999_000_000, "warning", "999.0 MB are free in "),
        (7_340_000, "warning", "7.3 MB are free in "),
        (20_480, "fault", "20.5 kB are free in "),
        (0, "fault", "0 bytes are free in "),
    ],
)
def test_free_space_is_given_in_a_suitable_unit(
    free: int, verdict: str, summary: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _directory: SimpleNamespace(free=free))
    [finding] = of_the_directory(tmp_path, "database")
    assert (finding.about, finding.verdict) == ("disk", verdict)
    assert finding.summary.startswith(summary)


def test_directory_that_is_absent_or_read_only_is_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = tmp_path / "absent"
    [finding] = of_the_directory(absent, "database")
    assert (finding.about, finding.verdict, finding.advice) == ("database", "fault", f"mkdir -p {absent}")
    # The user of the tests may be root, who can write anywhere.
    monkeypatch.setattr(os, "access", lambda *_: False)
    findings = [*of_the_directory(tmp_path, "database")]
    assert [finding.about for finding in findings] == ["database", "disk"]
    assert findings[0].verdict == "fault"


@pytest.mark.parametrize(
    ("server_time_s", "ahead"), [(98.0, -2.0), (100.0, 0.0), (101.5, 0.0), (103.0, 0.0), (110.0, 7.0)]
)
def test_time_between_question_and_answer_is_no_difference(server_time_s: float, ahead: float) -> None:
    assert ahead_s(server_time_s, 100.0, 103.0) == ahead


@pytest.mark.parametrize(
    ("apart_s", "verdict", "side"),
    [
        (1.9, "ok", "agrees"),
        (-3.0, "warning", "behind"),
        (59.0, "warning", "ahead"),
        (-60.0, "fault", "behind"),
    ],
)
def test_difference_of_clocks_is_a_warning_and_a_large_one_a_fault(
    apart_s: float, verdict: str, side: str
) -> None:
    finding = of_the_clock("time", "the registry's clock", apart_s)
    assert finding.verdict == verdict
    assert side in finding.summary
    assert bool(finding.advice) is (verdict != "ok")


@pytest.mark.parametrize(("mode", "warnings"), [(0o600, 0), (0o640, 1), (0o604, 1), (None, 0)])
def test_file_of_secrets_that_others_may_read_is_a_warning(
    mode: int | None, warnings: int, tmp_path: Path
) -> None:
    file = tmp_path / "secrets.yml"
    if mode is not None:
        file.touch()
        file.chmod(mode)
    findings = [*of_the_mode(file, "definition")]
    assert [finding.advice for finding in findings] == [f"chmod 600 {file}"] * warnings
