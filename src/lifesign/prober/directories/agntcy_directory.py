"""Directory format of AGNTCY.

`GET /v1/agents?page_size=&page_token=` answers `{"results": […], "next_page_token", "total_count"}`, with
names in snake or camel case and AI Catalog entries; an entry may contain an OASF record. Exported records are
files with one record or a list of them. A record's `modules[]` name the protocols of its agent:
`integration/a2a` contains a card, `integration/mcp` the connections of an MCP server.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from lifesign.domain.a2a.agent_card import CardKind, interpret_agent_card
from lifesign.prober.directories.ai_catalog import (
    card_entries,
    is_catalog_entry,
    media_type_of,
    nested_in,
    read_entry,
)
from lifesign.prober.directories.format_parser import (
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

PAGE_ITEMS: Final = 100
"""The largest page that the directory returns."""
MAX_MODULES: Final = 64
MAX_CONNECTIONS: Final = 64

_LIST_KEYS: Final = ("results", "records", "agents")
_TOKEN_KEYS: Final = ("next_page_token", "nextPageToken")
_TOTAL_KEYS: Final = ("total_count", "totalCount")
_PAGE_KEYS: Final = frozenset({*_TOKEN_KEYS, *_TOTAL_KEYS})
_A2A_MODULES: Final = frozenset({"integration/a2a", "runtime/a2a", "a2a"})
_MCP_MODULES: Final = frozenset({"integration/mcp", "runtime/mcp", "mcp"})
_CARD_KEYS: Final = ("card_data", "agent_card", "card")
_CARD_URL_KEYS: Final = ("card_url", "agent_card_url", "url")


class AgntcyDirectory:
    """Format of an AGNTCY directory, and of files of OASF records."""

    name = "agntcy"
    place = f"/v1/agents?page_size={PAGE_ITEMS}"

    def recognises(self, document: Document) -> bool:
        """Return whether a document is a record, or a list of records or catalog entries."""
        value = document.value
        if _is_record(value):
            return True
        items = _items(value)
        if items is None:
            return False
        has_page_keys = is_object(value) and not _PAGE_KEYS.isdisjoint(value)
        if not items:
            return has_page_keys
        return most_fit(items, lambda item: _is_record(item) or (has_page_keys and is_catalog_entry(item)))

    def read(self, document: Document) -> DirectoryPage:
        """Return the entries of a record, a list of records, or a page."""
        value = document.value
        if _is_record(value):
            return DirectoryPage(entries=_record_entries(value), items=1)
        items = _items(value)
        if items is None:
            raise NotReadable("expected an OASF record, a list of them, or an object with `results`")
        page = value if is_object(value) else {}
        totals = (count_in(page, key) for key in _TOTAL_KEYS)
        return DirectoryPage(
            entries=_entries(items),
            items=len(items),
            total=next((total for total in totals if total is not None), None),
            next_page=page_after(
                next((page[key] for key in _TOKEN_KEYS if page.get(key)), None),
                "page_token",
                page_size=str(PAGE_ITEMS),
            ),
            nested=nested_in(items),
        )


def _items(value: object) -> list[Any] | None:
    if isinstance(value, list):
        return value
    if is_object(value):
        lists = (value.get(key) for key in _LIST_KEYS)
        return next((items for items in lists if isinstance(items, list)), None)
    return None


def _is_record(value: object) -> bool:
    return (
        is_object(value)
        and isinstance(value.get("schema_version"), str)
        and any(isinstance(value.get(key), list) for key in ("modules", "locators", "skills"))
    )


def _entries(items: list[Any]) -> Iterator[Entry]:
    for item in items:
        if _is_record(item):
            yield from _record_entries(item)
        elif is_object(item) and "oasf" in media_type_of(item) and _is_record(item.get("data")):
            yield from _record_entries(item["data"])
        else:
            yield from read_entry(item)


def _record_entries(record: Mapping[str, Any]) -> Iterator[Entry]:
    name = first_text(record, ("name",))
    modules = record.get("modules")
    found: list[Entry] = []
    for module in modules[:MAX_MODULES] if isinstance(modules, list) else ():
        if not is_object(module) or not is_object(data := module.get("data")):
            continue
        kind = first_text(module, ("name",))
        if kind in _A2A_MODULES:
            found += _a2a_entries(data, name)
        elif kind in _MCP_MODULES:
            found += _mcp_entries(data, name)
    yield from found or [Skipped(name or "", "no_url")]


def _a2a_entries(data: Mapping[str, Any], name: str | None) -> Iterator[Entry]:
    cards = (data.get(key) for key in _CARD_KEYS)
    card = next((card for card in cards if is_object(card)), data)
    if interpret_agent_card(card).kind is not CardKind.NOT_A_CARD:
        yield from card_entries(card, name)
    elif url := first_text(data, _CARD_URL_KEYS):
        yield Listed(url, name, Kind.UNKNOWN)


def _mcp_entries(data: Mapping[str, Any], name: str | None) -> Iterator[Entry]:
    connections = data.get("connections")
    for connection in connections[:MAX_CONNECTIONS] if isinstance(connections, list) else ():
        # A program that is started on one's own machine has no URL.
        if is_object(connection) and (url := first_text(connection, ("url",))):
            yield Listed(url, name, Kind.MCP)
