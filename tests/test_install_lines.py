"""Install lines name what `pip install` takes now. After a change: `make schemas`."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tools.install_lines import REPOSITORY, pages, rewritten

from lifesign.domain.common import project
from lifesign.domain.common.project import install_command, install_hint

PAGES = list(pages())
OURS = re.compile(r"pip install (?:[^#`\n]*[' ])?(\.|lifesign)(?=\[|\s|$)", re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_install_lines_of_a_page_name_the_current_distribution(page: Path) -> None:
    text = page.read_text()
    assert rewritten(text) == text
    assert set(OURS.findall(text)) <= {project.DISTRIBUTION}


def test_release_switches_all_pages() -> None:
    before = [page.read_text() for page in PAGES]
    after = [rewritten(text, "lifesign") for text in before]
    assert sum(len(OURS.findall(text)) for text in before) >= 25
    assert {name for text in after for name in OURS.findall(text)} == {"lifesign"}
    assert "pip install 'lifesign[all]'\n" in after[0]
    assert not [text for text in after if "# in a checkout" in text or "'.[" in text]
    assert [rewritten(text, "lifesign") for text in after] == after


def test_messages_name_the_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(project, "DISTRIBUTION", ".")
    assert install_command("client", "agent") == "pip install '.[client,agent]'"
    assert install_hint("client").endswith("checkout of lifesign")
    monkeypatch.setattr(project, "DISTRIBUTION", "lifesign")
    assert install_command() == "pip install lifesign"
    assert install_hint("client") == "run pip install 'lifesign[client]'"


@pytest.mark.parametrize(("package", "name"), [("client", "fetch_health"), ("agent", "run_agent")])
def test_import_without_the_extra_names_it(package: str, name: str) -> None:
    without = f"import sys; sys.modules['aiohttp'] = None; from lifesign.{package} import {name}"
    ended = subprocess.run([sys.executable, "-c", without], capture_output=True, text=True, check=False)
    *_, problem, hint = ended.stderr.splitlines()
    assert problem.startswith("ModuleNotFoundError: ")
    assert hint == f"hint: {install_hint(package)}"


def test_no_source_file_has_an_install_line_of_its_own() -> None:
    sources = (REPOSITORY / "src").rglob("*.*")
    found = [
        path.name
        for path in sources
        if path.suffix in {".py", ".html", ".jinja"} and OURS.search(path.read_text())
    ]
    assert found == []
