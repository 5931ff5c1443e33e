"""Identity of a list: the known one, or another one with the same name.

A local database identifies a list by its name and place. A registry gets lists from many machines: for a file
it stores a digest of the full path, so copies with the same path are one list. A copy with another path is
the same list as long as it has the same targets.
"""

import os
import re
from hashlib import sha256
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import urlsplit

from lifesign.domain.models.directories import DirectoryRecord
from lifesign.errors import InvalidValue
from lifesign.prober.definition.directory_source import DirectorySource
from lifesign.prober.definition.models import ProbeDefinition
from lifesign.prober.directories import ListSource, NotRead, kinds_of, read_directory
from lifesign.prober.directories.format_choice import AUTO, BUILT_IN
from lifesign.prober.directories.snapshot import read_version

PLACE_DIGITS: Final = 8
"""Digits of the digest of a file's path: the path itself is not published."""

_STORED_LOCATION: Final = re.compile(rf"(?P<location>.*) \(place (?P<digest>[0-9a-f]{{{PLACE_DIGITS}}})\)")


class KnowsLists(Protocol):
    """Provides the stored directories: a client of a remote registry, or a database."""

    async def all(self) -> list[DirectoryRecord]:
        """Return all directories."""
        ...


async def require_same_list(
    definition: ProbeDefinition, lists: KnowsLists, place: str, *, is_shared: bool = False
) -> None:
    """Refuse to replace a list by another one with the same name. Raises InvalidValue.

    Lists are identified by their names, which files in two directories may share, and which may differ only
    in case; `place` is where they are stored, for people. `is_shared`: other machines send lists too, and a
    file with the same targets is a copy of the same list.
    """
    apart = "a name in a definition" if is_shared else "--database URL"
    records = {record.name: record for record in await lists.all() if record.size}
    for source in definition.directories:
        record = records.get(source.label)
        last = None if record is None else record.suspended or record.applied
        if last is None or last.source is None or _came_from(last.source, source):
            continue
        if is_shared and await _lists_the_same(source, definition, last.etag):
            continue
        raise InvalidValue(
            f"the list {source.label}",
            source.url or stored_location(str(source.file), source, is_shared=is_shared),
            f"{last.source}, the source of the list of this name in {place}. For another list, use {apart}; "
            "if the list has moved, pass --moved",
        )


def stored_location(read_at: str, source: DirectorySource, *, is_shared: bool) -> str:
    """Return the location of a list as it is stored.

    If others can read it (`is_shared`), it contains only a digest of a file's path.
    """
    if source.file is None or not is_shared:
        return read_at
    return f"{read_at} (place {_place_digest(source.file)})"


def listed_in(source: DirectorySource, definition: ProbeDefinition) -> ListSource:
    """Return the source for reading a list file of a definition, without requests."""
    return ListSource(
        file=source.file,
        format=source.format,
        kinds=kinds_of(source.kinds),
        max_entries=definition.limits.max_targets,
        networks=definition.networks_allowed,
    )


def absolute_path(file: Path) -> Path:
    """Return an absolute path; symbolic links are not resolved."""
    return Path(os.path.abspath(file))  # noqa: PTH100 - Path.absolute leaves ..


def _came_from(stored: str, source: DirectorySource) -> bool:
    match = _STORED_LOCATION.fullmatch(stored)
    if source.file is not None and match is not None:
        return match["digest"] == _place_digest(source.file)
    if source.file is not None:
        return stored == str(absolute_path(source.file))
    url, requested = urlsplit(stored), urlsplit(source.url or "")
    if requested.path == "/" and not requested.query:
        # A host alone was requested at several URLs, one of which had the list: another URL is another list.
        is_host = (url.scheme, url.netloc) == (requested.scheme, requested.netloc)
        return is_host and (url.path in _places_of_hosts() or source.format not in {AUTO, *BUILT_IN})
    return url == requested


async def _lists_the_same(source: DirectorySource, definition: ProbeDefinition, etag: str | None) -> bool:
    """Return whether a file has the targets of this etag; read errors are reported elsewhere."""
    if source.file is None:
        return False
    read = await read_directory(listed_in(source, definition))
    if isinstance(read, NotRead):
        return True
    # The exclusions come before it.
    known, found = read_version((etag or "").partition(" ")[2]), read_version(read.version)
    return known is not None and found is not None and known.digest == found.digest


def _place_digest(file: Path) -> str:
    return sha256(os.fsencode(absolute_path(file))).hexdigest()[:PLACE_DIGITS]


def _places_of_hosts() -> set[str]:
    """Return the paths at which any format requests a list if only the host is given."""
    host = ListSource(url="https://agent.example/")
    return {urlsplit(place).path for each in (None, *BUILT_IN.values()) for place in host.places(each)}
