"""One document of a directory, as a format parses it.

A directory consists of one or more documents: pages, and documents to which a document refers. A `Format`
parses one document without I/O; `reader` fetches documents, and `target_collection` decides which entries are
targets. A format reports each entry that it does not understand (`Skipped`), so that the result covers every
entry.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeGuard

from lifesign.prober.directories.json_memory_limit import read_json

MAX_ENTRIES: Final = 2_000_000
"""Targets of one directory."""
MAX_ITEMS: Final = 2 * MAX_ENTRIES
"""Maximum of items in a directory: targets, duplicates and skipped entries."""
MAX_NESTING_DEPTH: Final = 4
"""Documents within documents; AI Catalog's own limit."""
NESTED_SHARE: Final = 10
"""A nested catalog, with those nested in it, may use one part in so many of each limit of its directory."""
SAMPLE: Final = 100
"""Number of entries by which the format of a document is recognised."""
MAX_NAME_CHARS: Final = 256
MAX_TOKEN_CHARS: Final = 1024
"""Maximum length of a page token."""

SkipReason = Literal[
    "template_url", "foreign_scheme", "with_credentials", "no_port", "invalid_url", "no_url", "not_a2a",
    "not_mcp", "delisted", "a_registry", "too_deep", "unreadable",
]  # fmt: skip
"""Reason why an entry is not a target."""
SKIP_REASONS: Final[Mapping[SkipReason, str]] = {
    "template_url": "the URL contains an unreplaced placeholder",
    "foreign_scheme": "neither http nor https",
    "with_credentials": "a URL with credentials",
    "no_port": "a port out of range",
    "invalid_url": "neither a URL nor a domain",
    "no_url": "not an http(s) URL",
    "not_a2a": "not an A2A agent",
    "not_mcp": "not an MCP server",
    "delisted": "deleted, by its directory",
    "a_registry": "another registry: add it as a directory",
    "too_deep": f"nested in more than {MAX_NESTING_DEPTH} catalogs",
    "unreadable": "an entry that cannot be read",
}


class Kind(StrEnum):
    """Kind of a directory's entry, as the directory states it."""

    A2A_CARD = "a2a_card"
    """An A2A agent's card."""
    A2A_ENDPOINT = "a2a_endpoint"
    """URL to call an A2A agent, or its origin."""
    MCP = "mcp"
    """Endpoint of an MCP server."""
    MCP_CARD = "mcp_card"
    """Card of an MCP server, or its endpoint: the document at the URL decides."""
    UNKNOWN = "unknown"
    """The directory does not state it."""
    DISPUTED = "disputed"
    """Entries of the directory state different kinds. No format states it."""


class Listed(NamedTuple):
    """One URL that a directory lists. A tuple, because there are millions."""

    url: str
    """URL as listed, perhaps relative to its document; in a `Snapshot` as `read_target` normalises it."""
    name: str | None = None
    """Name in the directory."""
    kind: Kind = Kind.UNKNOWN


class Skipped(NamedTuple):
    """An entry of a directory that cannot be a target, with the reason."""

    what: str
    """URL or name, as listed."""
    reason: SkipReason


Entry = Listed | Skipped


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryPage:
    """What one document of a directory contains: entries, and the documents that follow."""

    entries: Iterable[Entry]
    """Read once, while the document is at hand; reading may raise NotReadable."""
    items: int | None = None
    """Number of items in the document; an item may have several URLs or none. None: not counted."""
    total: int | None = None
    """Number of items in all pages, according to the directory."""
    next_page: Mapping[str, str] | str | None = None
    """Query parameters that lead from this document's URL to the next page, or a URL on the same origin."""
    nested: tuple[str, ...] = ()
    """Further documents of this format that belong to the directory."""


class NotReadable(Exception):
    """A document is not in the expected format. The message says what was expected."""


class Format(Protocol):
    """A format of directories. A plug-in provides an object with these four members, which never do I/O."""

    @property
    def name(self) -> str:
        """Name of the format in definitions."""
        ...

    @property
    def place(self) -> str:
        """Path and query at which hosts serve such a list; empty if there is no fixed one."""
        ...

    def recognises(self, document: "Document") -> bool:
        """Return whether a document is in this format, by its content. Must not raise."""
        ...

    def read(self, document: "Document") -> DirectoryPage:
        """Return the entries of a document; NotReadable if it is of another format."""
        ...


class Document:
    """One document of a directory, as received."""

    __slots__ = ("_parsed", "body", "content_type", "url")

    def __init__(self, body: bytes, content_type: str = "", url: str = "") -> None:
        self.body = body
        self.content_type = content_type
        """Content type in lower case, without parameters; for a file, that of its suffix."""
        self.url = url
        """URL of the document; empty for a file."""
        self._parsed: tuple[Any, str] | None = None

    @property
    def value(self) -> Any:
        """The document's JSON value; None if it is null, or not JSON."""
        return self._json()[0]

    @property
    def json_fault(self) -> str:
        """Reason why the document is not JSON; empty if it is."""
        return self._json()[1]

    def _json(self) -> tuple[Any, str]:
        if self._parsed is None:
            self._parsed = read_json(self.body)
        return self._parsed


def is_object(value: object) -> TypeGuard[dict[str, Any]]:
    """Return whether a JSON value is an object."""
    return isinstance(value, dict)


def most_fit(items: Sequence[object], fits: Callable[[Any], bool]) -> bool:
    """Return whether at least half of the first SAMPLE items fit; anybody may have written one of them."""
    sample = items[:SAMPLE]
    return bool(sample) and 2 * sum(map(fits, sample)) >= len(sample)


def first_text(item: Mapping[str, Any], keys: Iterable[str]) -> str | None:
    """Return the first of these members that is a text and not empty; None if there is none."""
    for key in keys:
        text = item.get(key)
        if isinstance(text, str) and text:
            return text
    return None


def count_in(item: Mapping[str, Any], key: str) -> int | None:
    """Return a member that is a count; None unless it is a whole number from 0 to MAX_ITEMS."""
    value = item.get(key)
    is_count = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_ITEMS
    return value if is_count else None


def page_after(token: object, parameter: str, **others: str) -> dict[str, str] | None:
    """Return the query that requests the page of this token; None if there is no token.

    NotReadable for a token that cannot be sent: otherwise the directory would be incomplete.
    """
    if token is None or token == "":
        return None
    if not isinstance(token, str) or len(token) > MAX_TOKEN_CHARS or not is_unicode(token):
        raise NotReadable(f"expected a page token of at most {MAX_TOKEN_CHARS} characters")
    return {parameter: token, **others}


def is_unicode(text: str) -> bool:
    """Return whether a text can be encoded. A text from JSON may contain half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
