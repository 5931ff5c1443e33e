"""Result of reading a directory: a snapshot, unchanged, or a failure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from lifesign.domain.common.finding import Finding
from lifesign.domain.observation.results import ResultClass
from lifesign.prober.directories.format_parser import Listed, SkipReason
from lifesign.prober.directories.target_collection import SkippedEntries

MAX_VALIDATOR_CHARS: Final = 512

Fault = Literal[
    "not_fetched", "file_unreadable", "not_a_directory", "too_large", "endless", "too_slow", "broken_plug_in",
    "reader_failed", "key_in_document",
]  # fmt: skip
"""Reason why a directory was not read."""

# Our digest, then the server's entity tag or time.
_VERSION: Final = re.compile(
    r"1 (?P<settings>[0-9a-f]{16}) (?P<digest>[0-9a-f]{64})"
    r"(?P<incomplete> incomplete)?(?: (?P<kind>etag|modified) (?P<validator>[ -~]+))?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """Describes the content of a directory, to find out next time whether it has changed."""

    settings: str
    """Digest of place, format and kinds: 16 hexadecimal digits. Other settings give other targets."""
    digest: str
    """Digest of the targets: SHA-256 as 64 hexadecimal digits."""
    is_complete: bool = True
    """Whether the entries of all nested catalogs are known."""
    etag: str | None = None
    modified: str | None = None
    """`Last-Modified`, as sent. It and the entity tag are only known for a directory of one document."""

    def __str__(self) -> str:
        known = (("etag", self.etag), ("modified", self.modified))
        validators = (f" {name} {value}" for name, value in known if value and _is_sendable(value))
        state = "" if self.is_complete else " incomplete"
        return f"1 {self.settings} {self.digest}{state}{next(validators, '')}"

    def describes_the_same(self, other: "Version") -> bool:
        """Return whether both describe the same targets, read by the same settings and equally completely."""
        return str(replace(self, etag=None, modified=None)) == str(replace(other, etag=None, modified=None))


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All entries of a directory whose own pages were read completely."""

    format: str
    """The name of the format that it is in."""
    url: str
    """URL of the first document; for a file, its path."""
    entries: tuple[Listed, ...] = field(repr=False)
    """The targets in the order of listing, each URL once, as `read_target` spells it."""
    left_out: Mapping[SkipReason, SkippedEntries]
    """Skipped entries by reason (`SKIP_REASONS` has their texts)."""
    duplicates: int
    """Number of further occurrences of a URL."""
    items: int | None
    """Number of items served; an item may have several URLs or none. None: not counted."""
    documents: int
    """Number of documents read."""
    unread: int
    """Number of nested documents that could not be read: they may list targets that the snapshot lacks."""
    findings: tuple[Finding, ...]
    version: str
    """Opaque; given back at the next reading, it makes `Unchanged` of a directory that is still the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unchanged:
    """The directory still has the content that the known version describes."""

    version: str
    """Version to store for the next reading."""
    left_out: Mapping[SkipReason, SkippedEntries] = field(default_factory=dict)
    """Skipped entries by reason. This and the following members are empty if the server answered that nothing
    changed.
    """
    duplicates: int = 0
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NotRead:
    """A directory could not be read completely, so there is no snapshot of it."""

    fault: Fault
    message: str
    """Finding, place and expected value, for people. Quotes of a peer are ASCII."""
    url: str
    """The document that failed; the path of a file."""
    result: ResultClass | None = None
    """Result of the request that failed, if any."""
    retry_after_s: float | None = None
    """Requested wait, in seconds from now; None if there is none."""


def read_version(text: str | None) -> Version | None:
    """Read a stored version; None if there is none, or another release of lifesign wrote it."""
    match = _VERSION.fullmatch(text or "")
    if match is None:
        return None
    validator = match["validator"]
    return Version(
        settings=match["settings"],
        digest=match["digest"],
        is_complete=match["incomplete"] is None,
        etag=validator if match["kind"] == "etag" else None,
        modified=validator if match["kind"] == "modified" else None,
    )


def _is_sendable(value: str) -> bool:
    return len(value) <= MAX_VALIDATOR_CHARS and re.fullmatch(r"[!-~](?:[ -~]*[!-~])?", value) is not None
