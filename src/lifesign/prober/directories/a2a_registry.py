"""Directory format of a2aregistry.org.

`GET /api/agents?limit=&offset=` answers `{"agents": […], "total", "limit", "offset"}`: flattened cards, each
with its `wellKnownURI`. Its seed file is `{"wellKnownURIs": […]}`.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

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
)

PAGE_ITEMS: Final = 100
"""The largest page that the registry returns."""
_CARD_KEYS: Final = ("wellKnownURI", "wellKnownUri")
_SEED_KEY: Final = "wellKnownURIs"


class A2aRegistryFormat:
    """Format of a2aregistry.org, of its seed file, and of compatible servers."""

    name = "a2a_registry"
    place = f"/api/agents?limit={PAGE_ITEMS}&offset=0"

    def recognises(self, document: Document) -> bool:
        """Return whether a document is the seed file, or a list of agents of this registry."""
        value = document.value
        if not is_object(value):
            return False
        agents = value.get("agents")
        if not isinstance(agents, list):
            return isinstance(value.get(_SEED_KEY), list)
        if agents:
            return most_fit(agents, _has_card)
        return {"limit", "offset"} <= value.keys()

    def read(self, document: Document) -> DirectoryPage:
        """Return the entries of one page, and where the next page begins."""
        value = document.value
        if is_object(value) and isinstance(seed := value.get(_SEED_KEY), list):
            return DirectoryPage(entries=_seed_entries(seed), items=len(seed))
        if not is_object(value) or not isinstance(agents := value.get("agents"), list):
            raise NotReadable("expected an object with `agents` or `wellKnownURIs`")
        total = count_in(value, "total")
        return DirectoryPage(
            entries=_entries(agents),
            items=len(agents),
            total=total if total is not None else count_in(value, "count"),
            next_page=_next_page(value, len(agents), total, document.url),
        )


def _has_card(agent: object) -> bool:
    return is_object(agent) and first_text(agent, _CARD_KEYS) is not None


def _next_page(value: Mapping[str, Any], items: int, total: int | None, url: str) -> dict[str, str] | None:
    offset, limit = count_in(value, "offset"), count_in(value, "limit")
    if offset is None and total is not None:
        offset = _offset_in(url)
    # The file that the registry once was has no pages; an empty page is the last one, whatever `total` is.
    if offset is None or not items:
        return None
    is_last = offset + items >= total if total is not None else items < (limit or PAGE_ITEMS)
    return None if is_last else {"offset": str(offset + items), "limit": str(limit or PAGE_ITEMS)}


def _offset_in(url: str) -> int:
    """Return the offset of the requested page."""
    offset = dict(parse_qsl(urlsplit(url).query)).get("offset", "")
    return int(offset) if re.fullmatch("[0-9]{1,7}", offset) else 0


def _seed_entries(seed: list[Any]) -> Iterator[Entry]:
    for url in seed:
        yield Listed(url, kind=Kind.A2A_CARD) if isinstance(url, str) else Skipped("", "unreadable")


def _entries(agents: list[Any]) -> Iterator[Entry]:
    for agent in agents:
        if not is_object(agent):
            yield Skipped("", "unreadable")
            continue
        name = first_text(agent, ("name", "id"))
        if card_url := first_text(agent, _CARD_KEYS):
            yield Listed(card_url, name, Kind.A2A_CARD)
        elif url := first_text(agent, ("url",)):
            yield Listed(url, name, Kind.A2A_ENDPOINT)
        else:
            yield Skipped(name or "", "no_url")
