"""Keys of an agent, and the file with its own key.

The answer to a registration with a shared key contains the agent's own key, which is valid for this agent
only and ends an earlier incarnation. An agent that does not store it cannot return: an enrolling key replaces
no agent.
"""

import logging
import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path
from shlex import quote

from lifesign.client.environment_variables import KEY_VARIABLE, URL_VARIABLE
from lifesign.client.registry_errors import NotAuthorized, NotPermitted, RegistryError
from lifesign.client.secret_file import MAX_SECRET_BYTES, check_key, find_secret
from lifesign.errors import InvalidValue
from lifesign.filesystem.private_file import replacement_remedy, write_private

_log = logging.getLogger("lifesign.agent")


class AgentKeys:
    """The keys with which one agent calls the registry. Its repr shows none of them."""

    def __init__(
        self,
        *,
        key: str | None = None,
        key_file: str | Path | None = None,
        given_file: Path | None = None,
        has_fixed_id: bool = True,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        """Take a key, else that of LIFESIGN_KEY; one in the file overrides both.

        The file need not exist: the agent's own key is stored in it when the registry returns it. After the
        registry refused a key (401), the file is read again.
        `given_file`: the file that contains `key`, which is then read again too.
        `has_fixed_id`: whether a later process may run as this agent, and would need that key. Raise
        InvalidValue without any key, or for one that is no valid header value.
        """
        self._file = None if key_file is None else Path(key_file).absolute()
        self._given_file = given_file
        self._given = environment.get(KEY_VARIABLE) or None if key is None else key
        self._has_fixed_id = has_fixed_id
        self._own: str | None = None
        self._is_unwritten = False
        check_key(self._given)
        if self._file is not None:
            self._own = _key_in(self._file, None)
        if (self._own or self._given) is None:
            expected = f"one as key, in ${KEY_VARIABLE}, or in a key_file"
            if self._file is not None:
                expected = f"one in {self._file}, or for the first start an enroll key in ${KEY_VARIABLE}"
            raise InvalidValue("key", None, expected)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"

    def current(self) -> str | None:
        """Return the agent's own key if the registry has given it one, else the configured key."""
        return self._own or self._stored_key() or self._given

    @property
    def is_own(self) -> bool:
        """Whether the current key is from the key file, or the registry gave it to this agent."""
        return (self._own or self._stored_key()) is not None

    def is_replaced(self, refused: str | None) -> bool:
        """Read the files again after the registry refused this key; return whether another key is current.

        An operator may have rotated the key, and may have written the new one into the file.
        """
        if self.current() == refused:
            stored = self._read_again(self._file, self._own)
            if stored is not None or not self._is_unwritten:
                self._is_unwritten = self._is_unwritten and stored == self._own
                self._own = stored
            self._given = self._read_again(self._given_file, self._given) or self._given
        return self.current() != refused

    def file_fault(self) -> InvalidValue | None:
        """Return the error that a new key could not be stored in the key file; None if it could be."""
        if self._file is None or self.is_own:
            return None
        try:
            with tempfile.TemporaryFile(dir=self._file.parent) as file:
                file.write(bytes(MAX_SECRET_BYTES))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            expected = f"a file in a directory that this process can write to ({error.strerror})"
            return InvalidValue("key_file", str(self._file), expected)
        if (remedy := replacement_remedy(self._file)) is not None:
            return InvalidValue("key_file", str(self._file), "a file that can be replaced", hint=remedy)
        return None

    def keep(self, own: str) -> None:
        """Store the agent's own key in the key file, as it is sent only once; log a failure to write."""
        self._own = own
        if self._file is None:
            if self._has_fixed_id:
                _log.warning(
                    "the registry gave this agent a key of its own, which is lost when the process "
                    "ends: set a key_file; otherwise the agent cannot start again until an operator "
                    "creates a key for it"
                )
            return
        try:
            write_private(self._file, own)
        except OSError as error:
            self._is_unwritten = True
            _log.error(
                (
                    "this agent's own key could not be written to %s (%s), which is tried again with each "
                    "heartbeat. Until then, the registry will refuse the next start; hint: make the folder "
                    "writable"
                ),
                self._file,
                error.strerror,
            )

    def write_again(self) -> None:
        """Write the key file if that failed before."""
        if not self._is_unwritten or self._file is None or self._own is None:
            return
        try:
            write_private(self._file, self._own)
        except OSError:
            return
        self._is_unwritten = False
        _log.warning("this agent's own key is now stored in %s", self._file)

    def hint(self, error: RegistryError, agent_id: str) -> str:
        """Return what to do about a refusal of the current key; empty if the refusal has another cause."""
        create = f"lifesign keys create --role agent --agent-id {agent_id} --name {agent_id}"
        if isinstance(error, NotAuthorized) and self._file is not None and self._own is not None:
            return (
                f"the registry does not accept the key in {self._file}, which is used before any other key. "
                f"Remove the file; if the registry knows the agent, an operator can create another key: "
                f"{create} --write-key {quote(str(self._file))}. The agent then uses the new key"
            )
        if isinstance(error, NotAuthorized):
            return f"the registry does not accept this key. An operator can create another one: {create}"
        if isinstance(error, NotPermitted):
            place = "key_file" if self._file is None else str(self._file)
            return (
                f"an agent that is already registered needs its own key, which is stored in {place}. If it "
                f"is lost, an operator can create another one: {create}"
            )
        return ""

    def _stored_key(self) -> str | None:
        if self._file is None:
            return None
        # Every call needs the key: a file with a key is read again only after a refusal.
        try:
            self._own = _key_in(self._file, None)
        except InvalidValue:
            if self._given is None:
                raise
            # For example, too many files are open: the next call reads the file.
        return self._own

    def _read_again(self, file: Path | None, former: str | None) -> str | None:
        """Return the key in a file; None if the file was removed, else the former key if there is no other.

        A pipe is not read again.
        """
        if file is None:
            return former
        try:
            if not stat.S_ISREG(file.stat().st_mode):
                return former
            return _key_in(file, former) or former
        except FileNotFoundError:
            return None
        except (InvalidValue, OSError):
            return former


def _key_in(file: Path, former: str | None) -> str | None:
    """Return the key in a file; None if there is none.

    Warn if other users may read or change the file, unless it has the former key or none: then the file is
    read again and again.
    """
    complaints: list[str] = []
    key = find_secret(file, "key_file", "key", complaints.append) or None
    check_key(key)
    if key not in {None, former}:
        for complaint in complaints:
            _log.warning("%s", complaint)
    return key


def registry_url(given: str | None, environment: Mapping[str, str] = os.environ) -> str:
    """Return the URL of the registry: the argument, else LIFESIGN_REGISTRY."""
    url = given or environment.get(URL_VARIABLE)
    if not url:
        raise InvalidValue("registry", None, f"a URL, as registry or in ${URL_VARIABLE}")
    return url
