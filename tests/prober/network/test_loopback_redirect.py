"""The server on loopback that waits for the redirect of a login."""

import asyncio

import pytest

from lifesign.domain.credentials.authorization import AuthorizationCode, RedirectFault
from lifesign.prober.network import loopback_redirect
from lifesign.prober.network.loopback_redirect import (
    HOST,
    LOGIN_FAILED,
    MAX_CONNECTIONS,
    NOT_THIS_LOGIN,
    LoopbackRedirect,
    listening,
)


def read(query: str) -> AuthorizationCode | RedirectFault:
    if query.startswith("code="):
        return AuthorizationCode(query.removeprefix("code="))
    return RedirectFault("no code", is_final=query == "final")


async def get(
    redirect: LoopbackRedirect, target: str, host: str | None = None, method: str = "GET"
) -> int | None:
    """Send one request; return the status of its answer, None without one."""
    answer = await exchange(redirect, target, host, method)
    return int(answer.split()[1]) if answer else None


async def exchange(
    redirect: LoopbackRedirect, target: str, host: str | None = None, method: str = "GET"
) -> bytes:
    reader, writer = await asyncio.open_connection(HOST, redirect.port)
    writer.write(f"{method} {target} HTTP/1.1\r\nHost: {host or f'{HOST}:{redirect.port}'}\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    return answer


async def page(redirect: LoopbackRedirect, target: str) -> str:
    """Return the text of the page that a browser shows."""
    return (await exchange(redirect, target)).partition(b"\r\n\r\n")[2].decode()


async def test_redirect_gives_its_code_once() -> None:
    async with listening() as redirect:
        redirect.read = read
        assert await get(redirect, "/callback?code=one") == 200
        assert await get(redirect, "/callback?code=two") == 409
        found = await redirect.wait(1.0)
    assert isinstance(found, AuthorizationCode)
    assert found.value == "one"


@pytest.mark.parametrize(
    ("target", "host", "method"),
    [
        ("/callback?code=x", "evil.example", "GET"),
        ("/callback?code=x", None, "POST"),
        ("/other?code=x", None, "GET"),
        ("/", None, "GET"),
    ],
)
async def test_unrelated_requests_do_not_end_the_login(target: str, host: str | None, method: str) -> None:
    async with listening() as redirect:
        redirect.read = read
        assert await get(redirect, target, host, method) == 404
        assert await get(redirect, "/callback?other") == 400
        assert await get(redirect, "/callback?code=one") == 200


async def test_requests_of_other_users_do_not_end_the_login(monkeypatch: pytest.MonkeyPatch) -> None:
    async with listening(is_for_own_user=True) as redirect:
        redirect.read = read
        with monkeypatch.context() as changed:
            changed.setattr(loopback_redirect, "peers_of_other_users", lambda peers, _own: set(peers))
            assert await get(redirect, "/callback?code=theirs") == 403
            assert await get(redirect, "/callback?final") == 403
        assert await get(redirect, "/callback?code=mine") == 200
        found = await redirect.wait(1.0)
    assert isinstance(found, AuthorizationCode)
    assert found.value == "mine"


async def test_a_final_fault_ends_the_login() -> None:
    async with listening() as redirect:
        redirect.read = read
        assert await get(redirect, "/callback?final") == 400
        found = await redirect.wait(1.0)
    assert isinstance(found, RedirectFault)


async def test_page_of_a_failed_login_is_another_one_than_that_of_another_login() -> None:
    async with listening() as redirect:
        redirect.read = read
        pages = [await page(redirect, f"/callback?{query}") for query in ("other", "final")]
    assert pages == [NOT_THIS_LOGIN, LOGIN_FAILED]


async def test_the_wait_is_bounded() -> None:
    async with listening() as redirect:
        found = await redirect.wait(0.01)
    assert isinstance(found, RedirectFault)
    assert found.is_final


async def test_many_unrelated_requests_do_not_end_the_login() -> None:
    async with listening() as redirect:
        redirect.read = read
        for _ in range(2 * MAX_CONNECTIONS):
            assert await get(redirect, "/") == 404
        assert await get(redirect, "/callback?code=one") == 200
        assert isinstance(await redirect.wait(1.0), AuthorizationCode)


async def test_the_number_of_open_connections_is_bounded() -> None:
    async with listening() as redirect:
        redirect.read = read
        silent = [await asyncio.open_connection(HOST, redirect.port) for _ in range(MAX_CONNECTIONS)]
        reader, further = await asyncio.open_connection(HOST, redirect.port)
        assert await reader.read() == b""
        for writer in (further, *(each for _, each in silent)):
            writer.close()


async def test_silent_connections_of_other_users_do_not_keep_the_redirect_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with listening(is_for_own_user=True) as redirect:
        redirect.read = read
        with monkeypatch.context() as changed:
            changed.setattr(loopback_redirect, "peers_of_other_users", lambda peers, _own: set(peers))
            silent = [await asyncio.open_connection(HOST, redirect.port) for _ in range(MAX_CONNECTIONS)]
            reader, further = await asyncio.open_connection(HOST, redirect.port)
            # All connections before it are accepted.
            assert await reader.read() == b""
        assert await get(redirect, "/callback?code=mine") == 200
        for writer in (further, *(each for _, each in silent)):
            writer.close()


async def test_endless_request_header_gets_no_answer() -> None:
    async with listening() as redirect:
        reader, writer = await asyncio.open_connection(HOST, redirect.port)
        writer.write(b"GET /callback?" + b"x" * 40_000)
        assert await reader.read() == b""
        writer.close()
        redirect.read = read
        assert await get(redirect, "/callback?code=one") == 200


async def test_silent_connection_does_not_delay_the_end_of_the_login(monkeypatch: pytest.MonkeyPatch) -> None:
    async with listening() as redirect:
        _, writer = await asyncio.open_connection(HOST, redirect.port)
        redirect.read = read
        # Its connection is accepted after the silent one.
        assert await get(redirect, "/callback?code=one") == 200
        monkeypatch.setattr(loopback_redirect, "HEAD_SECONDS", 0.01)
    writer.close()
