"""Log in to a real provider (Authlib) with a browser that follows the redirects at once."""

import json
import os
import stat
import threading
import urllib.error
import urllib.request
import webbrowser
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.support.certificates import Authority
from tests.support.oauth_provider import (
    AUTHORIZE_PATH,
    CLIENT_SECRET,
    RIGHTS,
    TOKEN_PATH,
    Provider,
    serving_provider,
)
from tests.support.probing import definition
from tests.support.servers import PATIENCE_SECONDS

from lifesign.cli import main
from lifesign.crawl.oauth_login import client_for_login, token_tls
from lifesign.errors import InvalidValue
from lifesign.prober.definition.credentials import CredentialSettings, OAuthClient
from lifesign.prober.secrets.refresh_token_file import RefreshTokenFile

FORM = """
name: acme
contact: mailto:tests@agent.example
targets: [https://agent.example]
networks: {{allow: [127.0.0.0/8]}}
timeouts: {{total_seconds: 5}}
credentials:
  - name: acme
    origin: https://agent.example
    oauth2:
      token_url: {url}{token_path}
      client_id: lifesign
      auth_method: {method}
      grant: refresh_token
      token_file: acme.refresh
      scope: {scope}
{more}
"""


class Browser:
    """Opens a URL, and keeps the answers of the last page."""

    def __init__(self) -> None:
        self.opened: list[str] = []
        self.inherited: list[str | None] = []
        """Values of variables with secrets."""
        self._statuses: list[int] = []
        self._has_ended = threading.Event()

    def open(self, url: str) -> bool:
        self.opened.append(url)
        self.inherited += [os.environ.get(name) for name in ("CLIENT_SECRET", "LIFESIGN_DETAIL_TOKEN")]
        try:
            with urllib.request.urlopen(url, timeout=PATIENCE_SECONDS) as answer:  # noqa: S310 - of a test
                self._statuses.append(answer.status)
        except urllib.error.HTTPError as error:
            self._statuses.append(error.code)
        self._has_ended.set()
        return True

    @property
    def statuses(self) -> list[int]:
        """Statuses of the pages, once the first one is there."""
        assert self._has_ended.wait(PATIENCE_SECONDS)
        return self._statuses


@pytest.fixture
def browser(monkeypatch: pytest.MonkeyPatch) -> Browser:
    given = Browser()
    monkeypatch.setattr(webbrowser, "open", given.open)
    # Absent now and after the test, whatever a login does.
    monkeypatch.setenv("CLIENT_SECRET", "")
    monkeypatch.delenv("CLIENT_SECRET")
    monkeypatch.setenv("LIFESIGN_DETAIL_TOKEN", "token-of-an-agent")
    return given


@dataclass(frozen=True)
class Place:
    """A provider, and a directory with a definition."""

    provider: Provider
    url: str
    method: str
    directory: Path

    @property
    def file(self) -> Path:
        return self.directory / "acme.refresh"


@pytest.fixture(params=["client_secret_basic", "none"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    with serving_provider(request.param) as (provider, token_url):
        yield Place(provider, token_url.removesuffix(TOKEN_PATH), request.param, tmp_path)


def log_in(place: Place, *options: str, more: str | None = None) -> int:
    directory, url, method = place.directory, place.url, place.method
    keys = f"      authorization_url: {url}{AUTHORIZE_PATH}\n" if more is None else more
    if method != "none":
        os.environ["CLIENT_SECRET"] = CLIENT_SECRET
        keys += "      client_secret: {env: CLIENT_SECRET}\n"
    text = FORM.format(url=url, token_path=TOKEN_PATH, method=method, scope=RIGHTS, more=keys)
    (directory / "acme.yml").write_text(text)
    arguments = ["--definition", str(directory / "acme.yml"), "--yes", "--timeout", "20s", *options]
    return main(["credentials", "login", "acme", *arguments])


def test_a_login_stores_a_refresh_token_that_works(
    place: Place,
    browser: Browser,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = place.provider
    assert log_in(place) == 0
    assert stat.S_IMODE(place.file.stat().st_mode) == 0o600
    assert place.file.read_text().strip() == given.refresh_tokens[-1]
    assert browser.statuses == [200]
    assert browser.inherited == [None, None]
    (form,) = given.forms
    assert (form["grant_type"], len(form["code_verifier"])) == ("authorization_code", 43)
    assert "scope" not in form
    printed = capsys.readouterr()
    assert "canary" not in printed.out + printed.err
    assert form["code_verifier"] not in printed.out + printed.err
    # A second login replaces the token.
    assert log_in(place, "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown == {"credential": "acme", "token_file": str(place.file), "fault": None}
    assert place.file.read_text().strip() == given.refresh_tokens[-1]
    assert len(given.refresh_tokens) == 2


@pytest.mark.parametrize(
    "extras",
    [
        {"iss": "https://evil.example"},
        {"error": "access_denied"},
        {"code": "forged-canary"},
        {"code": ""},
    ],
)
def test_invalid_redirect_stores_no_token(
    place: Place,
    browser: Browser,
    extras: dict[str, str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = place.provider
    given.redirect_extras = extras
    assert log_in(place) == 1
    assert not place.file.exists()
    assert len(browser.opened) == 1
    printed = capsys.readouterr()
    assert "canary" not in printed.err


def test_redirect_with_another_state_is_ignored_until_the_timeout(place: Place, browser: Browser) -> None:
    given = place.provider
    given.redirect_extras = {"state": "another"}
    assert log_in(place, "--timeout", "1s") == 1
    assert browser.statuses == [400]
    assert given.forms == []


def test_refused_consent_ends_the_login(place: Place, browser: Browser) -> None:
    given = place.provider
    given.has_consent = False
    assert log_in(place) == 1
    assert (given.forms, browser.statuses) == ([], [400])


def test_a_token_endpoint_that_is_down_is_a_fault(
    place: Place,
    browser: Browser,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = place.provider
    given.is_down = True
    assert log_in(place) == 1
    assert "503" in capsys.readouterr().err
    assert browser.statuses == [200]


@pytest.mark.parametrize("more", ["", "      authorization_url: http://login.example/authorize\n"])
def test_provider_without_a_safe_authorization_url_is_refused(
    place: Place, browser: Browser, more: str
) -> None:
    assert log_in(place, more=more) == 3
    assert browser.opened == []


def test_the_file_is_locked_before_the_browser_opens(
    place: Place,
    browser: Browser,
    capsys: pytest.CaptureFixture[str],
) -> None:
    held = RefreshTokenFile(place.file)
    assert held.claim() is None
    try:
        assert log_in(place) == 1
    finally:
        held.close()
    assert browser.opened == []
    assert "token_file" in capsys.readouterr().err


def test_login_without_a_terminal_requires_yes(place: Place, browser: Browser) -> None:
    log_in(place, more="")
    file = place.directory / "acme.yml"
    file.write_text(
        file.read_text().replace(
            "      token_file", f"      authorization_url: {place.url}{AUTHORIZE_PATH}\n      token_file"
        )
    )
    assert main(["credentials", "login", "acme", "--definition", str(file)]) == 3
    assert browser.opened == []


# ── without a provider ──


def refreshed(**members: object) -> CredentialSettings:
    oauth2 = {
        "token_url": "https://login.example/token",
        "client_id": "lifesign",
        "auth_method": "none",
        "grant": "refresh_token",
        "token_file": "/nowhere/acme.refresh",
        "authorization_url": "https://login.example/authorize",
    }
    given = {"name": "acme", "origin": "https://agent.example", "oauth2": oauth2}
    return CredentialSettings.model_validate(given | members)


def client_of(chosen: CredentialSettings) -> OAuthClient:
    return client_for_login(chosen, definition())


def test_login_over_tls_needs_no_allowed_network() -> None:
    assert client_of(refreshed()).authorization_url == "https://login.example/authorize"


def test_credential_without_a_refresh_token_has_no_login() -> None:
    with pytest.raises(InvalidValue) as caught:
        client_of(refreshed(oauth2=None, bearer={"env": "X"}))
    assert caught.value.name == "credentials.acme"


def test_token_endpoint_is_trusted_by_the_authorities_of_its_origin(tmp_path: Path) -> None:
    file = str(Authority(tmp_path).file)
    chosen = refreshed()
    client = client_of(chosen)
    elsewhere = refreshed(name="elsewhere", ca_file=file)
    same = refreshed(name="same", origin="https://login.example", ca_file=file)
    assert token_tls(client, [chosen, elsewhere], print) is None
    tls = token_tls(client, [chosen, elsewhere, same], print)
    assert tls is not None
    assert (len(tls.context.get_ca_certs()), tls.certificate) == (1, None)
