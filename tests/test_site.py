"""The site is complete and needs nothing from other hosts."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
DOCS = REPOSITORY / "docs"
pytestmark = pytest.mark.long
# URLs that a browser fetches by itself; a person follows links.
FETCHED = re.compile(
    r"<(?:script|img|iframe|source|embed)\b[^>]*\bsrc=[\"'](?:https?:)?//"
    r"|<link\b[^>]*\bhref=[\"'](?:https?:)?//"
    r"|@import\s|url\([\"']?(?:https?:)?//"
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if importlib.util.find_spec("sphinx") is None:
        pytest.skip("NOT BUILT: Sphinx is absent; `make docs` installs it")
    made = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-n", "-W", "--keep-going", "-j", "auto"]
    ended = subprocess.run(
        [*command, "-c", str(DOCS / "site"), "-d", str(made / "trees"), str(DOCS), str(made / "html")],
        capture_output=True,
        text=True,
        check=False,
    )
    # A warning is a link that leads nowhere, or a page without a place.
    assert (ended.returncode, ended.stderr) == (0, "")
    return made / "html"


def test_site_search_fetches_no_page(site: Path) -> None:
    """Browsers refuse that where the site is opened as files."""
    assert "SHOW_SEARCH_SUMMARY: false" in (site / "_static" / "documentation_options.js").read_text()


def test_site_contains_each_page_of_the_docs(site: Path) -> None:
    found = {path.relative_to(DOCS) for path in DOCS.rglob("*.md")}
    assert {path for path in found if path.parts[0] != "monitoring"} <= {
        page.relative_to(site).with_suffix(".md") for page in site.rglob("*.html")
    }


def test_site_pages_load_nothing_from_other_origins(site: Path) -> None:
    files = [*site.rglob("*.html"), *(site / "_static").rglob("*.css")]
    assert len(files) > 40
    assert [str(file.relative_to(site)) for file in files if FETCHED.search(file.read_text())] == []
    assert FETCHED.search('<script src="https://elsewhere.example/x.js">')
    assert not FETCHED.search('<a href="https://elsewhere.example/">')


def test_every_link_has_a_target(site: Path) -> None:
    links = re.compile(r'href="([^"#:?]+)(?:#[^"]*)?"')
    assert [
        f"{page.relative_to(site)}: {target}"
        for page in site.rglob("*.html")
        for target in links.findall(page.read_text())
        if not (page.parent / target).exists()
    ] == []


def test_long_names_in_tables_break_at_underscores_and_options_do_not_break(site: Path) -> None:
    page = (site / "configuration.html").read_text()
    cell = re.search(r"<td>(?:(?!</td>).)*LIFESIGN_(?:(?!</td>).)*TLS_(?:(?!</td>).)*</td>", page, re.DOTALL)
    assert cell is not None
    pieces = cell[0].split("<wbr>")
    assert [re.sub(r"<[^>]*>", "", piece) for piece in pieces] == [
        "LIFESIGN_",
        "SERVER_",
        "TLS_",
        "CERTIFICATE",
    ]
    assert "<wbr>" not in re.sub(r"<t[dh]\b.*?</t[dh]>", "", page, flags=re.DOTALL)
    assert "<td><p>--json</p></td>" in (site / "reference" / "cli.html").read_text()
