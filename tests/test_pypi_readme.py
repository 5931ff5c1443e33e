"""README on PyPI, with and without an address of the project."""

import re

import pytest
from tests.support.repository import REPOSITORY
from tools.pypi_readme import project_urls, pypi_readme

README = (REPOSITORY / "README.md").read_text()
URL = "https://project.example/lifesign"
LINK = re.compile(r"\]\(([^)]*)\)")


def test_readme_without_a_project_url_has_no_file_links_and_pictures() -> None:
    text = pypi_readme(README, "")
    assert [target for target in LINK.findall(text) if not target.startswith("https://")] == []
    assert "![" not in text
    assert "docs/dashboard.png" not in text
    assert project_urls("") == {}


def test_readme_with_a_project_url_links_files_and_pictures_there() -> None:
    text = pypi_readme(README, URL)
    targets = LINK.findall(text)
    assert len(targets) == len(LINK.findall(README)) >= 40
    assert f"{URL}/raw/HEAD/docs/dashboard.png" in targets
    assert f"{URL}/blob/HEAD/docs/operating.md" in targets
    files = [target.removeprefix(f"{URL}/") for target in targets if target.startswith(URL)]
    assert len(files) == len(targets) - sum(target.startswith("https://") for target in LINK.findall(README))
    paths = [file.split("/", 2)[2].partition("#")[0] for file in files]
    assert [path for path in paths if not (REPOSITORY / path).exists()] == []
    assert all(link.startswith(URL) for link in project_urls(URL).values())


@pytest.mark.parametrize(
    ("text", "without", "with_url"),
    [
        ("[a](b.md)", "a", f"[a]({URL}/blob/HEAD/b.md)"),
        ("![a\nb](c.png)", "", f"![a\nb]({URL}/raw/HEAD/c.png)"),
        ("[a](#b)", "a", "a"),
        ("[a](https://x.example)", "[a](https://x.example)", "[a](https://x.example)"),
        ("```\n[a](b.md)\n```\n", "```\n[a](b.md)\n```\n", "```\n[a](b.md)\n```\n"),
    ],
)
def test_links_outside_of_code_are_replaced(text: str, without: str, with_url: str) -> None:
    assert (pypi_readme(text, ""), pypi_readme(text, URL)) == (without, with_url)
