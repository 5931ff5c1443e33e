"""How is the site made of these pages? `make docs` writes it to build/docs, and nothing is fetched."""

from pathlib import Path

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

DOCS = Path(__file__).parents[1]

project = "agent-health"
html_title = "agent-health"
extensions = ["myst_parser"]
exclude_patterns = ["site", "examples", "monitoring/**"]
myst_heading_anchors = 4
# Only what has // in it leads out: `io.github.agent-health:x` is no address.
myst_url_schemes = ["http", "https", "mailto"]
html_theme = "furo"
html_show_sphinx = False
html_show_copyright = False
html_show_sourcelink = False
html_copy_source = False
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


def setup(app: Sphinx) -> None:
    """Show diagrams as the text that they are: drawing them would need a script."""
    app.add_lexer("mermaid", TextLexer)
    app.connect("source-read", place_the_rest)


def place_the_rest(_app: Sphinx, name: str, text: list[str]) -> None:
    """Give a page that index.md does not name its place among those about operating."""
    if name == "index":
        named = set(text[0].split())
        rest = [path.stem for path in sorted(DOCS.glob("*.md")) if path.stem not in {*named, "index"}]
        text[0] = text[0].replace(PLACE, PLACE + "".join(f"{page}\n" for page in rest))
