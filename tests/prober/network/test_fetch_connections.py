import asyncio
from contextlib import closing
from typing import Any

import pytest
from tests.support import hostile_server as hostile
from tests.support.both_loops import on_both_loops
from tests.support.hostile_server import accepting, kept, raw, redirect, serving
from tests.support.listening_users import AS_ROOT, OTHER, received, silent_server
from tests.support.safe_asking import HERE, MAX_BYTES, SHORT, asking
from tests.support.virtual_loop import with_sockets_in_virtual_time

from lifesign.domain.observation.results import ResultClass
from lifesign.loopback.listeners import IN_THIS_PROCESS, ServerUsers
from lifesign.prober.definition.credentials import CredentialSettings
from lifesign.prober.network.host_limiter import AddressBusy, HostLimiter, Permit
from lifesign.prober.secrets.credential_store import Credential


@on_both_loops
async def test_a_connection_serves_the_next_request_to_the_same_place() -> None:
    async with serving({"/a": kept(), "/b": kept()}, keeps_alive=True) as server, asking() as asker:
        first = await asker.get(f"{server.url}/a")
        second = await asker.get(f"{server.url}/b")
        assert server.connections == 1
        assert first.phases is not None
        assert first.phases.connect_ms is not None
        assert second.phases is not None
        assert (second.phases.dns_ms, second.phases.connect_ms) == (None, None)
        assert second.phases.first_byte_ms is not None
        assert second.address == first.address
        # A connection of its own for each that is under way.
        await asyncio.gather(*(asker.get(f"{server.url}/a") for _ in range(3)))
        assert server.connections == 3


async def test_two_keys_and_requests_without_a_key_have_connections_of_their_own() -> None:
    """A proxy may choose the backend by the first request of a connection."""
    async with serving({"/a": kept(), "/b": kept()}, keeps_alive=True) as server, asking() as asker:
        for _ in range(2):
            await asker.get(f"{server.url}/a")
            await asker.get(f"{server.url}/a", own_secret="key-of-a", headers={"X-Key": "key-of-a"})
            await asker.get(f"{server.url}/b", own_secret="key-of-b", headers={"X-Key": "key-of-b"})
    assert server.connections == 3


def begun_permit(pace: HostLimiter[str], host: str, now_s: float = 0.0) -> Permit[str]:
    """Return a permit for a probe of this host, which the current task uses from now on."""
    pace.offer(host, host, now_s)
    permit = pace.take(now_s)
    assert permit is not None
    permit.begin()
    return permit


async def test_a_connection_that_waits_is_counted_at_its_address() -> None:
    pace = HostLimiter[str](concurrency=9, per_host=9, per_address=1, host_requests_per_second=1000)
    async with serving({"/": kept()}, keeps_alive=True) as server, asking() as asker:
        first = begun_permit(pace, "127.0.0.1")
        await asker.get(server.url)
        begun_permit(pace, "127.0.0.1", 1.0)
        with pytest.raises(AddressBusy):
            await asker.get(server.url)
        pace.end(first, 1, 1.0)
        assert (await asker.get(server.url)).result is ResultClass.OK
        assert (server.connections, server.paths) == (1, ["/", "/"])


@with_sockets_in_virtual_time
async def test_visits_of_another_host_wait_for_each_other_and_not_at_their_own_expense() -> None:
    pace = HostLimiter[str](concurrency=9, per_host=9, per_address=9, host_requests_per_second=0.25)
    loop = asyncio.get_running_loop()
    names = {"own.example": HERE, "visited.example": HERE}
    async with serving({"/": kept()}) as visited, asking(names, timeouts=SHORT) as asker:
        visited_url = f"http://visited.example:{visited.port}/"
        async with serving({"/": redirect(visited_url), "/own": kept()}) as server:
            own_url = f"http://own.example:{server.port}"
            begun_permit(pace, "own.example")
            began_s = loop.time()
            found = [await asker.get(visited_url), await asker.get(f"{own_url}/", may_leave_origin=True)]
            assert 4 <= loop.time() - began_s < 5
            assert [each.result for each in found] == [ResultClass.OK] * 2
            assert max(each.latency_ms for each in found) < 4000
            late = await asker.get(visited_url, seconds=2)
            assert (late.result, late.is_put_off) == (ResultClass.NOT_MEASURED, True)
            assert (await asker.get(f"{own_url}/own")).result is ResultClass.OK
            assert (visited.paths, server.paths) == (["/", "/"], ["/", "/own"])


@on_both_loops
async def test_addresses_that_failed_are_kept_with_the_connection() -> None:
    names = {"both.example": ("127.0.0.9", "127.0.0.1")}
    replies = {"/": kept(), "/cut": hostile.reset}
    async with serving(replies, keeps_alive=True) as server, asking(names) as asker:
        url = f"http://both.example:{server.port}"
        found = [await asker.get(f"{url}/") for _ in range(2)]
        assert server.connections == 1
        found.append(await asker.get(f"{url}/", needs_new_connection=True))
        assert server.connections == 2
        found.append(await asker.get(f"{url}/cut", needs_new_connection=True))
    assert [each.status for each in found] == [200, 200, 200, None]
    assert {(str(each.address), *map(str, each.tried)) for each in found} == {("127.0.0.1", "127.0.0.9")}


@on_both_loops
async def test_a_large_body_on_a_connection_that_was_used_is_no_large_header() -> None:
    body = b" " * MAX_BYTES
    async with serving({"/": kept(body)}, keeps_alive=True) as server, asking() as asker:
        for _ in range(3):
            fetched = await asker.get(f"{server.url}/")
            assert (fetched.result, len(fetched.body)) == (ResultClass.OK, len(body))
        assert server.connections == 1


@on_both_loops
async def test_idle_connection_closed_by_the_server_is_no_failure() -> None:
    connections = []

    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(reader)
        with closing(writer):
            await reader.readuntil(b"\r\n\r\n")
            await kept()(writer, "")
            await writer.drain()
            # The next request comes, and is not answered.
            await reader.readuntil(b"\r\n\r\n")

    async with accepting(once) as port, asking() as asker:
        for _ in range(4):
            assert (await asker.get(f"http://127.0.0.1:{port}/")).result is ResultClass.OK
    assert len(connections) == 4


@on_both_loops
async def test_a_message_is_never_sent_twice_nor_on_a_connection_that_may_break() -> None:
    async with serving({"/": kept(), "/cut": hostile.reset}, keeps_alive=True) as server, asking() as asker:
        await asker.get(f"{server.url}/")
        assert (await asker.post(f"{server.url}/")).result is ResultClass.OK
        assert server.connections == 2
        await asker.get(f"{server.url}/")
        assert (await asker.post(f"{server.url}/cut")).result is ResultClass.HTTP_ERROR
        assert [head.split()[0] for head in server.heads].count("POST") == 2


@on_both_loops
async def test_closed_connection_is_not_retried() -> None:
    async with serving({"/": raw(b"")}) as server, asking() as asker:
        assert (await asker.get(f"{server.url}/")).result is ResultClass.HTTP_ERROR
    assert len(server.heads) == 1


@on_both_loops
async def test_concurrent_requests_get_their_own_answers() -> None:
    names = {f"n{number}.example": HERE for number in range(40)}
    replies = {f"/{name}": kept(f'"{name}"'.encode()) for name in names}
    async with serving(replies, keeps_alive=True) as server, asking(names) as asker:

        async def ask(name: str) -> None:
            for _ in range(3):
                fetched = await asker.get(f"http://{name}:{server.port}/{name}")
                assert fetched.body == f'"{name}"'.encode(), fetched

        await asyncio.gather(*(ask(name) for name in names for _ in range(3)))


async def test_disconnect_during_a_response_leaves_no_socket_open() -> None:
    came = asyncio.Barrier(11)

    async def hold(_writer: asyncio.StreamWriter, _head: str) -> None:
        await came.wait()
        await asyncio.Event().wait()

    async with serving({"/": hold}) as server, asking() as asker:
        leaving = [asyncio.create_task(asker.get(f"{server.url}/")) for _ in range(10)]
        await came.wait()
        for task in leaving:
            task.cancel()
        await asyncio.gather(*leaving, return_exceptions=True)
        assert not asker.fetcher._lines._lines


def bearer(port: int) -> Credential:
    given = {"name": "here", "origin": f"http://127.0.0.1:{port}", "bearer": {"env": "X"}}
    return Credential(CredentialSettings.model_validate(given), "canary-secret")


@AS_ROOT
@pytest.mark.parametrize("kind", ["credential", "own_secret", "has_secret"])
async def test_secret_is_not_sent_to_the_server_of_another_user_than_before(kind: str) -> None:
    with silent_server(OTHER) as server:
        port = server.getsockname()[1]
        url = f"http://127.0.0.1:{port}/"
        IN_THIS_PROCESS.learn({port: ServerUsers(1000, None)})
        secret: dict[str, dict[str, Any]] = {
            "credential": {"credential": bearer(port)},
            "own_secret": {"own_secret": "k", "headers": {"X-Key": "k"}},
            "has_secret": {"has_secret": True},
        }
        async with asking() as asker:
            fetched = await asker.get(url, **secret[kind])
            assert (fetched.result, fetched.is_reached) == (ResultClass.NOT_MEASURED, False)
            assert f"user {OTHER} listens" in fetched.reason
            assert await asyncio.to_thread(received, server) == [b""]
            assert (await asker.get(url, seconds=0.2)).result is ResultClass.TIMEOUT
        assert [first[:5] for first in await asyncio.to_thread(received, server)] == [b"GET /"]


async def test_requests_with_and_without_a_secret_share_a_connection_whose_server_was_checked() -> None:
    async with serving({"/": kept()}, keeps_alive=True) as server, asking() as asker:
        await asker.get(f"{server.url}/")
        for _ in range(2):
            fetched = await asker.get(f"{server.url}/", credential=bearer(server.port))
            assert (fetched.result, fetched.credential) == (ResultClass.OK, "here")
        await asker.get(f"{server.url}/")
        assert server.connections == 1
