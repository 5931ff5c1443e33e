"""Directory documents and the targets read from them."""

import json
from typing import Any

from lifesign.prober.directories.format_parser import (
    DirectoryPage,
    Document,
    Format,
    Kind,
    Listed,
    Skipped,
)

URL = "https://directory.example/list"


def document(content: Any, content_type: str = "", url: str = URL) -> Document:
    """Return a document: bytes and text as they are, all else as JSON."""
    if isinstance(content, str):
        content = content.encode()
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    return Document(body, content_type, url)


def read(one: Format, content: Any, content_type: str = "") -> DirectoryPage:
    """Take a document apart that the format recognises, with its entries as a list."""
    made = document(content, content_type)
    assert one.recognises(made), content
    page = one.read(made)
    return DirectoryPage(
        entries=list(page.entries),
        items=page.items,
        total=page.total,
        next_page=page.next_page,
        nested=page.nested,
    )


def listed(page: DirectoryPage) -> list[tuple[str, str | None, Kind]]:
    """Return the entries of a page: URL, name, kind."""
    return [(entry.url, entry.name, entry.kind) for entry in page.entries if isinstance(entry, Listed)]


def skipped(page: DirectoryPage) -> list[tuple[str, str]]:
    """Return the skipped entries of a page, with their reasons."""
    return [(entry.what, entry.reason) for entry in page.entries if isinstance(entry, Skipped)]
