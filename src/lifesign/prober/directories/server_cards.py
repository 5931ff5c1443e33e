"""Server cards of MCP servers to which a directory refers.

ARD names an MCP server by the URL of its card or of its endpoint, with the same media type. Only the document
at the URL shows which of the two it is: the endpoints of a card are its `remotes[]`; any other URL is the
endpoint. If a card cannot be read, its URL is listed, and the rest of the directory is read.

Anybody may have named a card. Several hosts are asked at once, and one that does not answer is left alone: it
must not use up the time of the others.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from yarl import URL

from lifesign.domain.observation.results import ResultClass
from lifesign.prober.directories.format_parser import NESTED_SHARE, Document, Entry, Kind, Listed
from lifesign.prober.directories.mcp_registry import server_card_entries
from lifesign.prober.directories.source import Get, WantedDocument, is_passing
from lifesign.prober.directories.target_collection import listed_url

MAX_CARDS: Final = 2_000
"""Maximum number of cards that are read per directory. The URLs of further ones are listed unread."""
MAX_HOSTS: Final = 8
"""Number of hosts that are asked at once, each for one card."""
MAX_CARD_BYTES: Final = 1024 * 1024
CARD_TIMEOUT_S: Final = 20.0
MAX_READING_S: Final = 600.0
"""Time limit for all cards of one directory. The URLs of the rest are listed unread."""


Add = Callable[[list[Entry], str], None]
"""Takes the endpoints that were found for a URL. Must not raise: the other cards would not be read."""


class _Left(NamedTuple):
    """URLs of cards without a result."""

    failed: list[str]
    """They may succeed later."""
    unasked: list[str]
    """They were not requested: no time was left, or their host did not answer another request."""


class ServerCards:
    """URLs in one directory that may be MCP server cards, which list the servers' endpoints."""

    def __init__(self) -> None:
        self._named: dict[str, str | None] = {}
        self._most = MAX_CARDS
        """Maximum at the end of the part of the directory that is being read."""
        self.unread = 0
        """URLs that are listed unread because of a limit, or because their host does not answer."""

    def begin_catalog(self) -> None:
        """Begin with a nested catalog, which may use one part in NESTED_SHARE of the limit."""
        self._most = min(MAX_CARDS, len(self._named) + MAX_CARDS // NESTED_SHARE)

    def set_aside(self, entries: Iterable[Entry], base: str) -> Iterator[Entry]:
        """Yield the entries of a document, but keep those that may be server cards for `read`."""
        for entry in entries:
            if not isinstance(entry, Listed) or entry.kind is not Kind.MCP_CARD:
                yield entry
                continue
            url = listed_url(entry.url, base)
            if url is None or (len(self._named) >= self._most and url not in self._named):
                self.unread += url is not None
                yield entry._replace(kind=Kind.MCP)
            else:
                self._named.setdefault(url, entry.name)

    @property
    def has_any(self) -> bool:
        """Whether there is any URL that may be a server card."""
        return bool(self._named)

    async def read(self, get: Get, is_over: Callable[[], bool], add: Add) -> None:
        """Request each possible server card, and add the endpoints found; once more those that failed."""
        first = await self._read_all(list(self._named), get, is_over, add)
        last = await self._read_all([*first.failed, *first.unasked], get, is_over, add)
        self.unread += len(last.unasked)
        for url in (*last.failed, *last.unasked):
            add([self._endpoint(url)], url)

    async def _read_all(self, urls: Sequence[str], get: Get, is_over: Callable[[], bool], add: Add) -> _Left:
        """Request cards, several hosts at once; return the URLs without a result."""
        left = _Left([], [])
        of_hosts: dict[str, list[str]] = {}
        for url in urls:
            of_hosts.setdefault(str(URL(url).origin()), []).append(url)
        waiting = iter(of_hosts.values())

        async def work() -> None:
            for at_host in waiting:
                await self._read_host(at_host, get, is_over, add, left)

        async with asyncio.TaskGroup() as group:
            for _ in range(MAX_HOSTS):
                group.create_task(work())
        return left

    async def _read_host(
        self, urls: Sequence[str], get: Get, is_over: Callable[[], bool], add: Add, left: _Left
    ) -> None:
        """Request the cards of one host, until it does not answer."""
        is_silent = False
        for url in urls:
            if is_silent or is_over():
                left.unasked.append(url)
                continue
            # Without the key of the directory: the author of the entry has chosen the URL.
            got = await get(WantedDocument(url=url, max_bytes=MAX_CARD_BYTES, timeout_s=CARD_TIMEOUT_S))
            # An answer without an end, with a good status, is that of an endpoint.
            if is_passing(got) and (got.status is None or got.status // 100 != 2):
                left.failed.append(url)
                is_silent = got.status is None
                continue
            card = Document(got.body).value if got.result is ResultClass.OK else None
            add(server_card_entries(card, self._named[url]) or [self._endpoint(url)], url)

    def _endpoint(self, url: str) -> Entry:
        return Listed(url, self._named[url], Kind.MCP)
