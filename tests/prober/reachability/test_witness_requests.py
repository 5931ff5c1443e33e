"""Requests to witnesses."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

import pytest
from tests.support.both_loops import on_both_loops
from tests.support.certificates import Authority
from tests.support.dns_server import Failure, Names
from tests.support.hostile_server import accepting, answer, serving
from tests.support.safe_asking import SHORT, USER_AGENT, Asker, asking
from tests.support.servers import free_port

from lifesign.domain.net.allowed_addresses import read_networks
from lifesign.prober.network.exclusion_list import OptOuts
from lifesign.prober.reachability.target_contact import NetworkClasses
from lifesign.prober.reachability.witness_requests import WitnessReply, WitnessRequests

LOOPBACK = "127.0.0.0/8"
SECONDS = 5.0


@contextlib.asynccontextmanager
async def requesting(
    names: Names | None = None, *, opt_outs: OptOuts | None = None, now_s: float = 0.0
) -> AsyncIterator[tuple[WitnessRequests, Asker]]:
    async with asking(names, networks=[LOOPBACK, "::1/128"], timeouts=SHORT) as asker:
        classes = NetworkClasses(read_networks([LOOPBACK, "::1/128"]))
        yield (
            WitnessRequests(
                asker.fetcher.connector,
                classes,
                name_servers=[asker.dns.address],
                user_agent=USER_AGENT,
                opt_outs=opt_outs,
                note_looked_up=asker.resolver.note_looked_up,
                wall_s=lambda: now_s,
            ),
            asker,
        )


async def ask(requests: WitnessRequests, *urls: str, seconds: float = SECONDS) -> Sequence[WitnessReply]:
    return await requests.ask(urls, LOOPBACK, seconds)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@on_both_loops
async def test_witness_request_uses_a_new_connection_and_any_status_is_an_answer() -> None:
    replies = {"/": answer(200), "/broken": answer(503), "/elsewhere": answer(302)}
    async with serving(replies, host="127.0.0.2", keeps_alive=True) as server, requesting() as (requests, _):
        urls = [f"{server.url}{path}" for path in ("/", "/broken", "/elsewhere", "/none")]
        for _ in range(2):
            found = await ask(requests, *urls)
            assert [reply.status for reply in found] == [200, 503, 302, 404]
            assert not any(reply.is_looked_up for reply in found)
        assert server.connections == 8
        assert server.asked("/")["user-agent"] == USER_AGENT


@pytest.mark.parametrize(
    ("headers", "offset_s"),
    [
        ({}, None),
        ({"Date": "yesterday"}, None),
        ({"Date": "Thu, 01 Jan 1970 00:00:40 GMT"}, 60.0),
        # A cache adds the age of what it stored.
        ({"Date": "Thu, 01 Jan 1970 00:00:40 GMT", "Age": "70"}, -10.0),
    ],
)
async def test_answer_shows_the_offset_of_the_clock(headers: dict[str, str], offset_s: float | None) -> None:
    replies = {"/": answer(200, b"", **headers)}
    async with serving(replies, host="127.0.0.2") as server, requesting(now_s=100.0) as (requests, _):
        (reply,) = await ask(requests, f"{server.url}/")
        assert (reply.status, reply.clock_offset_s) == (200, offset_s)


@pytest.mark.parametrize(
    "bad", ["https://[::1", "http://[::1]@", "https://x:99999999/", "https://127.0.0.2/\xe9", "https:", ""]
)
async def test_invalid_url_does_not_prevent_other_witnesses(bad: str) -> None:
    async with serving({}, host="127.0.0.2") as server, requesting() as (requests, _):
        good, other = await ask(requests, f"{server.url}/", bad)
        assert (good.status, other.status) == (404, None)
        assert other.reason


@on_both_loops
async def test_name_is_resolved_again_for_each_round() -> None:
    names: Names = {"canary.example": ("127.0.0.2",)}
    async with serving({}, host="127.0.0.2") as server, requesting(names) as (requests, asker):
        url = f"http://canary.example:{server.port}/"
        for _ in range(3):
            before = asker.dns.asked["canary.example"]
            (reply,) = await ask(requests, url)
            assert (reply.status, reply.is_looked_up) == (404, True)
            assert asker.dns.asked["canary.example"] > before
        # The name server answers that the name no longer exists; no former address is used.
        asker.dns.names["canary.example"] = Failure.NXDOMAIN
        (reply,) = await ask(requests, url)
        assert (reply.status, reply.is_looked_up) == (None, False)
        assert reply.reason


@on_both_loops
async def test_name_with_a_ttl_of_0_is_looked_up_too() -> None:
    """As some name servers of private networks answer."""
    names: Names = {"canary.example": ("127.0.0.2",)}
    async with serving({}, host="127.0.0.2") as server, requesting(names) as (requests, asker):
        asker.dns.ttl_s = 0
        (reply,) = await ask(requests, f"http://canary.example:{server.port}/")
        assert (reply.status, reply.is_looked_up) == (404, True)


@pytest.mark.parametrize("uncached", [Failure.SERVFAIL, Failure.REFUSED, Failure.GARBAGE, Failure.SILENCE])
async def test_name_that_a_name_server_may_have_cached_is_not_looked_up(uncached: Failure) -> None:
    """A name server without its upstream server fails for all names but those in its cache."""
    names: Names = {"canary.example": ("127.0.0.2",)}
    async with serving({}, host="127.0.0.2") as server, requesting(names) as (requests, asker):
        asker.dns.elsewhere = uncached
        (reply,) = await ask(requests, f"http://canary.example:{server.port}/", seconds=1)
        assert (reply.status, reply.is_looked_up) == (404, False)


@on_both_loops
async def test_witness_request_uses_only_addresses_of_its_class() -> None:
    names: Names = {"both.example": ("127.0.0.1", "127.0.0.2"), "here.example": ("127.0.0.1",)}
    async with serving({}, host="127.0.0.2") as server, requesting(names) as (requests, _):
        both, here = await ask(
            requests, f"http://both.example:{server.port}/", f"http://here.example:{server.port}/"
        )
        assert (both.status, here.status) == (404, None)
        (literal,) = await ask(requests, f"http://127.0.0.1:{server.port}/")
        assert literal.status is None


@on_both_loops
async def test_next_address_is_tried_after_a_silent_one() -> None:
    names: Names = {"several.example": ("127.0.0.9", "127.0.0.2")}
    async with serving({}, host="127.0.0.2") as server, requesting(names) as (requests, _):
        (reply,) = await ask(requests, f"http://several.example:{server.port}/")
        assert reply.status == 404


@on_both_loops
async def test_silent_canary_delays_no_other() -> None:
    async def never(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    names: Names = {"lost.example": Failure.SILENCE}
    async with (
        accepting(never, host="127.0.0.3") as port,
        serving({}, host="127.0.0.2") as server,
        requesting(names) as (requests, _),
    ):
        began_s = asyncio.get_running_loop().time()
        found = await ask(
            requests,
            f"http://127.0.0.3:{port}/",
            f"{server.url}/",
            f"http://127.0.0.4:{free_port()}/",
            "http://lost.example/",
            seconds=0.5,
        )
        assert [reply.status for reply in found] == [None, 404, None, None]
        assert all(reply.reason for reply in found if reply.status is None)
        assert asyncio.get_running_loop().time() - began_s < 5


@on_both_loops
async def test_a_certificate_is_verified(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    authority.is_trusted(monkeypatch)
    context = authority.serving("canary.example")
    names: Names = {"canary.example": ("127.0.0.2",), "other.example": ("127.0.0.2",)}
    async with serving({}, context, host="127.0.0.2") as server, requesting(names) as (requests, _):
        good, bad = await ask(
            requests, f"https://canary.example:{server.port}/", f"https://other.example:{server.port}/"
        )
    assert (good.status, bad.status) == (404, None)


@on_both_loops
async def test_opted_out_or_blocked_target_is_not_requested() -> None:
    opt_outs = OptOuts(frozenset({"127.0.0.2"}))
    async with serving({}, host="127.0.0.2") as server, requesting(opt_outs=opt_outs) as (requests, _):
        out, closed = await ask(requests, f"{server.url}/", "http://10.0.0.1/")
        assert (out.status, closed.status) == (None, None)
        assert server.connections == 0


@on_both_loops
async def test_non_http_answer_is_no_answer() -> None:
    async def babble(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example ESMTP\r\n" * 10)
        await writer.drain()

    async with accepting(babble, host="127.0.0.3") as port, requesting() as (requests, _):
        (reply,) = await ask(requests, f"http://127.0.0.3:{port}/", seconds=1.0)
        assert reply.status is None
