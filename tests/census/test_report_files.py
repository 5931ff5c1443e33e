"""Files of a census."""

import secrets
from pathlib import Path

import pytest
from tests.support.census_facts import facts

from lifesign.census.report import compute_census
from lifesign.census.report_files import FILE_NAME, FORMS, TARGETS_NAME, write_report
from lifesign.domain.models.targets import TargetList


class NoTargets:
    """Targets of an empty registry."""

    async def list(self, **_query: object) -> TargetList:
        return TargetList(targets=[], total=0)


async def test_report_replaces_links_and_does_not_follow_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim, directory = tmp_path / "victim", tmp_path / "site"
    victim.write_text("private")
    directory.mkdir()
    (directory / "census.md").symlink_to(victim)
    files = await write_report(compute_census(facts()), NoTargets(), directory)
    assert not any(file.is_symlink() for file in files)
    assert [file.name for file in files] == [*(f"{FILE_NAME}.{suffix}" for suffix in FORMS), TARGETS_NAME]
    monkeypatch.setattr(secrets, "token_hex", lambda _size: "known")
    (directory / ".census.md.known").symlink_to(victim)
    with pytest.raises(FileExistsError):
        await write_report(compute_census(facts()), NoTargets(), directory)
    assert victim.read_text() == "private"
