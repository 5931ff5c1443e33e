"""Import of directories: their entries become targets.

A directory is read whole, opted-out entries are removed, and the rest is sent in pages; then it replaces the
earlier list of the directory, part by part. An unchanged list is not sent again.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Final, Protocol
from uuid import uuid4

from lifesign.client.registry_errors import Conflict
from lifesign.client.secret_file import read_secret
from lifesign.crawl.contact_rule import first_public
from lifesign.crawl.list_file import QUIET_S, unsettled_for_s
from lifesign.crawl.list_identity import KnowsLists, absolute_path, listed_in, stored_location
from lifesign.crawl.progress_display import ImportStep
from lifesign.domain.common.finding import Finding
from lifesign.domain.models.directories import (
    MAX_PAGE_URLS,
    DirectoryRecord,
    ImportPageRequest,
    ImportRecord,
    ImportState,
)
from lifesign.domain.net.peer_text import printable
from lifesign.domain.observation.results import MAX_ETAG_CHARS
from lifesign.domain.targets.target import StatedKind
from lifesign.domain.text.counts import pluralize
from lifesign.errors import InvalidValue, LifesignError
from lifesign.filesystem.core_dumps import forbid_core_dumps
from lifesign.prober.definition.directory_source import DirectorySource
from lifesign.prober.definition.file import unreadable
from lifesign.prober.definition.models import ProbeDefinition
from lifesign.prober.directories import (
    SKIP_REASONS,
    Get,
    ListSource,
    NotRead,
    SkippedEntries,
    Snapshot,
    Unchanged,
    kinds_of,
    read_directory,
)
from lifesign.prober.directories.format_parser import Listed
from lifesign.prober.directories.target_collection import Gathered, target_kind
from lifesign.prober.network.exclusion_list import OptOuts, read_opt_outs
from lifesign.registry.errors import ImportOver

_log = logging.getLogger("lifesign.crawl")

INLINE_SUFFIX: Final = ".Targets"
"""Ends the name of the directory that a definition itself is; no other has a capital."""
MAX_FINDINGS: Final = 3
"""Maximum number of findings that are shown per reading."""
MAX_FINDING_CHARS: Final = 160
MAX_EXAMPLES_SHOWN: Final = 2
"""Maximum number of examples that are shown per reason of skipped entries."""
STILL_WRITTEN: Final = "the file changed a short time ago, and may not be complete yet"
_DIGEST_DIGITS: Final = 8


class TakesLists(KnowsLists, Protocol):
    """Stores the lists of directories: a remote registry, or the database of this crawl."""

    async def put_page(
        self, directory: str, import_id: str, page: int, body: ImportPageRequest
    ) -> ImportRecord:
        """Send one page of a list; the first page has the number 1."""
        ...

    async def apply(self, directory: str, import_id: str, *, pages: int) -> ImportRecord:
        """Apply the next part of an import."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportOutcome:
    """Result of one reading of one directory."""

    directory: str
    text: str
    """Result in one line, for people."""
    is_suspended: bool = False
    """True if it has shrunk so much that an operator must confirm the removal."""
    has_failed: bool = False
    """True if it could not be read; the targets that it listed before still count."""


class DirectoryImporter:
    """Reads the directories of a definition, and imports their entries."""

    def __init__(
        self,
        definition: ProbeDefinition,
        lists: TakesLists,
        get: Get,
        *,
        is_shared: bool = False,
        is_continuous: bool = False,
    ) -> None:
        """Read the opt-out lists; InvalidValue if one is invalid.

        `is_shared`: others read the content of `lists`, and do not get the paths of files on this machine.
        `is_continuous`: a directory that was not read is read again later.
        """
        self._definition = definition
        self._lists = lists
        self._get = get
        self._is_shared = is_shared
        self._is_continuous = is_continuous
        self._steps: dict[str, ImportStep] = {}
        """Progress with the directories that are being read, by their names."""
        self._handing_over = asyncio.Lock()
        self._opt_outs = opt_outs_of(definition)
        self._prefix = _digest(_opt_out_lines(self._opt_outs))

    @property
    def names(self) -> list[str]:
        """The directories that the definition names."""
        named = [source.label for source in self._definition.directories]
        return [*([self._inline] if self._definition.targets else []), *named]

    @property
    def step(self) -> ImportStep | None:
        """Progress with the directory that has been read for the longest time; None if there is none."""
        # Other threads report their progress meanwhile.
        return next(iter(tuple(self._steps.values())), None)

    @property
    def _inline(self) -> str:
        return self._definition.name + INLINE_SUFFIX

    async def unnamed(self) -> list[DirectoryRecord]:
        """Return the stored directories that the definition does not name; their targets are probed too."""
        names = set(self.names)
        return [record for record in await self._lists.all() if record.size and record.name not in names]

    async def import_inline(self) -> ImportOutcome | None:
        """Import the targets that the definition itself contains; None if it contains none."""
        targets = [
            (target.url, None if target.kind is None else StatedKind(target.kind))
            for target in self._definition.targets
        ]
        if not targets:
            return None
        version = f"{self._prefix} {_digest(f'{url} {kind}' for url, kind in targets)}"
        try:
            done = await self._hand_over(self._inline, targets, version, source=None, allow_shrink=True)
        finally:
            self._steps.pop(self._inline, None)
        return replace(done, text=done.text + _findings_text(inline_findings(self._definition)))

    async def import_directory(self, source: DirectorySource, *, is_again: bool = False) -> ImportOutcome:
        """Read one directory and import its list; an error is returned as the result.

        An unusable key file raises InvalidValue, but not if the directory `is_again` read.
        """
        try:
            return await self._import_directory(source, is_again=is_again)
        except InvalidValue:
            raise
        except LifesignError as error:
            if isinstance(error, ImportOver) or (isinstance(error, Conflict) and error.code == "import_over"):
                text = f"{source.label}: another crawl has sent a later list meanwhile"
                return ImportOutcome(directory=source.label, text=text)
            text = f"{source.label}: not stored: {error}"
            return ImportOutcome(directory=source.label, text=text, has_failed=True)
        finally:
            self._steps.pop(source.label, None)

    async def _import_directory(self, source: DirectorySource, *, is_again: bool) -> ImportOutcome:
        name = source.label
        records = await self._records()
        record = records.get(name)
        known = None
        if record is not None and (last := record.suspended or record.applied) is not None:
            known = _without_prefix(last.etag, self._prefix)
        report = partial(self._at, name, "lines read")
        report(0)
        try:
            listed = self._source(source, self._room(name, records))
        except InvalidValue as error:
            if not is_again:
                raise
            return _not_read_outcome(name, str(error), record)
        # The first list retires no target, and a single pass has no later reading.
        is_checked = self._is_continuous and record is not None and record.size > 0
        file = source.file if is_checked else None
        read = await self._read(listed, file, known, report)
        if isinstance(read, NotRead):
            return _not_read_outcome(name, read.message, record)
        if isinstance(read, Unchanged):
            assert record is not None  # noqa: S101 - else there was nothing that could be unchanged
            if record.suspended is not None:
                return _suspended_outcome(name, record.suspended)
            unchanged = ImportOutcome(directory=name, text=f"{name}: unchanged, {targets_text(record.size)}")
            return _with_findings(unchanged, read)
        # One at a time, because the limit on targets is that of all directories together.
        async with self._handing_over:
            return await self._import_snapshot(source, read)

    async def _import_snapshot(self, source: DirectorySource, read: Snapshot) -> ImportOutcome:
        """Import what was read. If entries of nested catalogs are unknown, no target is removed."""
        name = source.label
        records = await self._records()
        record, room = records.get(name), self._room(name, records)
        version = f"{self._prefix} {read.version}"
        if len(version) > MAX_ETAG_CHARS:
            # Without the server's validators: the next reading costs more, and finds the same.
            version = " ".join(version.split(" ")[:4])
        targets = [(entry.url, target_kind(entry.kind, source.kinds)) for entry in read.entries]
        if not self._definition.has_contact:
            public = first_public([url for url, _ in targets], self._definition.networks_allowed)
            if public is not None:
                text = f"{name}: not read: {public} is public, and no contact is configured"
                return ImportOutcome(directory=name, text=text, has_failed=True)
        unread = f"{pluralize(read.unread, 'document')} of its entries could not be read"
        kept = record.size if read.unread and record is not None else 0
        if kept + len(targets) > room:
            why = f"{unread}, and with the targets that are kept there could be " if kept else ""
            return _not_read_outcome(name, f"{why}more than {targets_text(room)}", record)
        if record is not None and record.suspended is not None and record.size > room:
            # Otherwise a list that changes completely at each reading would add its targets each time.
            why = f"more than {targets_text(room)}, until an operator confirms the removal of former ones"
            return _not_read_outcome(name, why, record)
        place = stored_location(printable(read.url), source, is_shared=self._is_shared)
        keep, shrink = read.unread > 0, source.allow_shrink
        outcome = await self._hand_over(
            name, targets, version, source=place, allow_shrink=shrink, keep_missing=keep
        )
        if read.unread:
            outcome = replace(outcome, text=f"{outcome.text}; no target was removed: {unread}")
        return _with_findings(outcome, read)

    async def _read(
        self, listed: ListSource, file: Path | None, known: str | None, report: Callable[[int], None]
    ) -> Snapshot | Unchanged | NotRead:
        """Read a directory; a change of its `file` counts only if the file is completely written."""
        if file is not None and (wait_s := unsettled_for_s(file)) <= QUIET_S:
            await asyncio.sleep(wait_s)
        read = await read_directory(listed, self._get, known=known, report=report)
        if file is not None and isinstance(read, Snapshot) and unsettled_for_s(file):
            return NotRead(fault="file_unreadable", message=STILL_WRITTEN, url=str(file))
        return read

    async def _records(self) -> dict[str, DirectoryRecord]:
        return {record.name: record for record in await self._lists.all()}

    def _room(self, name: str, records: Mapping[str, DirectoryRecord]) -> int:
        """Return the number of targets that a directory may list beside the other ones, at least 1."""
        others = sum(records[other].size for other in self.names if other != name and other in records)
        return max(1, self._definition.limits.max_targets - others)

    def _source(self, source: DirectorySource, max_entries: int) -> ListSource:
        key = None
        if source.key_file is not None:
            forbid_core_dumps()
            key = read_secret(source.key_file, "key_file", "key", _log.warning)
            if not key:
                raise InvalidValue("key_file", str(source.key_file), "a file that contains a key")
        return ListSource(
            url=source.url,
            file=source.file if source.file is None or self._is_shared else absolute_path(source.file),
            format=source.format,
            key=key,
            kinds=kinds_of(source.kinds),
            max_entries=max_entries,
            networks=self._definition.networks_allowed,
        )

    def _at(self, directory: str, doing: str, done: int, total: int | None = None) -> None:
        self._steps[directory] = ImportStep(directory, doing, done, total)

    async def _hand_over(
        self,
        name: str,
        targets: Sequence[tuple[str, StatedKind | None]],
        version: str,
        *,
        source: str | None,
        allow_shrink: bool,
        keep_missing: bool = False,
    ) -> ImportOutcome:
        """Import a list, and wait until it is applied or suspended."""
        record = (await self._records()).get(name)
        applied = None if record is None or record.suspended is not None else record.applied
        if record is not None and applied is not None and applied.etag == version:
            return ImportOutcome(directory=name, text=f"{name}: unchanged, {targets_text(record.size)}")
        wanted = [target for target in targets if self._opt_outs.entry_for(target[0]) is None]
        import_id = uuid4().hex
        pages = _pages(wanted)
        handed_over = 0
        for place, (kind, page) in enumerate(pages, 1):
            body = ImportPageRequest(
                urls=page,
                kind=kind,
                source=source,
                etag=version,
                allow_shrink=allow_shrink,
                keep_missing=keep_missing,
            )
            await self._lists.put_page(name, import_id, place, body)
            handed_over += len(page)
            self._at(name, "handed over", handed_over, len(wanted))
        done = await self._lists.apply(name, import_id, pages=len(pages))
        while done.is_under_way:
            # Removals of targets of the former list are not counted in advance.
            self._at(name, "new targets stored", done.added, None if done.size_before else len(wanted))
            done = await self._lists.apply(name, import_id, pages=len(pages))
        if done.state is ImportState.SUSPENDED:
            return _suspended_outcome(name, done)
        size = done.size_before + done.added - done.removed
        changes = f", {done.added:,} new, {done.removed:,} left" if done.size_before else ""
        opted_out = len(targets) - len(wanted)
        if opted_out:
            changes += f", {opted_out:,} opted out"
        return ImportOutcome(directory=name, text=f"{name}: {targets_text(size)}{changes}")


@dataclass(frozen=True, slots=True)
class InspectedLists:
    """Faults of the lists on this machine, and findings about targets in the definition itself."""

    unread: dict[str, str]
    """Reason why each list cannot be read, by its name."""
    odd: list[str]
    """Findings about the other lists, which are read nevertheless."""


async def inspect_lists(definition: ProbeDefinition) -> InspectedLists:
    """Read the lists on this machine, and report their faults; no URL is requested."""
    unread = {}
    odd = [finding.message for finding in inline_findings(definition)]
    for source in definition.directories:
        if source.file is None:
            continue
        read = await read_directory(listed_in(source, definition))
        if isinstance(read, NotRead):
            unread[source.label] = f"{source.file}: {read.message}"
        else:
            odd += [f"{source.label}: {finding.message}" for finding in read.findings]
    return InspectedLists(unread, odd)


def inline_findings(definition: ProbeDefinition) -> list[Finding]:
    """Return the findings about the targets in a definition itself."""
    gathered = Gathered(networks=definition.networks_allowed)
    gathered.add(map(Listed, definition.target_urls))
    return gathered.findings()


def opt_outs_of(definition: ProbeDefinition) -> OptOuts:
    """Return the exclusions of the definition and of the files that it names. Raises InvalidValue."""
    found = read_opt_outs(definition.opt_out.hosts, "opt_out.hosts")
    for name in definition.opt_out.files:
        if why := unreadable(name):
            raise InvalidValue("opt_out.files", str(name), f"a readable file ({why})")
        try:
            with name.open(encoding="utf-8-sig", errors="replace") as file:
                found |= read_opt_outs(file, str(name))
        except OSError as error:
            raise InvalidValue("opt_out.files", str(name), f"a readable file ({error.strerror})") from None
    return found


def targets_text(count: int) -> str:
    """Return a number of targets as text."""
    return pluralize(count, "target")


def _opt_out_lines(opt_outs: OptOuts) -> Iterable[str]:
    """Return lines that distinguish one opt-out list from another."""
    yield from sorted(opt_outs.hosts)
    yield from (f".{domain}" for domain in sorted(opt_outs.domains))
    yield from (f"{host}{path}" for host in sorted(opt_outs.paths) for path in sorted(opt_outs.paths[host]))


def _pages(targets: Iterable[tuple[str, StatedKind | None]]) -> list[tuple[StatedKind | None, list[str]]]:
    """Return the pages of a list, each with targets of one kind; one at least."""
    of_kind: dict[StatedKind | None, list[str]] = {}
    for url, kind in targets:
        of_kind.setdefault(kind, []).append(url)
    pages = [
        (kind, urls[first : first + MAX_PAGE_URLS])
        for kind, urls in of_kind.items()
        for first in range(0, len(urls), MAX_PAGE_URLS)
    ]
    return pages or [(None, [])]


def _digest(lines: Iterable[str]) -> str:
    digest = sha256()
    for line in lines:
        digest.update(line.encode() + b"\n")
    return digest.hexdigest()[:_DIGEST_DIGITS]


def _without_prefix(etag: str | None, prefix: str) -> str | None:
    """Return the version of a list that was handed over with the same opt-outs, None for any other."""
    before, _, version = (etag or "").partition(" ")
    return version if before == prefix and version else None


def _not_read_outcome(name: str, message: str, record: DirectoryRecord | None) -> ImportOutcome:
    size = 0 if record is None else record.size
    kept = f"; the targets that it listed before are kept ({targets_text(size)})" if size else ""
    return ImportOutcome(directory=name, text=f"{name}: not read: {message}{kept}", has_failed=True)


def _suspended_outcome(name: str, record: ImportRecord) -> ImportOutcome:
    why = (
        record.explanation
        or "it has shrunk: the targets that it listed before stay until an operator confirms the removal"
    )
    return ImportOutcome(directory=name, text=f"{name}: held: {why}", is_suspended=True)


def _with_findings(outcome: ImportOutcome, read: Snapshot | Unchanged) -> ImportOutcome:
    """Add the skipped entries and their reasons to the result."""
    left_out = [
        f"{found.count:,} {SKIP_REASONS[reason]}{_examples(found)}" for reason, found in read.left_out.items()
    ]
    text = outcome.text
    if read.duplicates:
        text += f", {read.duplicates:,} listed again"
    if left_out:
        text += f"; left out: {', '.join(left_out)}"
    return replace(outcome, text=text + _findings_text(read.findings))


def _findings_text(findings: Sequence[Finding]) -> str:
    return "".join(f"; {_short(finding.message)}" for finding in findings[:MAX_FINDINGS])


def _examples(left_out: SkippedEntries) -> str:
    """Return the first skipped entries, so that they can be found in the list; empty if they have no text."""
    text = [*left_out.examples[:MAX_EXAMPLES_SHOWN]]
    if text and left_out.count > len(text):
        text.append("…")
    return f" ({', '.join(text)})" if text else ""


def _short(message: str) -> str:
    return message if len(message) <= MAX_FINDING_CHARS else message[: MAX_FINDING_CHARS - 1] + "…"
