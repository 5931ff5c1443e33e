"""Check that a change of a stable interface has an entry under Unreleased in CHANGELOG.md.

The rule: the files of INTERFACES are the same as in the last commit that added or removed a line under
Unreleased. Lines that are not committed count too. `tests/test_changelog.py` runs the check.
"""

import re
import sys
from pathlib import Path
from typing import Final

from tests.support.repository import REPOSITORY, git

INTERFACES: Final = ("schemas/openapi.json", "schemas/public_names.txt")
CHANGELOG: Final = "CHANGELOG.md"


class CannotCheck(Exception):
    """The history that the check compares with is absent."""


def unlogged_changes(repository: Path = REPOSITORY) -> list[str]:
    """Return the interfaces that changed since the last entry; CannotCheck without the history."""
    if not (repository / ".git").exists():
        raise CannotCheck(f"{repository} is no git checkout")
    if _unreleased((repository / CHANGELOG).read_text()) != _unreleased_in("HEAD", repository):
        return []
    logged = _last_entry(repository)
    return git("diff", "--name-only", logged, "--", *INTERFACES, repository=repository).split()


def _last_entry(repository: Path) -> str:
    """Return the last commit that added or removed a line under Unreleased."""
    shallow = git("rev-parse", "--is-shallow-repository", repository=repository).strip() == "true"
    for line in git("log", "--format=%H %P", "--", CHANGELOG, repository=repository).splitlines():
        commit, *parents = line.split()
        if not parents and shallow:
            break
        before = _unreleased_in(parents[0], repository) if parents else set()
        if before != _unreleased_in(commit, repository):
            return commit
    raise CannotCheck("the clone is shallow: run git fetch --unshallow")


def _unreleased_in(commit: str, repository: Path) -> set[str]:
    if not git("ls-tree", commit, "--", CHANGELOG, repository=repository):
        return set()
    return _unreleased(git("show", f"{commit}:{CHANGELOG}", repository=repository))


def _unreleased(changelog: str) -> set[str]:
    """Return the lines of the section Unreleased; their order does not count."""
    section = re.search(r"^## \[Unreleased\]\n(.*?)(?=^## |\Z)", changelog, re.DOTALL | re.MULTILINE)
    return set() if section is None else {line.strip() for line in section[1].splitlines()} - {""}


def main() -> int:
    """Print the interfaces without an entry; return 1 if there is one."""
    try:
        changed = unlogged_changes()
    except CannotCheck as error:
        sys.stderr.write(f"NOT CHECKED: {error}\n")
        return 0
    for name in changed:
        print(f"{name} changed without an entry under Unreleased in {CHANGELOG}")
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
