import os
import pickle
import resource
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from tests.support.access_list import give_access
from tests.support.certificates import Authority

from lifesign.domain.credentials.secret_place import SecretPlace
from lifesign.errors import InvalidValue
from lifesign.filesystem.changeable_path import SYSTEMD_DIRECTORY
from lifesign.prober.definition.credentials import CredentialSettings
from lifesign.prober.secrets.client_tls import MAX_CERTIFICATES_BYTES
from lifesign.prober.secrets.secret_reader import (
    Secrets,
    forget_variables,
    read_secret,
    read_secrets,
)

SECRET = "canary-8f3a91c2"


def bearer(**source: str) -> CredentialSettings:
    given = {"name": "lab", "origin": "https://lab.example", "bearer": source}
    return CredentialSettings.model_validate(given)


def refreshed(file: Path | None) -> CredentialSettings:
    oauth2 = {
        "token_url": "https://login.example/",
        "client_id": "a",
        "client_secret": {"env": "CLIENT_SECRET"},
        "grant": "refresh_token",
        "token_file": str(file),
    }
    return CredentialSettings.model_validate(
        {"name": "lab", "origin": "https://lab.example", "oauth2": oauth2}
    )


def read(source: SecretPlace) -> tuple[str, list[str]]:
    """Return a secret and the warnings about it."""
    warnings: list[str] = []
    return read_secret(source, "credentials.lab.bearer", warnings.append), warnings


def written(directory: Path, content: str | bytes = f"{SECRET}\n", mode: int = 0o600) -> SecretPlace:
    file = directory / "lab.token"
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    file.chmod(mode)
    return SecretPlace(file=file)


def test_a_file_holds_a_secret_without_its_line_end(tmp_path: Path) -> None:
    assert read(written(tmp_path)) == (SECRET, [])
    assert read(written(tmp_path, f"  {SECRET}\r\n")) == (SECRET, [])


@pytest.mark.parametrize("mode", [0o604, 0o620, 0o602, 0o666, 0o644])
def test_a_file_that_others_can_read_or_change_is_refused(tmp_path: Path, mode: int) -> None:
    with pytest.raises(InvalidValue) as caught:
        read(written(tmp_path, mode=mode))
    assert caught.value.hint.startswith("chmod 600 ")
    assert SECRET not in str(caught.value)


def test_a_file_in_a_directory_of_others_is_refused(tmp_path: Path) -> None:
    source = written(tmp_path)
    tmp_path.chmod(0o777)
    with pytest.raises(InvalidValue) as caught:
        read(source)
    assert caught.value.hint == f"chmod o-w {tmp_path}"


def test_a_file_that_its_group_can_read_gives_a_warning(tmp_path: Path) -> None:
    secret, warnings = read(written(tmp_path, mode=0o640))
    assert (secret, len(warnings)) == (SECRET, 1)
    assert SECRET not in warnings[0]


def test_a_file_that_an_access_list_lets_another_user_read_is_refused(tmp_path: Path) -> None:
    source = written(tmp_path)
    assert source.file is not None
    give_access(source.file, 4)
    with pytest.raises(InvalidValue) as caught:
        read(source)
    assert caught.value.hint == f"setfacl -b {source.file}"


def test_files_of_systemd_are_accepted_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, mode=0o644)
    source = SecretPlace(systemd="lab.token")
    with pytest.raises(InvalidValue):
        read(source)
    monkeypatch.setenv(SYSTEMD_DIRECTORY, str(tmp_path))
    assert read(source) == (SECRET, [])
    # A link out of the directory is not a file of systemd's.
    outside = tmp_path.parent / f"{tmp_path.name}-outside"
    outside.write_text(SECRET)
    outside.chmod(0o644)
    (tmp_path / "linked").symlink_to(outside)
    with pytest.raises(InvalidValue):
        read(SecretPlace(systemd="linked"))


def test_a_variable_holds_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LAB_TOKEN", raising=False)
    with pytest.raises(InvalidValue):
        read(SecretPlace(env="LAB_TOKEN"))
    monkeypatch.setenv("LAB_TOKEN", SECRET)
    assert read(SecretPlace(env="LAB_TOKEN")) == (SECRET, [])


@pytest.mark.parametrize(
    "content",
    ["", "short", "two\nlines-of-secret", "пароль-пароль", b"\xff" * 20, "with a space", "x" * 9000],
)
def test_invalid_secrets_are_refused_without_quoting_them(tmp_path: Path, content: str | bytes) -> None:
    with pytest.raises(InvalidValue) as caught:
        read(written(tmp_path, content))
    assert caught.value.name == "credentials.lab.bearer"
    assert caught.value.given is None
    for part in ("lines-of-secret", "пароль", "with a space", "xxxx"):
        assert part not in str(caught.value)


def test_empty_directory_of_systemd_is_not_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("t0ken")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(SYSTEMD_DIRECTORY, "")
    source = SecretPlace.model_validate({"systemd": "token"}, context={"directory": tmp_path})
    with pytest.raises(InvalidValue) as caught:
        read(source)
    assert SYSTEMD_DIRECTORY in str(caught.value)


@pytest.mark.parametrize("member", ["env", "file", "systemd"])
@pytest.mark.parametrize("is_managed", [True, False])
def test_token_in_place_of_a_name_is_not_quoted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, member: str, *, is_managed: bool
) -> None:
    token = "ghp_abcdefghijklmnopqrstuvwxyz"
    monkeypatch.delenv(SYSTEMD_DIRECTORY, raising=False)
    if is_managed:
        monkeypatch.setenv(SYSTEMD_DIRECTORY, str(tmp_path))
    place = {"file": [token, f"{token}/{token}", token * 20]}.get(member, [token])
    for given in place:
        source = SecretPlace.model_validate({member: given}, context={"directory": tmp_path})
        with pytest.raises(InvalidValue) as caught:
            read(source)
        assert caught.value.name == "credentials.lab.bearer"
        assert token not in f"{caught.value} {caught.value.hint}"
        assert (str(tmp_path) in str(caught.value)) is (
            member == "file" or (member == "systemd" and is_managed)
        )


@pytest.mark.parametrize("content", ["canary with spaces", "canary;semicolon", "canary,comma"])
def test_api_key_that_does_not_fit_a_cookie_is_refused(tmp_path: Path, content: str) -> None:
    source = written(tmp_path, content)
    with pytest.raises(InvalidValue) as caught:
        read_secret(source, "credentials.box.api_key", lambda _: None)
    assert "canary" not in str(caught.value)
    assert read_secret(source, "credentials.box.header", lambda _: None) == content


def test_what_is_no_regular_file_is_refused_at_once_and_leaves_none_open(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    before = sorted(Path("/proc/self/fd").iterdir())
    for name in ("none", "pipe", "."):
        with pytest.raises(InvalidValue):
            read(SecretPlace(file=tmp_path / name))
    assert sorted(Path("/proc/self/fd").iterdir()) == before


@pytest.mark.parametrize(
    ("name", "mode", "setting"),
    [
        ("client.key", 0o644, "client_key"),
        ("client.pem", 0o666, "client_certificate"),
        ("authority.pem", 0o602, "ca_file"),
        ("client.pem", None, "client_certificate"),
        ("client.key", None, "client_key"),
        ("authority.pem", None, "ca_file"),
    ],
)
def test_files_of_a_certificate_with_wrong_permissions_are_refused(
    tmp_path: Path, name: str, mode: int | None, setting: str
) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.client(tmp_path)
    given = {
        "name": "lab",
        "origin": "https://lab.example",
        "client_certificate": str(certificate),
        "client_key": {"file": str(key)},
        "ca_file": str(authority.file),
    }
    settings = CredentialSettings.model_validate(given)
    assert read_secrets([settings]).tls.keys() == {"lab"}
    if mode is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).chmod(mode)
    with pytest.raises(InvalidValue) as caught:
        read_secrets([settings])
    assert caught.value.name == f"credentials.lab.{setting}"


def test_secrets_are_pickled_for_a_pipe_and_never_shown(tmp_path: Path) -> None:
    source = written(tmp_path)
    secrets = Secrets({source: SECRET})
    assert pickle.loads(pickle.dumps(secrets)) == secrets  # noqa: S301 - ours
    assert SECRET not in repr(secrets)
    assert SECRET not in secrets.scrubber.clean_text(f"line with {SECRET}")


def test_definition_without_credentials_leaves_the_process_unchanged() -> None:
    limits = resource.getrlimit(resource.RLIMIT_CORE)
    assert read_secrets(()) == Secrets()
    assert resource.getrlimit(resource.RLIMIT_CORE) == limits


def test_secret_variables_are_removed_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LAB_TOKEN", "OTHER_TOKEN", "REGISTRY_KEY"):
        monkeypatch.setenv(name, SECRET)
    lab, other, in_file = bearer(env="LAB_TOKEN"), bearer(env="OTHER_TOKEN"), bearer(file="lab.token")
    forget_variables([lab, other, in_file], needed_by=[other], others=["REGISTRY_KEY"])
    assert {"LAB_TOKEN", "OTHER_TOKEN", "REGISTRY_KEY"} & set(os.environ) == {"OTHER_TOKEN"}


def test_private_key_may_have_several_lines(tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    setting = "credentials.lab.oauth2.private_key"
    warnings: list[str] = []
    assert read_secret(written(tmp_path, pem), setting, warnings.append) == pem.strip()
    with pytest.raises(InvalidValue) as caught:
        read_secret(written(tmp_path, f"{SECRET}\n{SECRET}"), setting, warnings.append)
    assert SECRET not in str(caught.value)


def test_a_refresh_token_is_read_at_start(tmp_path: Path) -> None:
    secret = tmp_path / "lab.secret"
    secret.touch(mode=0o600)
    secret.write_text(SECRET)
    oauth2 = {
        "token_url": "https://login.lab.example/", "client_id": "a", "grant": "refresh_token",
        "client_secret": {"file": str(secret)}, "token_file": str(tmp_path / "lab.token"),
    }  # fmt: skip
    given = {"name": "lab", "origin": "https://lab.example", "oauth2": oauth2}
    with pytest.raises(InvalidValue) as caught:
        read_secrets([CredentialSettings.model_validate(given)])
    assert caught.value.name == "credentials.lab.oauth2.token_file"
    assert "credentials login lab" in caught.value.hint
    written(tmp_path)
    # The token changes with each use, so that the definition contains only the other secret.
    assert list(read_secrets([CredentialSettings.model_validate(given)]).values.values()) == [SECRET]


def client(name: str, token_url: str, **proof: object) -> CredentialSettings:
    oauth2 = {"token_url": token_url, "client_id": "lifesign", **(proof or {"client_secret": {"env": name}})}
    given = {"name": name, "origin": "https://lab.example", "path": f"/{name}", "oauth2": oauth2}
    return CredentialSettings.model_validate(given)


def test_worker_gets_no_secret_of_an_oauth_client() -> None:
    login = "https://login.example/token"
    signed = {"private_key": {"env": "signed"}, "auth_method": "private_key_jwt"}
    credentials = [
        bearer(env="bearer"),
        client("elsewhere", login),
        client("signed", login, **signed),
        client("here", "https://lab.example/token"),
        client("signed-here", "https://lab.example/token", **signed),
        client("shared", login, client_secret={"env": "bearer"}),
    ]
    places = [each.source for each in credentials]
    secrets = Secrets({place: f"secret-of-{place.env}" for place in places})
    kept = secrets.for_worker(credentials)
    assert {place.env for place in kept.values} == {"bearer"}
    assert pickle.dumps(kept).count(b"secret-of-") == 1


def test_too_large_certificate_file_is_refused(tmp_path: Path) -> None:
    certificate, key = Authority(tmp_path).client(tmp_path)
    certificate.write_text("x" * (MAX_CERTIFICATES_BYTES + 1))
    given = {
        "name": "lab",
        "origin": "https://lab.example",
        "client_certificate": str(certificate),
        "client_key": {"file": str(key)},
    }
    with pytest.raises(InvalidValue, match=str(MAX_CERTIFICATES_BYTES)):
        read_secrets([CredentialSettings.model_validate(given)])


@pytest.mark.parametrize("is_missing", [True, False])
def test_only_a_missing_refresh_token_has_the_login_as_its_hint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_missing: bool
) -> None:
    monkeypatch.setenv("CLIENT_SECRET", SECRET)
    file = tmp_path / "lab.token"
    if not is_missing:
        written(tmp_path, "short")
    with pytest.raises(InvalidValue) as caught:
        read_secrets([refreshed(file)])
    assert ("credentials login lab" in caught.value.hint) is is_missing


def test_refresh_token_in_a_file_that_cannot_be_replaced_is_refused_at_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLIENT_SECRET", SECRET)
    given = refreshed(written(tmp_path).file)
    assert read_secrets([given]).values
    monkeypatch.setattr(os, "access", lambda place, _mode: place != tmp_path.resolve())
    with pytest.raises(InvalidValue) as caught:
        read_secrets([given])
    assert caught.value.name == "credentials.lab.oauth2.token_file"
    assert str(tmp_path) in caught.value.hint
