import asyncio
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, insert, make_url, select, text
from sqlalchemy.ext.asyncio import create_async_engine
from tests.support.databases import empty_url, postgresql_server
from tests.support.listening_users import AS_ROOT, OTHER, received, silent_server

from lifesign.loopback.listeners import IN_THIS_PROCESS, ServerUsers
from lifesign.storage.engine.database import open_database, read_url
from lifesign.storage.engine.postgresql_sessions import MAX_IDLE_SECONDS, SETTINGS, vet_servers
from lifesign.storage.engine.table_definitions import registry
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.errors import StoreUnavailable
from lifesign.storage.events.event_news import event_news


def _add_row(transaction: Transaction) -> None:
    transaction.connection.execute(
        insert(registry).values(id=1, token_floor=0, monitor="", excluded_downtime="")
    )


def _rows(transaction: Transaction) -> list[int]:
    return list(transaction.connection.scalars(select(registry.c.id)))


async def _costs_of_pages(url: str) -> list[str]:
    """Return the cost of a random page before and after a transaction that is rolled back."""
    costs: list[str] = []

    def look(transaction: Transaction) -> None:
        costs.append(str(transaction.connection.scalar(text("SHOW random_page_cost"))))
        raise LookupError("on purpose")

    database = open_database(url)
    try:
        for _ in range(2):
            with pytest.raises(LookupError):
                await database.write(look)
    finally:
        await database.close()
    return costs


async def test_default_random_page_cost_suits_flash_storage(tmp_path: Path) -> None:
    assert await _costs_of_pages(empty_url("postgresql", tmp_path)) == ["1.1", "1.1"]


async def test_page_cost_of_the_database_is_kept(tmp_path: Path) -> None:
    url = empty_url("postgresql", tmp_path)
    name = make_url(url).database
    postgresql_server().psql(f"ALTER DATABASE {name} SET random_page_cost = 2.5")
    assert await _costs_of_pages(url) == ["2.5", "2.5"]


@pytest.mark.parametrize("place", ["localhost:{port}/ah?", "/ah?host=localhost&port={port}&"])
@pytest.mark.parametrize("connects", ["transaction", "notifications"])
async def test_localhost_is_127_0_0_1_before_the_other_address(
    place: str, connects: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    came: list[str] = []

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.append(writer.get_extra_info("sockname")[0])
        await reader.readexactly(int.from_bytes(await reader.readexactly(4)) - 4)
        fields = b"SFATAL\0C28000\0Mno\0\0"
        writer.write(b"E" + (4 + len(fields)).to_bytes(4) + fields)
        writer.close()

    ours = await asyncio.start_server(refuse, "127.0.0.1", 0)
    port = ours.sockets[0].getsockname()[1]
    anothers = await asyncio.start_server(refuse, "::1", port)
    found = socket.getaddrinfo
    first = [(socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", port, 0, 0))]
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda *a, **k: first if a[0] == "localhost" else found(*a, **k)
    )
    database = open_database(f"postgresql://ah:secret@{place.format(port=port)}sslmode=disable")
    news = event_news(database)
    async with ours, anothers:
        if connects == "transaction":
            with pytest.raises(StoreUnavailable):
                await database.read(_rows)
        else:
            await news.wait()
    assert set(came) == {"127.0.0.1"}
    await news.close()
    await database.close()


@pytest.mark.parametrize(
    ("place", "hosts", "ports"),
    [
        ("localhost/ah?sslmode=verify-full", ["localhost"], [5432]),
        ("localhost/ah?sslmode=require", ["127.0.0.1", "::1", "localhost"], [5432] * 3),
        ("/ah?host=/run/pg", ["/run/pg"], [5432]),
        ("/ah?host=127.1:7&host=192.0.2.7:8", ["127.0.0.1", "127.1", "192.0.2.7"], [7, 7, 8]),
    ],
)
async def test_name_of_this_machine_is_replaced_unless_it_is_verified(
    place: str, hosts: list[str], ports: list[int]
) -> None:
    asked = await connected_to(f"postgresql://ah@{place}")
    assert (asked["host"], asked["port"]) == (hosts, ports)


async def connected_to(url: str) -> dict[str, Any]:
    """Return the arguments with which asyncpg connects to a database."""
    engine = create_async_engine(read_url(url).set(drivername="postgresql+asyncpg"))
    vet_servers(engine.sync_engine)
    asked: dict[str, Any] = {}

    @event.listens_for(engine.sync_engine, "do_connect")
    def _note(_dialect: object, _record: object, _arguments: object, parameters: dict[str, Any]) -> None:
        asked.update(parameters)
        raise ConnectionRefusedError

    with pytest.raises(ConnectionRefusedError):
        await engine.connect()
    return asked


@AS_ROOT
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "Localhost.", "0.0.0.0", "127.1"])
async def test_no_connection_is_made_to_the_server_of_another_user_than_before(
    host: str, caplog: pytest.LogCaptureFixture
) -> None:
    with silent_server(OTHER) as server:
        port = server.getsockname()[1]
        IN_THIS_PROCESS.learn({port: ServerUsers(1000, None)})
        database = open_database(f"postgresql://ah:secret@{host}:{port}/ah")
        news = event_news(database)
        with pytest.raises(StoreUnavailable, match=f"user {OTHER} listens"):
            await database.read(_rows)
        await news.wait()
        assert received(server) == []
    assert f"user {OTHER} listens" in caplog.text
    with pytest.raises(StoreUnavailable, match="nothing listens"):
        await database.read(_rows)
    await news.close()
    await database.close()


class ForgetfulFirewall:
    """A relay between a TCP port and PostgreSQL's Unix socket, which can forget its connections.

    A forgotten connection stays open, and its bytes are lost.
    """

    def __init__(self, url: str) -> None:
        self._url = make_url(url)
        self._known: set[asyncio.StreamWriter] = set()
        self._all: list[asyncio.StreamWriter] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> str:
        """Return the URL of the database behind the relay."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        url = self._url.difference_update_query(["host", "port"]).set(host="127.0.0.1", port=port)
        return url.render_as_string(hide_password=False)

    def forget(self) -> None:
        self._known.clear()

    async def stop(self) -> None:
        self._server.close()
        for writer in self._all:
            writer.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        socket = f"{self._url.query['host']}/.s.PGSQL.5432"
        server_reader, server_writer = await asyncio.open_unix_connection(socket)
        self._all += [writer, server_writer]
        self._known |= {writer, server_writer}
        for source, sink in ((reader, server_writer), (server_reader, writer)):
            task = asyncio.create_task(self._pass_on(source, sink))
            self._tasks.add(task)

    async def _pass_on(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            if sink in self._known:
                sink.write(data)
        if sink in self._known:
            sink.close()


async def test_connection_that_a_firewall_forgot_is_soon_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lifesign.storage.engine.postgresql_sessions.PING_AFTER_SECONDS", 0.0)
    monkeypatch.setattr("lifesign.storage.engine.postgresql_sessions.PING_SECONDS", 0.2)
    firewall = ForgetfulFirewall(empty_url("postgresql", tmp_path))
    database = open_database(await firewall.start())
    try:
        await database.write(_add_row)
        firewall.forget()
        async with asyncio.timeout(10):
            assert await database.read(_rows) == [1]
    finally:
        await database.close()
        await firewall.stop()


async def test_server_is_asked_for_keepalive_packets_each_minute(tmp_path: Path) -> None:
    database = open_database(empty_url("postgresql", tmp_path))
    try:
        # On a Unix socket, SHOW returns 0.
        assert await database.read(lambda transaction: transaction.connection.scalar(text(
            "SELECT reset_val FROM pg_settings WHERE name = 'tcp_keepalives_idle'"
        ))) == "60"  # fmt: skip
    finally:
        await database.close()


@pytest.mark.parametrize("idle_s", [0.0, 3600.0])
async def test_dead_idle_connection_is_replaced_without_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, idle_s: float
) -> None:
    monkeypatch.setattr("lifesign.storage.engine.postgresql_sessions.PING_AFTER_SECONDS", idle_s)
    url = empty_url("postgresql", tmp_path)
    database, other = open_database(url), open_database(url)
    try:
        await database.write(_add_row)
        await other.write(
            lambda transaction: transaction.connection.execute(
                text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                     " WHERE datname = current_database() AND pid <> pg_backend_pid()")
            ).all()
        )  # fmt: skip
        if idle_s:
            # It was used just now, so it was not checked; the one after it is new.
            with pytest.raises(StoreUnavailable):
                await database.read(_rows)
        assert await database.read(_rows) == [1]
    finally:
        await database.close()
        await other.close()


async def test_transaction_of_a_process_that_does_not_continue_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = empty_url("postgresql", tmp_path)
    monkeypatch.setitem(SETTINGS, "idle_in_transaction_session_timeout", "100ms")
    stopped, other = open_database(url), open_database(url)

    def stop(transaction: Transaction) -> None:
        _add_row(transaction)
        time.sleep(1)
        _rows(transaction)

    try:
        await stopped.read(_rows)
        # Connections that are made from now on.
        monkeypatch.undo()
        shown = await other.read(lambda transaction: transaction.connection.scalar(text(
            "SHOW idle_in_transaction_session_timeout"
        )))  # fmt: skip
        assert shown == f"{MAX_IDLE_SECONDS}s"
        with pytest.raises(StoreUnavailable):
            await stopped.write(stop)
        await other.write(_add_row)
        assert await stopped.read(_rows) == [1]
    finally:
        await stopped.close()
        await other.close()
