"""What did reading a directory come to: all of it, nothing new, or no reading at all?"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from lifesign.domain.base.finding import Finding
from lifesign.domain.observation.results import ResultClass
from lifesign.prober.directories.gathered import SkippedEntries
from lifesign.prober.directories.page import Listed, SkipReason

MAX_VALIDATOR_CHARS: Final = 512

Fault = Literal[
    "not_fetched", "file_unreadable", "not_a_directory", "too_large", "endless", "too_slow", "broken_plug_in",
    "reader_failed",
]  # fmt: skip
"""Why a directory was not read."""

# Ours, then what the server gave: an entity tag, or a time.
_VERSION: Final = re.compile(
    r"1 (?P<settings>[0-9a-f]{16}) (?P<digest>[0-9a-f]{64})"
    r"(?: (?P<kind>etag|modified) (?P<validator>[ -~]+))?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """What is remembered of a reading, so that the next one costs little if nothing changed."""

    settings: str
    """Of place, format and kinds: 16 hexadecimal digits. Read otherwise, it says other things."""
    digest: str
    """Of the targets: SHA-256 as 64 hexadecimal digits."""
    etag: str | None = None
    modified: str | None = None
    """`Last-Modified`, as sent. It and the entity tag are known of a directory of one document only."""

    def __str__(self) -> str:
        told = (("etag", self.etag), ("modified", self.modified))
        validators = (f" {name} {value}" for name, value in told if value and _is_sendable(value))
        return f"1 {self.settings} {self.digest}{next(validators, '')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All that a directory lists, read to its end."""

    format: str
    """The name of the format that it is in."""
    url: str
    """Where its first document was read; the path of a file."""
    entries: tuple[Listed, ...] = field(repr=False)
    """The targets in the order of listing, each URL once, as `read_target` spells it."""
    left_out: Mapping[SkipReason, SkippedEntries]
    """What is no target, by reason (`SKIP_REASONS` says them in words)."""
    duplicates: int
    """How many further times a URL was listed."""
    items: int | None
    """How many items were served, several of which may have one URL and some none; None: not counted."""
    documents: int
    """How many documents it took."""
    findings: tuple[Finding, ...]
    version: str
    """Opaque; given back at the next reading, it makes `Unchanged` of a directory that is still the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unchanged:
    """The directory lists what it listed when it had the version that was given."""

    version: str
    """To be remembered from now on."""
    left_out: Mapping[SkipReason, SkippedEntries] = field(default_factory=dict)
    """What is no target; like the following, nothing where the server said that it is unchanged: it was not
    read."""
    duplicates: int = 0
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NotRead:
    """There is no snapshot: a directory is read whole, or not at all."""

    fault: Fault
    message: str
    """What was found where, and what was expected, for people; in ASCII where it quotes a peer."""
    url: str
    """The document that failed; the path of a file."""
    result: ResultClass | None = None
    """How the request ended, if one failed."""
    retry_after_s: float | None = None
    """When it asks to be asked again, in seconds from now; None if it does not say."""


def read_version(text: str | None) -> Version | None:
    """Return a remembered version, None for none and for what this version of ours did not write."""
    match = _VERSION.fullmatch(text or "")
    if match is None:
        return None
    validator = match["validator"]
    return Version(
        settings=match["settings"],
        digest=match["digest"],
        etag=validator if match["kind"] == "etag" else None,
        modified=validator if match["kind"] == "modified" else None,
    )


def _is_sendable(value: str) -> bool:
    return len(value) <= MAX_VALIDATOR_CHARS and re.fullmatch(r"[!-~](?:[ -~]*[!-~])?", value) is not None
