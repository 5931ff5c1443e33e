"""Collects the targets of a directory's entries, and counts duplicates and skipped entries.

All formats leave the assessment of URLs to this module. Addresses are vetted only by the probe: an entry on
`localhost` is a target, and its result will be that it was not contacted.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Final, NamedTuple
from urllib.parse import urljoin

from lifesign.domain.common.finding import Finding
from lifesign.domain.net.allowed_addresses import (
    MAX_URL_CHARACTERS,
    NO_PORT,
    WITH_CREDENTIALS,
    AddressRefused,
    Network,
    vet_url,
    without_password,
)
from lifesign.domain.targets.target import StatedKind, TargetKind, has_single_label_host, read_target
from lifesign.domain.text.counts import pluralize
from lifesign.domain.text.safe_text import harmless
from lifesign.prober.directories.format_parser import (
    MAX_ENTRIES,
    MAX_ITEMS,
    MAX_NAME_CHARS,
    Entry,
    Kind,
    Listed,
    Skipped,
    SkipReason,
)

MAX_EXAMPLES: Final = 5
"""Maximum of examples per reason."""
MAX_EXAMPLE_CHARS: Final = 120
MAX_LISTED_CHARS: Final = 4 * MAX_URL_CHARACTERS
"""A longer text is no URL in any case; the rest of it is not examined."""
MAX_TARGETS_BYTES: Final = 256 * 1024 * 1024
"""URLs and names of all targets: 134 for each of MAX_ENTRIES."""
PROBED_KINDS: Final = frozenset({Kind.A2A_CARD, Kind.A2A_ENDPOINT, Kind.UNKNOWN})
"""Kinds that are probed by default."""
MCP_KINDS: Final = frozenset({Kind.MCP, Kind.MCP_CARD})
_KINDS: Final[Mapping[TargetKind, frozenset[Kind]]] = {
    TargetKind.A2A: PROBED_KINDS,
    TargetKind.MCP: MCP_KINDS,
}
"""Kinds of entries by the kinds of targets in a definition."""

_CHUNK: Final = 10_000
# `<YOUR_TOKEN>`, `${HOST}`, `{tenant}` and `{{tenant}}`.
_PLACEHOLDER: Final = re.compile(r"[{}]|<[^<>]*>")
_RELATIVE: Final = ("/", "./", "../", "?")
_SCHEME: Final = re.compile(r"(?P<name>[A-Za-z][A-Za-z0-9+.-]*):(?P<rest>.?.?)")
_LOCAL: Final = tuple(
    f"{scheme}://{host}{end}"
    for scheme in ("https", "http")
    for host, ends in (("localhost", "/:"), ("127.", ("",)), ("[::1]", "/:"))
    for end in ends
)
_NOWHERE: Final = tuple(f"{scheme}://0.0.0.0{end}" for scheme in ("https", "http") for end in "/:")
_ODD_PLACES: Final = (*_LOCAL, *_NOWHERE)
_ON_LOCALHOST: Final = (
    "on this machine itself: probed only if the definition's networks.allow, or --allow-network, "
    "contains 127.0.0.0/8 or ::1"
)
_AT_ONE_WORD: Final = "at a host name of a single word, which only a private network resolves"
_AT_NO_ADDRESS: Final = "at 0.0.0.0, which is not a valid destination: never probed"


@dataclass(frozen=True, slots=True)
class SkippedEntries:
    """Number of entries that were skipped for one reason, with the first examples."""

    count: int = 0
    examples: tuple[str, ...] = ()
    """At most MAX_EXAMPLES, each cut to MAX_EXAMPLE_CHARS, printable."""


class TooManyEntries(Exception):
    """A directory, or a catalog nested in it, has more entries than are read; the message has the limit."""


class _Used(NamedTuple):
    """Numbers of items and targets, and bytes of the targets."""

    items: int
    targets: int
    size: int


class Gathered:
    """Collects the targets and the skipped entries of all documents of one directory."""

    def __init__(
        self,
        kinds: frozenset[Kind] = PROBED_KINDS,
        max_entries: int = MAX_ENTRIES,
        networks: Sequence[Network] = (),
    ) -> None:
        """Begin with no entries; `networks` are the private networks that may be contacted."""
        self.kinds = kinds
        self.max_entries = max_entries
        self.items = 0
        """Number of listed items: targets, duplicates and skipped entries."""
        self.duplicates = 0
        self._networks = networks
        self._may_be_either = Kind.A2A_CARD in kinds and Kind.MCP in kinds
        """Whether both kinds of targets are wanted; else all entries are of the one that is."""
        self._found: dict[str, Listed] = {}
        self._found_bytes = 0
        self._used = _Used(0, 0, 0)
        """Before the part of the directory that is being added."""
        self._most = _Used(MAX_ITEMS, max_entries, MAX_TARGETS_BYTES)
        """At the end of that part."""
        self._left_out: dict[SkipReason, SkippedEntries] = {}
        self._local = SkippedEntries()
        self._nowhere = SkippedEntries()
        self._at_one_word = SkippedEntries()

    @property
    def entries(self) -> tuple[Listed, ...]:
        """The targets in the order of the list, each URL once, normalised by `read_target`."""
        return tuple(self._found.values())

    @property
    def left_out(self) -> Mapping[SkipReason, SkippedEntries]:
        """Skipped entries, by the reason."""
        return dict(self._left_out)

    def begin_part(self, share: int) -> None:
        """Begin with a nested catalog or a server card, which may use one part in `share` of the limits."""
        used = self._used = _Used(self.items, len(self._found), self._found_bytes)
        self._most = _Used(
            min(MAX_ITEMS, used.items + MAX_ITEMS // share),
            min(self.max_entries, used.targets + MAX_ENTRIES // share),
            min(MAX_TARGETS_BYTES, used.size + MAX_TARGETS_BYTES // share),
        )

    def add(self, entries: Iterable[Entry], base: str = "") -> None:
        """Add the entries of the document at `base`. TooManyEntries beyond the limits."""
        found, used, most = self._found, self._used, self._most
        for entry in entries:
            if self.items == most.items:
                raise TooManyEntries(f"more than {most.items - used.items} items")
            self.items += 1
            if isinstance(entry, Skipped):
                self._leave_out(entry.reason, entry.what)
                continue
            url = listed_url(entry.url, base)
            if url is None:
                self._leave_out(_skip_reason(entry.url), entry.url)
            elif entry.kind not in self.kinds:
                self._leave_out("not_a2a" if entry.kind in MCP_KINDS else "not_mcp", url)
            elif (known := found.get(url)) is not None:
                self._note_duplicate(known, entry.kind)
            elif len(found) == most.targets:
                raise TooManyEntries(f"more than {pluralize(most.targets - used.targets, 'target')}")
            else:
                if url.startswith(_ODD_PLACES) or has_single_label_host(url):
                    self._note_unusual_url(url)
                if url != entry.url or entry.name is not None:
                    entry = Listed(url, _name(entry.name), entry.kind)  # noqa: PLW2901 - a million times
                self._count_bytes(entry)
                found[url] = entry

    def _note_duplicate(self, known: Listed, kind: Kind) -> None:
        """Count a URL that is listed again, perhaps by somebody else, who calls the agent an MCP server."""
        self.duplicates += 1
        if self._may_be_either and (known.kind in MCP_KINDS) is not (kind in MCP_KINDS):
            self._found[known.url] = known._replace(kind=Kind.DISPUTED)

    def _count_bytes(self, entry: Listed) -> None:
        size = self._found_bytes + len(entry.url) + _size(entry.name)
        if size > self._most.size:
            allowed = self._most.size - self._used.size
            raise TooManyEntries(f"targets whose URLs and names have more than {allowed} bytes")
        self._found_bytes = size

    def findings(self) -> list[Finding]:
        """Unusual properties of the directory as a whole."""
        findings = []
        if self._local.count:
            message = f"{self._local.count} {_ON_LOCALHOST}: {', '.join(self._local.examples)}"
            findings.append(Finding("entries_on_localhost", "", message))
        if self._nowhere.count:
            message = f"{self._nowhere.count} {_AT_NO_ADDRESS}: {', '.join(self._nowhere.examples)}"
            findings.append(Finding("entries_at_no_address", "", message))
        if self._at_one_word.count and all(network.is_loopback for network in self._networks):
            # If private networks are allowed, single-label names may exist there.
            message = f"{self._at_one_word.count} {_AT_ONE_WORD}: {', '.join(self._at_one_word.examples)}"
            findings.append(Finding("entries_at_one_word", "", message))
        if not self._found and self.items:
            findings.append(
                Finding("nothing_to_probe", "", f"none of {pluralize(self.items, 'item')} is a target")
            )
        return findings

    def digest(self) -> str:
        """SHA-256 of the targets' URLs and kinds, in 64 hex digits. Their order does not matter."""
        found = self._found
        urls = sorted(found)
        digest = sha256()
        for start in range(0, len(urls), _CHUNK):
            part = urls[start : start + _CHUNK]
            digest.update("".join(f"{url} {found[url].kind}\n" for url in part).encode())
        return digest.hexdigest()

    def _note_unusual_url(self, url: str) -> None:
        if has_single_label_host(url):
            self._at_one_word = _one_more(self._at_one_word, url)
        elif url.startswith(_NOWHERE):
            self._nowhere = _one_more(self._nowhere, url)
        elif isinstance(vet_url(url, self._networks), AddressRefused):
            self._local = _one_more(self._local, url)

    def _leave_out(self, reason: SkipReason, what: str) -> None:
        self._left_out[reason] = _one_more(self._left_out.get(reason, SkippedEntries()), what)


def kinds_of(targets: Sequence[TargetKind]) -> frozenset[Kind]:
    """Return the kinds of entries that count if these kinds of targets are wanted.

    An entry of unknown kind counts as A2A, or as MCP if only MCP servers are wanted.
    """
    return frozenset({Kind.UNKNOWN}).union(*(_KINDS[kind] for kind in targets))


def target_kind(kind: Kind, wanted: Sequence[TargetKind]) -> StatedKind | None:
    """Return the kind of target that an entry is, if these kinds are wanted; None if that is unknown."""
    if kind is Kind.UNKNOWN:
        return StatedKind.MCP if set(wanted) == {TargetKind.MCP} else None
    if kind is Kind.DISPUTED:
        return StatedKind.DISPUTED
    return StatedKind.MCP if kind in MCP_KINDS else StatedKind.A2A


def listed_url(text: str, base: str) -> str | None:
    """Return the URL of an entry as a target's URL, relative to `base`; None if it cannot be a target."""
    if len(text) > MAX_LISTED_CHARS:
        return None
    if base and text.startswith(_RELATIVE) and len(text) <= MAX_URL_CHARACTERS:
        try:
            text = urljoin(base, text)
        except ValueError:
            return None
    # A single word could be a host. In a list it is a word.
    url = read_target(text) if "." in text or ":" in text else None
    return url if isinstance(url, str) else None


def _skip_reason(text: str) -> SkipReason:
    """Say why a text is no target."""
    if len(text) > MAX_LISTED_CHARS:
        return "invalid_url"
    if _PLACEHOLDER.search(text):
        return "template_url"
    scheme = _SCHEME.match(text.strip())
    is_web = scheme is not None and scheme["name"].lower() in {"http", "https"}
    # A host and a port look like a scheme with its content.
    if scheme is not None and not is_web and not scheme["rest"][:1].isdecimal():
        return "foreign_scheme"
    refused = read_target(text)
    reason = refused.reason if isinstance(refused, AddressRefused) else ""
    # Without a scheme, a text with @ is an e-mail address.
    if reason == WITH_CREDENTIALS and is_web:
        return "with_credentials"
    return "no_port" if reason == NO_PORT else "invalid_url"


def _one_more(left_out: SkippedEntries, what: str) -> SkippedEntries:
    if len(left_out.examples) == MAX_EXAMPLES or not what:
        return replace(left_out, count=left_out.count + 1)
    return SkippedEntries(left_out.count + 1, (*left_out.examples, _example(what)))


def _example(what: str) -> str:
    return _printable(without_password(what[:MAX_LISTED_CHARS]), MAX_EXAMPLE_CHARS)


def _size(name: str | None) -> int:
    # If one character of a text is wide, each character takes four bytes.
    return 0 if name is None else len(name) * (1 if name.isascii() else 4)


def _name(name: str | None) -> str | None:
    return None if name is None else _printable(name, MAX_NAME_CHARS)


def _printable(text: str, most: int) -> str:
    return harmless(text[:most])
