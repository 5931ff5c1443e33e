"""The system's resolver in threads of its own, which a program's own work does not occupy."""

import asyncio
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import aiohttp
import pytest
from tests.support.hostile_server import answer, serving

from lifesign.http_client.counted_sessions import ByteCountingConnector, counting_session
from lifesign.http_client.system_resolver import SystemResolver, addresses_of

PATIENCE_SECONDS = 10.0


async def test_host_is_looked_up_while_the_default_executor_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    # The default of aiohttp without the package aiodns.
    monkeypatch.setattr("aiohttp.connector.DefaultResolver", aiohttp.ThreadedResolver)
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(1))
    is_over = threading.Event()
    occupied = loop.run_in_executor(None, is_over.wait, PATIENCE_SECONDS)
    try:
        async with (
            asyncio.timeout(PATIENCE_SECONDS / 2),
            serving({"/": answer(204)}) as server,
            counting_session(ByteCountingConnector(limit=1)) as session,
            session.get(f"http://localhost:{server.port}/") as response,
        ):
            assert response.status == 204
    finally:
        is_over.set()
        await occupied


async def test_resolver_returns_addresses_of_both_families(monkeypatch: pytest.MonkeyPatch) -> None:
    def both(*_arguments: Any, **_keywords: Any) -> list[Any]:
        return [
            (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("2001:db8::1", 443, 0, 0)),
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.1", 443)),
        ]

    monkeypatch.setattr(socket, "getaddrinfo", both)
    resolver = SystemResolver()
    found = await resolver.resolve("registry.example", 443, socket.AF_UNSPEC)
    await resolver.close()
    assert [(result["family"], result["host"], result["port"]) for result in found] == [
        (socket.AF_INET6, "2001:db8::1", 443),
        (socket.AF_INET, "192.0.2.1", 443),
    ]


def test_ipv6_loopback_is_the_last_address(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [(None, None, 6, "", (host, 80)) for host in ("::1", "127.0.0.1", "192.0.2.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_arguments, **_keywords: answers)
    assert [address for *_, (address, _) in addresses_of("agent.example", 80)] == [
        "127.0.0.1",
        "192.0.2.1",
        "::1",
    ]


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST."])
def test_no_name_server_leads_localhost_to_another_machine(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [(None, None, 6, "", (each, 80)) for each in ("127.0.0.1", "192.0.2.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_arguments, **_keywords: answers)
    with pytest.raises(OSError, match="/etc/hosts"):
        addresses_of(host, 80)


async def test_name_without_an_address_is_an_os_error() -> None:
    resolver = SystemResolver()
    with pytest.raises(socket.gaierror):
        await resolver.resolve("nothing.invalid", 443)
    await resolver.close()


async def test_threads_of_a_closed_session_end() -> None:
    async with (
        serving({"/": answer(204)}) as server,
        counting_session(ByteCountingConnector(limit=1)) as session,
    ):
        await (await session.get(f"http://localhost:{server.port}/")).read()
        threads = [thread for thread in threading.enumerate() if thread.name.startswith("look-up")]
    assert threads
    for thread in threads:
        await asyncio.to_thread(thread.join, PATIENCE_SECONDS)
    assert not any(thread.is_alive() for thread in threads)
