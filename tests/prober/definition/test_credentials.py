from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from tests.support.definitions import definition_of

from lifesign.domain.credentials.request_scope import MAX_CREDENTIALS
from lifesign.domain.credentials.secret_place import SecretPlace
from lifesign.errors import InvalidValue
from lifesign.prober.definition.credentials import CredentialSettings, sources_of
from lifesign.prober.definition.file import read_credential_file, read_definition_file
from lifesign.prober.definition.models import ProbeDefinition
from lifesign.prober.errors import InvalidDefinition

HEAD = "name: a\ntargets: [a.example]\ncredentials:\n"


def credential(**members: Any) -> CredentialSettings:
    least = {"name": "lab", "origin": "https://lab.example"}
    if not {"bearer", "basic", "header", "api_key", "oauth2"} & set(members):
        members["bearer"] = {"env": "LAB_TOKEN"}
    return CredentialSettings.model_validate(least | members)


def refused(**members: Any) -> str:
    """Return the type of the single error."""
    with pytest.raises(ValidationError) as caught:
        credential(**members)
    (error,) = caught.value.errors()
    return error["type"]


@pytest.mark.parametrize(
    ("given", "origin"),
    [
        ("https://Lab.example", "https://lab.example"),
        ("https://lab.example/", "https://lab.example"),
        ("https://lab.example:443", "https://lab.example"),
        ("https://lab.example:8443", "https://lab.example:8443"),
        ("http://10.0.0.5:8000", "http://10.0.0.5:8000"),
        ("https://bücher.example", "https://xn--bcher-kva.example"),
    ],
)
def test_origin_is_normalised(given: str, origin: str) -> None:
    assert credential(origin=given).scope.origin == origin


@pytest.mark.parametrize("given", ["lab.example", "https://lab.example/x", "https://lab.example/?a=1"])
def test_origin_is_a_scheme_a_host_and_a_port(given: str) -> None:
    assert refused(origin=given) == "origin"


@pytest.mark.parametrize("given", ["https://user:pw@lab.example", "ftp://lab.example", "https://"])
def test_origin_is_an_address_that_may_be_contacted(given: str) -> None:
    assert refused(origin=given) == "target"


@pytest.mark.parametrize("given", ["/a?b=1", "/a;b", "/a%20b"])
def test_path_with_a_query_or_escape_is_refused(given: str) -> None:
    assert refused(path=given) == "scope_path"


@pytest.mark.parametrize("given", ["/a/../b", "/./a"])
def test_path_with_dot_segments_is_refused(given: str) -> None:
    assert refused(path=given) == "dot_segment"


@pytest.mark.parametrize(
    "members",
    [
        {"bearer": "sk-inline-secret"},
        {"basic": {"username": "me", "password": "sk-inline-secret"}},
        {"header": {"name": "X-API-Key", "value": "sk-inline-secret"}},
        {"bearer": 12345678},
    ],
)
def test_inline_secret_is_refused(members: dict[str, Any]) -> None:
    assert refused(**members) == "inline_secret"


@pytest.mark.parametrize(
    ("member", "expected"),
    [
        ("bearer: sk-inline-secret", "{file: NAME}"),
        ("bearer: {sk-inline-secret}", "/credentials/0/bearer: no such key; expected one of file"),
        ("bearer: {sk-inline-secret: x}", "no such key"),
        ("bearer: {sk-inline-secret: 1, sk-inline-secret: 2}", "/credentials/0: this key occurs twice"),
        ("bearer: {sk-inline-secret: 1:30}", "/credentials/0: expected an unambiguous value"),
        ("bearer:sk-inline-secret", "/credentials/0: no such key; expected one of name"),
        ("basic: {username: a, password:sk-inline-secret}", "/credentials/0/basic: no such key"),
        ("oauth2: {client_secret: {sk-inline-secret}}", "/oauth2/client_secret: no such key"),
        ("bearer: *sk-inline-secret", "no alias"),
        ("bearer: !sk-inline-secret", "no tag"),
        ("bearer: !!sk-inline-secret", "no tag"),
        ("bearer: &sk-inline-secret", "expected exactly one of"),
        ("bearer: [sk-inline-secret]", "expected a mapping"),
    ],
)
def test_refusal_of_an_inline_secret_names_its_line_and_never_quotes_it(member: str, expected: str) -> None:
    text = HEAD + f"  - {{name: lab, origin: https://lab.example, {member} }}\n"
    with pytest.raises(InvalidDefinition) as caught:
        definition_of(text)
    fault = next(each for each in caught.value.faults if expected in str(each))
    assert fault.line == 4
    assert "{{" not in str(fault)
    assert "sk-inline-secret" not in str(caught.value)


def test_unknown_key_of_a_credential_has_its_own_line() -> None:
    text = HEAD + "  - name: lab\n    origin: https://lab.example\n    oauth:\n      client_id: x\n"
    with pytest.raises(InvalidDefinition) as caught:
        definition_of(text)
    (fault,) = (each for each in caught.value.faults if "no such key" in str(each))
    assert (fault.line, fault.path) == (6, "/credentials/0")


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ({}, "client_secret_basic, expected client_secret"),
        ({"auth_method": "private_key_jwt"}, "private_key_jwt, expected private_key"),
        ({"auth_method": "none", "client_secret": {"env": "A"}}, "none, expected neither"),
    ],
)
def test_error_about_the_proof_of_a_client_names_its_method(members: dict[str, Any], expected: str) -> None:
    client = {"token_url": "https://login.example/token", "client_id": "x"} | members
    with pytest.raises(ValidationError, match=expected):
        credential(oauth2=client)


@pytest.mark.parametrize("mode", [0o646, 0o666, 0o644, 0o664])
def test_a_definition_that_others_can_change_has_no_credentials(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "lab.yml"
    lab = "  - {name: lab, origin: https://lab.example, bearer: {env: A}}\n"
    texts: dict[Callable[[Path], object], tuple[str, str | None]] = {
        read_definition_file: (HEAD + lab, "name: a\ntargets: [a.example]\n"),
        read_credential_file: ("credentials:\n" + lab, None),
    }
    for read, (with_credentials, without) in texts.items():
        file.write_text(with_credentials)
        file.chmod(mode)
        if mode & 0o002:
            with pytest.raises(InvalidValue) as caught:
                read(file)
            assert f"{mode:04o}" in str(caught.value)
        else:
            read(file)
        if without is not None:
            file.write_text(without)
            read(file)


def test_definition_in_a_directory_of_others_has_no_credentials(tmp_path: Path) -> None:
    file = tmp_path / "lab.yml"
    file.write_text(HEAD + "  - {name: lab, origin: https://lab.example, bearer: {env: A}}\n")
    tmp_path.chmod(0o777)
    with pytest.raises(InvalidValue) as caught:
        read_definition_file(file)
    assert caught.value.hint == f"chmod o-w {tmp_path}"


@pytest.mark.parametrize(
    "naming",
    [
        "directories: [{name: list, url: https://a.example/list, key_file: lab.token}]",
        "targets: [a.example]\nresults: {registry: https://b.example, key_file: lab.token}",
    ],
)
def test_definition_that_others_can_change_names_no_key_file(tmp_path: Path, naming: str) -> None:
    file = tmp_path / "lab.yml"
    file.write_text(f"name: a\n{naming}\n")
    read_definition_file(file)
    file.chmod(0o646)
    with pytest.raises(InvalidValue) as caught:
        read_definition_file(file)
    assert caught.value.hint == f"chmod o-w {file}"


def test_definition_that_others_can_change_is_not_used_with_credentials_of_another_file(
    tmp_path: Path,
) -> None:
    file = tmp_path / "lab.yml"
    file.write_text("name: a\ntargets: [a.example]\n")
    file.chmod(0o646)
    read_definition_file(file)
    with pytest.raises(InvalidValue) as caught:
        read_definition_file(file, needs_trust=True)
    assert caught.value.hint == f"chmod o-w {file}"


def test_secret_with_two_places_is_refused() -> None:
    assert refused(bearer={}) == "one_source"
    assert refused(bearer={"env": "A", "file": "b"}) == "one_source"


CERTIFICATE = {"client_certificate": "bank.pem", "client_key": {"file": "bank.key"}}


def test_client_certificate_can_be_used_alone_or_with_another_method() -> None:
    alone = {"name": "bank", "origin": "https://bank.example"} | CERTIFICATE
    assert CredentialSettings.model_validate(alone).method == "client_certificate"
    assert credential(**CERTIFICATE, bearer={"env": "A"}).method == "bearer"
    assert list(sources_of([credential(**CERTIFICATE, bearer={"env": "A"})])) == [
        ("credentials.lab.bearer", SecretPlace(env="A")),
        ("credentials.lab.client_key", SecretPlace(file=Path("bank.key"))),
    ]
    assert [name for name, _ in sources_of([CredentialSettings.model_validate(alone)])] == [
        "credentials.bank.client_key"
    ]


def test_a_client_certificate_has_a_key_and_tls() -> None:
    assert refused(client_certificate="bank.pem") == "certificate_pair"
    assert refused(client_key={"file": "bank.key"}) == "certificate_pair"
    assert refused(client_certificate="bank.pem", client_key="inline") == "inline_secret"
    assert refused(origin="http://10.0.0.5:8000", ca_file="ca.pem") == "tls_origin"
    assert refused(origin="http://10.0.0.5:8000", **CERTIFICATE) == "tls_origin"


def test_an_origin_has_one_ca_file() -> None:
    one = {"name": "a", "origin": "https://a.example", "bearer": {"env": "A"}, "ca_file": "ca.pem"}
    for two, count in (
        ({"path": "/b"}, 0),
        ({"path": "/b", "ca_file": None}, 1),
        ({"origin": "https://b.example"}, 0),
    ):
        other = one | {"name": "b"} | two
        given = {"name": "x", "targets": ["a.example"], "credentials": [one, other]}
        if not count:
            ProbeDefinition.model_validate(given)
            continue
        with pytest.raises(ValidationError) as caught:
            ProbeDefinition.model_validate(given)
        assert caught.value.errors()[0]["type"] == "one_ca_file"


def test_a_credential_has_one_method() -> None:
    assert refused(bearer={"env": "A"}, header={"name": "X-Key", "value": {"env": "A"}}) == "one_method"
    with pytest.raises(ValidationError):
        CredentialSettings.model_validate({"name": "lab", "origin": "https://lab.example"})


@pytest.mark.parametrize("name", ["Host", "content-length", "Transfer-Encoding", "Connection"])
def test_a_header_that_the_prober_sets_is_refused(name: str) -> None:
    assert refused(header={"name": name, "value": {"env": "A"}}) == "transport_header"


@pytest.mark.parametrize("username", ["", "with:colon", " leading", "ünicode", "line\nbreak"])
def test_invalid_user_names_are_refused(username: str) -> None:
    assert refused(basic={"username": username, "password": {"env": "A"}}) == "string_pattern_mismatch"


def test_duplicate_name_or_scope_of_credentials_is_refused() -> None:
    one = {"name": "a", "origin": "https://a.example", "bearer": {"env": "A"}}
    for other in (one | {"origin": "https://b.example"}, one | {"name": "b", "path": "/"}):
        with pytest.raises(ValidationError) as caught:
            ProbeDefinition.model_validate(
                {"name": "x", "targets": ["a.example"], "credentials": [one, other]}
            )
        assert caught.value.errors()[0]["type"] == "same_credential"
    many = [one | {"name": f"a{number}", "path": f"/{number}"} for number in range(MAX_CREDENTIALS + 1)]
    with pytest.raises(ValidationError):
        ProbeDefinition.model_validate({"name": "x", "targets": ["a.example"], "credentials": many})


def test_each_secret_has_a_setting_and_a_place() -> None:
    settings = [
        credential(bearer={"file": "lab.token"}),
        credential(basic={"username": "me", "password": {"env": "PW"}}),
        credential(header={"name": "X-Key", "value": {"systemd": "box.key"}}),
    ]
    assert [(setting, str(source)) for setting, source in sources_of(settings)] == [
        ("credentials.lab.bearer", "file lab.token"),
        ("credentials.lab.basic", "variable PW"),
        ("credentials.lab.header", "systemd credential box.key"),
    ]


CLIENT = {
    "token_url": "https://login.lab.example/oauth2/token",
    "client_id": "lifesign",
    "client_secret": {"file": "lab.secret"},
}
SIGNED = {
    "auth_method": "private_key_jwt",
    "client_secret": None,
    "private_key": {"file": "lab.key"},
}


def test_an_oauth_client_has_its_secret_in_one_place() -> None:
    assert credential(oauth2=CLIENT).method == "oauth2"
    settings = {setting: str(place) for setting, place in sources_of([credential(oauth2=CLIENT)])}
    assert settings == {"credentials.lab.oauth2.client_secret": "file lab.secret"}
    settings = {setting: str(place) for setting, place in sources_of([credential(oauth2=CLIENT | SIGNED)])}
    assert settings == {"credentials.lab.oauth2.private_key": "file lab.key"}


@pytest.mark.parametrize(
    ("members", "kind"),
    [
        ({"client_secret": None}, "client_proof"),
        ({"private_key": {"file": "lab.key"}}, "client_proof"),
        ({"auth_method": "private_key_jwt"}, "client_proof"),
        ({"key_id": "a"}, "key_id"),
        ({"token_file": "lab.refresh"}, "token_file"),
        ({"grant": "refresh_token"}, "token_file"),
        ({"auth_method": "none"}, "client_proof"),
        ({"auth_method": "none", "client_secret": None}, "token_file"),
        ({"authorization_url": "https://login.example/authorize"}, "authorization_url"),
        ({"issuer": "https://login.example"}, "authorization_url"),
        ({"grant": "password"}, "enum"),
        ({"auth_method": "tls_client_auth"}, "enum"),
        ({"client_secret": "sk-inline-secret"}, "inline_secret"),
        ({"private_key": "-----BEGIN PRIVATE KEY-----"}, "inline_secret"),
        ({"token_url": "login.lab.example"}, "oauth_url"),
        ({"token_url": "ftp://login.lab.example/token"}, "oauth_url"),
        ({"token_url": "https://user:secret@login.lab.example/token"}, "oauth_url"),
        ({"token_url": "https://login.lab.example/token#here"}, "oauth_url"),
        ({"resource": "urn:lab"}, "oauth_url"),
        ({"client_id": "two words"}, "string_pattern_mismatch"),
        ({"client_id": "line\nbreak"}, "string_pattern_mismatch"),
        ({"scope": ""}, "string_pattern_mismatch"),
        ({"scope": "a  b"}, "string_pattern_mismatch"),
        ({"scope": 'a"b'}, "string_pattern_mismatch"),
        ({"scope": "a" * 1025}, "string_too_long"),
    ],
)
def test_invalid_oauth_client_is_refused(members: dict[str, Any], kind: str) -> None:
    assert refused(oauth2=CLIENT | members) == kind


def test_a_public_client_has_its_refresh_token_as_its_secret() -> None:
    public = {"auth_method": "none", "client_secret": None, "grant": "refresh_token", "token_file": "r"}
    settings = {setting: str(place) for setting, place in sources_of([credential(oauth2=CLIENT | public)])}
    assert settings == {"credentials.lab.oauth2.token_file": "file r"}
