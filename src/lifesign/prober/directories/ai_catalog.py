"""Directory formats AI Catalog and ARD 0.91.

A catalog is `{"specVersion", "entries": […]}`, a page of ARD's `GET /agents` `{"items": […], "total",
"pageToken"}`. A catalog is at `/.well-known/ard.json`, before ARD 0.91 at `/.well-known/ai-catalog.json`. The
media type of an entry (`mediaType`, in ARD `type`) names its kind; the entry has either a URL (`url`) or the
content itself (`data`). Catalogs may contain catalogs. Registries in a catalog are reported and not followed:
add them as directories of their own.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from lifesign.domain.a2a.agent_card import interpret_agent_card
from lifesign.prober.directories.format_parser import (
    MAX_NESTING_DEPTH,
    DirectoryPage,
    Document,
    Entry,
    Kind,
    Listed,
    NotReadable,
    Skipped,
    count_in,
    first_text,
    is_object,
    most_fit,
    page_after,
)
from lifesign.prober.directories.mcp_registry import server_card_entries

PAGE_ITEMS: Final = 100
"""The largest page that a registry returns (ARD 7.4)."""

A2A_TYPES: Final = frozenset({"application/a2a-agent-card+json", "application/a2a-agent-card"})
CATALOG_TYPES: Final = frozenset({"application/ai-catalog+json", "application/ai-catalog"})
REGISTRY_TYPES: Final = frozenset({"application/ai-registry+json", "application/ai-registry"})
MCP_TYPE_START: Final = "application/mcp"
MCP_CARD_TYPES: Final = frozenset({"application/mcp-server-card+json", "application/mcp-server-card"})
ARD_PLACE: Final = "/.well-known/ard.json"

_TYPE_KEYS: Final = ("type", "mediaType", "media_type")
_NAME_KEYS: Final = ("displayName", "display_name", "name", "identifier")


class AiCatalog:
    """Format of an AI Catalog, and of its list of entries in ARD."""

    name = "ai_catalog"
    place = "/.well-known/ai-catalog.json"

    def recognises(self, document: Document) -> bool:
        """Return whether a document is a catalog, or a page of catalog entries."""
        value = document.value
        if not is_object(value):
            return False
        if isinstance(value.get("entries"), list):
            return "specVersion" in value or most_fit(value["entries"], is_catalog_entry)
        items = _page_items(value)
        if not items:
            return items is not None and "pageToken" in value
        return most_fit(items, is_catalog_entry)

    def read(self, document: Document) -> DirectoryPage:
        """Return the entries of a catalog or a page."""
        value = document.value
        if not is_object(value):
            raise NotReadable("expected an object with `entries` or `items`")
        catalog = value.get("entries")
        items = catalog if isinstance(catalog, list) else _page_items(value)
        if items is None:
            raise NotReadable("expected an object with `entries` or `items`")
        return DirectoryPage(
            entries=_entries(items, 0),
            items=len(items),
            total=count_in(value, "total"),
            next_page=page_after(value.get("pageToken"), "pageToken", pageSize=str(PAGE_ITEMS)),
            nested=nested_in(items),
        )


def is_catalog_entry(item: object) -> bool:
    """Return whether a JSON value is a catalog entry, with an identifier and a type."""
    return is_object(item) and "identifier" in item and first_text(item, _TYPE_KEYS) is not None


def read_entry(item: object, depth: int = 0) -> Iterator[Entry]:
    """Yield the targets of one catalog entry. An embedded catalog gives those of all its entries.

    Catalogs at a URL are returned by `nested_in` instead.
    """
    if not is_object(item):
        yield Skipped("", "unreadable")
        return
    name, url, data = first_text(item, _NAME_KEYS), first_text(item, ("url",)), item.get("data")
    media_type = media_type_of(item)
    if media_type in CATALOG_TYPES:
        if is_object(data) and isinstance(data.get("entries"), list):
            yield from _entries(data["entries"], depth + 1)
        elif url is None:
            yield Skipped(name or "", "no_url")
    elif media_type in REGISTRY_TYPES:
        yield Skipped(url or name or "", "a_registry")
    elif media_type in A2A_TYPES:
        if url is not None:
            yield Listed(url, name, Kind.A2A_CARD)
        else:
            yield from card_entries(data, name)
    elif media_type.startswith(MCP_TYPE_START):
        yield from _mcp_entries(media_type, url, data, name)
    else:
        yield Skipped(url or name or "", "not_a2a")


def _mcp_entries(media_type: str, url: str | None, data: object, name: str | None) -> Iterator[Entry]:
    if url is not None:
        yield Listed(url, name, Kind.MCP_CARD if media_type in MCP_CARD_TYPES else Kind.MCP)
    else:
        yield from server_card_entries(data, name) or [Skipped(name or "", "no_url")]


def card_entries(card: object, name: str | None) -> Iterator[Entry]:
    """Yield an entry for the preferred interface of an agent card that a directory contains."""
    read = interpret_agent_card(card)
    urls = [interface.url for interface in read.interfaces if interface.is_callable]
    urls = urls or [interface.url for interface in read.interfaces]
    if urls:
        yield Listed(urls[0], name or read.name, Kind.A2A_ENDPOINT)
    else:
        yield Skipped(name or read.name or "", "no_url")


def media_type_of(item: Mapping[str, Any]) -> str:
    """Return an entry's media type in lower case, without parameters; empty if it has none."""
    return (first_text(item, _TYPE_KEYS) or "").partition(";")[0].strip().lower()


def nested_in(items: list[Any]) -> tuple[str, ...]:
    """Return the URLs of further catalogs to which these entries lead."""
    found: dict[str, None] = {}
    _find_nested(items, 0, found)
    return tuple(found)


def _find_nested(items: list[Any], depth: int, found: dict[str, None]) -> None:
    for item in items:
        if not is_object(item) or media_type_of(item) not in CATALOG_TYPES:
            continue
        data, url = item.get("data"), first_text(item, ("url",))
        if is_object(data) and isinstance(data.get("entries"), list):
            if depth < MAX_NESTING_DEPTH:
                _find_nested(data["entries"], depth + 1, found)
        elif url is not None:
            found[url] = None


def _entries(items: list[Any], depth: int) -> Iterator[Entry]:
    if depth > MAX_NESTING_DEPTH:
        yield Skipped("", "too_deep")
        return
    for item in items:
        yield from read_entry(item, depth)


def _page_items(value: Mapping[str, Any]) -> list[Any] | None:
    items = value.get("items", value.get("results"))
    return items if isinstance(items, list) else None
