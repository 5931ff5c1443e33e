"""TLS of a prober's connections: the trusted authorities, and the client certificate of a credential.

Each credential has its own contexts, so that a TLS session of one credential is not resumed with another.
"""

import os
import ssl
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Final

from lifesign.domain.common.fast_dataclass import fast_dataclass
from lifesign.errors import InvalidValue

MAX_CERTIFICATES_BYTES: Final = 1024 * 1024
"""Maximum size of a file with certificates; all public authorities have a quarter of it."""

_IGNORE_TIMES: Final = 0x20_0000
"""X509_V_FLAG_NO_CHECK_TIME"""


@fast_dataclass(kw_only=True)
class ClientCertificate:
    """A client certificate with its private key, as PEM. Its repr shows neither."""

    chain: str = field(repr=False)
    """The certificate, and the intermediate certificates of its authority."""
    key: str = field(repr=False)
    expires_at: datetime


@dataclass(frozen=True)
class ClientTls:
    """TLS settings for requests: the trusted authorities, and a client certificate."""

    authorities: str | None = field(default=None, repr=False)
    """Certificates of the trusted authorities, in PEM; None: those of the system."""
    certificate: ClientCertificate | None = None

    @cached_property
    def context(self) -> ssl.SSLContext:
        """SSL context for requests. ssl.SSLError if OpenSSL refuses the authorities or the certificate."""
        context = ssl.create_default_context(cadata=self.authorities)
        context.set_alpn_protocols(["http/1.1"])
        if self.certificate is not None:
            _load(context, self.certificate)
        return context

    @property
    def expiry_text(self) -> str | None:
        """When the client certificate expired, in words; None if it has not, or there is none."""
        ends_at = None if self.certificate is None else self.certificate.expires_at
        if ends_at is None or ends_at > datetime.now(UTC):
            return None
        return f"the client certificate expired {_shown(ends_at)}"

    @property
    def without_certificate(self) -> "ClientTls":
        """The same TLS settings without the client certificate."""
        return ClientTls(self.authorities)

    def __reduce__(self) -> tuple[type["ClientTls"], tuple[str | None, ClientCertificate | None]]:
        """Leave contexts out: they cannot be sent to other processes."""
        return ClientTls, (self.authorities, self.certificate)

    @cached_property
    def context_at_any_time(self) -> ssl.SSLContext:
        """SSL context that also accepts expired certificates, for a look at them. Nothing is sent over it."""
        context = ssl.create_default_context(cadata=self.authorities)
        context.verify_flags |= ssl.VerifyFlags(_IGNORE_TIMES)
        return context


def client_tls(
    setting: str, *, authorities: str | None, chain: str | None, key: str | None, now: datetime | None = None
) -> ClientTls:
    """Return the TLS settings of a credential; InvalidValue, which never quotes a key, for unusable files.

    `setting`: the name of the credential. `chain` and `key`: its client certificate; None without one.
    """
    certificate = None
    if chain is not None and key is not None:
        certificate = _read_certificate(setting, chain, key, now or datetime.now(UTC))
    tls = ClientTls(authorities, certificate)
    try:
        if authorities is not None:
            # Without a certificate in it, OpenSSL would use the system's.
            ssl.create_default_context(cadata=authorities if authorities.strip() else "-")
    except (ssl.SSLError, ValueError) as error:
        raise InvalidValue(f"{setting}.ca_file", None, "certificates of authorities in PEM") from error
    try:
        _ = tls.context
    except (ssl.SSLError, ValueError) as error:
        reason = getattr(error, "reason", None) or "it cannot be loaded"
        expected = f"a certificate that OpenSSL accepts ({reason})"
        raise InvalidValue(f"{setting}.client_certificate", None, expected) from None
    return tls


def key_fault(text: str) -> str | None:
    """Return why a text is not a usable private key; None if it is one."""
    from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415 - takes 50 ms
    from cryptography.hazmat.primitives.serialization import load_pem_private_key  # noqa: PLC0415

    try:
        load_pem_private_key(text.encode(), None)
    except TypeError:
        return "a private key without a passphrase"
    except (ValueError, UnsupportedAlgorithm):
        return "a private key in PEM"
    return None


def _read_certificate(setting: str, chain: str, key: str, now: datetime) -> ClientCertificate:
    """Return a certificate that belongs to the key and is valid now."""
    from cryptography.hazmat.primitives.serialization import load_pem_private_key  # noqa: PLC0415
    from cryptography.x509 import load_pem_x509_certificates  # noqa: PLC0415 - takes 50 ms

    name = f"{setting}.client_certificate"
    try:
        certificate = load_pem_x509_certificates(chain.encode())[0]
    except ValueError:
        raise InvalidValue(name, None, "a certificate in PEM") from None
    if (fault := key_fault(key)) is not None:
        raise InvalidValue(f"{setting}.client_key", None, fault)
    if load_pem_private_key(key.encode(), None).public_key() != certificate.public_key():
        expected = "the private key of client_certificate"
        hint = "name the key that the certificate was issued for"
        raise InvalidValue(f"{setting}.client_key", None, expected, hint=hint)
    begins_at, ends_at = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if ends_at <= now:
        raise InvalidValue(name, None, f"a certificate that has not expired (it expired {_shown(ends_at)})")
    if begins_at > now:
        raise InvalidValue(name, None, f"a certificate that is valid now (it begins {_shown(begins_at)})")
    return ClientCertificate(chain=chain, key=key, expires_at=ends_at)


def _load(context: ssl.SSLContext, certificate: ClientCertificate) -> None:
    """Load a certificate and its key from memory; OpenSSL's interface in Python accepts only files."""
    if not hasattr(os, "memfd_create"):
        raise ValueError("client certificates need Linux")
    with os.fdopen(os.memfd_create("client_certificate", os.MFD_CLOEXEC), "wb") as file:
        file.write(f"{certificate.key}\n{certificate.chain}\n".encode())
        file.flush()
        # An encrypted key would ask for its passphrase at the terminal.
        context.load_cert_chain(f"/proc/self/fd/{file.fileno()}", password="")


def _shown(when: datetime) -> str:
    return f"{when:%Y-%m-%d %H:%M} UTC"
