"""The authorization-code flow: what a person opens, and what a redirect brings."""

from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest

from lifesign.domain.credentials.authorization import (
    MAX_CODE_CHARS,
    MAX_PARAMETERS,
    AuthorizationCode,
    AuthorizationRequest,
    RedirectFault,
    challenge_of,
    read_redirect,
)

STATE, VERIFIER, CODE = "state-canary-1", "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk", "code-canary-1"
ISSUER = "https://login.example"


def authorization_request(**members: Any) -> AuthorizationRequest:
    return AuthorizationRequest(
        **{
            "authorization_url": f"{ISSUER}/authorize",
            "client_id": "lifesign",
            "redirect_uri": "http://127.0.0.1:9/callback",
            "state": STATE,
            "verifier": VERIFIER,
        }
        | members
    )


def read(request: AuthorizationRequest | None = None, **members: str) -> AuthorizationCode | RedirectFault:
    return read_redirect(
        urlencode({"state": STATE, "code": CODE} | members), request or authorization_request()
    )


def test_the_challenge_is_that_of_the_standard() -> None:
    # RFC 7636, appendix B.
    assert challenge_of(VERIFIER) == "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM"


def test_the_url_has_the_challenge_and_not_the_verifier() -> None:
    url = authorization_request(scope="agents.read offline", resource="https://agent.example/").url
    assert VERIFIER not in url
    assert parse_qs(urlsplit(url).query) == {
        "response_type": ["code"],
        "client_id": ["lifesign"],
        "redirect_uri": ["http://127.0.0.1:9/callback"],
        "state": [STATE],
        "code_challenge": [challenge_of(VERIFIER)],
        "code_challenge_method": ["S256"],
        "scope": ["agents.read offline"],
        "resource": ["https://agent.example/"],
    }


def test_an_authorization_url_keeps_its_query() -> None:
    url = authorization_request(authorization_url=f"{ISSUER}/authorize?tenant=a").url
    assert parse_qs(urlsplit(url).query)["tenant"] == ["a"]


def test_a_redirect_with_the_state_brings_the_code() -> None:
    found = read()
    assert isinstance(found, AuthorizationCode)
    assert found.value == CODE
    assert authorization_request().grant(CODE)["code_verifier"] == VERIFIER


@pytest.mark.parametrize(
    "query",
    [
        "",
        f"code={CODE}",
        f"code={CODE}&state=",
        f"code={CODE}&state={STATE}x",
        f"code={CODE}&state=%E4",
        f"code={CODE}&state={STATE}&state={STATE}",
        f"code={CODE}&state={STATE}&" + "&".join(f"p{number}=" for number in range(MAX_PARAMETERS)),
        f"code={CODE}&state={STATE}&long=" + "x" * 9000,
    ],
)
def test_redirect_without_the_state_does_not_end_the_login(query: str) -> None:
    found = read_redirect(query, authorization_request())
    assert isinstance(found, RedirectFault)
    assert not found.is_final
    assert "canary" not in found.reason


@pytest.mark.parametrize(
    "members",
    [
        {"error": "access_denied", "code": ""},
        {"error": "anything-canary"},
        {"code": ""},
        {"code": "x" * (MAX_CODE_CHARS + 1)},
        {"code": "a\r\nb"},
        {"iss": "https://evil-canary.example"},
    ],
)
def test_an_error_of_the_provider_ends_the_login(members: dict[str, str]) -> None:
    found = read(None, **members)
    assert isinstance(found, RedirectFault)
    assert found.is_final
    assert "canary" not in found.reason
    assert ("access_denied" in found.reason) == (members.get("error") == "access_denied")


@pytest.mark.parametrize(
    ("members", "is_accepted"),
    [
        ({"iss": ISSUER}, True),
        ({}, False),
        ({"iss": f"{ISSUER}/"}, False),
        ({"iss": "https://e.example"}, False),
    ],
)
def test_configured_issuer_must_be_in_the_redirect(members: dict[str, str], is_accepted: bool) -> None:  # noqa: FBT001 - a parameter
    assert isinstance(read(authorization_request(issuer=ISSUER), **members), AuthorizationCode) is is_accepted


def test_no_text_shows_a_secret() -> None:
    assert STATE not in repr(authorization_request())
    assert VERIFIER not in repr(authorization_request())
    assert CODE not in repr(AuthorizationCode(CODE))
