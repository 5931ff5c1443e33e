"""How does a closed prefix of the event log become a file?

One event per line, as it travels; readable by its owner only. A file is there whole or not at all.
"""

import contextlib
import os
import re
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Self

from pydantic_core import from_json, to_json

from agent_health.errors import InvalidEvent
from agent_health.event_chain import Event, read_event

MAX_LINE_BYTES = 1_048_576
"""Of one event; the longest that the registry writes has about 300 KiB."""

_NAME = re.compile(r"events-([0-9]{12,19})-([0-9]{12,19})\.jsonl")


def name_of(first: int, last: int) -> str:
    """Name the file of the events from `first` to `last`; in the order of names they follow one another."""
    return f"events-{first:012}-{last:012}.jsonl"


def last_of_unfinished(directory: Path, first: int) -> int | None:
    """Return where a file that begins at `first` ends; None if there is none.

    There is one if whoever wrote it was killed before the events left the database.
    """
    names = (_NAME.fullmatch(file.name) for file in directory.iterdir()) if directory.is_dir() else ()
    return max((int(name[2]) for name in names if name is not None and int(name[1]) == first), default=None)


class ArchiveFile:
    """A file that is being written. It has its name once `finish` has returned, and not before."""

    def __init__(self, directory: Path, first: int, last: int) -> None:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path = directory / name_of(first, last)
        self._draft = directory / f".{self.path.name}.{secrets.token_hex(8)}"
        self._file: IO[bytes] = os.fdopen(
            os.open(self._draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb"
        )

    def write(self, events: Iterable[Event]) -> None:
        """Add events."""
        for event in events:
            self._file.write(to_json(event.members()) + b"\n")

    def finish(self) -> None:
        """Put the file in its place; it is on the disk when this returns."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._draft.replace(self.path)
        directory = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        """Leave nothing behind of what was not finished."""
        self._file.close()
        with contextlib.suppress(FileNotFoundError):
            self._draft.unlink()


def read_archive(path: Path) -> Iterator[Event]:
    """Read an archived file, one event at a time; InvalidEvent for a line that is none."""
    with path.open("rb") as file:
        while line := file.readline(MAX_LINE_BYTES):
            if not line.endswith(b"\n"):
                raise InvalidEvent(None, "a line that does not end, or is too long")
            try:
                members = from_json(line, allow_inf_nan=False)
            except ValueError as error:
                raise InvalidEvent(None, "a line that is no JSON") from error
            yield read_event(members)
