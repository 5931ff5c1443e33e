"""Server cards of MCP servers to which a directory refers.

ARD names an MCP server by the URL of its card or of its endpoint, with the same media type. Only the document
at the URL shows which of the two it is: the endpoints of a card are its `remotes[]`; any other URL is the
endpoint. If a card cannot be read, its URL is listed, and the rest of the directory is read.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Final

from lifesign.domain.observation.results import ResultClass
from lifesign.prober.directories.format_parser import (
    Document,
    Entry,
    Kind,
    Listed,
)
from lifesign.prober.directories.mcp_registry import server_card_entries
from lifesign.prober.directories.source import Get, WantedDocument
from lifesign.prober.directories.target_collection import listed_url

MAX_CARDS: Final = 1_000
"""Maximum number of cards that are read per directory. The URLs of further ones are listed unread."""
MAX_CARD_BYTES: Final = 1024 * 1024
CARD_TIMEOUT_S: Final = 20.0
MAX_READING_S: Final = 600.0
"""Time limit for all cards of one directory. The URLs of the rest are listed unread."""


class ServerCards:
    """URLs in one directory that may be MCP server cards, which list the servers' endpoints."""

    def __init__(self) -> None:
        self._named: dict[str, str | None] = {}
        self.unread = 0
        """URLs that are listed unread because of a limit."""

    def set_aside(self, entries: Iterable[Entry], base: str) -> Iterator[Entry]:
        """Yield the entries of a document, but keep those that may be server cards for `read`."""
        for entry in entries:
            if not isinstance(entry, Listed) or entry.kind is not Kind.MCP_CARD:
                yield entry
                continue
            url = listed_url(entry.url, base)
            if url is None or (len(self._named) == MAX_CARDS and url not in self._named):
                self.unread += url is not None
                yield entry._replace(kind=Kind.MCP)
            else:
                self._named.setdefault(url, entry.name)

    @property
    def has_any(self) -> bool:
        """Whether there is any URL that may be a server card."""
        return bool(self._named)

    async def read(self, get: Get, is_over: Callable[[], bool]) -> AsyncIterator[tuple[str, list[Entry]]]:
        """Request each possible server card once; yield each URL with the endpoints found.

        One card is kept at a time: a thousand of them could have a gigabyte of names.
        """
        for url, name in self._named.items():
            yield url, await self._endpoints(url, name, None if is_over() else get)

    async def _endpoints(self, url: str, name: str | None, get: Get | None) -> list[Entry]:
        listed: list[Entry] = [Listed(url, name, Kind.MCP)]
        if get is None:
            self.unread += 1
            return listed
        # Without the key of the directory: the author of the entry has chosen the URL.
        got = await get(WantedDocument(url=url, max_bytes=MAX_CARD_BYTES, timeout_s=CARD_TIMEOUT_S))
        if got.result is not ResultClass.OK:
            return listed
        return server_card_entries(Document(got.body).value, name) or listed
