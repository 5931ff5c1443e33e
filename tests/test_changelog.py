"""A change of a stable interface has an entry under Unreleased in CHANGELOG.md."""

import subprocess
from pathlib import Path

import pytest
from tests.support.repository import git
from tools.changelog_check import CHANGELOG, INTERFACES, CannotCheck, unlogged_changes

API, NAMES = INTERFACES
TEXT = "# Changelog\n\n## [Unreleased]\n\n### Added\n{added}\n## [0.1.0] - 2027-01-01\n{released}"


def test_changes_of_this_repository_are_in_its_changelog() -> None:
    try:
        changed = unlogged_changes()
    except CannotCheck as error:
        pytest.skip(f"NOT CHECKED: {error}")
    assert changed == [], f"add an entry under Unreleased in {CHANGELOG}"


class Checkout:
    """A git repository with a changelog and the interfaces."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / API).parent.mkdir(parents=True)
        self.write(API, "1")
        self.write(NAMES, "a")
        self.log("one")
        self.git("init", "--quiet", "--initial-branch=main")
        self.commit()

    def git(self, *arguments: str) -> str:
        author = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        return git(*author, *arguments, repository=self.path)

    def write(self, name: str, text: str) -> None:
        (self.path / name).write_text(text)

    def log(self, *added: str, released: str = "") -> None:
        entries = "".join(f"* {entry}\n" for entry in added)
        self.write(CHANGELOG, TEXT.format(added=entries, released=released))

    def commit(self) -> None:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message=change")

    def unlogged(self) -> list[str]:
        return unlogged_changes(self.path)


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path / "checkout")


@pytest.mark.parametrize("interface", INTERFACES)
def test_change_without_an_entry_is_found(checkout: Checkout, interface: str) -> None:
    assert checkout.unlogged() == []
    checkout.write(interface, "2")
    assert checkout.unlogged() == [interface]
    checkout.commit()
    assert checkout.unlogged() == [interface]
    checkout.write("other", "x")
    checkout.commit()
    assert checkout.unlogged() == [interface]


def test_changelog_entry_removes_the_finding_before_and_after_its_commit(checkout: Checkout) -> None:
    checkout.write(API, "2")
    checkout.commit()
    checkout.log("one", "two")
    assert checkout.unlogged() == []
    checkout.commit()
    assert checkout.unlogged() == []
    checkout.write(NAMES, "b")
    assert checkout.unlogged() == [NAMES]


def test_line_outside_of_unreleased_is_no_entry(checkout: Checkout) -> None:
    checkout.write(API, "2")
    checkout.log("one", released="* corrected\n")
    checkout.commit()
    assert checkout.unlogged() == [API]


def test_change_that_is_undone_needs_no_entry(checkout: Checkout) -> None:
    checkout.write(API, "2")
    checkout.commit()
    checkout.git("revert", "--no-edit", "HEAD")
    assert checkout.unlogged() == []


def test_release_empties_the_section_and_the_next_change_needs_an_entry(checkout: Checkout) -> None:
    checkout.log(released="* one\n")
    checkout.commit()
    assert checkout.unlogged() == []
    checkout.write(API, "2")
    assert checkout.unlogged() == [API]


def test_merge_of_two_changes_with_entries_passes(checkout: Checkout) -> None:
    checkout.write(".gitattributes", f"{CHANGELOG} merge=union\n")
    checkout.commit()
    checkout.git("checkout", "--quiet", "-b", "branch")
    checkout.write(NAMES, "b")
    checkout.log("one", "names")
    checkout.commit()
    checkout.git("checkout", "--quiet", "main")
    checkout.write(API, "2")
    checkout.log("one", "API")
    checkout.commit()
    checkout.git("merge", "--quiet", "branch")
    assert {"* names", "* API"} <= set((checkout.path / CHANGELOG).read_text().splitlines())
    assert checkout.unlogged() == []


def test_shallow_clone_and_unpacked_sdist_cannot_be_checked(checkout: Checkout, tmp_path: Path) -> None:
    checkout.write(API, "2")
    checkout.commit()
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", "--depth=1", checkout.path.as_uri(), clone], check=True)
    with pytest.raises(CannotCheck):
        unlogged_changes(clone)
    (clone / ".git").rename(tmp_path / "git")
    with pytest.raises(CannotCheck):
        unlogged_changes(clone)
