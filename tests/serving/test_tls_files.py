from pathlib import Path

import pytest
import trustme

from lifesign.errors import InvalidValue
from lifesign.serving.tls_files import check_pair


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
