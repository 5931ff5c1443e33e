"""Keys and tokens from files, with a warning if other users may read or change the file.

They are never taken as arguments, which every user of the machine can see. A key may be replaced while a
client uses it (`KeySource`).
"""

import errno
import os
import re
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import Final, Protocol

from lifesign.errors import InvalidValue
from lifesign.filesystem.changeable_path import SYSTEMD_DIRECTORY, path_weakness

MAX_SECRET_BYTES: Final = 8192
MAX_KEY_CHARS: Final = 4096
NOT_THE_OWNERS: Final = 0o077
"""Mode bits of a file that allow access for its group and for others."""
MISSING: Final = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)
"""Errors of a file that does not exist."""
_KEY: Final = re.compile(r"[!-~]+")

Complain = Callable[[str], None]


def read_secret(file: Path, setting: str, what: str, complain: Complain) -> str:
    """Return the content of a file, without surrounding space; InvalidValue if it cannot be read.

    A file that others may read or change is still used, with a warning that names its content `what`: "key"
    or "token".
    Characters outside of ASCII become U+FFFD, which no header and no check accepts.
    """
    secret = find_secret(file, setting, what, complain)
    if secret is None:
        raise InvalidValue(setting, str(file), f"a readable file ({os.strerror(errno.ENOENT)})")
    return secret


def find_secret(file: Path, setting: str, what: str, complain: Complain) -> str | None:
    """Return the content of a file without surrounding space; None if there is no such file."""
    try:
        with file.open("rb") as opened:
            found = os.fstat(opened.fileno())
            content = opened.read(MAX_SECRET_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno in MISSING:
            # Few files have such names: it may be a long token.
            raise without_file(file, setting) from None
        raise InvalidValue(setting, str(file), f"a readable file ({error.strerror})") from None
    if len(content) > MAX_SECRET_BYTES:
        raise InvalidValue(setting, str(file), f"a file of at most {MAX_SECRET_BYTES} bytes")
    complain_if_open(file, found, what, complain)
    return content.decode("ascii", "replace").strip()


def systemd_file(name: str, setting: str, environment: Mapping[str, str] = os.environ) -> Path:
    """Return the file in which systemd passes on a credential; InvalidValue if systemd passes on none."""
    directory = environment.get(SYSTEMD_DIRECTORY)
    if not directory:
        expected = f"${SYSTEMD_DIRECTORY}, which systemd sets for LoadCredential=NAME:FILE"
        raise InvalidValue(setting, None, expected)
    return Path(directory, name)


def without_file(file: Path, setting: str) -> InvalidValue:
    """Return the error that a file that settings name is missing.

    It does not quote the file's name: a token may be written there by mistake.
    """
    directory = next(each for each in file.absolute().parents if os.path.isdir(each))  # noqa: PTH112
    return InvalidValue(setting, None, f"a readable file in {directory} ({os.strerror(errno.ENOENT)})")


def complain_if_open(file: Path, opened: os.stat_result, what: str, complain: Complain) -> None:
    """Warn if other users may read or change a file that was opened, which contains a secret."""
    mode = opened.st_mode
    # What others may read of a pipe, this process does not get.
    if stat.S_ISREG(mode) and mode & NOT_THE_OWNERS:
        shown = f"mode {stat.S_IMODE(mode):04o}"
        complain(f"other users can read the {what} in {file} ({shown}): chmod 600 {quote(str(file))}")
    elif (weakness := path_weakness(file, opened)) is not None:
        complain(f"other users can change the {what} in {file} ({weakness.reason}): {weakness.remedy}")


class KeySource(Protocol):
    """Gives a client the key for each request."""

    def current(self) -> str | None:
        """Return the key for the next request; None for a request without a key."""

    def is_replaced(self, refused: str | None) -> bool:
        """Return whether another key is current now, after the registry refused this one (401).

        The client then repeats the request once.
        """


class FixedKey:
    """A key that never changes."""

    def __init__(self, key: str | None) -> None:
        check_key(key)
        self._key = key

    def current(self) -> str | None:
        """Return the key."""
        return self._key

    def is_replaced(self, refused: str | None) -> bool:  # noqa: ARG002 - there is no other key
        """Return False."""
        return False


class RenewedKey:
    """A key whose file is read again after the registry refused the key. A pipe is not read again."""

    def __init__(self, key: str, file: Path | None) -> None:
        """`file` is where the key was read; None for a key from elsewhere, which never changes."""
        check_key(key)
        self._key = key
        self._file = file

    def current(self) -> str | None:
        """Return the key that was last read."""
        return self._key

    def is_replaced(self, refused: str | None) -> bool:
        """Read the file again; return whether another key is current."""
        if self._key == refused and self._file is not None and self._file.is_file():
            # Without a valid key in the file, for example while it is being replaced, the former one stays.
            with suppress(InvalidValue):
                stored = read_secret(self._file, "key_file", "key", lambda _complaint: None)
                check_key(stored)
                self._key = stored
        return self._key != refused


def check_key(key: str | None, place: str = "key") -> None:
    """Raise InvalidValue if a key cannot be sent in a header. The error names `place`, and not the key."""
    if key is not None and (len(key) > MAX_KEY_CHARS or not _KEY.fullmatch(key)):
        expected = f"1 to {MAX_KEY_CHARS} visible ASCII characters (the given key is not shown)"
        raise InvalidValue(place, None, expected)
