"""Files with refresh tokens: read before each use, and written when a provider replaces the token.

Only the process that holds a file's lock uses its token. Two processes with one token would lose it: many
providers revoke all tokens if a former refresh token is used again.
"""

import asyncio
import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from lifesign.domain.credentials.secret_place import SecretPlace
from lifesign.domain.credentials.token import TokenFault, TokenFaultKind
from lifesign.errors import InvalidValue
from lifesign.filesystem.changeable_path import PathWeakness, target_of
from lifesign.filesystem.file_lock import open_lock_file, try_lock
from lifesign.filesystem.private_file import remove_unfinished, replacement_remedy, write_private
from lifesign.prober.secrets.secret_reader import read_secret

LOCK_SUFFIX: Final = ".lock"
"""Suffix of the lock file beside the file."""

_log = logging.getLogger("lifesign.prober")


class RefreshTokenFile:
    """File that stores the refresh token of one OAuth 2 client."""

    def __init__(self, file: Path) -> None:
        """A symbolic link counts as the file that it leads to, unless it belongs to another user."""
        self.turn = asyncio.Lock()
        """Held while a token is used and replaced."""
        self._given = file
        self._file = file
        """The file that the path leads to, once it is locked."""
        self._lock_fd: int | None = None
        self._unwritten: str | None = None
        """A token that replaced the one in the file, and could not be written."""
        self._last_read: str | None = None

    def read(self) -> str | TokenFault:
        """Lock the file until `close`, and return the refresh token in it."""
        if (fault := self.claim()) is not None:
            return fault
        try:
            self._write_again()
            if self._unwritten is not None:
                return self._unwritten
            self._last_read = found = self._in_file()
        except InvalidValue as error:
            return _fault(str(error))
        return found

    def claim(self) -> TokenFault | None:
        """Lock the file until `close`, even if it does not exist yet; return why that failed, else None.

        It fails if another user could choose, by a symbolic link, which file is written. It also fails if
        the file could not be replaced: a provider may accept the token in it only once.
        """
        if self._lock_fd is not None:
            return None
        try:
            target = target_of(self._given)
            if isinstance(target, PathWeakness):
                return _fault(f"others can change {self._given} ({target.reason}): {target.remedy}")
            if (remedy := replacement_remedy(target)) is not None:
                return _fault(f"the prober cannot replace {target}: {remedy}")
            self._file = target
            return None if self._has_locked() else _fault(f"another process uses {self._file}")
        except OSError as error:
            return _fault(f"{self._given} cannot be locked ({error.strerror})")

    def store(self, token: str) -> TokenFault | None:
        """Write the first token after a login, to the locked file; return why that failed, else None."""
        try:
            write_private(self._file, token)
        except OSError as error:
            return _fault(f"{self._file} cannot be written ({error.strerror})")
        return None

    def replace(self, token: str) -> None:
        """Replace the token in the file. If it cannot be written, it stays in memory."""
        try:
            write_private(self._file, token)
        except OSError as error:
            self._unwritten = token
            _log.error("the new refresh token cannot be written to %s: %s", self._file, error.strerror)
        else:
            self._unwritten = None

    def close(self) -> None:
        """Unlock the file. A token that could not be written is tried once more."""
        if self._lock_fd is not None:
            self._write_again()
            os.close(self._lock_fd)
            self._lock_fd = None

    def _write_again(self) -> None:
        """Write a token that could not be written, unless an operator has written another one since."""
        if (unwritten := self._unwritten) is None:
            return
        with suppress(InvalidValue):
            if self._in_file() != self._last_read:
                _log.warning("%s has a new refresh token, which is used from now on", self._file)
                self._unwritten = None
                return
        self.replace(unwritten)

    def _in_file(self) -> str:
        return read_secret(SecretPlace(file=self._file), str(self._file), _log.warning)

    def _has_locked(self) -> bool:
        """Lock the file; return whether no other process has locked it."""
        fd = open_lock_file(self._file.with_name(self._file.name + LOCK_SUFFIX))
        if not try_lock(fd):
            os.close(fd)
            return False
        self._lock_fd = fd
        # They may contain refresh tokens. If they cannot be removed, the file can be used nevertheless.
        with suppress(OSError):
            remove_unfinished(self._file)
        return True


def _fault(reason: str) -> TokenFault:
    return TokenFault(kind=TokenFaultKind.TOKEN_FILE, reason=reason)
