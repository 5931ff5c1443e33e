"""Directory format of API catalogs (RFC 9727).

`/.well-known/api-catalog` is a linkset (RFC 9264): `{"linkset": [{"anchor", "item": [{"href"}], …}]}`. The
APIs are the targets of `item` links, and anchors with a description (`service-desc`) or a `status`. A link to
an A2A card identifies an agent. The catalog does not say whether its other APIs belong to agents.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from lifesign.domain.a2a.announcement import CARD_PATHS, DEFAULT_HEALTH_PATH
from lifesign.prober.directories.ai_catalog import A2A_TYPES, media_type_of
from lifesign.prober.directories.format_parser import (
    DirectoryPage,
    Document,
    Entry,
    Kind,
    Listed,
    NotReadable,
    Skipped,
    first_text,
    is_object,
)

CATALOG_PATH: Final = "/.well-known/api-catalog"
LINKSET_TYPE: Final = "application/linkset+json"

_DESCRIPTIONS: Final = ("service-desc", "service-doc", "service-meta", "status")
_CARD_RELATIONS: Final = ("agent-card", "a2a-agent-card")


class ApiCatalog:
    """Format of an API catalog (RFC 9727)."""

    name = "api_catalog"
    place = CATALOG_PATH

    def recognises(self, document: Document) -> bool:
        """Return whether a document is a linkset."""
        value = document.value
        return is_object(value) and isinstance(value.get("linkset"), list)

    def read(self, document: Document) -> DirectoryPage:
        """Return the entries of a catalog. Other catalogs that it names are read too."""
        value = document.value
        if not is_object(value) or not isinstance(contexts := value.get("linkset"), list):
            raise NotReadable("expected an object with `linkset`")
        contexts = [context for context in contexts if is_object(context)]
        return DirectoryPage(entries=_entries(contexts, document.url), nested=_nested(contexts))


def _entries(contexts: list[dict[str, Any]], url: str) -> Iterator[Entry]:
    # If an API links to a card, only the card is listed: it contains the other URLs.
    cards = {str(context.get("anchor")): _cards(context) for context in contexts}
    for context in contexts:
        anchor = first_text(context, ("anchor",)) or ""
        for link in _links(context, "item"):
            href = first_text(link, ("href",))
            if href is None:
                yield Skipped(_title(link) or "", "no_url")
            elif not cards.get(href) and not _is_catalog(link):
                yield Listed(href, _title(link), _kind(link, href))
        yield from (
            Listed(href, _title(link), Kind.A2A_CARD)
            for link in _cards(context)
            if (href := first_text(link, ("href",)))
        )
        is_described = any(_links(context, relation) for relation in _DESCRIPTIONS)
        if is_described and not cards[str(context.get("anchor"))] and not _is_own(anchor, url):
            yield Listed(anchor, None, _kind_of_api(context))


def _is_own(anchor: str, url: str) -> bool:
    """Return whether a context belongs to the catalog itself."""
    return anchor in {"", url} or anchor.endswith(CATALOG_PATH)


def _nested(contexts: list[dict[str, Any]]) -> tuple[str, ...]:
    links = [
        link
        for context in contexts
        for link in (*_links(context, "api-catalog"), *filter(_is_catalog, _links(context, "item")))
    ]
    return tuple(dict.fromkeys(href for link in links if (href := first_text(link, ("href",)))))


def _links(context: Mapping[str, Any], relation: str) -> list[dict[str, Any]]:
    links = context.get(relation)
    return [link for link in links if is_object(link)] if isinstance(links, list) else []


def _cards(context: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the links of a context to an A2A card, except those of `item`, which are separate entries."""
    related = [link for relation in _CARD_RELATIONS for link in _links(context, relation)]
    typed = [
        link
        for relation in ("service-desc", "service-meta", "describedby")
        for link in _links(context, relation)
        if media_type_of(link) in A2A_TYPES
    ]
    return [*related, *typed]


def _is_catalog(link: Mapping[str, Any]) -> bool:
    return media_type_of(link) == LINKSET_TYPE


def _kind(link: Mapping[str, Any], href: str) -> Kind:
    is_card = media_type_of(link) in A2A_TYPES or href.endswith(CARD_PATHS)
    return Kind.A2A_CARD if is_card else Kind.UNKNOWN


def _kind_of_api(context: Mapping[str, Any]) -> Kind:
    """Return the kind of an API: one with a health document, or unknown."""
    places = (first_text(link, ("href",)) or "" for link in _links(context, "status"))
    return Kind.A2A_ENDPOINT if any(p.endswith(DEFAULT_HEALTH_PATH) for p in places) else Kind.UNKNOWN


def _title(link: Mapping[str, Any]) -> str | None:
    return first_text(link, ("title",))
