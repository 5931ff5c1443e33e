"""Pointers of a domain to its catalogs (ARD 0.91): `Agentmap:` in robots.txt, `<link rel="ard">` in a page.

A pointer may lead to another origin. Its document is requested as every other document of a directory.
"""

import re
from html.parser import HTMLParser
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


def agentmaps(body: bytes, url: str) -> tuple[str, ...]:
    """Return the URLs of catalogs that a robots.txt at `url` names, each once."""
    found = _AGENTMAP.findall(body[:MAX_POINTING_BYTES])
    return _usable([text.decode() for text in found], url)


def linked_catalogs(body: bytes, url: str) -> tuple[str, ...]:
    """Return the URLs of catalogs to which a page at `url` links, each once."""
    reader = _LinkReader()
    reader.feed(body[:MAX_POINTING_BYTES].decode(errors="replace"))
    return _usable(reader.targets, url)


class _LinkReader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.targets: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        is_catalog = tag == "link" and "ard" in (values.get("rel") or "").lower().split()
        if is_catalog and (target := values.get("href")):
            self.targets.append(target.strip())


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
