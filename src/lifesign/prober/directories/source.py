"""Source of a directory: its places and how it is fetched."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import urljoin, urlsplit

from yarl import URL

from lifesign.client.secret_file import check_key
from lifesign.domain.credentials.request_scope import CredentialScope
from lifesign.domain.net.allowed_addresses import AddressRefused, Network, without_password
from lifesign.domain.observation.results import ResultClass
from lifesign.domain.targets.target import is_in_the_clear, read_target
from lifesign.errors import InvalidValue
from lifesign.prober.directories.format_choice import AUTO, well_known_places
from lifesign.prober.directories.format_parser import MAX_ENTRIES, Format, Kind
from lifesign.prober.directories.target_collection import PROBED_KINDS

MAX_DOCUMENT_BYTES: Final = 128 * 1024 * 1024
"""Maximum size of one document after decompression: MAX_ENTRIES URLs of 64 characters."""
DOCUMENT_TIMEOUT_S: Final = 120.0
"""Time limit until the last byte of a document."""
SUFFIX_TYPES: Final[Mapping[str, str]] = {
    ".csv": "text/csv",
    ".json": "application/json",
    ".jsonl": "application/jsonl",
    ".ndjson": "application/x-ndjson",
    ".tsv": "text/tab-separated-values",
}

_PASSING: Final = frozenset({
    ResultClass.TIMEOUT, ResultClass.REFUSED, ResultClass.RATE_LIMITED, ResultClass.INTERNAL,
    ResultClass.NOT_MEASURED,
})  # fmt: skip


class Got(Protocol):
    """Answer to one GET of a directory's document, with the headers for the next conditional GET."""

    @property
    def url(self) -> URL:
        """URL of the answer, after redirects."""
        ...

    @property
    def result(self) -> ResultClass:
        """Result of the request: `ok` for a complete body, or if the document is unchanged."""
        ...

    @property
    def reason(self) -> str:
        """Reason of a failure for people, in ASCII."""
        ...

    @property
    def status(self) -> int | None:
        """HTTP status of the answer; None if there was none."""
        ...

    @property
    def content_type(self) -> str:
        """Media type of the body in lower case, without parameters."""
        ...

    @property
    def body(self) -> bytes:
        """The whole body, at most MAX_DOCUMENT_BYTES."""
        ...

    @property
    def retry_after_seconds(self) -> int | None:
        """Seconds that the server asked to wait; None if it did not."""
        ...

    @property
    def etag(self) -> str | None:
        """The answer's entity tag, unchanged."""
        ...

    @property
    def last_modified(self) -> str | None:
        """The answer's `Last-Modified` header, unchanged."""
        ...

    @property
    def is_unchanged(self) -> bool:
        """Whether the server answered that the document is unchanged (304)."""
        ...

    @property
    def is_resolver_fault(self) -> bool:
        """Whether no name server answered."""
        ...

    @property
    def is_altered(self) -> bool:
        """Whether the key that was sent was removed from the answer."""
        ...

    @property
    def is_opted_out(self) -> bool:
        """Whether an opt-out excludes the host, so that nothing was sent."""
        ...


def is_passing(got: Got) -> bool:
    """Return whether the fault is temporary, so that a repeated request may soon succeed."""
    if got.is_opted_out:
        return False
    if got.result is ResultClass.HTTP_ERROR:
        return got.status is None or got.status in {408, 425} or got.status >= 500
    if got.result is ResultClass.DNS_FAILURE:
        return got.is_resolver_fault
    return got.result in _PASSING


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedDocument:
    """One document of a directory that is to be requested."""

    url: str
    key: str | None = field(default=None, repr=False)
    """Sent as Bearer."""
    key_scope: CredentialScope | None = None
    """Where a redirect may lead with the key; None without one."""
    etag: str | None = None
    """ETag of the known version; the answer may be that nothing changed."""
    modified_since: str | None = None
    """The same by `Last-Modified`, if there is no entity tag."""
    max_bytes: int = MAX_DOCUMENT_BYTES
    timeout_s: float = DOCUMENT_TIMEOUT_S

    @property
    def is_conditional(self) -> bool:
        """Whether the server may answer that the document is unchanged (304)."""
        return self.etag is not None or self.modified_since is not None


Get = Callable[[WantedDocument], Awaitable[Got]]
"""Fetches a document, from vetted addresses only; does not raise for anything that a peer does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListSource:
    """One configured directory: its URL or file, format and key. InvalidValue for impossible settings."""

    url: str | None = None
    """URL of the directory. For a host alone, the well-known places of directories are tried."""
    file: Path | None = None
    """File of the directory. Exactly one of `url` and `file` is given."""
    format: str = AUTO
    """The name of a format; `auto` recognises it by the content."""
    key: str | None = field(default=None, repr=False)
    """Sent as Bearer to the directory's own pages, at its URL and below its folder, and nowhere else."""
    kinds: frozenset[Kind] = PROBED_KINDS
    """Kinds of entries that become targets; MCP servers only if they are named here."""
    max_entries: int = MAX_ENTRIES
    networks: tuple[Network, ...] = ()
    """Private networks that are allowed: entries there cause no warning."""

    def __post_init__(self) -> None:
        if (self.url is None) == (self.file is None):
            raise InvalidValue("directory", None, "exactly one of url and file")
        if self.url is not None:
            url = read_target(self.url)
            if isinstance(url, AddressRefused):
                shown = without_password(self.url)
                raise InvalidValue("url", shown, f"the URL of a directory ({url.reason})")
            object.__setattr__(self, "url", url)
        if self.key is not None:
            check_key(self.key)
            if self.url is not None and is_in_the_clear(self.url):
                raise InvalidValue("url", self.url, "https, since the key must not be sent unencrypted")

    def places(self, chosen: Format | None) -> tuple[str, ...]:
        """Return the URLs at which the list may be, in the order to try; for a file, its path.

        For a host alone, these are the places of the chosen format, or, without a format, the well-known
        places of a domain's catalogs and at last its home page.
        """
        if self.url is None:
            return (str(self.file),)
        parts = urlsplit(self.url)
        if parts.path != "/" or parts.query:
            return (self.url,)
        places = tuple(urljoin(self.url, place) for place in well_known_places(chosen))
        return places if chosen is not None else (*places, self.url)

    def request_for(self, url: str) -> WantedDocument:
        """Return the request for one of the directory's own pages, with the key if the URL may get it.

        A page elsewhere on the origin may be on a server of others.
        """
        if self.url is None or self.key is None:
            return WantedDocument(url=url)
        parts = urlsplit(self.url)
        origin, folder = f"{parts.scheme}://{parts.netloc}", parts.path.rpartition("/")[0]
        scope = CredentialScope(name="key_file", origin=origin, path=folder)
        if url != self.url and not scope.covers(url):
            return WantedDocument(url=url)
        return WantedDocument(url=url, key=self.key, key_scope=scope)

    def settings(self, place: str) -> str:
        """Return a digest of the settings that decide which targets this list gives."""
        text = "\n".join((place, self.format, *sorted(self.kinds)))
        return sha256(text.encode()).hexdigest()[:16]
