"""The pairs of a source file and its test files.

`a/b.py` is tested by `tests/a/test_b.py`, and by `tests/a/test_b_*.py` where one file would be too long.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).parents[2]
PACKAGE: Final = REPOSITORY / "src" / "lifesign"
TESTS: Final = REPOSITORY / "tests"
EXCEPTIONS: Final = TESTS / "mirror_exceptions.txt"
OTHER_TESTS: Final = frozenset({"fleet", "journeys", "support"})
"""Folders of tests that mirror no source file."""
DECLARATIONS: Final = (
    "errors.py",
    "domain/models/*.py",
    "domain/events/*_payloads.py",
    "middleware/observer.py",
    "middleware/published_document.py",
)
"""Source files without decisions of their own: what uses them tests them."""


def sources() -> list[Path]:
    """Return the source files, relative to the package; steps of the database aside."""
    left_out = {"__init__.py", "__main__.py"}
    return sorted(
        file.relative_to(PACKAGE)
        for file in PACKAGE.rglob("*.py")
        if file.name not in left_out and not file.is_relative_to(PACKAGE / "storage" / "migrations")
    )


def is_declaration(source: Path) -> bool:
    """Return whether a source file needs no test file."""
    return any(source.match(pattern) for pattern in DECLARATIONS)


def mirror_files() -> list[Path]:
    """Return the test files that must mirror a source file, relative to tests/."""
    found = (file.relative_to(TESTS) for file in TESTS.rglob("test_*.py"))
    return sorted(
        file
        for file in found
        if (file.parts[0] not in OTHER_TESTS if len(file.parts) > 1 else _has_source(file))
    )


def _has_source(file: Path) -> bool:
    """Return whether a test file directly in tests/ mirrors a source file: most test the whole project."""
    return (PACKAGE / file.name.removeprefix("test_")).exists()


def mirrored() -> Mapping[Path, list[Path]]:
    """Return the test files of each source file."""
    by_folder: dict[Path, list[Path]] = {}
    for file in mirror_files():
        by_folder.setdefault(file.parent, []).append(file)
    return {
        source: [
            file
            for file in by_folder.get(source.parent, [])
            if file.stem == f"test_{source.stem}" or file.stem.startswith(f"test_{source.stem}_")
        ]
        for source in sources()
    }


def exceptions() -> list[str]:
    """Return the source files without a test file, and the test files without a source file."""
    return EXCEPTIONS.read_text().split()
