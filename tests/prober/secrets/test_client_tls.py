import os
import pickle
import ssl
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme
from tests.support.certificates import LONG_AGO, Authority

from lifesign.errors import InvalidValue
from lifesign.prober.secrets.client_tls import ClientTls, client_tls, key_fault

YESTERDAY = datetime.now(UTC) - timedelta(days=1)
KEY, CERTIFICATE = "bank.client_key", "bank.client_certificate"


def read(files: tuple[Path, Path], authorities: str | None = None) -> ClientTls:
    chain, key = (file.read_text() for file in files)
    return client_tls("bank", authorities=authorities, chain=chain, key=key)


def refused(files: tuple[Path, Path], authorities: str | None = None) -> str:
    """Return the name of the setting that is refused."""
    with pytest.raises(InvalidValue) as caught:
        read(files, authorities)
    assert "PRIVATE" not in str(caught.value)
    return caught.value.name


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def test_a_certificate_and_its_key_are_loaded_from_memory(authority: Authority, tmp_path: Path) -> None:
    tls = read(authority.client(tmp_path))
    assert tls.certificate is not None
    assert tls.certificate.expires_at > datetime.now(UTC)
    assert tls.context.verify_mode is ssl.CERT_REQUIRED
    assert tls.context.check_hostname
    assert "PRIVATE" not in repr(tls)


def test_pickled_tls_settings_omit_their_contexts(authority: Authority, tmp_path: Path) -> None:
    tls = read(authority.client(tmp_path))
    other = pickle.loads(pickle.dumps(tls))  # noqa: S301 - ours
    assert other == tls
    assert other.context is not tls.context


def test_authorities_replace_those_of_the_system(authority: Authority) -> None:
    tls = client_tls("bank", authorities=authority.file.read_text(), chain=None, key=None)
    assert len(tls.context.get_ca_certs()) == len(tls.context_at_any_time.get_ca_certs()) == 1
    assert tls.without_certificate == tls


def test_context_that_ignores_dates_has_no_client_certificate(authority: Authority, tmp_path: Path) -> None:
    tls = read(authority.client(tmp_path), authority.file.read_text())
    assert tls.without_certificate == ClientTls(authority.file.read_text())
    assert tls.context_at_any_time.check_hostname


def test_an_expired_certificate_is_refused(authority: Authority, tmp_path: Path) -> None:
    assert refused(authority.client(tmp_path, begins_at=LONG_AGO, ends_at=YESTERDAY)) == CERTIFICATE


def test_certificate_that_is_not_yet_valid_is_refused(authority: Authority, tmp_path: Path) -> None:
    ends_at = YESTERDAY + timedelta(days=20)
    begins_at = YESTERDAY + timedelta(days=10)
    assert refused(authority.client(tmp_path, begins_at=begins_at, ends_at=ends_at)) == CERTIFICATE


def test_the_key_of_another_certificate_is_refused(authority: Authority, tmp_path: Path) -> None:
    certificate, _ = authority.client(tmp_path)
    _, other = authority.client(tmp_path, "other")
    assert refused((certificate, other)) == KEY


@pytest.mark.parametrize(
    "text", ["", "\n", "no PEM", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----"]
)
def test_invalid_certificate_is_refused(authority: Authority, tmp_path: Path, text: str) -> None:
    certificate, key = authority.client(tmp_path)
    certificate.write_text(text)
    assert refused((certificate, key)) == CERTIFICATE
    with pytest.raises(InvalidValue) as caught:
        client_tls("bank", authorities=text, chain=None, key=None)
    assert caught.value.name == "bank.ca_file"


def test_key_with_a_passphrase_is_refused(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives.serialization import (  # noqa: PLC0415 - slow
        BestAvailableEncryption,
        Encoding,
        PrivateFormat,
        load_pem_private_key,
    )

    plain = trustme.CA().issue_cert("client.example").private_key_pem.bytes()
    encrypted = load_pem_private_key(plain, None).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")
    )
    assert key_fault(plain.decode()) is None
    faults = {key_fault(encrypted.decode()), key_fault("no key")}
    assert len(faults) == 2
    assert None not in faults


def test_expired_certificate_has_its_date_in_words(authority: Authority, tmp_path: Path) -> None:
    tls = read(authority.client(tmp_path))
    assert tls.certificate is not None
    expired = replace(tls, certificate=replace(tls.certificate, expires_at=YESTERDAY))
    assert f"{YESTERDAY:%Y-%m-%d}" in (expired.expiry_text or "")
    assert tls.expiry_text is None
    assert tls.without_certificate.expiry_text is None


def test_unusable_key_of_a_certificate_is_refused(authority: Authority, tmp_path: Path) -> None:
    certificate, key = authority.client(tmp_path)
    key.write_text("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n")
    assert refused((certificate, key)) == KEY


def test_client_certificate_needs_files_in_memory(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = ClientTls(certificate=read(authority.client(tmp_path)).certificate)
    monkeypatch.delattr(os, "memfd_create")
    with pytest.raises(ValueError, match="Linux"):
        _ = tls.context
