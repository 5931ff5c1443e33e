"""Names in the package: unique classes, unique file names, small folders (docs/architecture.md)."""

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src/lifesign"
MAX_MODULES_PER_FOLDER = 25
MAX_LOOSE_MODULES = 3
MAY_RECUR = {"__init__.py", "errors.py", "models.py", "settings.py"}
"""File names that may occur more than once in one top-level package."""
MAY_BE_LARGE = {"storage/migrations/versions", "prober/directories"}
"""Folders with one module for each migration, and for each directory format."""

PRIVATE_WORDS = {
    "anew", "decree", "deed", "deeds", "nobody", "said", "sight", "sights", "standing", "standings",
    "tell", "telling", "tells", "told", "untold", "warden", "whoever",
}  # fmt: skip
"""Words of an earlier vocabulary; use operation, event, override, probe label, report, unreported."""

FILES = [path.relative_to(PACKAGE) for path in sorted(PACKAGE.rglob("*.py"))]


def repeated(places: dict[str, list[str]]) -> list[str]:
    return [f"{name}: {', '.join(where)}" for name, where in sorted(places.items()) if len(where) > 1]


def test_a_class_name_occurs_once_in_the_package() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path in FILES:
        text = (PACKAGE / path).read_text()
        for found in re.finditer(r"^[ ]*class (\w+)(?=[(:\[])", text, re.MULTILINE):
            line = 1 + text.count("\n", 0, found.start())
            places[found[1]].append(f"{path}:{line}")
    assert len(places) > 500
    assert repeated(places) == [], "a class name occurs once in the package"


@pytest.mark.parametrize("package", sorted({path.parts[0] for path in FILES if len(path.parts) > 1}))
def test_a_file_name_occurs_once_in_a_top_level_package(package: str) -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path in FILES:
        if path.parts[0] == package and path.name not in MAY_RECUR:
            places[path.name].append(str(path))
    assert repeated(places) == [], f"a file name occurs once in {package}/"


def test_a_folder_has_at_most_25_modules() -> None:
    modules: dict[str, int] = defaultdict(int)
    for path in FILES:
        if path.name != "__init__.py":
            modules[path.parent.as_posix()] += 1
    assert {
        folder: count
        for folder, count in modules.items()
        if count > MAX_MODULES_PER_FOLDER and folder not in MAY_BE_LARGE
    } == {}, f"a folder has at most {MAX_MODULES_PER_FOLDER} modules"


def test_at_most_3_modules_are_loose_in_the_package() -> None:
    loose = [path.name for path in FILES if len(path.parts) == 1]
    assert len(loose) <= MAX_LOOSE_MODULES, loose


def definitions(body: list[ast.stmt]) -> list[tuple[str, int]]:
    """Return the name and line of each class, function, constant and field; not of local variables."""
    found: list[tuple[str, int]] = []
    for node in body:
        if isinstance(node, ast.ClassDef):
            found += [(node.name, node.lineno), *definitions(node.body)]
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.append((node.name, node.lineno))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.append((node.target.id, node.lineno))
        elif isinstance(node, ast.Assign):
            found += [(target.id, node.lineno) for target in node.targets if isinstance(target, ast.Name)]
    return found


def words(name: str) -> set[str]:
    return set(re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name).lower().split("_"))


def test_words_of_a_name_are_split() -> None:
    assert words("_ToldOf_sightsSeen") == {"", "told", "of", "sights", "seen"}


def test_no_definition_has_a_word_of_the_private_vocabulary() -> None:
    found = [
        f"{path}:{line}: {name}"
        for path in FILES
        for name, line in definitions(ast.parse((PACKAGE / path).read_text()).body)
        if words(name) & PRIVATE_WORDS
    ]
    assert found == []
