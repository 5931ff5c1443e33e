import asyncio
import json

import pytest
from yarl import URL

from lifesign.domain.mcp.conversation import McpReply
from lifesign.http_client.mcp_event_stream import McpEventStream

HERE = URL("https://mcp.example/a/sse")
ANSWER = b'{"jsonrpc": "2.0", "id": 3, "result": {"a": 1}}'


def event(name: bytes, data: bytes) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name, data)


@pytest.mark.parametrize(
    ("named", "endpoint"),
    [
        ("/messages?session=1", "https://mcp.example/messages?session=1"),
        ("messages", "https://mcp.example/a/messages"),
        ("https://mcp.example/messages", "https://mcp.example/messages"),
        ("https://mcp.example:443/m", "https://mcp.example/m"),
        ("https://other.example/messages", None),
        ("https://mcp.example:8443/messages", None),
        ("http://mcp.example/messages", None),
        ("https://user@mcp.example/messages", None),
        ("//other.example/", None),
        ("x" * 5_000, None),
    ],
)
def test_endpoint_is_on_the_origin_of_the_stream(named: str, endpoint: str | None) -> None:
    stream = McpEventStream(HERE)
    is_enough = stream.feed(event(b"endpoint", named.encode()))
    assert (stream.endpoint and str(stream.endpoint)) == endpoint
    assert stream.is_misled is is_enough is (endpoint is None)


def test_first_endpoint_counts() -> None:
    stream = McpEventStream(HERE)
    stream.feed(event(b"other", b"/x") + event(b"endpoint", b"/1") + event(b"endpoint", b"https://x.example"))
    assert stream.endpoint == HERE.with_path("/1")
    assert not stream.is_misled


async def test_answer_is_that_of_the_expected_request() -> None:
    stream = McpEventStream(HERE)
    stream.feed(event(b"message", ANSWER))
    stream.expect(3)
    other = json.dumps({"jsonrpc": "2.0", "id": "3", "result": {"b": 1}}).encode()
    for data in (b'{"jsonrpc": "2.0", "id": 3, "method": "ping"}', b"[]", b"no", other):
        stream.feed(event(b"message", data))
    stream.feed(event(b"endpoint", ANSWER.replace(b"a", b"x")))
    waiting = asyncio.ensure_future(stream.reply())
    stream.feed(event(b"message", ANSWER) + event(b"message", ANSWER.replace(b"1", b"2")))
    assert await waiting == McpReply({"a": 1})
    stream.expect(3)
    stream.end()
    assert await stream.reply() is None


async def test_end_of_the_stream_ends_every_wait() -> None:
    stream = McpEventStream(HERE)
    stream.expect(1)
    waits = [asyncio.ensure_future(wait()) for wait in (stream.until_endpoint, stream.reply)]
    await asyncio.sleep(0)
    stream.end()
    assert await asyncio.gather(*waits) == [None, None]
    assert stream.feed(b"")


async def test_secrets_are_removed_before_data_is_read() -> None:
    stream = McpEventStream(HERE, lambda data: data.replace(b"secret", b"***"))
    stream.feed(event(b"endpoint", b"/secret"))
    assert stream.endpoint == HERE.with_path("/secret")
    stream.expect(3)
    stream.feed(event(b"message", ANSWER.replace(b"1", b'"secret"')))
    assert await stream.reply() == McpReply({"a": "***"})
    assert stream.is_reply_altered
