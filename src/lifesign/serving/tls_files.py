"""Checks of the files of a server's certificate and its key, which say which of the two is at fault."""

import ssl
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from lifesign.errors import InvalidValue
from lifesign.serving.self_signed_certificate import certificate_validity_s

CERTIFICATE: Final = "a certificate in PEM, with its chain"
KEY: Final = "a key in PEM, without a password"
_TOO_WEAK: Final = frozenset({"EE_KEY_TOO_SMALL", "CA_KEY_TOO_SMALL", "CA_MD_TOO_WEAK"})
"""OpenSSL's errors about a certificate that it can read."""
_APART: Final = frozenset({"KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED"})
"""OpenSSL's errors about a key of another certificate."""

MAX_CLOCK_DIFFERENCE_SECONDS: Final = 60.0
"""A certificate may begin so much later than now: the clock of its authority may be ahead."""


def check_pair(certificate: Path, key: Path) -> None:
    """Raise InvalidValue if a server cannot use the certificate or its key."""
    _check_readable("tls_certificate", certificate, CERTIFICATE)
    _check_readable("tls_key", key, KEY)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # Reads only the certificates: for a pair, OpenSSL does not say which of the two is invalid.
        context.load_verify_locations(certificate)
    except (OSError, ValueError):
        raise InvalidValue("tls_certificate", str(certificate), CERTIFICATE) from None
    try:
        # A key with a password would ask for it in every process.
        context.load_cert_chain(certificate, key, password="")
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None)
        if reason in _TOO_WEAK:
            raise InvalidValue("tls_certificate", str(certificate), f"{CERTIFICATE} ({reason})") from None
        expected = f"the key of {certificate}" if reason in _APART else KEY
        raise InvalidValue("tls_key", str(key), expected) from None


def check_validity(certificate: Path, now_s: float) -> None:
    """Raise InvalidValue if the certificate has expired, or is not valid yet: clients refuse it."""
    validity_s = certificate_validity_s(certificate)
    if validity_s is None:
        return
    begins_s, ends_s = validity_s
    if ends_s <= now_s:
        why = f"it expired at {_text(ends_s)}"
    elif begins_s > now_s + MAX_CLOCK_DIFFERENCE_SECONDS:
        why = f"it is not valid before {_text(begins_s)}"
    else:
        return
    raise InvalidValue("tls_certificate", str(certificate), f"a certificate that is valid now ({why})")


def _text(at_s: float) -> str:
    return f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%d %H:%M} UTC"


def _check_readable(name: str, file: Path, expected: str) -> None:
    try:
        file.open("rb").close()
    except OSError as error:
        raise InvalidValue(name, str(file), f"{expected} ({error.strerror})") from None
