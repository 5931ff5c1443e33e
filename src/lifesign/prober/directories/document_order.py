"""Order in which the documents of a directory are read, and its limits.

Pages follow pages, and catalogs name catalogs. The walk ends with a failure if the directory's own pages form
a loop or never end: such a directory cannot be read completely. The author of an entry, who may be anyone,
has chosen the URL of a nested catalog: it has limits of its own, and decides only about its own entries.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final
from urllib.parse import parse_qsl, urlencode, urljoin, urlsplit, urlunsplit

from lifesign.domain.common.finding import Finding
from lifesign.domain.net.allowed_addresses import MAX_URL_CHARACTERS, without_password
from lifesign.domain.targets.target import read_target
from lifesign.domain.text.counts import pluralize
from lifesign.prober.directories.format_parser import MAX_NESTING_DEPTH, NESTED_SHARE, DirectoryPage, Document

MAX_DOCUMENTS: Final = 25_000
"""Maximum of a directory's own pages: two million entries, a hundred a page, and 25 % more.

All nested catalogs together may have as many documents, and one of them the part NESTED_SHARE.
"""
MAX_EMPTY_PAGES: Final = 10
"""Maximum number of empty pages in a row that each refer to another one."""
MAX_FINDINGS: Final = 50
MAX_PLACE_CHARS: Final = 80
"""Maximum length of an invalid URL in a finding."""


@dataclass(frozen=True, slots=True)
class Step:
    """A document of a directory that is to be read."""

    url: str
    depth: int
    """Number of references that lead to this document; 0 for the directory's own pages."""
    begins_catalog: bool = False
    """Whether an entry of the directory's own pages names it. Documents nested in it follow directly."""


class Endless(Exception):
    """The pages of a list form a loop, or do not advance. The message has the details."""


class TooManyDocuments(Exception):
    """A directory, or a catalog nested in it, has more documents than are read."""


class Walk:
    """Decides in which order the documents of one directory are read, and detects loops."""

    def __init__(self) -> None:
        self.documents = 0
        """Number of documents read."""
        self.items: int | None = None
        """Number of items in the directory's own pages; None: not counted."""
        self.is_single = True
        """Whether no document refers to another one."""
        self.unread = 0
        """Number of nested documents and server cards whose entries are unknown: they could not be read."""
        self._total: int | None = None
        self._steps: deque[Step] = deque()
        self._pages: set[str] = set()
        """URLs of the directory's own pages."""
        self._further_pages = 0
        """Number of those after the first."""
        self._catalogs: set[str] = set()
        """URLs of the catalogs that the directory's own pages name; known before any of them is read."""
        self._named: dict[str, int] = {}
        """Depths of the documents of the nested catalog that is being read, by URL: the smallest of each."""
        self._nested_documents = 0
        """Number of nested documents that were named."""
        self._catalog_documents = 0
        """Number of those in the nested catalog that is being read."""
        self._digest = b""
        """Digest of the document that is being read."""
        self._page_bodies: set[bytes] = set()
        """Digests of the directory's own pages."""
        self._bodies: dict[bytes, int] = {}
        """Smallest depths of the contents of that nested catalog, by their digests."""
        self._empty_pages = 0
        self._findings: dict[Finding, None] = {}

    def next_step(self) -> Step | None:
        """Return the next document to read; None if all are read."""
        while self._steps:
            step = self._steps.popleft()
            if step.depth and step.url in self._pages:
                continue
            if step.begins_catalog:
                # What another author's catalog names must not decide about this one.
                self._catalog_documents = self._empty_pages = 0
                self._named, self._bodies = {step.url: step.depth}, {}
            return step
        return None

    def give_up(self, step: Step, message: str) -> None:
        """Leave a nested document unread; if the catalog names it again, it is requested again."""
        self._named.pop(step.url, None)
        self.leave_unread(message)

    def leave_unread(self, message: str) -> None:
        """Note that the entries of a nested document are unknown."""
        self.unread += 1
        self.note("nested_not_read", message)

    def note(self, name: str, message: str) -> None:
        """Add a finding once, up to MAX_FINDINGS."""
        if len(self._findings) < MAX_FINDINGS:
            self._findings[Finding(name, "", message)] = None

    def findings(self) -> list[Finding]:
        """Unusual properties of the directory that were found while reading."""
        found = list(self._findings)
        if self._total is not None and self.items is not None and self.items != self._total:
            message = f"reports {pluralize(self._total, 'item')}, and served {self.items}"
            found.append(Finding("total_differs", "", message))
        return found

    def take(self, document: Document, depth: int) -> bool:
        """Count a document that was read; return whether its content is new. Raises Endless."""
        self.documents += 1
        if depth == 0:
            self._pages.add(document.url)
            self._digest = _digest(document.body)
            is_new = self._digest not in self._page_bodies
            if not is_new:
                self._repeat("the same page was served again in place of another one")
            return is_new
        self._named[document.url] = min(depth, self._named.get(document.url, depth))
        # Its entries may be relative to its URL. The query does not matter: it may grow without end.
        place = document.url.partition("?")[0].encode()
        self._digest = _digest(place + b" " + document.body)
        return depth < self._bodies.get(self._digest, MAX_NESTING_DEPTH + 1)

    def follow(self, document: Document, page: DirectoryPage, depth: int) -> None:
        """Queue the documents to which the document taken last leads. Raises Endless, TooManyDocuments."""
        if depth == 0:
            self._page_bodies.add(self._digest)
        else:
            self._bodies[self._digest] = depth
        if depth == 0 and page.items is not None:
            self.items = (self.items or 0) + page.items
            self._total = page.total if page.total is not None else self._total
        self.is_single = self.is_single and page.next_page is None and not page.nested
        nested = list(self._nested(document.url, page, depth))
        if depth == 0:
            self._steps.extend(nested)
        else:
            self._steps.extendleft(reversed(nested))
        following = _following(document.url, page)
        if following is not None:
            self._turn(following, page, depth)

    def _turn(self, following: str, page: DirectoryPage, depth: int) -> None:
        if not following:
            self.note(
                "first_page_only", "the file is one page of several, and only its server has the others"
            )
            return
        self._empty_pages = self._empty_pages + 1 if page.items == 0 else 0
        if self._empty_pages > MAX_EMPTY_PAGES:
            raise Endless(f"{self._empty_pages} empty pages in a row, each of which refers to another one")
        # An entry may name a page of the directory as a catalog: the page counts.
        if following in self._pages if depth == 0 else self._is_named(following, depth):
            self._repeat("the next page is one that was read before")
            return
        if depth:
            self._promise_nested(following, depth, depth)
        else:
            self._further_pages += 1
            _check_number(self._further_pages, MAX_DOCUMENTS)
            self._pages.add(following)
        # The rest of a list comes before the documents that its entries name.
        self._steps.appendleft(Step(following, depth))

    def _is_named(self, url: str, depth: int) -> bool:
        """Return whether the nested catalog that is being read has a document at this depth, or above it.

        At a smaller depth it is read again: it may name documents that were too deep before.
        """
        return self._named.get(url, MAX_NESTING_DEPTH + 1) <= depth

    def _promise_nested(self, url: str, depth: int, own_depth: int) -> None:
        """Count a document of `own_depth` that a document of `depth` names. Raises TooManyDocuments."""
        self._nested_documents += 1
        _check_number(self._nested_documents, MAX_DOCUMENTS)
        if depth:
            self._catalog_documents += 1
            _check_number(self._catalog_documents, MAX_DOCUMENTS // NESTED_SHARE)
            self._named[url] = own_depth
        else:
            self._catalogs.add(url)

    def _repeat(self, what: str) -> None:
        """End the reading at a page that was read before.

        The reading is complete if all items were served by then; otherwise, or if unknown, it fails.
        """
        if self._total is None or self.items is None or self.items < self._total:
            raise Endless(what)
        self.note("paging_repeats", f"{what}, when all {self._total} items were served")

    def _nested(self, base: str, page: DirectoryPage, depth: int) -> Iterator[Step]:
        for place in page.nested:
            joined = _resolve_url(base, place) if base or "://" in place else None
            url = None if joined is None else read_target(joined)
            if not isinstance(url, str):
                shown = without_password(place[:MAX_URL_CHARACTERS])[:MAX_PLACE_CHARS]
                self.note("nested_not_read", f"a catalog that it names has no URL: {shown!a}")
            elif depth == MAX_NESTING_DEPTH:
                self.note("nested_not_read", f"nested in more than {MAX_NESTING_DEPTH} catalogs: {url}")
            elif url not in self._catalogs and not self._is_named(url, depth + 1):
                try:
                    self._promise_nested(url, depth, depth + 1)
                except TooManyDocuments as error:
                    self.leave_unread(f"{base}: {error}")
                    return
                yield Step(url, depth + 1, begins_catalog=depth == 0)


def _check_number(named: int, most: int) -> None:
    if named > most:
        raise TooManyDocuments(f"names more than {most} documents")


def _digest(content: bytes) -> bytes:
    return blake2b(content, digest_size=16).digest()


def _following(base: str, page: DirectoryPage) -> str | None:
    """Return the URL of the next page; None without one, empty if there is one but no base URL."""
    if page.next_page is None:
        return None
    if not base:
        return ""
    if isinstance(page.next_page, str):
        url = _resolve_url(base, page.next_page)
        if url is None:
            raise Endless(f"the next page has no URL: {page.next_page[:MAX_PLACE_CHARS]!a}")
        if urlsplit(url)[:2] != urlsplit(base)[:2]:
            raise Endless("the next page is on another origin")
        return url
    parts = urlsplit(base)
    query = dict(parse_qsl(parts.query, keep_blank_values=True)) | dict(page.next_page)
    return urlunsplit(parts._replace(query=urlencode(query), fragment=""))


def _resolve_url(base: str, place: str) -> str | None:
    """Return the URL that a document names; None if it cannot be parsed."""
    try:
        url = urljoin(base, place)
        urlsplit(url)
    except ValueError:
        return None
    return url
