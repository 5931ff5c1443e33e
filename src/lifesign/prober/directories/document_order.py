"""Order in which the documents of a directory are read, and its limits.

Pages follow pages, and catalogs name catalogs. The walk ends with a failure if the pages form a loop or never
end: such a directory cannot be read completely.
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
from lifesign.prober.directories.format_parser import MAX_NESTING_DEPTH, DirectoryPage, Document

MAX_DOCUMENTS: Final = 25_000
"""Maximum of documents that are read or named: two million entries, a hundred a page, and 25 % more."""
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


class Endless(Exception):
    """The pages of a directory form a loop, or do not advance. The message has the details."""


class TooManyDocuments(Exception):
    """The directory has more documents than are read."""


class Walk:
    """Decides in which order the documents of one directory are read, and detects loops."""

    def __init__(self) -> None:
        self.documents = 0
        """Number of documents read."""
        self.items: int | None = None
        """Number of items in the directory's own pages; None: not counted."""
        self.is_single = True
        """Whether no document refers to another one."""
        self._total: int | None = None
        self._steps: deque[Step] = deque()
        self._named: set[str] = set()
        self._promised = 0
        """Number of further documents that were named."""
        self._bodies: set[bytes] = set()
        self._empty_pages = 0
        self._findings: dict[Finding, None] = {}

    def next_step(self) -> Step | None:
        """Return the next document to read; None if all are read."""
        return self._steps.popleft() if self._steps else None

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
        """Count a document that was read; return whether its content is new.

        Raises Endless, TooManyDocuments.
        """
        self.documents += 1
        if self.documents > MAX_DOCUMENTS:
            raise TooManyDocuments(f"more than {MAX_DOCUMENTS} documents")
        self._named.add(document.url)
        digest = blake2b(document.body, digest_size=16).digest()
        is_new = digest not in self._bodies
        self._bodies.add(digest)
        if not is_new and depth == 0:
            self._repeat("the same page was served again in place of another one")
        return is_new

    def follow(self, document: Document, page: DirectoryPage, depth: int) -> None:
        """Queue the documents to which a document leads, to be read. Raises Endless, TooManyDocuments."""
        if depth == 0 and page.items is not None:
            self.items = (self.items or 0) + page.items
            self._total = page.total if page.total is not None else self._total
        self.is_single = self.is_single and page.next_page is None and not page.nested
        following = _following(document.url, page)
        if following is not None:
            self._turn(following, page, depth)
        self._steps.extend(self._nested(document.url, page, depth))

    def _turn(self, following: str, page: DirectoryPage, depth: int) -> None:
        if not following:
            self.note(
                "first_page_only", "the file is one page of several, and only its server has the others"
            )
            return
        self._empty_pages = self._empty_pages + 1 if page.items == 0 else 0
        if self._empty_pages > MAX_EMPTY_PAGES:
            raise Endless(f"{self._empty_pages} empty pages in a row, each of which refers to another one")
        if following in self._named:
            self._repeat("the next page is one that was read before")
            return
        self._promise(following)
        # The rest of a list comes before the documents that its entries name.
        self._steps.appendleft(Step(following, depth))

    def _promise(self, url: str) -> None:
        """Count a document that will be read: a few thousand of them could name a thousand more each."""
        self._promised += 1
        if self._promised > MAX_DOCUMENTS:
            raise TooManyDocuments(f"names more than {MAX_DOCUMENTS} documents")
        self._named.add(url)

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
            elif url not in self._named:
                self._promise(url)
                yield Step(url, depth + 1)


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
