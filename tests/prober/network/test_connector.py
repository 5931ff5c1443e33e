import asyncio
import errno
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from typing import Any

import pytest
from tests.support.both_loops import on_both_loops
from tests.support.certificates import LONG_AGO, Authority
from tests.support.dns_server import Names
from tests.support.hostile_server import accepting, answer, serving
from tests.support.open_files import no_descriptor_left
from tests.support.safe_asking import HERE, PATIENT, asking
from tests.support.servers import free_port
from yarl import URL

from lifesign.domain.net.allowed_addresses import Address, TargetUrl
from lifesign.domain.observation.results import ResultClass
from lifesign.prober.network import connector as connector_file
from lifesign.prober.network import source_address
from lifesign.prober.network.connection import HttpConnection
from lifesign.prober.network.connector import Unreached, VettedConnector
from lifesign.prober.network.host_limiter import AddressBusy


@asynccontextmanager
async def connecting(names: Names | None = None, **more: Any) -> AsyncIterator[VettedConnector]:
    async with asking(names, **more) as asker:
        yield asker.fetcher.connector


def target(url: str, connector: VettedConnector) -> TargetUrl:
    vetted = connector.guard.vet_url(URL(url))
    assert isinstance(vetted, TargetUrl), vetted
    return vetted


async def opened(connector: VettedConnector, url: str, seconds: float = 10) -> HttpConnection:
    line = await connector.open(target(url, connector), asyncio.get_running_loop().time() + seconds)
    assert isinstance(line, HttpConnection), line
    return line


async def unreached(connector: VettedConnector, url: str, seconds: float = 10) -> Unreached:
    why = await connector.open(target(url, connector), asyncio.get_running_loop().time() + seconds)
    assert isinstance(why, Unreached), why
    assert why.reason.isascii()
    return why


# ── resolved addresses ──


@on_both_loops
async def test_connection_reaches_the_address_and_reports_its_phases() -> None:
    async with serving({}) as server, connecting({"here.example": HERE}) as connector:
        line = await opened(connector, f"http://here.example:{server.port}/")
        assert line.address == ip_address("127.0.0.1")
        assert line.dns_ms is not None
        assert line.connect_ms is not None
        assert line.tls_ms is None
        assert line.transport is not None
        assert line.transport.get_extra_info("peername") == ("127.0.0.1", server.port)
        line.abort()
        # Known by now, so that it took no time.
        again = await opened(connector, f"http://here.example:{server.port}/")
        assert again.dns_ms is None
        again.abort()


@on_both_loops
async def test_connector_resolves_names_only_with_its_resolver(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object, **_keywords: object) -> None:
        raise AssertionError("the system was asked")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    async with serving({}) as server, connecting({"here.example": HERE}) as connector:
        (await opened(connector, f"http://here.example:{server.port}/")).abort()


@on_both_loops
async def test_second_request_reaches_an_address_that_the_first_did_not_try() -> None:
    names: Names = {"four.example": ("127.0.0.9", "127.0.0.8", "127.0.0.7", "127.0.0.1")}
    async with serving({}) as server, connecting(names) as connector:
        url = f"http://four.example:{server.port}/"
        why = await unreached(connector, url)
        assert len(why.tried) == 3
        for _ in range(2):
            line = await opened(connector, url)
            assert (line.address, line.tried) == (ip_address("127.0.0.1"), ())
            line.abort()


@on_both_loops
async def test_next_address_is_tried_after_a_refused_connection() -> None:
    names: Names = {"several.example": ("127.0.0.9", "127.0.0.8", "127.0.0.1")}
    async with serving({}) as server, connecting(names) as connector:
        line = await opened(connector, f"http://several.example:{server.port}/")
        assert line.address == ip_address("127.0.0.1")
        assert set(line.tried) == {ip_address("127.0.0.9"), ip_address("127.0.0.8")}
        line.abort()


@on_both_loops
async def test_address_that_failed_before_a_handshake_is_kept() -> None:
    names: Names = {"both.example": ("127.0.0.9", "127.0.0.1")}

    async def hang_up(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read(1)

    async with accepting(hang_up) as port, connecting(names) as connector:
        why = await unreached(connector, f"https://both.example:{port}/")
        assert why.result is ResultClass.TLS_FAILURE
        assert (why.address, why.tried) == (ip_address("127.0.0.1"), (ip_address("127.0.0.9"),))


async def test_a_silent_address_leaves_time_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    connect = asyncio.get_running_loop().create_connection

    async def silent(factory: Any, host: str, port: int) -> Any:
        if host != "127.0.0.1":
            await asyncio.Event().wait()
        return await connect(factory, host, port)

    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", silent)
    names: Names = {"slow.example": ("127.0.0.9", "127.0.0.1"), "silent.example": ("127.0.0.9",)}
    # Each address gets one half of the time.
    patient = PATIENT.model_copy(update={"connect_seconds": 2.0})
    async with serving({}) as server, connecting(names, timeouts=patient) as connector:
        line = await opened(connector, f"http://slow.example:{server.port}/")
        assert line.address == ip_address("127.0.0.1")
        line.abort()
        why = await unreached(connector, f"http://silent.example:{server.port}/")
        assert why.result is ResultClass.TIMEOUT
        assert why.phases is not None
        assert why.phases.connect_ms is not None


async def test_family_without_a_route_takes_no_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    async def connect(_factory: Any, host: str, _port: int) -> Any:
        tried.append(host)
        if ":" in host:
            raise OSError(errno.ENETUNREACH, "Network is unreachable")
        await asyncio.Event().wait()

    def source(address: Address) -> Address | None:
        return None if address.version == 6 else ip_address("127.0.0.1")

    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", connect)
    monkeypatch.setattr(source_address, "source_towards", source)
    patient = PATIENT.model_copy(update={"connect_seconds": 0.4})
    async with connecting({"both.example": ("::1", "127.0.0.1")}, timeouts=patient) as connector:
        began_s = asyncio.get_running_loop().time()
        why = await unreached(connector, "http://both.example/")
        assert asyncio.get_running_loop().time() - began_s > 0.35
    assert tried == ["127.0.0.1", "::1"]
    assert (why.result, why.address) == (ResultClass.TIMEOUT, ip_address("127.0.0.1"))


async def test_address_is_admitted_before_connecting(monkeypatch: pytest.MonkeyPatch) -> None:
    admitted = []

    def admit(address: object) -> None:
        admitted.append(str(address))
        if str(address) == "127.0.0.8":
            raise AddressBusy(str(address))

    monkeypatch.setattr(connector_file, "admit", admit)
    names: Names = {"busy.example": ("127.0.0.8",), "second.example": ("127.0.0.9", "127.0.0.8")}
    async with serving({"/": answer(200)}) as server, asking(names) as asker:
        await asker.get(f"{server.url}/")
        for name in names:
            # The limiter of the probes decides this.
            with pytest.raises(AddressBusy):
                await asker.get(f"http://{name}:{server.port}/")
    assert admitted == ["127.0.0.1", "127.0.0.8", "127.0.0.9", "127.0.0.8"]


# ── connection errors ──


@on_both_loops
async def test_closed_port_is_classified_as_refused() -> None:
    async with connecting() as connector:
        why = await unreached(connector, f"http://127.0.0.1:{free_port()}/")
    assert why.result is ResultClass.REFUSED
    assert "Connection refused" in why.reason
    assert why.address == ip_address("127.0.0.1")
    assert not why.is_local_fault
    assert why.tried == (ip_address("127.0.0.1"),)


@pytest.mark.parametrize(
    ("code", "result", "is_local"),
    [
        (errno.ECONNREFUSED, ResultClass.REFUSED, False),
        (errno.ECONNRESET, ResultClass.REFUSED, False),
        (errno.ETIMEDOUT, ResultClass.TIMEOUT, False),
        (errno.ENETUNREACH, ResultClass.REFUSED, True),
        (errno.EHOSTUNREACH, ResultClass.REFUSED, True),
        (errno.ENETDOWN, ResultClass.REFUSED, True),
        (errno.EADDRNOTAVAIL, ResultClass.INTERNAL, True),
        (errno.EPERM, ResultClass.INTERNAL, True),
        (errno.ENOBUFS, ResultClass.INTERNAL, True),
    ],
)
async def test_local_obstacles_are_distinguished(
    code: int, result: ResultClass, *, is_local: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_arguments: object) -> None:
        raise OSError(code, "as the kernel says")

    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", fail)
    async with connecting() as connector:
        why = await unreached(connector, "http://127.0.0.1:8000/")
        assert why.result is result
        assert why.is_local_fault is is_local


async def test_error_of_the_agent_outranks_a_local_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def fail(_factory: object, host: str, _port: int) -> None:
        raise OSError(errno.ECONNREFUSED if host == "127.0.0.9" else errno.ENETUNREACH, "failed")

    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", fail)
    names: Names = {"first.example": ("127.0.0.9", "127.0.0.8"), "last.example": ("127.0.0.8", "127.0.0.9")}
    async with connecting(names) as connector:
        for name in names:
            why = await unreached(connector, f"http://{name}:8000/")
            assert why.result is ResultClass.REFUSED
            assert why.address == ip_address("127.0.0.9")
            assert set(why.tried) == {ip_address("127.0.0.8"), ip_address("127.0.0.9")}


@on_both_loops
async def test_missing_file_descriptors_are_a_local_fault() -> None:
    async with serving({}) as server, connecting({"here.example": HERE}) as connector:
        url = f"http://here.example:{server.port}/"
        (await opened(connector, url)).abort()
        await asyncio.sleep(0.05)
        with no_descriptor_left():
            why = await unreached(connector, url)
            unknown = await unreached(connector, "http://unknown.example/")
        assert why.result is ResultClass.INTERNAL
        assert why.is_local_fault
        assert unknown.result is ResultClass.INTERNAL
        (await opened(connector, url)).abort()


@on_both_loops
async def test_near_deadline_is_respected() -> None:
    async def never(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    async with accepting(never) as port, connecting({"here.example": HERE}) as connector:
        why = await unreached(connector, f"https://127.0.0.1:{port}/", seconds=0.1)
        assert why.result is ResultClass.TIMEOUT
        assert "TLS" in why.reason
        why = await unreached(connector, f"http://here.example:{port}/", seconds=-1)
        assert (why.result, why.is_given_up) == (ResultClass.NOT_MEASURED, True)


# ── TLS ──


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@on_both_loops
async def test_server_name_is_sent_for_names_and_not_for_addresses(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority.is_trusted(monkeypatch)
    found: list[str | None] = []
    context = authority.serving("agent.example", "127.0.0.1")
    context.sni_callback = lambda _socket, name, _context: found.append(name)
    async with serving({}, context) as server, connecting({"agent.example": HERE}) as connector:
        for host in ("agent.example", "AGENT.example.", "127.0.0.1"):
            line = await opened(connector, f"https://{host}:{server.port}/")
            assert line.tls_ms is not None
            assert line.certificate_expires_at is not None
            assert line.transport is not None
            assert line.transport.get_extra_info("ssl_object") is not None
            line.abort()
    assert found == ["agent.example", "agent.example", None]


@on_both_loops
async def test_expired_certificate_is_read_by_a_second_handshake_without_a_request(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority.is_trusted(monkeypatch)
    end = LONG_AGO.replace(year=2021)
    context = authority.serving("agent.example", begins_at=LONG_AGO, ends_at=end)
    async with serving({}, context) as server, connecting({"agent.example": HERE}) as connector:
        why = await unreached(connector, f"https://agent.example:{server.port}/")
        assert (why.result, why.certificate_expires_at) == (ResultClass.TLS_FAILURE, end)
        assert why.is_date_fault
        assert why.phases is not None
        assert why.phases.tls_ms is not None
        await asyncio.sleep(0.02)
        assert server.heads == []


@on_both_loops
async def test_unexpired_certificate_has_no_expiry_fault(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority.is_trusted(monkeypatch)
    expired = authority.serving("agent.example", begins_at=LONG_AGO, ends_at=LONG_AGO.replace(year=2021))
    good = authority.serving("agent.example")
    shown = iter([expired, good])

    def choose(socket: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        socket.context = next(shown)

    # As with an expired certificate above a good one: the second attempt finds a good one.
    expired.sni_callback = choose
    async with serving({}, expired) as server, connecting({"agent.example": HERE}) as connector:
        why = await unreached(connector, f"https://agent.example:{server.port}/")
        assert why.result is ResultClass.TLS_FAILURE
        assert why.certificate_expires_at is None
        assert "expired" in why.reason


@on_both_loops
async def test_certificate_error_is_a_date_fault_only_for_wrong_dates(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority.is_trusted(monkeypatch)
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    early = authority.serving("agent.example", begins_at=tomorrow, ends_at=tomorrow + timedelta(days=1))
    other = authority.serving("other.example")
    for context, is_date_fault in ((early, True), (other, False)):
        async with serving({}, context) as server, connecting({"agent.example": HERE}) as connector:
            why = await unreached(connector, f"https://agent.example:{server.port}/")
            assert (why.result, why.is_date_fault) == (ResultClass.TLS_FAILURE, is_date_fault)


@on_both_loops
async def test_other_certificate_errors_outrank_expiry(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority.is_trusted(monkeypatch)
    context = authority.serving("other.example", begins_at=LONG_AGO, ends_at=LONG_AGO.replace(year=2021))
    async with serving({}, context) as server, connecting({"agent.example": HERE}) as connector:
        why = await unreached(connector, f"https://agent.example:{server.port}/")
        assert why.result is ResultClass.TLS_FAILURE
        # Checked without its age it is still another's: its date is not believed.
        assert why.certificate_expires_at is None


@on_both_loops
async def test_old_versions_of_tls_are_refused(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    authority.is_trusted(monkeypatch)
    context = authority.serving("agent.example")
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.warns(DeprecationWarning, match="TLSv1"):
        context.minimum_version = ssl.TLSVersion.TLSv1
    context.set_ciphers("ALL:@SECLEVEL=0")
    async with serving({}, context) as server, connecting({"agent.example": HERE}) as connector:
        why = await unreached(connector, f"https://agent.example:{server.port}/")
        assert why.result is ResultClass.TLS_FAILURE
