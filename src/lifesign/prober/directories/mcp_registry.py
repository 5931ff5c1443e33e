"""Directory format of the MCP registry.

`GET /v0.1/servers?limit=&cursor=` answers `{"servers": […], "metadata": {"nextCursor"}}`, every version of
every server; the older seed file is a list of servers. Only servers with `remotes[]` have URLs.

An MCP server is not an A2A agent. Its URLs are listed as `Kind.MCP`, which a `ListSource` skips (`not_a2a`)
unless it asks for them. A server card (SEP-2127) has the same `remotes[]`.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

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
"""The largest page that the registry returns."""
MAX_REMOTES: Final = 64
"""URLs of one server."""

REMOTE_TYPES: Final = ("streamable-http", "sse")

_OFFICIAL: Final = "io.modelcontextprotocol.registry/official"
_SEED_KEYS: Final = frozenset({"version_detail", "packages", "remotes"})


class McpRegistry:
    """Format of an MCP registry, of its seed file, and of compatible servers."""

    name = "mcp_registry"
    place = f"/v0.1/servers?limit={PAGE_ITEMS}"

    def recognises(self, document: Document) -> bool:
        """Return whether a document has `servers` and `metadata`, or is a list of servers."""
        value = document.value
        if is_object(value):
            servers = value.get("servers")
            return isinstance(servers, list) and ("metadata" in value or most_fit(servers, _is_server))
        return isinstance(value, list) and most_fit(value, _is_server)

    def read(self, document: Document) -> DirectoryPage:
        """Return the entries of one page, and where the next page begins."""
        value = document.value
        servers = value.get("servers") if is_object(value) else value
        if not isinstance(servers, list):
            raise NotReadable("expected an object with `servers`, or a list of servers")
        metadata = value.get("metadata") if is_object(value) else None
        metadata = metadata if is_object(metadata) else {}
        cursor = metadata.get("nextCursor", metadata.get("next_cursor"))
        return DirectoryPage(
            entries=_entries(servers),
            items=len(servers),
            # Its `count` is that of the page.
            total=count_in(metadata, "total"),
            next_page=page_after(cursor, "cursor", limit=str(PAGE_ITEMS)),
        )


def _is_server(item: object) -> bool:
    if not is_object(item):
        return False
    return not _SEED_KEYS.isdisjoint(_server_in(item)) or is_object(item.get("server"))


def _server_in(item: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the server of an item: since v0.1 it is a member next to the registry's metadata."""
    server = item.get("server")
    return server if is_object(server) else item


def _entries(servers: list[Any]) -> Iterator[Entry]:
    for item in servers:
        if not is_object(item):
            yield Skipped("", "unreadable")
            continue
        server = _server_in(item)
        name = first_text(server, ("name", "id"))
        remotes = server.get("remotes")
        urls = [
            url
            for remote in (remotes[:MAX_REMOTES] if isinstance(remotes, list) else ())
            if is_object(remote) and (url := first_text(remote, ("url",)))
        ]
        if _is_deleted(item):
            yield Skipped(name or "", "delisted")
        elif urls:
            yield from (Listed(url, name, Kind.MCP) for url in urls)
        else:
            yield Skipped(name or "", "no_url")


def server_card_entries(card: object, name: str | None) -> list[Entry]:
    """Return the endpoints that an MCP server card lists; empty if the value is not such a card."""
    remotes = card.get("remotes") if is_object(card) else None
    if not is_object(card) or not isinstance(remotes, list):
        return []
    name = name or first_text(card, ("title", "name"))
    return [
        Listed(url, name, Kind.MCP)
        for remote in remotes[:MAX_REMOTES]
        if is_object(remote) and remote.get("type") in REMOTE_TYPES and (url := first_text(remote, ("url",)))
    ]


def _is_deleted(item: Mapping[str, Any]) -> bool:
    about = item.get("_meta")
    official = about.get(_OFFICIAL) if is_object(about) else None
    return is_object(official) and official.get("status") == "deleted"
