"""Reads a whole directory: to its end, politely, or not at all.

Documents are requested one at a time, each within its limits, and requested waits are respected. If a page
fails there is no snapshot: half a directory would look as if the other half had left. The failure of a nested
catalog concerns only that catalog: its URL was chosen by the author of an entry, who may be anyone. One that
definitely does not exist has no entries; if its entries are unknown, the snapshot says so.
"""

import asyncio
import logging
import stat
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import urljoin

from lifesign.domain.observation.results import ResultClass
from lifesign.domain.text.counts import pluralize
from lifesign.errors import InvalidValue
from lifesign.prober.directories import server_cards
from lifesign.prober.directories.catalog_links import (
    MAX_POINTING_BYTES,
    ROBOTS_PATH,
    agentmaps,
    linked_catalogs,
)
from lifesign.prober.directories.document_order import Endless, Step, TooManyDocuments, Walk
from lifesign.prober.directories.format_choice import (
    AUTO,
    BrokenPlugIn,
    describe,
    format_called,
    format_of,
    shown_error,
)
from lifesign.prober.directories.format_parser import (
    NESTED_SHARE,
    Document,
    Entry,
    Format,
    Kind,
    NotReadable,
)
from lifesign.prober.directories.server_cards import ServerCards
from lifesign.prober.directories.snapshot import Fault, NotRead, Snapshot, Unchanged, Version, read_version
from lifesign.prober.directories.source import (
    MAX_DOCUMENT_BYTES,
    SUFFIX_TYPES,
    Get,
    Got,
    ListSource,
    WantedDocument,
    is_passing,
)
from lifesign.prober.directories.target_collection import Gathered, TooManyEntries

MAX_BYTES: Final = 2 * 1024 * 1024 * 1024
"""Maximum of all documents of a directory."""
MAX_READING_S: Final = 3600.0
"""Time limit for all documents and waits of a directory."""
MAX_NESTED_S: Final = 1800.0
"""Time limit for all nested catalogs of a directory."""
MAX_CATALOG_S: Final = 300.0
"""Time limit for one of them, with the catalogs nested in it."""
MAX_TRIES: Final = 4
"""Maximum of tries per request."""
MAX_SILENT_TRIES: Final = 2
"""Maximum of tries per request if no answer begins in time."""
FIRST_WAIT_S: Final = 2.0
"""Before the second try; doubled with each further one."""
MAX_WAIT_S: Final = 120.0
"""Longest wait; a directory that asks for a longer one is read another time."""
THREAD_BYTES: Final = 65_536
"""Larger documents are parsed in a thread: on the event loop they would take more than some milliseconds."""
PROGRESS_EVERY: Final = 10_000
"""Number of entries between two progress reports."""

_log = logging.getLogger("lifesign.prober")
_NONE: Final = "not a directory in a known format"
T = TypeVar("T")

_ABSENT: Final = frozenset({
    ResultClass.NOT_AN_AGENT, ResultClass.GATED, ResultClass.REDIRECT_REFUSED, ResultClass.BLOCKED_ADDRESS,
})  # fmt: skip


async def read_directory(
    source: ListSource,
    get: Get | None = None,
    *,
    known: str | None = None,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    now_s: Callable[[], float] = time.monotonic,
    report: Callable[[int], None] | None = None,
) -> Snapshot | Unchanged | NotRead:
    """Read a directory completely: return its entries, NotRead if that fails, or Unchanged since `known`.

    `report` receives the number of entries read so far, from whichever thread reads them. `known` is the
    version of the last snapshot. Without `get`, only a file is read, and not the documents to which it
    refers. Raise InvalidValue for an unknown format, and for a URL without `get`.
    """
    place = source.url or str(source.file)
    try:
        chosen = None if source.format == AUTO else format_called(source.format)
        return await _Reading(source, chosen, get, known, sleep=sleep, now_s=now_s, report=report).run()
    except _NoReading as stopped:
        return stopped.outcome
    except BrokenPlugIn as error:
        return NotRead(fault="broken_plug_in", message=str(error), url=place)
    except InvalidValue:
        raise
    except Exception as error:  # noqa: BLE001 - whatever a directory holds must not end the crawl of the others
        _log.exception("the directory %s could not be read, because of a defect in its reader", place)
        message = f"its reader failed, which is a defect of this program: {shown_error(error)}"
        return NotRead(fault="reader_failed", message=message, url=place)


class _NoReading(Exception):
    """This reading gives no snapshot; the exception has the result instead."""

    def __init__(self, outcome: NotRead | Unchanged) -> None:
        self.outcome = outcome


@dataclass(frozen=True, slots=True)
class _Limits:
    """Limits of the part of a directory that is being read: its own pages, or one nested catalog."""

    ends_at_s: float
    seconds: float
    """Time from the beginning of the part."""
    most_bytes: int
    """Maximum of all documents at the end of the part."""
    allowed_bytes: int
    """Maximum of the documents of the part."""


class _Reading:
    """One reading of one directory."""

    def __init__(
        self,
        source: ListSource,
        chosen: Format | None,
        get: Get | None,
        known: str | None,
        *,
        sleep: Callable[[float], Awaitable[object]],
        now_s: Callable[[], float],
        report: Callable[[int], None] | None,
    ) -> None:
        self._source = source
        self._format = chosen
        self._get = get
        self._known = known
        self._sleep = sleep
        self._now_s = now_s
        self._report_progress = report
        self._entries = 0
        """Read so far, of all documents."""
        self._ends_at_s = now_s() + MAX_READING_S
        self._nested_end_at_s: float | None = None
        """Time limit for all nested catalogs; None before the first."""
        self._bytes = 0
        self._limits = _Limits(self._ends_at_s, MAX_READING_S, MAX_BYTES, MAX_BYTES)
        self._place = str(source.file)
        """URL or path at which the first document was found."""
        self._way = ""
        """URL of the last document, if it was found at another place than requested."""
        self._validators: tuple[str | None, str | None] = (None, None)
        """Entity tag and `Last-Modified` of the latest document."""
        self._walk = Walk()
        self._cards = ServerCards()
        self._gathered = Gathered(source.kinds, source.max_entries, source.networks)

    async def run(self) -> Snapshot | Unchanged:
        """Read the whole directory. Raises _NoReading, BrokenPlugIn."""
        await self._take(await self._first(), depth=0)
        while (step := self._walk.next_step()) is not None:
            if step.depth == 0:
                await self._take(await self._page(step.url), depth=0)
            elif self._get is None:
                self._walk.note("nested_not_read", f"named by a file, and not read: {step.url}")
            else:
                await self._read_nested(step)
        await self._read_cards()
        # Sorting a million URLs takes some time.
        return await asyncio.to_thread(self._outcome)

    async def _first(self) -> Document:
        """Return the document that the directory begins with, and choose the format if that is left to us."""
        if self._source.file is not None:
            return await self._from_file(self._source.file)
        tried: list[str] = []
        places = self._source.places(self._format)
        pointers: tuple[str, ...] = ()
        answers: list[Got] = []
        for place in places:
            got = await self._fetch(self._first_request(place))
            if (document := await self._recognised(place, got, tried)) is not None:
                return document
            answers.append(got)
            if got.result is ResultClass.OK:
                pointers = linked_catalogs(got.body, str(got.url)) if place == places[-1] else ()
            elif not _is_absent(got):
                raise self._not_fetched(place, got, tried[:-1])
        last = answers[-1]
        if last.result is not ResultClass.OK:
            # The error names the last place by itself.
            tried.pop()
        if len(places) > 1 and (document := await self._pointed_to(places[-1], pointers, tried)) is not None:
            return document
        if last.result is not ResultClass.OK:
            raise self._not_fetched(places[-1], last, tried)
        raise self._failed("not_a_directory", f"{_NONE}: {'; '.join(tried)}", places[-1])

    async def _pointed_to(self, home: str, pointers: Sequence[str], tried: list[str]) -> Document | None:
        """Return the first catalog to which the home page of a domain or its robots.txt leads."""
        wanted = self._source.request_for(urljoin(home, ROBOTS_PATH))
        robots = await self._fetch(replace(wanted, max_bytes=MAX_POINTING_BYTES))
        named = agentmaps(robots.body, str(robots.url)) if robots.result is ResultClass.OK else ()
        for place in dict.fromkeys((*pointers, *named)):
            got = await self._fetch(self._source.request_for(place))
            if (document := await self._recognised(place, got, tried)) is not None:
                return document
        return None

    async def _recognised(self, place: str, got: Got, tried: list[str]) -> Document | None:
        """Return the document if a format recognises it; else None, and `tried` has the reason."""
        if got.result is not ResultClass.OK:
            tried.append(f"{_location_text(place, got)}: {got.reason}")
            return None
        document = self._document(place, got)
        if await self._is_recognised(document):
            self._place = place
            return document
        tried.append(f"{_location_text(place, got)}: this is {describe(document)}")
        return None

    async def _page(self, url: str) -> Document:
        """Return a further page of the directory's own list."""
        got = await self._fetch(self._source.request_for(url))
        if got.result is not ResultClass.OK:
            raise self._not_fetched(url, got)
        return self._document(url, got)

    async def _read_nested(self, step: Step) -> None:
        """Read a nested document; if that fails, only its entries stay unknown."""
        if step.begins_catalog:
            self._begin_catalog()
        try:
            # Without the key of the directory: the author of the entry has chosen the URL.
            got = await self._fetch(WantedDocument(url=step.url))
            if got.result is ResultClass.OK:
                await self._take(self._document(step.url, got), step.depth)
            elif _is_absent(got):
                self._walk.note("nested_not_read", f"{_location_text(step.url, got)}: {got.reason}")
            else:
                raise self._not_fetched(step.url, got)
        except _NoReading as stopped:
            self._walk.give_up(step, _failure_text(stopped.outcome))

    def _begin_catalog(self) -> None:
        """Give a nested catalog its part of the limits."""
        now_s = self._now_s()
        if self._nested_end_at_s is None:
            self._nested_end_at_s = min(self._ends_at_s, now_s + MAX_NESTED_S)
        ends_at_s = min(self._nested_end_at_s, now_s + MAX_CATALOG_S)
        most_bytes = min(MAX_BYTES, self._bytes + MAX_BYTES // NESTED_SHARE)
        self._limits = _Limits(
            ends_at_s, max(0.0, ends_at_s - now_s), most_bytes, max(0, most_bytes - self._bytes)
        )
        self._gathered.begin_part(NESTED_SHARE)
        self._cards.begin_catalog()

    async def _read_cards(self) -> None:
        """List the endpoints of the server cards that entries named."""
        if self._get is not None and self._cards.has_any:
            ends_at_s = min(self._ends_at_s, self._now_s() + server_cards.MAX_READING_S)

            def is_over() -> bool:
                return self._now_s() >= ends_at_s

            # An unchanged directory does not show that its cards are unchanged.
            self._walk.is_single = False
            await self._cards.read(self._get, is_over, self._add_endpoints)
        if self._cards.unread:
            message = (
                f"{pluralize(self._cards.unread, 'URL')} taken as endpoints, without a search for a card"
            )
            # A known server may be behind each of them.
            self._walk.unread += self._cards.unread
            self._walk.note("server_cards_not_read", message)

    def _add_endpoints(self, endpoints: Sequence[Entry], card_url: str) -> None:
        """Add the endpoints of one server card; if they are too many, only this card is incomplete."""
        self._gathered.begin_part(NESTED_SHARE * server_cards.MAX_CARDS)
        try:
            self._gathered.add(endpoints, card_url)
        except TooManyEntries as error:
            self._walk.leave_unread(f"server card {card_url}: {error}")

    async def _take(self, document: Document, depth: int) -> None:
        """Parse one document, and note the documents that it names; _NoReading if it cannot be used."""
        try:
            await _run_beside_loop(document, lambda: self._parse_document(document, depth))
        except NotReadable as error:
            message = f"{error}; this is {describe(document)}"
            if depth == 0:
                message = f"{self._way}: {message}" if self._way else message
                raise self._failed("not_a_directory", message, document.url) from error
            self._walk.note("nested_not_read", f"{document.url}: {message}")
        except Endless as error:
            raise self._failed("endless", str(error), document.url) from error
        except (TooManyEntries, TooManyDocuments) as error:
            raise self._failed("too_large", str(error), document.url) from error

    def _parse_document(self, document: Document, depth: int) -> None:
        assert self._format is not None  # noqa: S101 - chosen with the first document
        if self._walk.take(document, depth):
            page = self._format.read(document)
            entries = (
                page.entries
                if self._report_progress is None
                else self._with_progress(page.entries, self._report_progress)
            )
            if self._get is not None and Kind.MCP_CARD in self._source.kinds:
                entries = self._cards.set_aside(entries, document.url)
            self._gathered.add(entries, document.url)
            self._walk.follow(document, page, depth)

    def _with_progress(self, entries: Iterable[Entry], report: Callable[[int], None]) -> Iterator[Entry]:
        for entry in entries:
            self._entries += 1
            if self._entries % PROGRESS_EVERY == 0:
                report(self._entries)
            yield entry

    async def _is_recognised(self, document: Document) -> bool:
        """Return whether the format was named, or recognises this document."""
        if self._format is None:
            self._format, complaints = await _run_beside_loop(document, lambda: format_of(document))
            for name, complaint in complaints:
                self._walk.note(name, complaint)
        return self._format is not None

    def _outcome(self) -> Snapshot | Unchanged:
        version = Version(
            settings=self._source.settings(self._place),
            digest=self._gathered.digest(),
            is_complete=not self._walk.unread,
            # If there are several documents, one unchanged document proves nothing about the others.
            etag=self._validators[0] if self._walk.is_single else None,
            modified=self._validators[1] if self._walk.is_single else None,
        )
        findings = (*self._walk.findings(), *self._gathered.findings())
        before = read_version(self._known)
        if before is not None and before.describes_the_same(version):
            return Unchanged(
                version=str(version),
                left_out=self._gathered.left_out,
                duplicates=self._gathered.duplicates,
                findings=findings,
            )
        assert self._format is not None  # noqa: S101 - chosen with the first document
        return Snapshot(
            format=self._format.name,
            url=self._place,
            entries=self._gathered.entries,
            left_out=self._gathered.left_out,
            duplicates=self._gathered.duplicates,
            items=self._walk.items,
            documents=self._walk.documents,
            unread=self._walk.unread,
            findings=findings,
            version=str(version),
        )

    def _first_request(self, place: str) -> WantedDocument:
        """Return the first request, with the validators of the known version."""
        wanted = self._source.request_for(place)
        before = read_version(self._known)
        if before is None or before.settings != self._source.settings(place):
            return wanted
        return replace(wanted, etag=before.etag, modified_since=before.modified)

    async def _fetch(self, wanted: WantedDocument) -> Got:
        """Request until there is a final answer, within the limits of attempts and time."""
        if self._get is None:
            raise InvalidValue("get", None, "a way to fetch a directory at a URL")
        for tries in range(1, MAX_TRIES + 1):
            if self._now_s() >= self._limits.ends_at_s:
                raise self._failed("too_slow", f"not read within {self._limits.seconds:g} s", wanted.url)
            self._check_size(wanted.url)
            got = await self._get(wanted)
            if got.is_altered and got.result is ResultClass.OK:
                # In its place are texts that the directory has not written, such as URLs of agents.
                message = "the document contains the key with which it was requested"
                raise self._failed("key_in_document", message, wanted.url)
            if got.is_unchanged and wanted.is_conditional:
                raise _NoReading(Unchanged(version=self._known or ""))
            wait_s = max(float(got.retry_after_seconds or 0), FIRST_WAIT_S * 2 ** (tries - 1))
            is_over = wait_s > MAX_WAIT_S or self._now_s() + wait_s >= self._limits.ends_at_s
            is_silent = got.result is ResultClass.TIMEOUT and got.status is None
            most = MAX_SILENT_TRIES if is_silent else MAX_TRIES
            if tries >= most or not is_passing(got) or is_over:
                return got
            await self._sleep(wait_s)
        raise AssertionError("the last try returns")  # pragma: no cover

    def _document(self, text: str, got: Got) -> Document:
        self._way = "" if str(got.url) == text else _location_text(text, got)
        # References are relative to the URL at which the document was found, not to the requested one.
        url = str(got.url)
        self._bytes += len(got.body)
        self._check_size(url)
        self._validators = (got.etag, got.last_modified)
        return Document(got.body, got.content_type, url)

    def _check_size(self, url: str) -> None:
        if self._bytes > self._limits.most_bytes:
            raise self._failed("too_large", f"more than {self._limits.allowed_bytes} bytes in all", url)

    async def _from_file(self, file: Path) -> Document:
        try:
            body = await asyncio.to_thread(_file_bytes, file)
        except OSError as error:
            why = f"cannot be read: {error.strerror or error}"
            raise self._failed("file_unreadable", why, str(file)) from error
        if body is None:
            raise self._failed("file_unreadable", "expected a regular file", str(file))
        if len(body) > MAX_DOCUMENT_BYTES:
            raise self._failed("too_large", f"more than {MAX_DOCUMENT_BYTES} bytes", str(file))
        document = Document(body, SUFFIX_TYPES.get(file.suffix.lower(), ""))
        if not await self._is_recognised(document):
            raise self._failed("not_a_directory", f"{_NONE}: this is {describe(document)}", str(file))
        return document

    def _failed(self, fault: Fault, message: str, url: str) -> _NoReading:
        return _NoReading(NotRead(fault=fault, message=message, url=url or str(self._source.file)))

    def _not_fetched(self, url: str, got: Got, tried: Sequence[str] = ()) -> _NoReading:
        return _NoReading(
            NotRead(
                fault="not_fetched",
                message="; ".join((*tried, f"{_location_text(url, got)}: {got.reason}")),
                url=url,
                result=got.result,
                retry_after_s=got.retry_after_seconds,
            )
        )


async def _run_beside_loop(document: Document, work: Callable[[], T]) -> T:
    """Run a slow function for a large document in a thread, so that the event loop continues."""
    return work() if len(document.body) <= THREAD_BYTES else await asyncio.to_thread(work)


def _location_text(url: str, got: Got) -> str:
    """Return the URL of a document, and the URL to which it redirected, if any."""
    found = str(got.url)
    return url if found == url else f"{url}, which leads to {found}"


def _failure_text(outcome: NotRead | Unchanged) -> str:
    """Return the reason why a nested document was not read, with its URL."""
    assert isinstance(outcome, NotRead)  # noqa: S101 - only the first document is requested conditionally
    return outcome.message if outcome.fault == "not_fetched" else f"{outcome.url}: {outcome.message}"


def _is_absent(got: Got) -> bool:
    """Return whether the document definitely does not exist; an unreachable server may have one."""
    if got.result in {ResultClass.HTTP_ERROR, ResultClass.DNS_FAILURE}:
        return not is_passing(got)
    return got.is_opted_out or got.result in _ABSENT


def _file_bytes(file: Path) -> bytes | None:
    """Return a file's bytes, at most one more than the limit; None if it is no file."""
    if not stat.S_ISREG(file.stat().st_mode):
        return None
    with file.open("rb") as opened:
        return opened.read(MAX_DOCUMENT_BYTES + 1)
