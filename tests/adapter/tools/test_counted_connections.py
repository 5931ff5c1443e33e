from importlib import metadata

import httpx2
import pytest
from tests.support import hostile_server as hostile
from tests.support.hostile_server import Reply, kept, serving

from lifesign.adapter.tools.counted_connections import CountedConnections

BODY_BYTES = 10_000


def client() -> httpx2.AsyncClient:
    return httpx2.AsyncClient(transport=CountedConnections(BODY_BYTES), timeout=10)


@pytest.mark.parametrize(
    "reply",
    [hostile.endless_hints, hostile.endless_headers, hostile.endless_chunk_extension, hostile.endless_chunks],
)
async def test_answer_without_end_ends_its_connection(reply: Reply) -> None:
    async with serving({"/": reply}) as server, client() as http:
        with pytest.raises((httpx2.ReadError, httpx2.RemoteProtocolError)):
            await http.get(server.url)


async def test_each_request_on_a_connection_has_a_limit_of_its_own() -> None:
    body = bytes(BODY_BYTES)
    async with serving({"/": kept(body)}, keeps_alive=True) as server, client() as http:
        for _ in range(200):
            assert (await http.get(server.url)).content == body


def test_its_pool_is_the_one_that_is_used() -> None:
    # `_pool` is private: another version has to be read first.
    assert metadata.version("httpx2").startswith("2.")
    assert vars(httpx2.AsyncHTTPTransport(trust_env=False)).keys() == {"_pool"}
