import pytest
from starlette.types import Receive, Scope, Send

from lifesign.serving.proxied_callers import ProxiedCallers

PROXY = ("10.0.0.1", 4321)


async def caller(expected: list[str], peer: tuple[str, int] | None = PROXY) -> str | None:
    """Return the caller that the app sees."""
    seen: list[Scope] = []

    async def app(scope: Scope, _receive: Receive, _send: Send) -> None:
        seen.append(scope)

    headers = [(b"x-forwarded-for", one.encode()) for one in expected]
    scope = {"type": "http", "client": peer, "headers": headers, "scheme": "http"}
    await ProxiedCallers(app, ["10.0.0.0/8"])(scope, None, None)  # type: ignore[arg-type]
    client = seen[0]["client"]
    return None if client is None else str(client[0])


@pytest.mark.parametrize(
    ("expected", "message"),
    [
        (["203.0.113.7"], "203.0.113.7"),
        (["203.0.113.7, 10.0.0.9"], "203.0.113.7"),
        (["junk, 203.0.113.7"], "203.0.113.7"),
        (["2001:db8::1"], "2001:db8::1"),
        (["203.0.113.7:99"], "203.0.113.7"),
        (["junk"], "10.0.0.1"),
        (["fe80::1%junk"], "10.0.0.1"),
        (["203.0.113.7, junk"], "10.0.0.1"),
        (["junk, 10.0.0.9"], "10.0.0.1"),
        ([""], "10.0.0.1"),
        ([], "10.0.0.1"),
    ],
)
async def test_forwarded_address_of_a_trusted_proxy_is_used(expected: list[str], message: str) -> None:
    assert await caller(expected) == message


async def test_other_proxies_are_not_trusted() -> None:
    assert await caller(["203.0.113.7"], ("198.51.100.1", 5)) == "198.51.100.1"
    assert await caller(["203.0.113.7"], None) is None
