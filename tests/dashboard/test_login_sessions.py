"""Cookies of the dashboard, as requests bring them; sessions, and the tokens of their forms."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from starlette.requests import Request
from tests.support.databases import WoundClock, opened

from lifesign.dashboard import login_sessions
from lifesign.dashboard.errors import ForgedForm, NotLoggedIn, UnconfirmedForm
from lifesign.dashboard.login_sessions import (
    SESSION_COOKIE,
    SESSION_SECONDS,
    Visitor,
    check_form_token,
    check_origin,
    check_sender,
    cookie_in,
    digest_of_token,
    form_token,
    new_token,
    token_in,
)
from lifesign.domain.access.permissions import (
    KEY_PREFIX,
    Permission,
    Principal,
    Role,
    StoredKey,
    digest_of,
)
from lifesign.domain.errors import NotAllowed
from lifesign.registry.errors import UnknownKey
from lifesign.storage.engine.transaction import Database, Transaction
from lifesign.storage.keys import key_rows


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


# ── forms ──

HOST = "registry.example:8440"


def form_with(**headers: str) -> Request:
    fields = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "scheme": "http", "path": "/", "headers": fields})


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"host": HOST, "origin": f"http://{HOST}"},
        {"host": HOST.upper(), "origin": f"HTTPS://{HOST}", "sec_fetch_site": "same-origin"},
        {"host": HOST, "origin": "https://public.example", "sec_fetch_site": "none"},
        {"origin": "https://public.example"},
    ],
)
def test_form_of_a_page_of_ours_is_accepted(headers: dict[str, str]) -> None:
    check_origin(form_with(**headers), "https://public.example")


@pytest.mark.parametrize(
    "headers",
    [
        {"host": HOST, "origin": "https://evil.example"},
        {"host": HOST, "origin": "null"},
        {"host": HOST, "origin": ""},
        {"origin": "http://"},
        {"host": HOST, "origin": f"http://{HOST}", "sec_fetch_site": "cross-site"},
        {"host": HOST, "sec_fetch_site": "same-site"},
    ],
)
def test_form_of_another_site_is_refused(headers: dict[str, str]) -> None:
    with pytest.raises(ForgedForm):
        check_origin(form_with(**headers), "")


def test_form_belongs_to_one_session() -> None:
    check_form_token(form_token("a"), "a")
    for text, token in ((form_token("a"), "b"), (form_token(""), ""), ("", "a"), ("\xe9", "a")):
        with pytest.raises(ForgedForm):
            check_form_token(text, token)


def visitor_with(token: str) -> Visitor:
    return Visitor(
        principal=Principal("key_1", Role.ADMIN, None),
        key_name="admin",
        digest=digest_of(key_for(Role.ADMIN)),
        form_token=form_token(token),
        must_enter_key="." not in token,
    )


def test_form_must_have_the_secret_of_the_browser_that_logged_in() -> None:
    token = new_token("secret")
    visitor = visitor_with(token)
    check_sender(visitor, token, {"browser_secret": "secret"})
    # The key is no substitute: with a secret, no form asks for it.
    for form in ({}, {"browser_secret": ""}, {"browser_secret": "Secret"}, {"key": key_for(Role.ADMIN)}):
        with pytest.raises(UnconfirmedForm):
            check_sender(visitor, token, form)


def test_form_of_a_browser_without_a_secret_must_have_the_key_of_its_session() -> None:
    token = new_token()
    visitor = visitor_with(token)
    check_sender(visitor, token, {"key": f" {key_for(Role.ADMIN)} "})
    for form in ({}, {"key": ""}, {"key": key_for(Role.COORDINATOR)}, {"browser_secret": "secret"}):
        with pytest.raises(UnconfirmedForm):
            check_sender(visitor, token, form)


def test_session_token_with_a_secret_fits_its_cookie() -> None:
    token = new_token("x" * 1_000)
    assert token_in(request_with_cookies(f"{SESSION_COOKIE}={token}"), SESSION_COOKIE) == token


# ── sessions ──


def key_for(role: Role) -> str:
    return KEY_PREFIX + role.value.ljust(43, "x")


@dataclass(frozen=True)
class Sessions:
    """Keys of each role, each with the session that has the role's name as its token."""

    database: Database
    clock: WoundClock

    async def begin(self, role: Role) -> None:
        await self.database.write(lambda one: login_sessions.log_in(one, key_for(role), role.value))

    async def role_of(self, token: str) -> Role | None:
        """Return the role of the visitor with this token; None if there is no valid session."""
        visitor = await self.database.read(lambda one: login_sessions.find_visitor(one, token))
        return None if visitor is None else visitor.principal.role

    async def valid(self, *tokens: str) -> set[str]:
        digests = {digest_of_token(token): token for token in tokens}
        found = await self.database.read(lambda one: login_sessions.digests_still_good(one, digests))
        return {digests[digest] for digest in found}


@pytest.fixture
async def logins(tmp_path: Path) -> AsyncIterator[Sessions]:
    clock = WoundClock()

    def add_keys(transaction: Transaction) -> None:
        for role in Role:
            digest = digest_of(key_for(role))
            key_rows.add(
                transaction,
                StoredKey(
                    key_id=f"key_{role}",
                    name=f"{role} of ops",
                    role=role,
                    digest=digest,
                    created_at_s=clock.at_s,
                    expires_at_s=clock.at_s + 60 if role is Role.COORDINATOR else None,
                ),
            )

    async with opened("sqlite", tmp_path, clock.now_s) as database:
        await database.write(add_keys)
        yield Sessions(database, clock)


async def test_session_ends_at_its_time_or_with_its_key_or_at_logout(logins: Sessions) -> None:
    roles = [Role.READER, Role.ADMIN, Role.COORDINATOR]
    for role in roles:
        await logins.begin(role)
    assert [await logins.role_of(role.value) for role in roles] == roles
    assert await logins.valid(*Role, "unknown") == set(roles)
    logins.clock.advance(60)
    assert [await logins.role_of(role.value) for role in roles] == [Role.READER, Role.ADMIN, None]
    assert await logins.valid(*roles) == {Role.READER, Role.ADMIN}
    await logins.database.write(lambda one: login_sessions.log_out(one, Role.ADMIN.value))
    assert await logins.valid(*roles) == {Role.READER}
    logins.clock.advance(SESSION_SECONDS - 60)
    assert [await logins.role_of(role.value) for role in roles] == [None] * 3
    assert await logins.valid(*roles) == set()


@pytest.mark.parametrize("role", [Role.ENROLL, Role.AGENT])
async def test_key_that_may_not_read_the_fleet_gets_no_session(logins: Sessions, role: Role) -> None:
    with pytest.raises(NotAllowed):
        await logins.begin(role)
    assert await logins.role_of(role.value) is None


@pytest.mark.parametrize("key", ["", "password", KEY_PREFIX + "y" * 43])
async def test_login_with_an_unknown_key_is_refused(logins: Sessions, key: str) -> None:
    with pytest.raises(UnknownKey):
        await logins.database.write(lambda one: login_sessions.log_in(one, key, "token"))


@pytest.mark.parametrize("token", ["", "unknown"])
async def test_visitor_without_a_session_may_read_an_open_dashboard_only(
    logins: Sessions, token: str
) -> None:
    with pytest.raises(NotLoggedIn):
        await logins.database.read(lambda one: login_sessions.visitor_of(one, token, is_open=False))
    visitor = await logins.database.read(lambda one: login_sessions.visitor_of(one, token, is_open=True))
    assert (visitor.is_logged_in, visitor.form_token) == (False, "")
    assert not visitor.may(Permission.LIST_AGENTS)


async def test_visitor_with_a_session_may_do_what_its_key_may(logins: Sessions) -> None:
    await logins.begin(Role.ADMIN)
    visitor = await logins.database.read(
        lambda one: login_sessions.visitor_of(one, Role.ADMIN.value, is_open=False)
    )
    assert (visitor.key_name, visitor.form_token) == ("admin of ops", form_token(Role.ADMIN.value))
    assert visitor.may(Permission.LIST_AGENTS)
