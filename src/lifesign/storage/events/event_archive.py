"""Archive files of a closed prefix of the event log, and erasure in them.

One event per line, as in the API; readable for its owner only. A file exists whole or not at all, also while
it is written again. Its name contains the beginning of its last event's hash: files of different logs never
have the same name, so none replaces the other.
"""

import contextlib
import os
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self

from pydantic_core import from_json, to_json

from lifesign.domain.errors import InvalidEvent
from lifesign.domain.events.chain import Event, agent_of, erased, read_event
from lifesign.domain.models.base import AGENT_ID_CHARACTERS
from lifesign.filesystem.file_lock import open_lock_file, try_lock
from lifesign.filesystem.private_file import create_private, sync_directory

MAX_LINE_BYTES = 1_048_576
"""Maximum size of one event; the registry writes up to about 300 KiB."""

LOCK_NAME = ".archive.lock"
"""Lock file of a process that changes an archive; its content does not matter."""

HASH_DIGITS = 16
"""Hexadecimal digits of a hash in a file's name."""

_NAME = re.compile(rf"events-([0-9]{{12,19}})-([0-9]{{12,19}})-([0-9a-f]{{{HASH_DIGITS}}})\.jsonl")
_DRAFT = re.compile(r"\.events-[0-9]{12,19}-[0-9]{12,19}\.[0-9a-f]{16}")
# Possible agent ids in a line of JSON. A closing quotation mark may also be an opening one: too many
# candidates are better than too few.
_TEXT = re.compile(rf'"({AGENT_ID_CHARACTERS})(?=")'.encode())


@dataclass(frozen=True, slots=True, order=True)
class Archived:
    """An archive file, as its name describes it."""

    first_sequence: int
    last_sequence: int
    hash_start: str
    """The first `HASH_DIGITS` of the last event's hash."""
    path: Path


def files_in(directory: Path) -> list[Archived]:
    """Return the files of an archive in the order of their events; none if there is no such directory."""
    if not directory.is_dir():
        return []
    # A symbolic link's file is elsewhere: writing it again would leave that file unchanged.
    here = (path for path in directory.iterdir() if not path.is_symlink())
    named = ((_NAME.fullmatch(path.name), path) for path in here)
    return sorted(
        Archived(int(name[1]), int(name[2]), name[3], path) for name, path in named if name is not None
    )


@contextmanager
def archive_lock(directory: Path) -> Iterator[bool]:
    """Lock an archive until the block ends; yield False if another process or task has locked it.

    Remove incomplete files of killed processes. Create the directory.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = open_lock_file(directory / LOCK_NAME)
    try:
        if not try_lock(lock):
            yield False
            return
        for path in directory.iterdir():
            if _DRAFT.fullmatch(path.name):
                path.unlink(missing_ok=True)
        yield True
    finally:
        os.close(lock)


class ArchiveFile:
    """Writer of an archive file, which gets its final name only when `finish` returns."""

    def __init__(self, directory: Path, first: int, last: int) -> None:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._first = first
        self._last = last
        # Names sort in the order of events.
        self._stem = f"events-{first:012}-{last:012}"
        self._draft = directory / f".{self._stem}.{secrets.token_hex(8)}"
        self._file: IO[bytes] = os.fdopen(create_private(self._draft), "wb")

    def write(self, events: Iterable[Event]) -> None:
        """Append events."""
        self.write_lines(map(_line, events))

    def write_lines(self, lines: Iterable[bytes]) -> None:
        """Append events in the form of lines of another archive file."""
        self._file.writelines(lines)

    def finish(self, last_hash: str) -> Archived:
        """Sync the file to the disk and give it its final name, which the last event's hash completes.

        The beginning of the hash is sufficient.
        """
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        hash_start = last_hash[:HASH_DIGITS]
        path = self._draft.with_name(f"{self._stem}-{hash_start}.jsonl")
        self._draft.replace(path)
        sync_directory(path.parent)
        return Archived(self._first, self._last, hash_start, path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        """Remove the incomplete files."""
        self._file.close()
        with contextlib.suppress(FileNotFoundError):
            self._draft.unlink()


def erase_in(file: Archived, agents: Mapping[str, int]) -> int | None:
    """Replace the payloads of these agents' events by their hashes; return the number of events.

    Only events before the sequence beside the agent's name are changed. None if another process uses the
    archive, or has moved the file away. Raise InvalidEvent if the content does not fit its name; the file
    then stays unchanged.
    """
    with archive_lock(file.path.parent) as is_alone:
        if not is_alone or not file.path.is_file():
            return None
        replaced = _replaced(file, agents)
        if replaced:
            lines = (
                replaced.get(sequence, line)
                for sequence, line in enumerate(_lines(file.path), file.first_sequence)
            )
            with ArchiveFile(file.path.parent, file.first_sequence, file.last_sequence) as anew:
                anew.write_lines(lines)
                anew.finish(file.hash_start)
        return len(replaced)


def _replaced(file: Archived, agents: Mapping[str, int]) -> dict[int, bytes]:
    """Return the lines of a file to replace, by the sequence of their events."""
    replaced: dict[int, bytes] = {}
    names = {agent_id.encode() for agent_id in agents}
    sequence = file.first_sequence - 1
    for sequence, line in enumerate(_lines(file.path), file.first_sequence):
        # Most events belong to none of them, and are not parsed.
        is_within = file.first_sequence < sequence < file.last_sequence
        if is_within and names.isdisjoint(_TEXT.findall(line)):
            continue
        event = _read(line)
        if event.sequence != sequence or sequence > file.last_sequence:
            raise InvalidEvent(event.sequence, f"event {sequence} of {file.path.name} was expected")
        if sequence < agents.get(agent_of(event) or "", 0):
            replaced[sequence] = _line(erased(event))
    if sequence != file.last_sequence:
        raise InvalidEvent(None, f"it ends with event {sequence}, not with {file.last_sequence}")
    return replaced


def _lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while line := file.readline(MAX_LINE_BYTES):
            if not line.endswith(b"\n"):
                raise InvalidEvent(None, "a line without an end, or too long")
            yield line


def _line(event: Event) -> bytes:
    return to_json(event.members()) + b"\n"


def _read(line: bytes) -> Event:
    try:
        members = from_json(line, allow_inf_nan=False)
    except ValueError as error:
        raise InvalidEvent(None, "a line that is not JSON") from error
    return read_event(members)
