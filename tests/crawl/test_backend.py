"""Backends of a crawl."""

from pathlib import Path

from tests.support.registry_server import KEYS, registry_server

from lifesign.client import RegistryClient
from lifesign.crawl.backend import open_registry_backend
from lifesign.crawl.worker_config import RegistryAddress, worker_name
from lifesign.domain.access.permissions import Role
from lifesign.domain.targets.target import SHARDS


async def test_crawl_that_starts_again_releases_the_shards_of_its_killed_predecessor(tmp_path: Path) -> None:
    with registry_server(tmp_path) as server:
        key = KEYS[Role.PROBER]
        host, pid, _, number = worker_name(1, is_alone=False).rsplit("-", 3)
        killed, other = f"{host}-{pid}-0a1b2c-{number}", "other-0123ab-1-0a1b2c-1"
        async with RegistryClient(server.url, key=key) as client:
            assert len((await client.shards.claim(killed, held={})).grant.shards) == SHARDS
            assert (await client.shards.claim(other, held={})).grant.shards == []
            place = RegistryAddress(url=server.url, key=key)
            async with open_registry_backend(place):
                shown = await client.shards.show()
            assert [prober.holder.rpartition("/")[2] for prober in shown.probers] == [other]
            assert len((await client.shards.claim(other, held={})).grant.shards) == SHARDS
