from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.support.alerting_server import alerting
from tests.support.both_loops import on_both_loops
from tests.support.certificates import Authority
from tests.support.hostile_server import kept, serving
from tests.support.open_files import no_more_than, open_files
from tests.support.safe_asking import HERE, Asker, asking
from yarl import URL

from lifesign.domain.net.allowed_addresses import TargetUrl
from lifesign.domain.observation.results import ResultClass
from lifesign.prober.network import connection_pool
from lifesign.prober.network.connection import HttpConnection

if TYPE_CHECKING:
    from tests.support.dns_server import Names


def waiting(asker: Asker, url: str) -> HttpConnection | None:
    target = asker.fetcher.connector.guard.vet_url(URL(url))
    assert isinstance(target, TargetUrl)
    return asker.fetcher._lines.waiting_at((target.scheme, target.host, target.port, ""))


@on_both_loops
async def test_number_of_idle_connections_is_bounded_and_the_oldest_are_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection_pool, "MAX_WAITING", 3)
    names: Names = {f"h{number}.example": HERE for number in range(6)}
    async with serving({"/": kept()}, keeps_alive=True) as server, asking(names) as asker:
        urls = [f"http://{name}:{server.port}/" for name in names]
        for url in urls:
            assert (await asker.get(url)).result is ResultClass.OK
        assert [waiting(asker, url) is not None for url in urls] == [False] * 3 + [True] * 3


@on_both_loops
async def test_idle_connection_is_closed_after_its_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_pool, "WAIT_SECONDS", 0.05)
    async with asking() as asker:
        before = open_files()
        async with serving({"/": kept()}, keeps_alive=True) as server:
            assert (await asker.get(f"{server.url}/")).result is ResultClass.OK
            # Ours and theirs, and the one that they listen on.
            await no_more_than(before + 1)
            assert waiting(asker, f"{server.url}/") is None


@on_both_loops
async def test_connection_closed_by_the_peer_is_not_pooled() -> None:
    async with asking() as asker:
        before = open_files()
        async with serving({"/": kept()}, keeps_alive=True) as server:
            url = f"{server.url}/"
            assert (await asker.get(url)).result is ResultClass.OK
        await no_more_than(before)
        assert waiting(asker, url) is None


@on_both_loops
async def test_connection_that_is_used_again_and_again_has_a_maximum_age(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving({"/": kept()}, keeps_alive=True) as server, asking() as asker:
        url = f"{server.url}/"
        assert (await asker.get(url)).result is ResultClass.OK
        first = waiting(asker, url)
        assert first is not None
        asker.fetcher._lines.give_back(first)
        assert (await asker.get(url)).result is ResultClass.OK
        assert waiting(asker, url) is first
        asker.fetcher._lines.give_back(first)
        monkeypatch.setattr(connection_pool, "MAX_AGE_SECONDS", 0.0)
        assert (await asker.get(url)).result is ResultClass.OK
        assert waiting(asker, url) is None


@on_both_loops
async def test_open_connections_are_closed_at_the_end() -> None:
    names: Names = {f"h{number}.example": HERE for number in range(6)}
    async with serving({"/": kept()}, keeps_alive=True) as server:
        before = open_files()
        async with asking(names) as asker:
            for name in names:
                assert (await asker.get(f"http://{name}:{server.port}/")).result is ResultClass.OK
        await no_more_than(before)


@on_both_loops
async def test_connection_whose_peer_does_not_close_it_has_ended_after_the_pool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path)
    authority.is_trusted(monkeypatch)
    names: Names = {"slow.example": HERE}
    with alerting(authority.serving("slow.example")) as server:
        server.may_close.clear()
        async with asking(names) as asker:
            pool = asker.fetcher._lines
            url = f"https://slow.example:{server.port}/"
            assert (await asker.get(url)).status == 405
            # It was asked to close, and takes no other request.
            assert waiting(asker, url) is None
            (end,) = pool._closing.values()
            await pool.close()
            assert end.done()
        server.may_close.set()
