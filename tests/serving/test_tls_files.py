from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme

from lifesign.errors import InvalidValue
from lifesign.serving.tls_files import MAX_CLOCK_DIFFERENCE_SECONDS, check_pair, check_validity


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A directory with two certificates, their keys, and files that are neither."""
    for number in (1, 2):
        issued = trustme.CA().issue_cert("localhost")
        issued.cert_chain_pems[0].write_to_path(tmp_path / f"cert{number}")
        issued.private_key_pem.write_to_path(tmp_path / f"key{number}")
    (tmp_path / "empty").touch()
    (tmp_path / "text").write_text("x")
    (tmp_path / "directory").mkdir()
    key = (tmp_path / "key1").read_text()
    (tmp_path / "both").write_text((tmp_path / "cert1").read_text() + key)
    (tmp_path / "cut").write_text(key[: len(key) // 2])
    return tmp_path


@pytest.mark.parametrize(("certificate", "key"), [("cert1", "key1"), ("both", "both")])
def test_certificate_and_key_files_are_accepted(files: Path, certificate: str, key: str) -> None:
    check_pair(files / certificate, files / key)


@pytest.mark.parametrize(
    ("certificate", "key", "name", "expected"),
    [
        ("absent", "key1", "tls_certificate", "(No such file"),
        ("cert1", "absent", "tls_key", "(No such file"),
        ("directory", "key1", "tls_certificate", "(Is a directory)"),
        ("cert1", "directory", "tls_key", "(Is a directory)"),
        ("text", "key1", "tls_certificate", "a certificate in PEM"),
        ("empty", "key1", "tls_certificate", "a certificate in PEM"),
        ("key1", "cert1", "tls_certificate", "a certificate in PEM"),
        ("cert1", "text", "tls_key", "a key in PEM"),
        ("cert1", "cut", "tls_key", "a key in PEM"),
        ("cert1", "cert1", "tls_key", "a key in PEM"),
        ("cert1", "key2", "tls_key", "the key of "),
    ],
)
def test_invalid_tls_file_is_named_in_the_error(
    files: Path, certificate: str, key: str, name: str, expected: str
) -> None:
    with pytest.raises(InvalidValue) as refused:
        check_pair(files / certificate, files / key)
    assert refused.value.name == name
    assert refused.value.given == str(files / (certificate if name == "tls_certificate" else key))
    assert expected in refused.value.expected


def test_certificate_that_is_not_valid_now_is_refused(tmp_path: Path) -> None:
    begins_at = datetime(2026, 6, 1, tzinfo=UTC)
    ends_at = begins_at + timedelta(days=1)
    issued = trustme.CA().issue_cert("localhost", not_before=begins_at, not_after=ends_at)
    file = tmp_path / "cert.pem"
    issued.cert_chain_pems[0].write_to_path(file)
    begins_s, ends_s = begins_at.timestamp(), ends_at.timestamp()
    for now_s in (begins_s - MAX_CLOCK_DIFFERENCE_SECONDS, begins_s, ends_s - 1):
        check_validity(file, now_s)
    for now_s, part in ((begins_s - MAX_CLOCK_DIFFERENCE_SECONDS - 1, "2026-06-01"), (ends_s, "2026-06-02")):
        with pytest.raises(InvalidValue) as refused:
            check_validity(file, now_s)
        assert (refused.value.name, refused.value.given) == ("tls_certificate", str(file))
        assert part in refused.value.expected
