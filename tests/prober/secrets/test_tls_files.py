import logging
from pathlib import Path

import pytest
from tests.support.certificates import Authority
from yarl import URL

from lifesign.prober.definition.credentials import CredentialSettings
from lifesign.prober.secrets.credential_store import RELOAD_SECONDS, CredentialStore
from lifesign.prober.secrets.secret_reader import forget_variables, read_secrets
from lifesign.prober.secrets.tls_files import TlsFiles

ORIGIN = "https://bank.example"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def settings(authority: Authority, directory: Path, **members: object) -> CredentialSettings:
    certificate, key = authority.client(directory)
    given = {
        "name": "bank",
        "origin": ORIGIN,
        "client_certificate": str(certificate),
        "client_key": {"file": str(key)},
        "ca_file": str(authority.file),
    }
    return CredentialSettings.model_validate(given | members)


def files_of(each: CredentialSettings) -> TlsFiles:
    secrets = read_secrets([each])
    return TlsFiles([each], secrets.tls, secrets.stamps)


def test_client_certificate_is_used_only_with_its_credential(authority: Authority, tmp_path: Path) -> None:
    files = files_of(settings(authority, tmp_path))
    with_it, without = files.of("bank"), files.of_origin(ORIGIN)
    assert with_it is not None
    assert without is not None
    assert with_it.certificate is not None
    assert without.certificate is None
    assert without.authorities == with_it.authorities
    assert files.of("other") is files.of_origin("https://other.example") is None
    assert files.has_certificate_for(ORIGIN)
    assert not files.has_certificate_for("https://other.example")
    assert not TlsFiles([], {}, {})


def test_a_renewed_certificate_is_used_within_seconds(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    now = [0.0]
    each = settings(authority, tmp_path)
    store = CredentialStore([each], read_secrets([each]), lambda: now[0])
    url = URL(f"{ORIGIN}/")

    def in_use() -> object:
        now[0] += RELOAD_SECONDS
        return store.tls_for(url, store.for_url(str(url)))

    first = in_use()
    assert in_use() is first
    authority.client(tmp_path)
    second = in_use()
    assert second is not first
    # Between the two files of a renewal, the last pair stays in use.
    certificate, _ = authority.client(tmp_path, "next")
    certificate.rename(tmp_path / "client.pem")
    assert in_use() is second
    assert caplog.records[-1].levelno == logging.WARNING
    (tmp_path / "next.key").rename(tmp_path / "client.key")
    assert in_use() is not second
    assert "PRIVATE" not in caplog.text


def test_certificate_that_was_renewed_before_the_start_of_a_process_is_used(
    authority: Authority, tmp_path: Path
) -> None:
    each = settings(authority, tmp_path)
    secrets = read_secrets([each]).for_worker([each])
    authority.client(tmp_path)
    store = CredentialStore([each], secrets)
    tls = store.tls_for(URL(ORIGIN), store.for_url(ORIGIN))
    assert tls is not None
    assert tls.certificate is not None
    assert tls.certificate.chain == (tmp_path / "client.pem").read_text()


def test_private_key_from_a_removed_variable_is_kept_for_certificate_renewals(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, key = authority.client(tmp_path)
    monkeypatch.setenv("BANK_KEY", key.read_text())
    each = settings(authority, tmp_path, client_key={"env": "BANK_KEY"})
    monkeypatch.setenv("BANK_KEY", key.read_text())
    files = files_of(each)
    forget_variables([each])
    first = files.of("bank")
    (tmp_path / "client.pem").touch()
    files.reload()
    second = files.of("bank")
    assert first is not second
    assert first == second


def test_renewed_authorities_of_a_credential_without_a_certificate_are_used(
    authority: Authority, tmp_path: Path
) -> None:
    given = {"name": "bank", "origin": ORIGIN, "bearer": {"env": "X"}, "ca_file": str(authority.file)}
    each = CredentialSettings.model_validate(given)
    secrets = read_secrets([each.model_copy(update={"bearer": None})])
    files = TlsFiles([each], secrets.tls, secrets.stamps)
    first = files.of_origin(ORIGIN)
    other = tmp_path / "other"
    other.mkdir()
    authority.file.write_text(Authority(other).file.read_text())
    files.reload()
    second = files.of_origin(ORIGIN)
    assert first is not None
    assert second is not None
    assert first.authorities != second.authorities == authority.file.read_text()
