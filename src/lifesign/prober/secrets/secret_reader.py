"""Reading of secrets from files, environment variables and systemd credentials."""

import logging
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote

from lifesign.client.secret_file import MISSING, systemd_file, without_file
from lifesign.domain.credentials.api_key import fits_everywhere
from lifesign.domain.credentials.secret import (
    MAX_SECRET_CHARS,
    Scrubber,
    is_open_to_group,
    is_too_open,
    secret_fault,
)
from lifesign.domain.credentials.secret_place import SecretPlace, env_text
from lifesign.errors import InvalidValue
from lifesign.filesystem.changeable_path import has_access_list, is_managed, path_weakness
from lifesign.filesystem.core_dumps import forbid_core_dumps
from lifesign.filesystem.private_file import replacement_remedy
from lifesign.prober.definition.credentials import KEY_MEMBER, CredentialSettings, sources_of
from lifesign.prober.secrets.client_assertion import signing_key_fault
from lifesign.prober.secrets.client_tls import (
    MAX_CERTIFICATES_BYTES,
    ClientTls,
    client_tls,
    key_fault,
)

MISSING_SECRET_HINT = (
    "set the variable, or write the secret into the file that the definition names (mode 0600)"  # noqa: S105
)
"""What to do about a secret that is missing or not accepted, if its error does not say so."""
_CONTENT_HINT = "correct the content of the file or variable"

FileStamp = tuple[int, ...]

_log = logging.getLogger("lifesign.prober")


@dataclass(frozen=True, slots=True)
class Secrets:
    """Secrets that were read, by the places where they are stored. Can be sent to worker processes."""

    values: Mapping[SecretPlace, str] = field(default_factory=dict, repr=False)
    tls: Mapping[str, ClientTls] = field(default_factory=dict, repr=False)
    """Client certificates and authorities, by the names of their credentials."""
    stamps: Mapping[Path, FileStamp | None] = field(default_factory=dict, repr=False)
    """Stamps of the files when they were read: a process may start long after that."""

    @property
    def scrubber(self) -> Scrubber:
        """Return what removes these secrets from texts."""
        return Scrubber(self.values.values())

    def for_worker(self, credentials: Sequence[CredentialSettings]) -> "Secrets":
        """Return only the secrets that a worker process needs, which gets access tokens from its parent."""
        kept = [each for each in credentials if each.oauth2 is None]
        needed = {place for _, place in sources_of(kept)} | {each.client_key for each in credentials}
        values = {place: value for place, value in self.values.items() if place in needed}
        return Secrets(values, self.tls, self.stamps)


def read_secrets(
    credentials: Sequence[CredentialSettings], complain: Callable[[str], None] | None = None
) -> Secrets:
    """Read all secrets of a definition. If there are any, core dumps are disabled from now on.

    `complain` receives warnings; default: the log. InvalidValue for a secret that is missing or not accepted.
    """
    if not credentials:
        return Secrets()
    forbid_core_dumps()
    warn = complain or _log.warning
    for credential in credentials:
        if credential.oauth2 is not None and credential.oauth2.token_file is not None:
            # Read again before each use: it changes with each use.
            _check_refresh_token(credential.name, credential.oauth2.token_file, warn)
    # First, so that a change while a file is read is noticed too.
    stamps = {file: file_stamp(file) for file in _files_of(credentials)}
    values = {source: read_secret(source, setting, warn) for setting, source in sources_of(credentials)}
    tls = {
        credential.name: read_tls(
            credential, None if credential.client_key is None else values[credential.client_key], warn
        )
        for credential in credentials
        if has_tls(credential)
    }
    return Secrets(values, tls, stamps)


def _files_of(credentials: Sequence[CredentialSettings]) -> Iterator[Path]:
    """Yield the files with secrets and certificates."""
    for setting, source in sources_of(credentials):
        if source.env is None:
            yield file_of(source, setting)
    for credential in credentials:
        yield from filter(None, (credential.client_certificate, credential.ca_file))


def has_tls(credential: CredentialSettings) -> bool:
    """Return whether a credential has a client certificate or authorities of its own."""
    return credential.client_certificate is not None or credential.ca_file is not None


def read_tls(credential: CredentialSettings, key: str | None, complain: Callable[[str], None]) -> ClientTls:
    """Read the client certificate and the authorities of a credential. `key`: the certificate's private key.

    InvalidValue for a file that is not accepted, and for a certificate that is not valid now.
    """
    setting = f"credentials.{credential.name}"
    texts = {
        member: None if file is None else _read_file(file, f"{setting}.{member}", complain, is_secret=False)
        for member, file in (
            ("client_certificate", credential.client_certificate),
            ("ca_file", credential.ca_file),
        )
    }
    return client_tls(setting, authorities=texts["ca_file"], chain=texts["client_certificate"], key=key)


def read_secret(source: SecretPlace, setting: str, complain: Callable[[str], None]) -> str:
    """Read one secret, without surrounding space. InvalidValue, which never quotes it, if that fails."""
    if source.env is not None:
        text = os.environ.get(source.env)
        if text is None:
            raise InvalidValue(setting, None, f"{env_text(source.env)} to be set")
    else:
        text = _read_file(file_of(source, setting), setting, complain)
    text = text.strip()
    if setting.endswith(f".{KEY_MEMBER}"):
        fault = key_fault(text)
    elif setting.endswith(".private_key"):
        fault = signing_key_fault(text)
    else:
        fault = secret_fault(text)
        if fault is None and setting.endswith(".bearer") and " " in text:
            fault = "a token without spaces"
        elif fault is None and setting.endswith(".api_key") and not fits_everywhere(text):
            fault = "a key without spaces, quotes, commas, semicolons and backslashes"
    if fault is not None:
        raise InvalidValue(setting, None, f"{fault} ({source})", hint=_CONTENT_HINT)
    return text


def _check_refresh_token(name: str, file: Path, complain: Callable[[str], None]) -> None:
    """Return if the file has a refresh token, and can be replaced by one with a new token.

    InvalidValue if not, with the login as the hint if there is no file.
    """
    setting = f"credentials.{name}.oauth2.token_file"
    try:
        read_secret(SecretPlace(file=file), setting, complain)
    except InvalidValue as error:
        if not file.exists():
            error.hint = f"lifesign credentials login {name} --definition FILE writes this file"
        raise
    if (remedy := replacement_remedy(file.resolve())) is not None:
        raise InvalidValue(setting, str(file), "a file that the prober can replace", hint=remedy)


def file_of(source: SecretPlace, setting: str) -> Path:
    """Return the file in which a secret is stored; InvalidValue if systemd passes on no credentials."""
    return source.file or systemd_file(source.systemd or "", setting)


def file_stamp(file: Path) -> FileStamp | None:
    """Return a value that changes if a file's content or mode changes; None if there is no file."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ctime_ns, found.st_mode, found.st_size, found.st_ino


def forget_variables(
    credentials: Sequence[CredentialSettings],
    *,
    needed_by: Sequence[CredentialSettings] = (),
    others: Sequence[str] = (),
) -> None:
    """Remove environment variables that contain secrets, so that child processes do not inherit them.

    `needed_by`: credentials whose variables stay. `others`: names of further variables with secrets.
    """
    needed = {source for _, source in sources_of(needed_by)}
    of_credentials = [source.env for _, source in sources_of(credentials) if source not in needed]
    for name in (*of_credentials, *others):
        if name is not None:
            os.environ.pop(name, None)


def _open_at_once(file: str, flags: int) -> int:
    """Open a file; a pipe without a writer would block."""
    return os.open(file, flags | os.O_NONBLOCK)


def _read_file(file: Path, setting: str, complain: Callable[[str], None], *, is_secret: bool = True) -> str:
    """Return the text of a file. One that is no secret may be read by all; none may be changed by others."""
    try:
        with open(file, "rb", opener=_open_at_once) as reader:
            status = os.fstat(reader.fileno())
            mode = status.st_mode
            if not stat.S_ISREG(mode):
                raise InvalidValue(setting, str(file), "a regular file")
            content = reader.read(1 + (MAX_SECRET_CHARS + 2 if is_secret else MAX_CERTIFICATES_BYTES))
    except OSError as error:
        raise _unreadable(file, setting, error, is_secret=is_secret) from None
    if not is_secret:
        if len(content) > MAX_CERTIFICATES_BYTES:
            raise InvalidValue(setting, str(file), f"a file of at most {MAX_CERTIFICATES_BYTES} bytes")
    elif not is_managed(file):
        shown = f"mode {stat.S_IMODE(mode):04o}"
        advice = f"chmod 600 {quote(str(file))}"
        if is_too_open(mode):
            expected = f"a file that other users can neither read nor change ({shown})"
            raise InvalidValue(setting, str(file), expected, hint=advice)
        if is_open_to_group(mode) and has_access_list(file):
            expected = "a file without an access control list, which lets others read it"
            raise InvalidValue(setting, str(file), expected, hint=f"setfacl -b {quote(str(file))}")
        if is_open_to_group(mode):
            complain(f"the group of {file} can read the secret in it ({shown}): {advice}")
    if (weakness := path_weakness(file, status)) is not None:
        expected = f"a file that others cannot change ({weakness.reason})"
        raise InvalidValue(setting, str(file), expected, hint=weakness.remedy)
    return content.decode("ascii", "replace")


def _unreadable(file: Path, setting: str, error: OSError, *, is_secret: bool) -> InvalidValue:
    if is_secret and error.errno in MISSING:
        return without_file(file, setting)
    return InvalidValue(setting, str(file), f"a readable file ({error.strerror})")
