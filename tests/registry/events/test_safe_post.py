import asyncio
from typing import Any

import pytest
from tests.support.hostile_server import answer, serving
from tests.support.listening_users import AS_ROOT, OTHER, received, silent_server
from tests.support.named_hosts import named_hosts
from tests.support.servers import PATIENCE_SECONDS

from lifesign.domain.net.allowed_addresses import read_networks
from lifesign.loopback.listeners import IN_THIS_PROCESS, ServerUsers
from lifesign.registry.events import safe_post as safe_post_file
from lifesign.registry.events.safe_post import Sent, safe_post

LOOPBACK = read_networks(["127.0.0.0/8"])


async def post(url: str, allowed: Any = LOOPBACK) -> Sent:
    return await safe_post(url, b"{}", {"content-type": "application/json"}, allowed)


async def test_a_body_is_sent_to_an_address_that_is_allowed() -> None:
    async with serving({"/hook?x=1": answer(204)}) as server:
        assert await post(f"{server.url}/hook?x=1") == Sent(204, None)
        assert server.heads[0].startswith("POST /hook?x=1 HTTP/1.1")
        assert server.asked("/hook?x=1")["content-length"] == "2"


@pytest.mark.parametrize(("value", "wait_s"), [("900", 900.0), ("9" * 12, 1e12 - 1), ("soon", None)])
async def test_retry_after_in_seconds_is_read(value: str, wait_s: float | None) -> None:
    async with serving({"/": answer(503, Retry_After=value)}) as server:
        assert (await post(server.url)).retry_after_s == wait_s


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:{port}/",
        "http://localhost:{port}/",
        "http://LOCALHOST.:{port}/",
        "http://0.0.0.0:{port}/",
        "http://[::ffff:127.0.0.1]:{port}/",
        "http://2130706433:{port}/",
        "http://0x7f.1:{port}/",
        "http://169.254.169.254/latest/meta-data/",
        "http://u:p@127.0.0.1:{port}/",
        "ftp://127.0.0.1:{port}/",
        "file:///etc/passwd",
        "http://127.0.0.1:{port}\\@example.com/",
        "",
    ],
)
async def test_a_hostile_address_is_not_contacted(url: str) -> None:
    async with serving({"/": answer(200)}) as server:
        sent = await post(url.format(port=server.port), allowed=())
        assert sent.status is None
        assert sent.error
        assert server.heads == []


@AS_ROOT
async def test_nothing_is_sent_to_the_server_of_another_user_than_before() -> None:
    with silent_server(OTHER) as server:
        port = server.getsockname()[1]
        IN_THIS_PROCESS.learn({port: ServerUsers(1000, None)})
        sent = await post(f"http://127.0.0.1:{port}/hook/secret")
        assert f"user {OTHER} listens" in (sent.error or "")
        assert received(server) == [b""]


async def test_checked_address_is_the_contacted_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # First an address that is allowed, afterwards one that is not.
    asked = named_hosts(monkeypatch)({"rebinds.example": [["127.0.0.1"], ["169.254.169.254"]]})
    async with serving({"/": answer(200)}) as server:
        assert await post(f"http://rebinds.example:{server.port}/") == Sent(200, None)
        assert server.asked("/")["host"] == f"rebinds.example:{server.port}"
        assert asked == ["rebinds.example"]
        refused = await post(f"http://rebinds.example:{server.port}/")
        assert refused.status is None
        assert "metadata" in str(refused.error)


async def test_a_redirect_is_a_failure_and_leads_nowhere() -> None:
    async with serving({"/": answer(307, location="/secret"), "/secret": answer(200)}) as server:
        assert await post(f"{server.url}/") == Sent(307, "answered 307")
        assert server.paths == ["/"]


async def test_hanging_receiver_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safe_post_file, "SEND_SECONDS", 0.2)

    async def hang(*_arguments: object) -> None:
        await asyncio.Event().wait()

    async with serving({"/": hang}) as server:
        sent = await post(f"{server.url}/")
        assert sent.status is None
        assert "no answer" in str(sent.error)


async def test_an_endless_body_is_not_read() -> None:
    async def flood(writer: asyncio.StreamWriter, _head: str) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            writer.write(b"x" * 65_536)
            await writer.drain()

    async with serving({"/": flood}) as server:
        assert await asyncio.wait_for(post(f"{server.url}/"), PATIENCE_SECONDS) == Sent(200, None)


async def test_non_http_answer_is_described_without_the_url() -> None:
    async def garble(writer: asyncio.StreamWriter, _head: str) -> None:
        writer.write(b"\x00" * 100 + b"\r\n\r\n")

    async with serving({"/?token=secret": garble}) as server:
        sent = await post(f"{server.url}/?token=secret")
    assert sent.status is None
    assert "secret" not in str(sent.error)
    gone = await post(f"{server.url}/?token=secret")
    assert gone.status is None
    assert "secret" not in str(gone.error)
