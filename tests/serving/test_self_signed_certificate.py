from datetime import UTC, datetime
from pathlib import Path

import pytest
import trustme

from lifesign.serving.self_signed_certificate import certificate_ends_s


# Until 2049 as UTCTime, later as GeneralizedTime (RFC 5280 4.1.2.5).
@pytest.mark.parametrize("year", [2027, 2049, 2050, 2070])
def test_expiry_of_the_certificate_is_reported(tmp_path: Path, year: int) -> None:
    ends_at = datetime(year, 6, 1, 12, 30, 15, tzinfo=UTC)
    issued = trustme.CA().issue_cert("registry.example", not_after=ends_at)
    file = tmp_path / "chain.pem"
    blobs = (*issued.cert_chain_pems, trustme.CA().cert_pem)
    file.write_bytes(b"".join(blob.bytes() for blob in blobs))
    assert certificate_ends_s(file) == ends_at.timestamp()


@pytest.mark.parametrize(
    "content",
    [
        b"", b"-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----", b"\xff" * 100,
        b"-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----",
        b"-----END CERTIFICATE----------BEGIN CERTIFICATE-----",
    ],
)  # fmt: skip
def test_invalid_certificate_has_no_expiry(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "chain.pem").write_bytes(content)
    assert certificate_ends_s(tmp_path / "chain.pem") is None
    assert certificate_ends_s(tmp_path / "none.pem") is None
