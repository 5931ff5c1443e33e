from base64 import b64decode
from typing import Any
from urllib.parse import parse_qs, unquote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifesign.domain.credentials.token import (
    DEFAULT_LIFETIME_S,
    MAX_LIFETIME_S,
    MAX_TOKEN_CHARS,
    MIN_LIFETIME_S,
    AccessToken,
    TokenFault,
    basic_client,
    client_pair,
    form_body,
    read_token,
    refresh_token_fault,
    rotated_token,
    token_form,
)

TOKEN = "access-canary-0001"
GRANT = {"grant_type": "client_credentials"}


def answer(**members: Any) -> dict[str, Any]:
    return {"access_token": TOKEN, "token_type": "Bearer", "expires_in": 3600} | members


def taken(**members: Any) -> AccessToken:
    token = read_token(200, answer(**members))
    assert isinstance(token, AccessToken)
    return token


def fault(value: Any, status: int = 200) -> TokenFault:
    found = read_token(status, value)
    assert isinstance(found, TokenFault)
    return found


def test_a_token_is_renewed_shortly_before_its_end() -> None:
    assert (taken().value, taken().renew_after_s, taken().lifetime_s) == (TOKEN, 3540, 3600)
    assert taken(expires_in=100).renew_after_s == 90
    assert taken(expires_in="100").lifetime_s == 100
    assert taken(expires_in=10**300).renew_after_s == MAX_LIFETIME_S
    assert taken(expires_in=10**300).lifetime_s == 2 * MAX_LIFETIME_S
    assert taken(expires_in=1).renew_after_s == taken(expires_in=1).lifetime_s == MIN_LIFETIME_S


@pytest.mark.parametrize("is_null", [True, False])
def test_without_a_lifetime_a_token_is_used_for_five_minutes(*, is_null: bool) -> None:
    members = answer(expires_in=None)
    if not is_null:
        del members["expires_in"]
    token = read_token(200, members)
    assert isinstance(token, AccessToken)
    assert (token.renew_after_s, token.lifetime_s) == (DEFAULT_LIFETIME_S - 30, DEFAULT_LIFETIME_S)


@pytest.mark.parametrize("kind", ["bearer", "BEARER", "Bearer"])
def test_token_type_is_case_insensitive(kind: str) -> None:
    assert taken(token_type=kind).value == TOKEN


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (None, "not_json"),
        ([], "not_json"),
        ("text", "not_json"),
        (answer(token_type="mac"), "token_type"),
        (answer(token_type=None), "token_type"),
        (answer(access_token=None), "token_form"),
        (answer(access_token="short"), "token_form"),
        (answer(access_token="two lines\r\nX-Injected: 1"), "token_form"),
        (answer(access_token="with a space"), "token_form"),
        (answer(access_token="tökens-in-latin"), "token_form"),
        (answer(access_token="x" * (MAX_TOKEN_CHARS + 1)), "token_form"),
        (answer(expires_in=0), "lifetime"),
        (answer(expires_in=-1), "lifetime"),
        (answer(expires_in=True), "lifetime"),
        (answer(expires_in=float("nan")), "lifetime"),
        (answer(expires_in="soon"), "lifetime"),
        (answer(expires_in="9" * 5000), "lifetime"),
    ],
)
def test_each_invalid_token_answer_has_a_fault_code(value: Any, kind: str) -> None:
    found = fault(value)
    assert found.kind == kind
    assert "\n" not in found.reason


def test_only_known_error_codes_are_quoted() -> None:
    assert fault({"error": "invalid_client"}, 401).reason == "HTTP 401, invalid_client"
    others: list[Any] = ["client-canary-secret", ["invalid_client"], {}, None, ""]
    for error in others:
        assert fault({"error": error, "error_description": "client-canary-secret"}, 400).reason == "HTTP 400"
    assert fault(None, 503).kind == "server_error"


def test_retry_after_of_the_token_endpoint_is_read() -> None:
    found = read_token(429, None, 30.0)
    assert isinstance(found, TokenFault)
    assert found.retry_after_s == 30.0


def test_no_text_shows_a_token() -> None:
    assert TOKEN not in repr(taken())


def test_absent_fields_are_not_sent() -> None:
    assert form_body(token_form(GRANT)) == b"grant_type=client_credentials"
    sent = form_body(token_form(GRANT, scope="a b", resource="https://a.example/x?y=1"))
    assert parse_qs(sent.decode()) == {
        "grant_type": ["client_credentials"], "scope": ["a b"], "resource": ["https://a.example/x?y=1"],
    }  # fmt: skip


def test_name_and_secret_of_a_client_are_encoded_by_rfc_6749() -> None:
    assert basic_client("s6BhdRkqt3", "gX1fBat3bV") == "Basic czZCaGRSa3F0MzpnWDFmQmF0M2JW"


@given(client_id=st.text(min_size=1), secret=st.text(min_size=1))
def test_any_name_and_secret_can_be_read_back(client_id: str, secret: str) -> None:

    pair = b64decode(client_pair(client_id, secret)).decode("ascii")
    assert tuple(map(unquote_plus, pair.split(":"))) == (client_id, secret)


@given(
    st.recursive(st.none() | st.booleans() | st.floats() | st.integers() | st.text(), st.lists), st.integers()
)
def test_any_json_is_a_token_or_a_fault(value: Any, status: int) -> None:
    for members in (value, {"error": value}, answer(expires_in=value), answer(access_token=value)):
        found = read_token(status, members)
        assert isinstance(found, AccessToken | TokenFault)
        if isinstance(found, AccessToken):
            assert MIN_LIFETIME_S <= found.renew_after_s <= min(MAX_LIFETIME_S, found.lifetime_s)


def test_refresh_token_is_replaced_only_by_a_new_one() -> None:
    former = "refresh-canary-1"
    assert rotated_token({"refresh_token": "refresh-canary-2"}, former) == "refresh-canary-2"
    others: list[Any] = [None, [], {}, {"refresh_token": former}, {"refresh_token": ""}, {"refresh_token": 1}]
    assert [rotated_token(each, former) for each in others] == [None] * len(others)


def test_refresh_token_may_contain_spaces() -> None:
    assert refresh_token_fault("two words !~") is None
    for token in (" at the end ", "short", "line\nbreak", "\xe9" * 9):
        assert refresh_token_fault(token) is not None
