"""How is the site made of these pages? `make docs` writes it to build/docs, and nothing is fetched."""

import re
from pathlib import Path

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

DOCS = Path(__file__).parents[1]

project = "lifesign"
html_title = "lifesign"
extensions = ["myst_parser"]
exclude_patterns = ["site", "examples", "monitoring/**"]
myst_heading_anchors = 4
# Only what has // in it leads out: `io.github.lifesign:x` is no address.
myst_url_schemes = ["http", "https", "mailto"]
# Or `--json` were shown with one long dash, and names of values in quotes that no shell takes.
smartquotes = False
html_theme = "furo"
html_show_sphinx = False
html_show_copyright = False
html_show_sourcelink = False
html_copy_source = False
# They are fetched from the pages, which a browser refuses where the site is opened as files.
html_show_search_summary = False
html_static_path = ["static"]
html_css_files = ["tables.css"]
# Letters that the reader's own machine has.
html_theme_options = {
    "light_css_variables": {
        "font-stack": "system-ui, sans-serif",
        "font-stack--monospace": "ui-monospace, monospace",
    },
}


PLACE = ":caption: Operating\n\n"
CELL = re.compile(r"<t[dh]\b.*?</t[dh]>", re.DOTALL)
WORD = re.compile(r'<span class="pre">([^<]+)</span>')
JOINTS = re.compile(r"(?<=\w[_/(=,])|(?<=::)|(?<=://)|(?<=///)")
"""Where a name may be broken, between two of its words."""
LONG_JOINTS = re.compile(r"(?<=\w[.-])")
"""And where what is longer than this."""
LONG_CHARACTERS = 16


def setup(app: Sphinx) -> None:
    """Show diagrams as the text that they are: drawing them would need a script."""
    app.add_lexer("mermaid", TextLexer)
    # Pygments has no lexer for it.
    app.add_lexer("haproxy", TextLexer)
    app.connect("source-read", place_the_rest)
    app.connect("html-page-context", break_between_words)


def place_the_rest(_app: Sphinx, name: str, text: list[str]) -> None:
    """Give a page that index.md does not name its place among those about operating."""
    if name == "index":
        named = set(text[0].split())
        rest = [path.stem for path in sorted(DOCS.glob("*.md")) if path.stem not in {*named, "index"}]
        text[0] = text[0].replace(PLACE, PLACE + "".join(f"{page}\n" for page in rest))


def break_between_words(
    _app: Sphinx, _page: str, _template: str, context: dict[str, object], _tree: object
) -> None:
    """Let names in tables break between their words, and nowhere else; see static/tables.css."""
    body = context.get("body")
    if isinstance(body, str):
        context["body"] = CELL.sub(lambda cell: WORD.sub(_in_pieces, cell[0]), body)


def _in_pieces(word: re.Match[str]) -> str:
    pieces = [
        piece
        for whole in JOINTS.split(word[1])
        for piece in (LONG_JOINTS.split(whole) if len(whole) > LONG_CHARACTERS else [whole])
    ]
    return "<wbr>".join(f'<span class="pre">{piece}</span>' for piece in pieces if piece)
