"""Cookies of the dashboard, as requests bring them."""

import pytest
from starlette.requests import Request

from lifesign.dashboard.login_sessions import SESSION_COOKIE, cookie_in, token_in


def request_with_cookies(*lines: str) -> Request:
    return Request({"type": "http", "headers": [(b"cookie", line.encode("latin-1")) for line in lines]})


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ((), ""),
        (("a=b",), "b"),
        (("x=y; a=b;z",), "b"),
        (("x=y", "a=b"), "b"),
        (("a=b; a=c",), "c"),
        (("a",), ""),
        (("aa=b; =c; a",), ""),
        (("a=b=c",), "b=c"),
        # No value of ours is quoted; one that is stays as it was sent, since reading it may take long.
        (('a="\\142"',), '"\\142"'),
        (("a=\xe9",), "\xe9"),
    ],
)
def test_session_token_is_read_from_its_cookie(lines: tuple[str, ...], expected: str) -> None:
    assert cookie_in(request_with_cookies(*lines), "a") == expected


def test_invalid_token_is_ignored() -> None:
    assert token_in(request_with_cookies(f"{SESSION_COOKIE}=abc"), SESSION_COOKIE) == "abc"
    assert token_in(request_with_cookies(f"{SESSION_COOKIE}=" + "a" * 10_000), SESSION_COOKIE) == ""
    assert token_in(request_with_cookies(f"{SESSION_COOKIE}=\xe9"), SESSION_COOKIE) == ""
