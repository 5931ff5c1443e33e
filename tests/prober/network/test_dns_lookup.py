import asyncio
import socket
from ipaddress import ip_address
from typing import Any

import pycares
import pytest
from tests.support.both_loops import on_both_loops
from tests.support.dns_server import DnsServer, Failure, Names, dns_serving

from lifesign.errors import InvalidValue
from lifesign.prober.network import dns_lookup
from lifesign.prober.network.dns_lookup import NameAnswer, answers_for_root, open_channel


async def look_up(dns: DnsServer | None, host: str, timeout_s: float = 5) -> NameAnswer:
    channel = open_channel([dns.address] if dns is not None else [], timeout_s)
    answer: asyncio.Future[NameAnswer] = asyncio.get_running_loop().create_future()
    try:
        channel.look_up(host, answer.set_result)
        return await answer
    finally:
        channel.close()


# ── c-ares ──


@on_both_loops
async def test_number_of_addresses_is_limited() -> None:
    many = tuple(f"192.0.{number // 250}.{number % 250 + 1}" for number in range(1000))
    async with dns_serving({"many.example": many}) as dns:
        # Too many for a datagram: they come over TCP.
        answer = await look_up(dns, "many.example")
        assert answer.records == len(many)
        found = [str(address) for address in answer.addresses]
        assert len(found) == dns_lookup.MAX_ADDRESSES
        assert set(found) <= set(many)


@on_both_loops
async def test_dns_answer_has_its_time_to_live() -> None:
    async with dns_serving({"a.example": ("192.0.2.1",)}, ttl_s=77) as dns:
        assert await look_up(dns, "a.example") == NameAnswer((ip_address("192.0.2.1"),), 77, records=1)
        assert await look_up(dns, "unknown.example") == NameAnswer()


@on_both_loops
async def test_ambiguous_answer_is_reported_as_such() -> None:
    names: Names = {"lame.example": Failure.SERVFAIL, "silent.example": Failure.SILENCE}
    async with dns_serving(names) as dns:
        for name in names:
            answer = await look_up(dns, name, timeout_s=0.4)
            assert answer.unclear
            assert answer.addresses == ()


@on_both_loops
async def test_pending_calls_fail_when_the_channel_closes() -> None:
    async with dns_serving({"silent.example": Failure.SILENCE}) as dns:
        channel = open_channel([dns.address], 5)
        answers: list[NameAnswer] = []
        channel.look_up("silent.example", answers.append)
        channel.close()
        assert [bool(answer.unclear) for answer in answers] == [True]


@on_both_loops
async def test_root_servers_are_queried_without_a_cache() -> None:
    async with dns_serving({"": Failure.NO_DATA}) as dns:
        for _ in range(3):
            assert await answers_for_root([dns.address], 1)
        assert dns.asked[""] == 3
        dns.names[""] = Failure.SERVFAIL
        assert not await answers_for_root([dns.address], 1)
        dns.names[""] = Failure.SILENCE
        assert not await answers_for_root([dns.address], 0.2)


# ── where c-ares cannot start ──


@pytest.fixture
def _no_cares(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_settings: object) -> None:
        raise pycares.AresError("no inotify watches left")

    monkeypatch.setattr(pycares, "Channel", refuse)


@pytest.mark.usefixtures("_no_cares")
async def test_system_resolver_is_used_without_c_ares(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def ask(host: str, *_arguments: object, **_keywords: object) -> list[Any]:
        if host == "a.example":
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.1", 0))] * 2
        raise {
            "unknown.example": socket.gaierror(socket.EAI_NONAME, "Name or service not known"),
            "lame.example": socket.gaierror(socket.EAI_AGAIN, "Temporary failure"),
            "odd.example": UnicodeError("label too long"),
        }[host]

    monkeypatch.setattr(socket, "getaddrinfo", ask)
    answer = await look_up(None, "a.example")
    assert answer == NameAnswer((ip_address("192.0.2.1"),), dns_lookup.DEFAULT_TTL_SECONDS)
    assert "threads" in caplog.text
    assert await look_up(None, "unknown.example") == NameAnswer()
    for name in ("lame.example", "odd.example"):
        assert (await look_up(None, name)).unclear
    # The root has no server to query: ambiguity there is our own matter.
    assert not await answers_for_root([], 1)


@pytest.mark.usefixtures("_no_cares")
async def test_configured_name_servers_require_c_ares() -> None:
    with pytest.raises(InvalidValue, match=r"resolver\.servers"):
        open_channel(["192.0.2.1"], 5)


async def test_a_server_that_is_no_address_is_refused() -> None:
    with pytest.raises(InvalidValue, match=r"resolver\.servers"):
        open_channel(["not an address"], 5)
