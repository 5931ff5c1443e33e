import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from lifesign.cli.doctor.check_result import of_the_directory


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
