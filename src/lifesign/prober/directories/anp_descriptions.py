"""Directory format of the Agent Network Protocol.

`/.well-known/agent-descriptions` is a page of descriptions, `{"@type": "CollectionPage", "items": […],
"next"}`; an agent's own `ad.json` lists only itself. These agents speak another protocol. They are skipped as
not A2A, unless a description names an A2A interface.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from lifesign.prober.directories.format_parser import (
    MAX_TOKEN_CHARS,
    DirectoryPage,
    Document,
    Entry,
    Kind,
    Listed,
    NotReadable,
    Skipped,
    first_text,
    is_object,
    most_fit,
)

MAX_INTERFACES: Final = 64
"""Maximum per agent."""
_DESCRIPTION: Final = "AgentDescription"
_INTERFACE_KEYS: Final = ("ad:interfaces", "interfaces")


class AnpDescriptions:
    """Format of the Agent Network Protocol (ANP): a page of agent descriptions, or a single one."""

    name = "anp"
    place = "/.well-known/agent-descriptions"

    def recognises(self, document: Document) -> bool:
        """Return whether a document is an ANP description, or a page of them."""
        value = document.value
        if not is_object(value):
            return False
        items = value.get("items")
        return _is_description(value) or (isinstance(items, list) and most_fit(items, _is_description))

    def read(self, document: Document) -> DirectoryPage:
        """Return the entries of a page, or of a single description."""
        value = document.value
        if _is_description(value):
            return DirectoryPage(entries=_entries([value]), items=1)
        items = value.get("items") if is_object(value) else None
        if not isinstance(items, list):
            raise NotReadable("expected an object with `items`, or one agent's description")
        following = value.get("next") or None
        if following is not None and not (isinstance(following, str) and len(following) <= MAX_TOKEN_CHARS):
            raise NotReadable(f"expected the next page's URL in `next`, at most {MAX_TOKEN_CHARS} characters")
        return DirectoryPage(entries=_entries(items), items=len(items), next_page=following)


def _is_description(value: object) -> bool:
    return is_object(value) and str(value.get("@type", "")).endswith(_DESCRIPTION)


def _entries(items: list[Any]) -> Iterator[Entry]:
    for item in items:
        if not is_object(item):
            yield Skipped("", "unreadable")
        elif urls := _a2a_urls(item):
            yield Listed(urls[0], first_text(item, ("name",)), Kind.A2A_ENDPOINT)
        else:
            yield Skipped(first_text(item, ("@id", "name")) or "", "not_a2a")


def _a2a_urls(item: Mapping[str, Any]) -> list[str]:
    lists = [item[key] for key in _INTERFACE_KEYS if isinstance(item.get(key), list)]
    return [
        url
        for interface in (lists[0][:MAX_INTERFACES] if lists else ())
        if is_object(interface) and (first_text(interface, ("protocol",)) or "").upper() == "A2A"
        if (url := first_text(interface, ("url",)))
    ]
