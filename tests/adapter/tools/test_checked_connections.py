"""Servers on loopback that get no request, because of their user."""

import httpx2
import pytest
from tests.support.listening_users import AS_ROOT, OTHER, received, silent_server

from lifesign.adapter.tools.checked_connections import CheckedConnections, ListenerRefused


@AS_ROOT
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_nothing_is_sent_to_the_server_of_another_user_than_before(host: str) -> None:
    with silent_server(1000) as server:
        port = server.getsockname()[1]
        url = f"http://{host}:{port}/"
        async with client() as http:
            with pytest.raises(httpx2.ReadTimeout):
                await http.get(url, timeout=0.2)
        assert [first[:5] for first in received(server)] == [b"GET /"]
    with silent_server(OTHER, port) as server:
        async with client() as http:
            with pytest.raises(ListenerRefused, match=rf"{OTHER} .* user 1000"):
                await http.get(url, timeout=1)
        assert received(server) == [b""]


@AS_ROOT
async def test_nothing_is_ever_sent_to_the_server_of_a_refused_user() -> None:
    with silent_server(OTHER) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/"
        async with client(refused_user=OTHER) as http:
            with pytest.raises(ListenerRefused, match=f"{OTHER} .* the agent"):
                await http.get(url, timeout=1)
        assert received(server) == [b""]
        async with client(refused_user=1000) as http:
            with pytest.raises(httpx2.ReadTimeout):
                await http.get(url, timeout=0.2)


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("http://localhost:7001/mcp", "127.0.0.1"),
        ("http://[::1]:7001/mcp", "::1"),
        ("https://localhost:7001/mcp", "localhost"),
    ],
)
async def test_request_for_localhost_goes_to_the_address_of_version_4(url: str, host: str) -> None:
    got: list[httpx2.Request] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        got.append(request)
        return httpx2.Response(200)

    transport = CheckedConnections(httpx2.MockTransport(answer))
    async with httpx2.AsyncClient(transport=transport) as http:
        response = await http.post(url, json={"a": 1}, headers={"x-key": "k"})
    assert (got[0].url.host, got[0].url.port, got[0].url.path) == (host, 7001, "/mcp")
    assert got[0].content == b'{"a":1}'
    assert got[0].headers["x-key"] == "k"
    assert got[0].headers["host"] == url.split("/")[2]
    assert str(response.request.url) == url


def client(*, refused_user: int | None = None) -> httpx2.AsyncClient:
    connections = httpx2.AsyncHTTPTransport(trust_env=False)
    return httpx2.AsyncClient(transport=CheckedConnections(connections, refused_user=refused_user))
