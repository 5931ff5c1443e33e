"""The documents and the source tree agree."""

import ast
import re
import tomllib
from pathlib import Path

import pytest
from tools.syntax_tree import walked

REPOSITORY = Path(__file__).parents[1]
SOURCES = sorted((REPOSITORY / "src").rglob("*.py"))
DOCUMENTS = sorted([REPOSITORY / "README.md", *(REPOSITORY / "docs").rglob("*.md")])
# Spelled so that this file does not find itself.
UNFINISHED = re.compile(
    r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X|HA" + r"CK|TB" + r"D|NotImplemented" + r"Error)\b"
)


def name(path: Path) -> str:
    return str(path.relative_to(REPOSITORY))


def test_every_file_and_folder_of_the_architecture_page_exists() -> None:
    text = (REPOSITORY / "docs" / "architecture.md").read_text()
    package = REPOSITORY / "src" / "lifesign"
    folders, questions = text.split("## First questions")
    rows = re.findall(r"^\| `(\w+)/` \|(.*)\|$", folders, re.MULTILINE)
    assert {folder for folder, _ in rows} == {path.parent.name for path in package.glob("*/__init__.py")}
    inner = [(folder, name) for folder, row in rows for name in re.findall(r"`(\w+)/`", row)]
    assert [(folder, name) for folder, name in inner if not (package / folder / name).is_dir()] == []
    named = re.findall(r"`([\w/.-]+\.\w+)`", questions.split("Why things")[0])
    assert len(named) >= 20
    assert [
        path for path in named if not any((root / path).is_file() for root in (package, REPOSITORY))
    ] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_every_link_between_documents_leads_somewhere(document: Path) -> None:
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", document.read_text())
    assert [target for target in targets if not (document.parent / target).exists()] == []


def test_a_source_file_begins_with_a_docstring() -> None:
    assert len(SOURCES) > 500
    # A module says in its first line what it provides, where `grep` finds it.
    assert [name(source) for source in SOURCES if not re.match(r'"""[^"\s]', source.read_text())] == []


def test_only_the_http_package_makes_connections_of_aiohttp() -> None:
    made = re.compile(r"\b(?:ClientSession|TCPConnector|UnixConnector)\(|\baiohttp\.request\b")
    found = [name(path) for path in SOURCES if made.search(path.read_text())]
    assert [path for path in found if not path.startswith("src/lifesign/http_client/")] == []


def test_every_dependency_has_its_reason() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    groups = [
        project["project"]["dependencies"],
        *project["project"]["optional-dependencies"].values(),
        *project["dependency-groups"].values(),
    ]
    required = {re.split(r"[^\w-]", requirement)[0] for group in groups for requirement in group}
    result = "".join(path.read_text() for path in (REPOSITORY / "docs" / "decisions").glob("*.md")).lower()
    words = set(re.findall(r"[\w-]+", result))
    # Types come with what they describe; the A2A SDK is called by its name.
    plain = {name for name in required if not re.search(r"^types-|-stubs$", name)} - {"lifesign"}
    spelled = {"a2a-sdk": "sdk"}
    assert sorted(name for name in plain if spelled.get(name, name) not in words) == []


def test_nothing_is_marked_as_unfinished() -> None:
    files = [
        path
        for directory in ("src", "tests", "docs", "benchmarks", "schemas")
        for path in (REPOSITORY / directory).rglob("*")
        if path.suffix in {".py", ".md", ".json", ".toml"}
    ]
    files += [REPOSITORY / "README.md", REPOSITORY / "Makefile", REPOSITORY / "pyproject.toml"]
    found = [
        f"{name(path)}:{number}"
        for path in files
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if UNFINISHED.search(line)
    ]
    assert found == []


def test_each_skip_reason_says_not_run_or_not_tested() -> None:
    texts = {path: path.read_text() for path in (REPOSITORY / "tests").rglob("*.py")}
    reasons = [
        (f"{name(path)}:{call.lineno}", ast.unparse(reason))
        for path, text in texts.items()
        if re.search(r"\bpytest(\.mark)?\.skip", text)
        for call in walked(ast.parse(text))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
        if re.search(r"\bpytest(\.mark)?\.skip(if)?$", ast.unparse(call.func))
        for reason in [*call.args[-1:], *(keyword.value for keyword in call.keywords)][-1:]
    ]
    assert len(reasons) >= 30
    assert [where for where, reason in reasons if not re.match(r"f?[\"']NOT [A-Z]+\b", reason)] == []
