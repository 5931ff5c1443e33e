"""The file of a database's marker: one per database URL, in a directory outside the database.

If a directory in the path of an SQLite file is a symbolic link, the database has a second file under the path
that it leads to: the link may lead elsewhere one day, and other URLs may lead to the same database.

    {"format": 1, "database": "sqlite:////var/lib/ah/lifesign.db", "installation_id": "ins_01k...",
     "epoch": 0, "sequence": 4711, "hash": "9f8a...", "written_at": "2026-03-01T12:00:00Z"}

`database` and `written_at` are for people.
"""

import errno
import hashlib
import json
import os
import re
import stat
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from sqlalchemy.engine import URL

from lifesign.domain.events.chain import Checkpoint
from lifesign.domain.events.database_marker import DatabaseMarker
from lifesign.domain.health.document import MAX_NUMBER
from lifesign.domain.text.times import utc_text
from lifesign.errors import InvalidValue
from lifesign.filesystem.private_file import write_private
from lifesign.registry.errors import InvalidMarker, NewerMarker
from lifesign.serving.state_home import state_home
from lifesign.storage.engine.database import read_url
from lifesign.storage.engine.sqlite_path import absolute_file

FORMAT: Final = 1
MAX_BYTES: Final = 4_096
DEFAULT_PORT: Final = 5432
"""Default port of PostgreSQL."""
NAME_DIGITS: Final = 32
"""Hexadecimal digits of a marker's file name."""
PROBE_BYTES: Final = 4_096

_HASH = re.compile(r"[0-9a-f]{64}")


def state_directory(given: Path | None, environment: Mapping[str, str] = os.environ) -> Path:
    """Return the directory of markers: the argument, else a directory below the user's state.

    InvalidValue without a home.
    """
    if given is not None:
        return given
    try:
        return state_home(environment) / "databases"
    except RuntimeError:
        raise InvalidValue("state_dir", None, "a directory, since this user has no home directory") from None


def same_for_all_spellings(url: URL) -> str | None:
    """Return a database's URL without password, in one form for all its usual notations; None in memory.

    Relative paths, `..` and linked directories are resolved. A link in place of the file is not: the server
    must notice when it points to another file.
    """
    if url.get_backend_name() == "sqlite":
        file = absolute_file(url)
        return None if file is None else f"sqlite:///{file.parent.resolve() / file.name}"
    query = {name: value for name, value in sorted(url.query.items()) if "password" not in name}
    plain = URL.create(
        "postgresql",
        username=url.username,
        host=None if url.host is None else url.host.lower(),
        port=url.port or DEFAULT_PORT,
        database=url.database,
        query=query,
    )
    return plain.render_as_string(hide_password=False)


def _as_written(url: URL, resolved: str) -> str:
    """Return a database's URL with its links; `resolved`: the same without them."""
    file = absolute_file(url)
    # Behind a link, `..` leads elsewhere than it reads.
    return resolved if file is None or ".." in file.parts else f"sqlite:///{file}"


class MarkerFile:
    """File in which this host notes the identity and the last event of a database that it served."""

    def __init__(self, directory: Path, database: str, resolved: str | None = None) -> None:
        """`database`: the database's URL; `resolved`: the same without links, if there are any."""
        self._resolved = None if resolved is None else MarkerFile(directory, resolved)
        self.directory = directory.absolute()
        self.path = self.directory / f"{hashlib.sha256(database.encode()).hexdigest()[:NAME_DIGITS]}.json"
        self._database = database

    @classmethod
    def of(cls, url: URL, directory: Path) -> "MarkerFile | None":
        """Return the marker's file of a database; None for one in memory."""
        resolved = same_for_all_spellings(url)
        if resolved is None:
            return None
        written = _as_written(url, resolved)
        return cls(directory, written, None if written == resolved else resolved)

    def read(self) -> DatabaseMarker | None:
        """Return the marker, the newer one of two files; None if there is none.

        If the files name different installations, the one that was served under this URL counts. Raises
        InvalidMarker if it is damaged and there is no other one, and NewerMarker or OSError.
        """
        if self._resolved is None:
            return self._read_file()
        own, damage = _unless_damaged(self._read_file)
        other, damage_of_other = _unless_damaged(self._resolved.read)
        if own is None and other is None:
            for error in filter(None, (damage, damage_of_other)):
                raise error
        if own is None or other is None:
            return own or other
        is_newer = (other.epoch, other.head.sequence) > (own.epoch, own.head.sequence)
        return other if is_newer and other.installation_id == own.installation_id else own

    def _read_file(self) -> DatabaseMarker | None:
        try:
            opened = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        with os.fdopen(opened, "rb") as file:
            if not stat.S_ISREG(os.fstat(opened).st_mode):
                raise InvalidMarker(str(self.path), "it is not a regular file")
            content = file.read(MAX_BYTES + 1)
        return _read(content, str(self.path))

    def write(self, marker: DatabaseMarker) -> None:
        """Replace the marker, in both files if there are two. Raises OSError; a previous one is then kept."""
        self._make_directory()
        members = {
            "format": FORMAT,
            "database": self._database,
            "installation_id": marker.installation_id,
            "epoch": marker.epoch,
            "sequence": marker.head.sequence,
            "hash": marker.head.hash,
            "written_at": utc_text(datetime.fromtimestamp(time.time(), UTC), "seconds"),
        }
        write_private(self.path, json.dumps(members))
        _give_to_owner_of(self.directory, self.path)
        if self._resolved is not None:
            self._resolved.write(marker)

    def check_writable(self) -> None:
        """Raise InvalidValue unless a marker can be written."""
        try:
            self._make_directory()
            probe = self.directory / f".{os.getpid()}.probe"
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
            opened = os.open(probe, flags, 0o600)
            try:
                if os.write(opened, bytes(PROBE_BYTES)) < PROBE_BYTES:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(opened)
            finally:
                os.close(opened)
                probe.unlink(missing_ok=True)
        except OSError as error:
            raise _unusable(self.directory, error) from None

    def _make_directory(self) -> None:
        missing: list[Path] = []
        directory = self.directory
        while not directory.exists():
            missing.append(directory)
            directory = directory.parent
        for each in reversed(missing):
            each.mkdir(mode=0o700, exist_ok=True)
            _give_to_owner_of(each.parent, each)


def _unless_damaged(
    read: Callable[[], DatabaseMarker | None],
) -> tuple[DatabaseMarker | None, InvalidMarker | None]:
    """Read a marker; return it, or why it cannot be used."""
    try:
        return read(), None
    except InvalidMarker as error:
        return None, error


def marker_file(database: str, given: Path | None) -> MarkerFile:
    """Return the marker's file of a database by its URL. InvalidValue for one in memory."""
    file = MarkerFile.of(read_url(database), state_directory(given))
    if file is None:
        raise InvalidValue("database", database, "a file or a PostgreSQL database")
    return file


def put_marker(file: MarkerFile, marker: DatabaseMarker) -> None:
    """Write a marker; InvalidValue if it cannot be written."""
    try:
        file.write(marker)
    except OSError as error:
        raise _unusable(file.path, error) from None


def found_marker(file: MarkerFile) -> DatabaseMarker | None:
    """Return the marker, None if there is none.

    Raises InvalidValue if this user cannot read it, and InvalidMarker or NewerMarker.
    """
    try:
        return file.read()
    except OSError as error:
        raise _unusable(file.path, error) from None


def _unusable(place: Path, error: OSError) -> InvalidValue:
    expected = f"a directory that this user can read and write, with room for a file ({error.strerror})"
    return InvalidValue("state_dir", str(place), expected)


def _give_to_owner_of(directory: Path, path: Path) -> None:
    """Give a file that root creates to the owner of its directory: the service has to read it."""
    if os.geteuid() == 0:
        owner = directory.stat()
        os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)


def _read(content: bytes, file: str) -> DatabaseMarker:
    if len(content) > MAX_BYTES:
        raise InvalidMarker(file, f"it is larger than {MAX_BYTES} bytes")
    try:
        members = json.loads(content)
    except (ValueError, RecursionError):
        raise InvalidMarker(file, "it is damaged") from None
    match members:
        case {"format": int(number)} if number > FORMAT:
            raise NewerMarker(file, number, FORMAT)
        case {"format": int(number)} if number != FORMAT:
            raise InvalidMarker(file, f"its format is {number}, not {FORMAT}")
        case {
            "format": int(),
            "installation_id": str(installation_id),
            "epoch": int(epoch),
            "sequence": int(sequence),
            "hash": str(digest),
        } if _HASH.fullmatch(digest) and 0 <= epoch <= MAX_NUMBER and 0 <= sequence <= MAX_NUMBER:
            head = Checkpoint(sequence, digest)
            return DatabaseMarker(installation_id=installation_id, epoch=epoch, head=head)
        case _:
            raise InvalidMarker(file, "it is damaged")
