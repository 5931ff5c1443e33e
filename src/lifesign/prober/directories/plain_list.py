"""Directory format of plain lists of URLs or domains.

Accepted are text with one entry per line and `#` before a comment; CSV; JSON with texts, or objects with a
URL; and JSONL with one of these per line. The encoding is UTF-8, or UTF-16 with a byte order mark, as
spreadsheets write "Unicode text". The format follows from suffix or media type, else from the first lines.
Columns of CSV are chosen by name, else the first column with URLs or domains is used.
"""

import csv
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Final, Literal

from lifesign.domain.net.allowed_addresses import without_password
from lifesign.domain.targets.target import read_target
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
)

SAMPLE_LINES: Final = 20
"""Number of non-empty lines that decide about the format of a text."""
SAMPLE_BYTES: Final = 65_536
MAX_LINE_CHARS: Final = 65_536
"""Maximum length of a line of text or JSONL; longer ones are skipped."""
MAX_ROW_CHARS: Final = 131_072
"""Maximum length of a CSV row, which may have several lines; with a longer one the file cannot be read.

The `csv` module refuses a field beyond this length with its own message.
"""
MAX_JUNK_CHARS: Final = 60
"""Maximum length of an invalid URL in a message."""
MAX_COLUMNS: Final = 256
"""Further columns of CSV are ignored."""

ListSyntax = Literal["json", "jsonl", "csv", "lines"]

# URLs of cards come first, websites last.
CARD_KEYS: Final = (
    "card_url", "agent_card_url", "agentCardUrl", "cardUrl", "wellKnownURI", "wellKnownUri", "well_known_uri",
)  # fmt: skip
URL_KEYS: Final = (
    "url",
    "target",
    "endpoint",
    "agent_url",
    "uri",
    "href",
    "link",
    "domain",
    "host",
    "hostname",
)
NAME_KEYS: Final = ("name", "displayName", "display_name", "title", "agent", "id")
LIST_KEYS: Final = ("urls", "targets", "domains", "hosts", "agents")
"""Members of an object that may contain the list."""
PAGING_KEYS: Final = (
    "next", "next_page", "nextPage", "next_url", "nextUrl", "cursor", "next_cursor", "nextCursor",
    "pageToken", "page_token", "nextPageToken", "next_page_token", "has_more", "hasMore", "links", "_links",
    "pagination",
)  # fmt: skip
"""Members that show that the list continues in another document."""
DELIMITERS: Final = "\t;,|"

_CARD_KEYS: Final = frozenset(CARD_KEYS)
_CARD_COLUMNS: Final = tuple(dict.fromkeys(key.lower() for key in CARD_KEYS))
_URL_COLUMNS: Final = (*_CARD_COLUMNS, *URL_KEYS, "website", "site", "address")
_NAME_COLUMNS: Final = tuple(dict.fromkeys(key.lower() for key in NAME_KEYS))
_SYNTAX_BY_TYPE: Final[dict[str, ListSyntax]] = {
    "text/csv": "csv",
    "text/tab-separated-values": "csv",
    "application/jsonl": "jsonl",
    "application/x-jsonl": "jsonl",
    "application/jsonlines": "jsonl",
    "application/x-ndjson": "jsonl",
    "application/ndjson": "jsonl",
}
_GZIP_MARK: Final = b"\x1f\x8b"
_UTF16_MARKS: Final = (b"\xff\xfe", b"\xfe\xff")


class PlainList:
    """Format of a plain list of URLs or domains: text, CSV, JSON or JSONL, in UTF-8 or UTF-16."""

    name = "plain_list"
    place = ""

    def recognises(self, document: Document) -> bool:
        """Return whether most of a document's first entries are URLs or domains."""
        if _is_json(document):
            items = _json_items(document.value)
            return items is not None and _is_mostly_listed(_json_entries(items[:SAMPLE_LINES]))
        way = _syntax_of(document)
        if way is None:
            return False
        return _is_mostly_listed(_sampled(document, way))

    def read(self, document: Document) -> DirectoryPage:
        """Return the entries of a list; NotReadable if none of its first entries is a URL or a domain."""
        if _is_json(document):
            items = _json_items(document.value)
            if items is None or not _has_target(_json_entries(items[:SAMPLE_LINES])):
                raise NotReadable("expected a JSON list of URLs, or of objects with a URL")
            total = count_in(document.value, "total") if is_object(document.value) else None
            return DirectoryPage(entries=map(_json_entry, items), items=len(items), total=total)
        way = _syntax_of(document)
        # A page that reports an outage is text too.
        if way is None or not _has_target(_sampled(document, way)):
            raise NotReadable("expected text with one URL or domain per line, CSV, JSON or JSONL")
        return DirectoryPage(entries=_text_entries(document, way))


def is_empty_list(document: Document) -> bool:
    """Return whether a list has no entry: only comments or a header, `[]`, `{}`, or an empty file.

    An empty list is usually a mistake, and would retire all targets that were listed before.
    """
    if document.value is not None:
        return document.value in ([], {}) or _json_items(document.value) == []
    return _is_unattributed_text(document)


def describe_junk(document: Document) -> str:
    """Return in words the first entries that are neither URLs nor domains, if there are too many of them.

    The text completes "this is …"; empty if none is a URL or a domain, so that it was probably not meant as a
    list.
    """
    if _is_json(document):
        items = _json_items(document.value) or []
        numbered, what, unit = [*enumerate(_json_entries(items[:SAMPLE_LINES]), 1)], "a JSON list", "item"
    elif (way := _syntax_of(document)) is not None:
        numbered, what, unit = _numbered(_sample(document), way), "CSV" if way == "csv" else "text", "line"
    else:
        return ""
    junk = [(number, entry) for number, entry in numbered if not _places([entry])]
    if not junk or len(junk) == len(numbered):
        return ""
    number, first = junk[0]
    # Remove the password first: a shortened text could lose the @ that identifies it.
    shown = without_password(first.url if isinstance(first, Listed) else first.what)[:MAX_JUNK_CHARS]
    first_ones = "the first " if len(numbered) == SAMPLE_LINES else ""
    return (
        f"{what} of which {len(junk)} of {first_ones}{len(numbered)} {unit}s are neither a URL nor a domain, "
        f"the first {shown!a} in {unit} {number}; of a list at least half are"
    )


def describe_encoding(document: Document) -> str:
    """Return the encoding because of which a text cannot be read, to complete "this is …"; else empty."""
    if document.body.startswith(_GZIP_MARK):
        return "compressed with gzip: unpack it (gunzip)"
    if not document.body.startswith(_UTF16_MARKS):
        is_text = b"\0" not in document.body[:SAMPLE_BYTES]
        return (
            ""
            if is_text
            else "not UTF-8, but perhaps UTF-16 without a byte order mark, or UTF-32: save it as UTF-8"
        )
    first = next(_content_lines(_lines(_sample(document))), "")
    return "JSON in UTF-16: save it as UTF-8" if first.startswith(("{", "[")) else ""


def is_url_or_domain(text: str) -> bool:
    """Return whether a text is a URL, or a domain with a dot or a port. A single word is neither."""
    return ("." in text or ":" in text) and isinstance(read_target(text), str)


def _is_json(document: Document) -> bool:
    # One line of JSONL is JSON too.
    return document.content_type not in _SYNTAX_BY_TYPE and document.value is not None


def _json_items(value: object) -> list[Any] | None:
    if isinstance(value, list):
        return value
    # A page of an unknown API would be mistaken for the whole list.
    if is_object(value) and not any(value.get(key) for key in PAGING_KEYS):
        lists = (value.get(key) for key in LIST_KEYS)
        return next((items for items in lists if isinstance(items, list)), None)
    return None


def _json_entry(item: object) -> Entry:
    if isinstance(item, str):
        return Listed(item)
    if not is_object(item):
        return Skipped("", "unreadable")
    name = first_text(item, NAME_KEYS)
    if not _CARD_KEYS.isdisjoint(item) and (card_url := first_text(item, CARD_KEYS)):
        return Listed(card_url, name, Kind.A2A_CARD)
    url = first_text(item, URL_KEYS)
    return Listed(url, name) if url else Skipped(name or "", "no_url")


def _json_entries(items: Sequence[object]) -> list[Entry]:
    return [_json_entry(item) for item in items]


def _sampled(document: Document, way: ListSyntax) -> list[Entry]:
    """Return the first entries of a text; none if it cannot be read so."""
    try:
        return list(islice(_text_entries(_sample(document), way), SAMPLE_LINES))
    except NotReadable:
        return []


def _numbered(document: Document, way: ListSyntax) -> list[tuple[int, Entry]]:
    """Return the first entries of a text, each with its line's number, from 1."""
    lines = ((number, line.strip()) for number, line in enumerate(_lines(document), 1))
    content = list(
        islice(((number, line) for number, line in lines if line and line[0] != "#"), SAMPLE_LINES)
    )
    if way != "csv":
        read = _line_entry if way == "jsonl" else _listed
        return [(number, read(next(_content_lines(iter([line]))))) for number, line in content]
    texts = [line for _, line in content]
    if not texts:
        return []
    rows = csv.reader(texts, delimiter=_delimiter_of(texts[0]) or ",")
    try:
        cells = [(content[rows.line_num - 1][0], row) for row in rows]
    except csv.Error:
        return []
    column, has_header = _likeliest_column([row for _, row in cells])
    return [(number, Listed(_cell(row, column).strip())) for number, row in cells[has_header:]]


def _places(entries: Sequence[Entry]) -> int:
    return sum(isinstance(entry, Listed) and is_url_or_domain(entry.url) for entry in entries)


def _has_target(entries: Sequence[Entry]) -> bool:
    return _places(entries) > 0


def _is_mostly_listed(entries: Sequence[Entry]) -> bool:
    return _has_target(entries) and _places(entries) * 2 >= len(entries)


def _syntax_of(document: Document) -> ListSyntax | None:
    """Return the syntax of a text; None if it is no list, or a page."""
    if document.content_type == "text/html":
        return None
    if way := _SYNTAX_BY_TYPE.get(document.content_type):
        return way
    first = next(_content_lines(_lines(_sample(document))), "")
    if not first or first[0] == "<" or "\0" in first:
        return None
    if first[0] in '{["':
        return "jsonl" if _json_line(first) is not None else ("csv" if first[0] == '"' else None)
    # A URL may contain a comma: a line that is a URL as a whole has no columns.
    return "csv" if not is_url_or_domain(first) and _delimiter_of(first) is not None else "lines"


def _is_unattributed_text(document: Document) -> bool:
    if document.content_type == "text/html":
        return False
    sample = _sample(document)
    content = list(islice(_content_lines(_lines(sample)), 2))
    if not content:
        return next(_content_lines(_lines(document)), None) is None
    if len(content) > 1 or len(document.body) > SAMPLE_BYTES or _syntax_of(document) != "csv":
        return False
    header = next(csv.reader(content, delimiter=_delimiter_of(content[0]) or ","))
    return any(cell.strip().lower() in _URL_COLUMNS for cell in header[:MAX_COLUMNS])


def _sample(document: Document) -> Document:
    # A line that is cut by this is one of at most twenty.
    return Document(document.body[:SAMPLE_BYTES], document.content_type)


def _lines(document: Document) -> Iterator[str]:
    """Yield the lines of a text; of one that is longer than any that is read, MAX_ROW_CHARS + 1."""
    # Not split at once: a list of a million lines would be in memory three times.
    is_utf16 = document.body.startswith(_UTF16_MARKS)
    encoding = "utf-16" if is_utf16 else "utf-8-sig"
    text = io.TextIOWrapper(io.BytesIO(document.body), encoding=encoding, errors="replace")
    while line := text.readline(MAX_ROW_CHARS + 1):
        yield line
        while len(line) > MAX_ROW_CHARS and line[-1] != "\n":
            line = text.readline(MAX_ROW_CHARS + 1)


def _content_lines(lines: Iterator[str]) -> Iterator[str]:
    """Yield the lines with content, without comments and white space."""
    for line in lines:
        text = line.strip()
        if text and text[0] != "#":
            if " #" in text:
                text = text.partition(" #")[0].rstrip()
            yield text


def _text_entries(document: Document, way: ListSyntax) -> Iterator[Entry]:
    lines = _lines(document)
    if way == "csv":
        return _csv_entries(lines)
    if way == "jsonl":
        return map(_line_entry, _content_lines(lines))
    return map(_listed, _content_lines(lines))


def _listed(line: str) -> Entry:
    return Listed(line) if len(line) <= MAX_LINE_CHARS else Skipped(line, "unreadable")


def _json_line(line: str) -> Any:
    """Return the text or object of a line of JSONL, None if it is neither."""
    if len(line) > MAX_LINE_CHARS:
        return None
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, str | dict) else None


def _line_entry(line: str) -> Entry:
    value = _json_line(line)
    return Skipped(line, "unreadable") if value is None else _json_entry(value)


def _delimiter_of(line: str) -> str | None:
    """Return the delimiter that gives the most columns, None if there is none."""
    found = max(DELIMITERS, key=line.count)
    return found if found in line else None


def _csv_entries(lines: Iterator[str]) -> Iterator[Entry]:
    content = (line for line in lines if line.strip() and line[0] != "#")
    head = list(islice(content, SAMPLE_LINES))
    if not head:
        return
    delimiter = _delimiter_of(head[0]) or ","
    columns = _columns(list(_rows(head, delimiter)))
    rows = _rows(chain(head, content), delimiter)
    if columns.has_header:
        next(rows)
    for row in rows:
        url = _cell(row, columns.url).strip()
        name = _cell(row, columns.name)
        yield Listed(url, name or None, columns.kind) if url else Skipped(name, "no_url")


def _rows(lines: Iterable[str], delimiter: str) -> Iterator[list[str]]:
    """Yield the rows of CSV. NotReadable for a row of more than MAX_ROW_CHARS."""
    number = fed = 0

    def feed() -> Iterator[str]:
        nonlocal number, fed
        for number, line in enumerate(lines, 1):  # noqa: B007 - for the message
            fed += len(line)
            if fed > MAX_ROW_CHARS:
                raise csv.Error(f"a row has more than {MAX_ROW_CHARS} characters")
            yield line

    try:
        for row in csv.reader(feed(), delimiter=delimiter):
            fed = 0
            yield row
    except csv.Error as error:
        raise NotReadable(f"expected CSV: line {number}: {error}") from None


@dataclass(frozen=True, slots=True)
class _Columns:
    """The columns of CSV that are read."""

    url: int
    name: int | None = None
    has_header: bool = False
    kind: Kind = Kind.UNKNOWN


def _columns(rows: list[list[str]]) -> _Columns:
    """Return the columns by their names, else by their content."""
    header = [cell.strip().lower() for cell in rows[0][:MAX_COLUMNS]]
    named = next((column for column in _URL_COLUMNS if column in header), None)
    if named is not None:
        name = next((header.index(column) for column in _NAME_COLUMNS if column in header), None)
        kind = Kind.A2A_CARD if named in _CARD_COLUMNS else Kind.UNKNOWN
        return _Columns(header.index(named), name, has_header=True, kind=kind)
    width = max(len(row) for row in rows)
    for column in range(min(width, MAX_COLUMNS)):
        cells = [row[column].strip() for row in rows if column < len(row)]
        if sum(map(is_url_or_domain, cells)) * 2 >= len(cells):
            return _Columns(column)
    raise NotReadable("expected a column of URLs or domains")


def _likeliest_column(rows: list[list[str]]) -> tuple[int, bool]:
    """Return the column of URLs by its name, else that with the most of them; and whether it has a name."""
    try:
        columns = _columns(rows)
    except NotReadable:
        width = min(max(len(row) for row in rows), MAX_COLUMNS)
        return max(
            range(width), key=lambda at: sum(is_url_or_domain(_cell(row, at).strip()) for row in rows)
        ), False
    return columns.url, columns.has_header


def _cell(row: list[str], column: int | None) -> str:
    return row[column] if column is not None and column < len(row) else ""
