"""Good and bad server certificates, issued by an authority of the tests."""

import ssl
from datetime import UTC, datetime
from pathlib import Path

import pytest
import trustme


class Authority:
    """Issues certificates for clients that trust `file`."""

    def __init__(self, directory: Path) -> None:
        self._authority = trustme.CA()
        self.file = directory / "authority.pem"
        self._authority.cert_pem.write_to_path(self.file)

    def serving(
        self, *names: str, ends_at: datetime | None = None, begins_at: datetime | None = None
    ) -> ssl.SSLContext:
        """Return the TLS context of a server with these names or addresses; times default to years."""
        issued = self._authority.issue_cert(*names, not_before=begins_at, not_after=ends_at)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        issued.configure_cert(context)
        return context

    def server_files(self, directory: Path, *names: str) -> None:
        """Write the certificate of a server with these names, and its key: `server.pem` and `server.key`."""
        issued = self._authority.issue_cert(*names)
        (directory / "server.pem").write_bytes(b"".join(each.bytes() for each in issued.cert_chain_pems))
        (directory / "server.key").write_bytes(issued.private_key_pem.bytes())

    def demanding(self, *names: str, version: ssl.TLSVersion | None = None) -> ssl.SSLContext:
        """Return the TLS context of a server that accepts only clients of this authority."""
        context = self.serving(*names)
        self._authority.configure_trust(context)
        context.verify_mode = ssl.CERT_REQUIRED
        if version is not None:
            context.minimum_version = context.maximum_version = version
        return context

    def client(
        self,
        directory: Path,
        name: str = "client",
        *,
        ends_at: datetime | None = None,
        begins_at: datetime | None = None,
    ) -> tuple[Path, Path]:
        """Write a client's certificate and its key; return their files."""
        issued = self._authority.issue_cert(f"{name}.example", not_before=begins_at, not_after=ends_at)
        certificate, key = directory / f"{name}.pem", directory / f"{name}.key"
        certificate.write_bytes(b"".join(each.bytes() for each in issued.cert_chain_pems))
        key.touch(mode=0o600)
        key.write_bytes(issued.private_key_pem.bytes())
        return certificate, key

    def is_trusted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let contexts created from now on trust this authority only."""
        monkeypatch.setenv("SSL_CERT_FILE", str(self.file))
        monkeypatch.setenv("SSL_CERT_DIR", str(self.file.parent / "none"))


LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
"""When certificates begin that have expired."""
