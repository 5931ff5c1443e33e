"""The place of an API key in a request."""

import pytest

from lifesign.domain.credentials.api_key import ApiKeyPlace, KeyPlace, fits_everywhere, key_place

CONFIGURED = ApiKeyPlace(KeyPlace.HEADER, "X-API-Key")
TAKEN = ("apiKey header Host", "apiKey header Content-Length", "apiKey header Cookie")
KEY = "key/canary+1"


@pytest.mark.parametrize(
    ("schemes", "expected"),
    [
        ((), ("header", "X-API-Key")),
        (("oauth2", "http bearer"), ("header", "X-API-Key")),
        (("oauth2", "apiKey query key"), ("query", "key")),
        (("apiKey cookie sid", "apiKey query key"), ("cookie", "sid")),
        (("apiKey header Api-Key",), ("header", "Api-Key")),
        (TAKEN, ("header", "X-API-Key")),
        (("apiKey body key", "apiKey header", "apiKey"), ("header", "X-API-Key")),
    ],
)
def test_card_decides_where_the_api_key_is_sent(schemes: tuple[str, ...], expected: tuple[str, str]) -> None:
    found = key_place(schemes, CONFIGURED)
    assert (found.place.value, found.name) == expected


@pytest.mark.parametrize(
    ("place", "header", "target"),
    [
        (KeyPlace.HEADER, ("k&y", KEY), "/a?b=1"),
        (KeyPlace.COOKIE, ("Cookie", f"k&y={KEY}"), "/a?b=1"),
        (KeyPlace.QUERY, None, "/a?b=1&k%26y=key%2Fcanary%2B1"),
    ],
)
def test_api_key_is_sent_in_exactly_one_place(
    place: KeyPlace, header: tuple[str, str] | None, target: str
) -> None:
    found = ApiKeyPlace(place, "k&y")
    assert (found.header(KEY), found.target("/a?b=1", KEY)) == (header, target)
    assert found.target("/a", KEY).startswith("/a?" if place is KeyPlace.QUERY else "/a")


@pytest.mark.parametrize("key", ["two words", "a;b", "a,b", 'a"b', "a\\b"])
def test_api_key_with_characters_that_cookies_forbid_is_refused(key: str) -> None:
    assert not fits_everywhere(key)
    assert fits_everywhere(KEY)
