"""Client certificates and authorities of a prober's credentials; files that changed are read again."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from lifesign.errors import InvalidValue
from lifesign.prober.definition.credentials import KEY_MEMBER, CredentialSettings
from lifesign.prober.secrets.changed_files import ChangedFiles
from lifesign.prober.secrets.secret_reader import (
    FileStamp,
    file_of,
    file_stamp,
    has_tls,
    read_secret,
    read_tls,
)

if TYPE_CHECKING:
    from lifesign.prober.secrets.client_tls import ClientTls

_Stamps = tuple[FileStamp | None, ...]


class TlsFiles:
    """TLS settings of each credential, and those of each origin for requests without a credential."""

    def __init__(
        self,
        settings: Sequence[CredentialSettings],
        tls: Mapping[str, "ClientTls"],
        stamps: Mapping[Path, FileStamp | None],
    ) -> None:
        """`tls` and `stamps`: those of the result of `read_secrets` for `settings`."""
        self._settings = [each for each in settings if has_tls(each)]
        self._tls = {each.name: tls[each.name] for each in self._settings}
        self._by_origin: dict[str, ClientTls] = {}
        self._files = ChangedFiles(
            "certificate", {each.name: _stamps_of(each, stamps.get) for each in self._settings}
        )
        self._renew_origins()

    def __bool__(self) -> bool:
        return bool(self._settings)

    def of(self, name: str) -> "ClientTls | None":
        """Return the TLS settings of the credential with this name; None if it has none of its own."""
        return self._tls.get(name)

    def of_origin(self, origin: str) -> "ClientTls | None":
        """Return the TLS settings for requests without a credential, which have no client certificate."""
        return self._by_origin.get(origin)

    def has_certificate_for(self, origin: str) -> bool:
        """Return whether any credential for an origin has a client certificate."""
        return any(each.origin == origin and each.client_certificate is not None for each in self._settings)

    def reload(self) -> None:
        """Read files that have changed. If they are unusable, the former settings stay in use."""
        for each in self._settings:
            tls = self._files.read_again(each.name, _stamps_of(each), partial(self._read, each))
            if tls is not None:
                self._tls[each.name] = tls
                self._renew_origins()

    def _read(self, credential: CredentialSettings, complain: Callable[[str], None]) -> "ClientTls":
        return read_tls(credential, self._key_of(credential, complain), complain)

    def _key_of(self, credential: CredentialSettings, complain: Callable[[str], None]) -> str | None:
        source = credential.client_key
        if source is None:
            return None
        certificate = self._tls[credential.name].certificate
        if source.env is not None and certificate is not None:
            # The variable has left the environment.
            return certificate.key
        return read_secret(source, f"credentials.{credential.name}.{KEY_MEMBER}", complain)

    def _renew_origins(self) -> None:
        self._by_origin = {
            each.origin: self._tls[each.name].without_certificate
            for each in self._settings
            if each.ca_file is not None
        }


def _stamps_of(
    credential: CredentialSettings, stamp_of: Callable[[Path], FileStamp | None] = file_stamp
) -> _Stamps:
    """Return values that change with the files of a credential's TLS."""
    files: list[Path | None] = [credential.client_certificate, credential.ca_file]
    source = credential.client_key
    if source is not None and source.env is None:
        try:
            files.append(file_of(source, credential.name))
        except InvalidValue:
            files.append(None)
    return tuple(None if file is None else stamp_of(file) for file in files)
