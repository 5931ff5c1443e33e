"""Metadata of the distribution, and the files that a source distribution includes."""

import re
import tomllib

from tests.support.repository import REPOSITORY, tracked_files

PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
ADDED_BY_THE_BUILD = {"pyproject.toml", ".gitignore", "PKG-INFO"}
"""hatchling adds these to every source distribution."""


def test_sdist_includes_everything_at_the_top_of_the_repository() -> None:
    included = {
        name.removeprefix("/") for name in PROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    }
    at_the_top = {file.relative_to(REPOSITORY).parts[0] for file in tracked_files()}
    assert {"tests", "docs", "CHANGELOG.md"} <= included
    assert included == at_the_top - ADDED_BY_THE_BUILD


def test_classifiers_name_the_versions_of_python_that_the_tests_run_on() -> None:
    named = set(re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["project"]["classifiers"])))
    tested = re.search(r"for version in ([\d. ]+);", (REPOSITORY / "Makefile").read_text())
    assert tested is not None
    assert named == set(tested[1].split())
    assert PROJECT["project"]["requires-python"] == f">={min(named, key=lambda name: int(name[2:]))}"


def test_changelog_has_a_section_of_unreleased_changes_first() -> None:
    titles = re.findall(r"^## (.+)$", (REPOSITORY / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert titles[0] == "[Unreleased]"
    released = [re.fullmatch(r"\[(\d+\.\d+\.\d+)\] - \d{4}-\d\d-\d\d", title) for title in titles[1:]]
    assert None not in released
