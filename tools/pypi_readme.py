"""README and links as PyPI shows them, without the files of the repository.

With an address of the project, links and pictures lead there. Without one, links become text and pictures are
left out.
"""

import re
from typing import Final

_FENCE: Final = re.compile(r"(^ *```.*?^ *```$)", re.DOTALL | re.MULTILINE)
_LINK: Final = re.compile(r"(?P<picture>!?)\[(?P<text>[^\]]*)\]\((?!https?:|mailto:)(?P<target>[^)\s]+)\)")


def project_urls(url: str) -> dict[str, str]:
    """Return the links beside the description; none without an address."""
    if not url:
        return {}
    return {
        "Homepage": url,
        "Changelog": f"{url}/blob/HEAD/CHANGELOG.md",
        "Documentation": f"{url}/blob/HEAD/docs/index.md",
        "Issues": f"{url}/issues",
    }


def pypi_readme(text: str, url: str) -> str:
    """Return a README whose links and pictures need no file beside it."""

    def replaced(link: re.Match[str]) -> str:
        if not url or link["target"].startswith("#"):
            return "" if link["picture"] else link["text"]
        kind = "raw" if link["picture"] else "blob"
        return f"{link['picture']}[{link['text']}]({url}/{kind}/HEAD/{link['target']})"

    parts = _FENCE.split(text)
    return "".join(part if index % 2 else _LINK.sub(replaced, part) for index, part in enumerate(parts))
