"""Validity of the server's own certificate.

The standard library only parses certificates of peers. Therefore the times are read from the DER itself (RFC
5280 4.1): certificate, its signed part, and there the fifth member, its validity.
"""

import ssl
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

MAX_BYTES: Final = 1_048_576
"""Maximum size of the file."""
_SEQUENCE: Final = 0x30
_VERSION: Final = 0xA0
_UTC_TIME: Final = 0x17
_BEGIN: Final = "-----BEGIN CERTIFICATE-----"
_END: Final = "-----END CERTIFICATE-----"


def certificate_ends_s(file: Path) -> float | None:
    """Return the expiry of the first certificate of a PEM file in seconds since the epoch.

    None if it has none.
    """
    validity_s = certificate_validity_s(file)
    return None if validity_s is None else validity_s[1]


def certificate_validity_s(file: Path) -> tuple[float, float] | None:
    """Return begin and end of the validity of a PEM file's first certificate, in seconds since the epoch.

    None if it has none.

    The file may be replaced while the server runs, which keeps the certificate that it has read.
    """
    try:
        with file.open("rb") as opened:
            text = opened.read(MAX_BYTES).decode("ascii", "replace")
        first = text[text.index(_BEGIN) : text.index(_END) + len(_END)]
        begin, end = _validity(ssl.PEM_cert_to_DER_cert(first))
        return begin.timestamp(), end.timestamp()
    except (OSError, ValueError, IndexError):
        return None


def _validity(certificate: bytes) -> tuple[datetime, datetime]:
    signed, _ = _member(_member(certificate, _SEQUENCE)[0], _SEQUENCE)
    if signed[0] == _VERSION:
        _, signed = _member(signed, _VERSION)
    for _ in range(3):
        # The serial number, the algorithm of the signature, and the issuer.
        _, signed = _member(signed)
    validity, _ = _member(signed, _SEQUENCE)
    _, rest = _member(validity)
    return _time(validity), _time(rest)


def _time(der: bytes) -> datetime:
    written, _ = _member(der)
    form = "%y%m%d%H%M%SZ" if der[0] == _UTC_TIME else "%Y%m%d%H%M%SZ"
    return datetime.strptime(written.decode("ascii"), form).replace(tzinfo=UTC)


def _member(der: bytes, tag: int | None = None) -> tuple[bytes, bytes]:
    """Return the content of the first member, and the bytes after it; ValueError for another tag."""
    if tag is not None and der[0] != tag:
        raise ValueError(f"expected a member with the tag {tag:#x}; got {der[0]:#x}")
    length, at = der[1], 2
    if length & 0x80:
        at += length & 0x7F
        length = int.from_bytes(der[2:at])
    return der[at : at + length], der[at + length :]
