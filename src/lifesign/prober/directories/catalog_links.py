"""Pointers of a domain to its catalogs (ARD 0.91): `Agentmap:` in robots.txt, `<link rel="ard">` in a page.

A pointer may lead to another origin. Its document is requested as every other document of a directory.
"""

import re
from html import unescape
from typing import Final
from urllib.parse import urljoin

from lifesign.domain.net.allowed_addresses import MAX_URL_CHARACTERS, AddressRefused
from lifesign.domain.targets.target import read_target

ROBOTS_PATH: Final = "/robots.txt"
MAX_POINTERS: Final = 8
"""Pointers of one document that are followed."""
MAX_POINTING_BYTES: Final = 512_000
"""Beginning of a document in which pointers are searched for; also the largest robots.txt (RFC 9309 2.5)."""

_AGENTMAP: Final = re.compile(rb"^[ \t]*+agentmap[ \t]*+:[ \t]*+([!-~]++)", re.IGNORECASE | re.MULTILINE)
# html.parser takes quadratic time and raises AssertionError for some bytes.
_LINK: Final = re.compile(r"<!--.*?(?:-->|\Z)|<link(?=[\s/])([^<>]*+)>", re.IGNORECASE | re.DOTALL)
_ATTRIBUTE: Final = re.compile(
    r"""(?<![^\s/"'])(rel|href)\s*+=\s*+(?:"([^"]*+)"|'([^']*+)'|([^\s"']++))""", re.IGNORECASE
)


def agentmaps(body: bytes, url: str) -> tuple[str, ...]:
    """Return the URLs of catalogs that the robots.txt at `url` names, each once."""
    found = _AGENTMAP.findall(body[:MAX_POINTING_BYTES])
    return _usable([text.decode() for text in found], url)


def linked_catalogs(body: bytes, url: str) -> tuple[str, ...]:
    """Return the URLs of catalogs to which a page at `url` links, each once."""
    page = body[:MAX_POINTING_BYTES].decode(errors="replace")
    links = [_attributes(found) for found in _LINK.findall(page)]
    return _usable([link["href"] for link in links if "ard" in link["rel"].lower().split()], url)


def _attributes(text: str) -> dict[str, str]:
    """Return `rel` and `href` of a link, each the first one, unquoted; empty if absent or too long."""
    found = {"rel": "", "href": ""}
    for name, *values in reversed(_ATTRIBUTE.findall(text)):
        value = "".join(values)
        found[name.lower()] = unescape(value).strip() if len(value) <= MAX_URL_CHARACTERS else ""
    return found


def _usable(texts: list[str], url: str) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for text in texts:
        if len(found) == MAX_POINTERS:
            break
        try:
            target = read_target(urljoin(url, text)) if 0 < len(text) <= MAX_URL_CHARACTERS else None
        except ValueError:
            continue
        if target is not None and not isinstance(target, AddressRefused):
            found[target] = None
    return tuple(found)
