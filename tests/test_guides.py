"""Guides show the examples that are run."""

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
EXAMPLES = REPOSITORY / "docs" / "examples"
GUIDES = sorted((REPOSITORY / "docs" / "guides").glob("*.md"))


def example_of(guide: Path) -> Path:
    """The file that a guide shows, by its first link to an example."""
    found = re.search(r"\[`(docs/examples/[\w/]+\.py)`\]", guide.read_text())
    assert found, guide.name
    return REPOSITORY / found[1]


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.stem)
def test_guide_shows_its_example_unchanged(guide: Path) -> None:
    (shown,) = re.findall(r"^```python\n(.*?)^```", guide.read_text(), re.MULTILINE | re.DOTALL)
    assert shown == example_of(guide).read_text()


def test_every_example_is_in_one_guide() -> None:
    shown = [example_of(guide) for guide in GUIDES]
    assert len(set(shown)) == len(shown)
    documents = [REPOSITORY / "README.md", *(REPOSITORY / "docs").rglob("*.md"), REPOSITORY / "Makefile"]
    # Or it is a part of a demo.
    text = "".join(path.read_text() for path in [*documents, *EXAMPLES.glob("*demo.py")])
    examples = sorted(EXAMPLES.rglob("*.py"))
    assert [path.name for path in examples if not re.search(rf"\b{path.stem}\b", text)] == []


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.stem)
def test_guide_shows_the_run_command_and_its_output(guide: Path) -> None:
    text = guide.read_text()
    example = example_of(guide)
    run = {f"uvicorn --app-dir {example.parent.relative_to(REPOSITORY)} {example.stem}:app"}
    run.add(f"python {example.relative_to(REPOSITORY)}")
    assert any(command in text for command in run)
    assert re.search(r"^```console\n\$ .+\n(?:.*\n)*?.*(?:0\.95)", text, re.MULTILINE)
